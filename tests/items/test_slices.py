"""What looks along a slice, against models that go step by step: nothing crosses an episode's end."""

import dataclasses
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import functional_rb as frb
from tests.items.item_functions import after, close, on_numpy

items = frb.items
ITEM = {
    "reward": frb.Unbounded((2,)),
    "frame": frb.Bounded(1, 200, (1, 3, 3), "uint8"),
    "v": frb.Unbounded(()),
    "done": frb.Binary((1,)),
    "episode": frb.Unbounded((), "int32"),
}
STEPS = st.integers(1, 9)


def slices(ends: list[list[bool]], seed: int = 0) -> tuple[dict[str, np.ndarray], tuple[int, int]]:
    """Slices whose steps end episodes, with numbers of these."""
    rng, done = np.random.default_rng(seed), np.array(ends)
    lead = done.shape[0], done.shape[1]
    made = {
        "reward": rng.normal(size=(*lead, 2)).astype(np.float32),
        "frame": rng.integers(1, 200, (*lead, 1, 3, 3)).astype(np.uint8),
        "v": rng.normal(size=lead).astype(np.float32),
        "done": done[..., None],
        "episode": np.cumsum(np.pad(done, ((0, 0), (1, 0)))[:, :-1], 1).astype(np.int32),
    }
    return made, lead


@st.composite
def any_slices(draw: Any) -> list[list[bool]]:
    """Where episodes end."""
    steps = draw(STEPS)
    return draw(st.lists(st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=1, max_size=3))


@hypothesis.settings(max_examples=40)
@hypothesis.given(any_slices(), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.booleans(), st.integers(0, 9))
def test_sums_of_rewards_stop_where_episodes_do(ends: Any, gamma: float, by_id: bool, real: int) -> None:
    given, lead = slices(ends)
    mask = np.arange(lead[1])[None, :].repeat(lead[0], 0) < real if real else None
    found: dict[str, Any] = {"end_keys": (), "trajectory_key": "episode"} if by_id else {}
    made = on_numpy(items.reward_to_go(gamma, **found), ITEM, given, lead, mask=mask)
    expected = np.zeros((*lead, 2))
    for row in range(lead[0]):
        total = np.zeros(2)
        for t in reversed(range(lead[1])):
            total = np.zeros(2) if ends[row][t] else total
            here = given["reward"][row, t] if mask is None or mask[row, t] else 0.0
            total = expected[row, t] = here + gamma * total
    close(made["reward_to_go"], expected.astype(np.float32))
    assert made["reward"] is given["reward"]
    over = on_numpy(items.reward_to_go(gamma, ["reward", "v"], None, **found), ITEM, given, lead, mask=mask)
    close(over["reward"], made["reward_to_go"])
    usual = on_numpy(items.reward_to_go(gamma, out=None, **found), ITEM, given, lead, mask=mask)
    close(usual["reward"], made["reward_to_go"])
    assert usual["v"] is given["v"]
    assert over["v"].shape == lead


@hypothesis.settings(max_examples=40)
@hypothesis.given(any_slices(), st.integers(1, 4), st.sampled_from(["repeat", "zeros"]))
def test_stacks_reach_back_within_an_episode(ends: Any, n: int, padding: Any) -> None:
    given, lead = slices(ends)
    function = items.frame_stack(n, ["frame", "v"], padding=padding)
    made = on_numpy(function, ITEM, given, lead)
    for row in range(lead[0]):
        for t in range(lead[1]):
            first = max([s + 1 for s in range(t) if ends[row][s]], default=0)
            for k in range(n):
                wanted = t - (n - 1 - k)
                zero = padding == "zeros" and wanted < first
                frame = 0 * given["frame"][row, t] if zero else given["frame"][row, max(wanted, first)]
                np.testing.assert_array_equal(made["frame"][row, t, k], frame[0])
                assert made["v"][row, t, k] == (0 if zero else given["v"][row, max(wanted, first)])
    stacked = after(function, ITEM, 2)
    assert stacked.frame == frb.Bounded(0 if padding == "zeros" and n >= 1 else 1, 200, (n, 3, 3), "uint8")
    back = function.inverse(ITEM)
    again = on_numpy(back, stacked, made, lead)
    assert all((again[name] == given[name]).all() for name in ITEM)
    assert after(back, stacked) == frb.Composite(ITEM)


@hypothesis.settings(max_examples=20)
@hypothesis.given(any_slices(), st.integers(0, 10), st.integers(0, 9))
def test_burn_in_marks_the_first_steps_of_the_first_episode(ends: Any, n: int, real: int) -> None:
    given, lead = slices(ends)
    mask = np.arange(lead[1])[None, :].repeat(lead[0], 0) < real if real else None
    made = on_numpy(items.burn_in(n), ITEM, given, lead, mask=mask)["burn_in"]
    expected = [
        [t < n and not any(ends[row][:t]) and (mask is None or mask[row, t]) for t in range(lead[1])]
        for row in range(lead[0])
    ]
    np.testing.assert_array_equal(made, expected)


def test_leaves_that_are_new_are_left_out_by_the_inverse() -> None:
    for function in (items.burn_in(3), items.reward_to_go(out="a/b")):
        inverse = function.inverse(ITEM)
        assert after(inverse, after(function, ITEM, 2), 1) == frb.Composite(ITEM)
    both = items.compose(items.frame_stack(2, "frame"), items.to_image("frame"), items.burn_in(1))
    assert after(both.inverse(ITEM), after(both, ITEM, 2), 1) == frb.Composite(ITEM)
    with pytest.raises(TypeError, match=r"has no inverse"):
        items.reward_to_go(0.9, "v", None).inverse(ITEM)


def test_a_buffer_gives_what_the_functions_give_of_its_slices() -> None:
    import torch_backend as rb

    given, _ = slices([[k in (1, 5, 6) for k in range(12)]])
    functions = items.compose(items.reward_to_go(0.5), items.frame_stack(2, "frame"), items.burn_in(1))
    plain = frb.BufferSpec(ITEM, 20, frb.Slices(length=3, strict_length=False))
    batch = {name: leaf[0] for name, leaf in given.items()}
    bare, mapped = (
        rb.sample(rb.add(rb.init(spec), batch), rb.key(3), 8)[1]
        for spec in (plain, dataclasses.replace(plain, transforms=frb.map_items(functions)))
    )
    real = bare.mask.numpy()
    assert not real.all(), "some slices are shorter"
    raw = {name: leaf.numpy() for name, leaf in bare.items.items()}
    expected = on_numpy(functions, ITEM, raw, real.shape, mask=real)
    assert mapped.items.keys() == expected.keys()
    for name, leaf in expected.items():
        close(mapped.items[name].numpy(), leaf, name)


ERRORS: dict[str, tuple[Any, Any, str]] = {
    "single items": (items.burn_in(2), 1, r"burn_in: needs slices \[B, T\].*frb.Slices"),
    "stack of single items": (items.frame_stack(2, "v"), 1, r"frame_stack: needs slices"),
    "no reward": (items.reward_to_go(keys="r"), 2, r"reward_to_go: the item has no leaf 'r'"),
    "taken": (items.reward_to_go(out="v"), 2, r"reward_to_go: there is a leaf 'v' already"),
    "taken too": (items.burn_in(2, "v"), 2, r"burn_in: there is a leaf 'v' already"),
    "dtype": (items.reward_to_go(0.9, "frame", None), 2, r"reward_to_go: leaf 'frame': expected a dtype of float"),
    "end": (items.burn_in(2, end_keys="v"), 2, r"burn_in: leaf 'v': expected one bool an item, got float32"),
    "trajectory": (items.burn_in(2, trajectory_key="v"), 2, r"burn_in: leaf 'v': expected one int an item"),
    "axis": (items.frame_stack(2, "v", axis=1), 2, r"frame_stack: leaf 'v': expected an axis 1, got shape \(\)"),
    "none": (items.burn_in(2, end_keys="no"), 2, r"burn_in: the item has no leaf 'no'"),
}


@pytest.mark.parametrize(("function", "lead", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_name_the_leaf(function: Any, lead: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        after(function, ITEM, lead)


def test_values_out_of_range_are_refused() -> None:
    for make in (
        lambda: items.burn_in(-1),
        lambda: items.frame_stack(0, "v"),
        lambda: items.frame_stack(2, None),  # type: ignore[arg-type]  # refused
        lambda: items.frame_stack(2, "v", padding="edge"),  # type: ignore[arg-type]  # refused
        lambda: items.reward_to_go(1.5),
        lambda: items.reward_to_go(0.9, ["reward", "v"]),
    ):
        with pytest.raises(ValueError, match=r"expected"):
            make()
    without = {"reward": frb.Unbounded(())}
    with pytest.raises(ValueError, match=r"reward_to_go: the item has no leaf 'done'.*end_keys"):
        after(items.reward_to_go(), without, 2)
    assert "reward_to_go" in after(items.reward_to_go(end_keys=()), without, 2)
    made = on_numpy(items.reward_to_go(end_keys=()), without, {"reward": np.ones((1, 5), np.float32)}, (1, 5))
    assert made["reward_to_go"].tolist() == [[5, 4, 3, 2, 1]]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_nothing_of_the_next_episode_counts(bad: float) -> None:
    item, ends = {"reward": frb.Unbounded(()), "done": frb.Binary()}, [[False, True, False, False]]
    given = {"reward": np.float32([[1, 2, bad, 4]]), "done": np.array(ends)}
    made = on_numpy(items.reward_to_go(0.5), item, given, (1, 4))["reward_to_go"]
    assert made[0, :2].tolist() == [2, 2]
