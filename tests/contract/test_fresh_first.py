"""Slices that come once while they are new, before others: `frb.Slices(fresh_first=True)`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend
from tests.support.effort import effort

ITEM = {"number": frb.Unbounded((), "int32"), "done": frb.Binary(())}
FRESH = frb.Slices(3, fresh_first=True)


def steps(first: int, *lengths: int) -> dict[str, Any]:
    """Episodes of these lengths, numbered from the first on; the last one goes on."""
    ends = np.cumsum(lengths)[:-1] - 1
    number = np.arange(first, first + sum(lengths), dtype=np.int32)
    return {"number": number, "done": np.isin(number - first, ends)}


def filled(library: Backend, sampler: frb.Slices = FRESH, capacity: int = 16, **settings: Any) -> Any:
    """Episodes of 5 steps and of 7: the pieces 0, 5, 8."""
    state = library.init(frb.BufferSpec(ITEM, capacity, sampler, **settings))
    return library.add(state, {name: library.array(leaf) for name, leaf in steps(0, 5, 7).items()})


def firsts(library: Backend, sample: Any) -> list[int]:
    """The first steps of the fresh slices; all of them are of those that are next in their episode."""
    numbers, chances = library.numpy(sample.items["number"]).reshape(-1, 3), library.numpy(sample.probabilities)
    count = int((chances == 1).sum())
    assert (chances[:count] == 1).all()
    assert (np.diff(numbers, axis=1) == 1).all()
    return numbers[:count, 0].tolist()


def drawn(library: Backend, state: Any, n: int = 2, key: int = 0) -> tuple[Any, list[int]]:
    state, sample = library.sample(state, library.rb.key(key), n)
    return state, firsts(library, sample)


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("flat", [False, True])
def test_the_rest_is_what_is_drawn_otherwise(backend: Backend, flat: bool) -> None:
    """Row for row, by the same key; so its law is the same."""
    settings: dict[str, Any] = {"flat": flat, "strict_length": False}
    fresh = filled(backend, frb.Slices(3, fresh_first=True, **settings))
    usual = filled(backend, frb.Slices(3, **settings))
    for key, count in ((0, 3), (1, 0)):
        fresh, ours = backend.sample(fresh, backend.rb.key(key), 5)
        usual, theirs = backend.sample(usual, backend.rb.key(key), 5)
        assert firsts(backend, ours) == [0, 5, 8][:count]
        for name in ("indices", "mask", "is_first", "is_last", "truncated", "slice_start", "probabilities", "weights"):
            one, other = (backend.numpy(getattr(sample, name)).reshape(5, -1) for sample in (ours, theirs))
            np.testing.assert_array_equal(one[count:], other[count:])
            if name in ("is_first", "is_last", "truncated"):
                expected = {
                    "is_first": [[1, 0, 0], [1, 0, 0], [0, 0, 0]],
                    "is_last": [[0, 0, 0]] * 3,
                    "truncated": [[0, 0, 1]] * 3,
                }
                assert one[:count].astype(int).tolist() == expected[name][:count]


def test_what_is_left_waits_and_older_states_know_less(library: Backend) -> None:
    state = filled(library)
    handles = library.array(np.arange(12, dtype=np.int32))
    assert library.numpy(library.rb.probabilities(state, handles)).tolist() == [1] + [0] * 11
    after, first = drawn(library, state)
    last, second = drawn(library, after)
    assert (first, second) == ([0, 5], [8])
    assert drawn(library, state)[1] == [0, 5]
    assert drawn(library, after)[1] == [8]
    np.testing.assert_allclose(library.numpy(library.rb.probabilities(last, handles)).sum(), 1, rtol=1e-6)
    more = library.add(last, {name: library.array(leaf) for name, leaf in steps(12, 3).items()})
    assert drawn(library, more)[1] == [11]


def test_what_is_overwritten_before_its_turn_is_dropped() -> None:
    import torch_backend as rb

    state = rb.init(frb.BufferSpec(ITEM, 10, FRESH))
    state = rb.add(state, steps(0, 5, 7))  # of 12 steps the first two are gone, and with them a piece
    state, sample = rb.sample(state, rb.key(0), 4)
    assert sample.items["number"][:2].tolist() == [[5, 6, 7], [8, 9, 10]]
    assert sample.probabilities.tolist() == [1, 1, 0.5, 0.5]
    state = rb.add(state, steps(12, 30))  # larger than the ring; the episode began with number 5
    state, sample = rb.sample(state, rb.key(0), 4)
    assert sample.items["number"][:, 0].tolist()[:3] == [32, 35, 38]


def test_lanes_that_are_not_in_step_give_what_has_waited_longest() -> None:
    import torch_backend as rb

    state = rb.init(frb.BufferSpec(ITEM, 32, FRESH, lanes=2))
    one, other = steps(0, 8), steps(100, 8)
    both = {name: np.stack([one[name], other[name]], 1) for name in one}
    mask = np.ones((8, 2), bool)
    mask[4:, 0] = False  # the first lane stops after 4 steps
    state = rb.add(state, both, mask=mask)
    seen = []
    for _ in range(3):
        state, sample = rb.sample(state, rb.key(0), 1)
        seen += sample.items["number"][:, 0].tolist()
        assert sample.probabilities.tolist() == [1]
    assert seen == [100, 103, 0]  # complete 5, 2 and 1 steps of their lanes ago


def test_other_specs_and_clearing_keep_what_was_given() -> None:
    import torch_backend as rb

    library = Backend("torch", rb, rb.from_dlpack, np.asarray)
    state, _ = drawn(library, filled(library))

    def under(given: Any, **changes: Any) -> Any:
        return rb.with_spec(given, dataclasses.replace(given.spec, **changes))

    assert drawn(library, under(state, capacity=40))[1] == [8]
    assert drawn(library, under(state, capacity=4), 1)[1] == [8]
    assert drawn(library, under(state, batch_size=5))[1] == [8]
    # Of pieces of two steps 0, 2, 5 and 7 were complete before number 7, and 9 and 11 are not.
    pairs = under(state, sampler=frb.Slices(2, fresh_first=True))
    _, sample = rb.sample(pairs, rb.key(0), 3)
    assert sample.items["number"][:2, 0].tolist() == [7, 9]
    forgotten = under(under(state, sampler=frb.Uniform()), sampler=FRESH)
    assert drawn(library, forgotten, 3)[1] == [0, 5, 8]
    cleared = rb.add(rb.clear(state), steps(50, 4))
    assert drawn(library, cleared, 1)[1] == [50]


def test_a_compiled_program_may_be_the_first_that_draws() -> None:
    import torch

    import torch_backend as rb

    library = Backend("torch", rb, rb.from_dlpack, np.asarray)
    # By then nothing has been drawn with this sampler.
    state = rb.own_(filled(library, frb.Slices(3, fresh_first=True, flat=True)))
    sample_ = torch.compile(rb.sample_, fullgraph=True, backend=effort("eager", "aot_eager"))
    seen = []
    for key in range(2):
        state, sample = sample_(state, rb.key(key), 2)
        seen += firsts(library, sample)
    assert seen == [0, 5, 8]


def test_a_checkpoint_knows_what_was_given(library: Backend, tmp_path: Path) -> None:
    state, _ = drawn(library, filled(library))
    frb.save(state, tmp_path / "saved")
    assert drawn(library, frb.load(tmp_path / "saved", library.rb))[1] == [8]


def test_numbers_that_do_not_go_on_are_told_of() -> None:
    import torch_backend as rb

    library = Backend("torch", rb, rb.from_dlpack, np.asarray)
    given = rb.state_dict(filled(library))
    rb.load_state_dict(filled(library).spec, given)
    name = next(name for name in given if name.endswith("windows"))
    given[name] = given[name].clone()
    given[name][3] += 1
    with pytest.raises(ValueError, match="windows of slot 2: expected"):
        rb.load_state_dict(filled(library).spec, given)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"period": 2}, "fresh_first cuts trajectories at every 3 steps, .* give a period that divides the length"),
        ({"fresh_first": 1}, "expected fresh_first as a bool, got 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        frb.Slices(**{"length": 3, "fresh_first": True} | settings)


def test_buffers_of_a_mixture_give_no_more_than_count() -> None:
    import torch_backend as rb

    library = Backend("torch", rb, rb.from_dlpack, np.asarray)
    states = [filled(library), filled(library)]
    mixture, seen = frb.Mixture(states, p=[0.5, 0.5]), list[tuple[int, int]]()
    for key in range(4):
        mixture, sample = rb.sample(mixture, rb.key(key), 4)
        fresh = sample.items["number"][:, 0][np.asarray(sample.extras["buffer_ids"]).reshape(4, -1)[:, 0] >= 0]
        ids = np.asarray(sample.extras["buffer_ids"]).reshape(4, -1)[:, 0].tolist()
        seen += list(zip(ids, fresh.tolist(), strict=True))
    for k in range(2):
        own = [number for buffer, number in seen if buffer == k]
        assert own[:3] == [0, 5, 8]
