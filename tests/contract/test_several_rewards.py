"""Several leaves of rewards, and dicts of agents: each is added up, or computed anew, by itself."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend

N, GAMMA, STEPS = 3, 0.5, 12
GOAL, SCALAR, PAIR = frb.Unbounded((2,)), frb.Unbounded(()), frb.Unbounded((2,))
ITEM: dict[str, Any] = {
    "obs": {"desired_goal": GOAL, "place": SCALAR},
    "reward": {"left": SCALAR, "right": {"own": PAIR}},
    "cost": SCALAR,
    "next_obs": {"achieved_goal": GOAL, "place": SCALAR},
    "done": frb.Binary(),
}
KEYS: list[Any] = ["reward", ("cost",)]
NAMES = ("reward/left", "reward/right/own", "cost")
DONE = np.arange(STEPS) % 5 == 4


def rows() -> dict[str, Any]:
    number = np.arange(STEPS, dtype=np.float32)
    both = np.stack([number, number], 1)
    return {
        "obs": {"desired_goal": both * 0 - 1, "place": number},
        "reward": {"left": number, "right": {"own": np.stack([number * 2, -number], 1)}},
        "cost": number * number,
        "next_obs": {"achieved_goal": both + 1, "place": number + 1},
        "done": DONE,
    }


def of_rewards(items: Any) -> list[Any]:
    return [items["reward"]["left"], items["reward"]["right"]["own"], items["cost"]]


def length(place: int, n: int = N) -> int:
    """How many steps there are from one on, the ones still under way among them."""
    ends = [k for k in range(place, STEPS) if DONE[k]]
    return min(n, (ends[0] if ends else STEPS - 1) - place + 1)


def filled(backend: Backend, transforms: Any, **settings: Any) -> Any:
    spec = frb.BufferSpec(ITEM, 2 * STEPS, transforms=transforms, **settings)
    return backend.add(backend.init(spec), backend.tree(rows()))


def check_sums(backend: Backend, sample: Any, n: int = N) -> None:
    """Every row is what a walk finds."""
    stored = of_rewards(rows())
    got = [backend.numpy(leaf) for leaf in of_rewards(sample.items)]
    originals = [backend.numpy(sample.extras[f"original_reward/{name}"]) for name in NAMES]
    assert "original_reward" not in sample.extras
    after = backend.numpy(sample.items["next_obs"]["place"])
    for row, at in enumerate(backend.numpy(sample.items["obs"]["place"]).astype(int).tolist()):
        count = length(at, n)
        assert int(sample.extras["steps"][row]) == count
        assert float(sample.extras["discount"][row]) == GAMMA**count
        assert bool(sample.extras["nonterminal"][row]) == (not DONE[at + count - 1])
        assert after[row] == at + count
        for found, original, leaf in zip(got, originals, stored, strict=True):
            assert found.dtype == leaf.dtype
            expected = sum(GAMMA**k * leaf[at + k] for k in range(count))
            np.testing.assert_array_equal(found[row], expected)
            np.testing.assert_array_equal(original[row], leaf[at])


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("at", ["sample", "add"])
def test_each_is_added_up(backend: Backend, at: str) -> None:
    returns = frb.n_step(N, GAMMA, at=at, reward_key=KEYS)  # type: ignore[arg-type]  # one of two words
    _, sample = backend.sample(filled(backend, returns), backend.rb.key(0), 64)
    assert set(backend.numpy(sample.extras["steps"]).tolist()) == {1, 2, 3}
    check_sums(backend, sample)


def test_of_frames_that_are_stored_once(backend: Backend) -> None:
    returns = frb.n_step(N, GAMMA, reward_key=KEYS)
    compact = frb.Compact(next={("next_obs", "place"): ("obs", "place")})
    _, sample = backend.sample(filled(backend, returns, compact=compact), backend.rb.key(0), 64)
    check_sums(backend, sample)


def test_mixed(library: Backend) -> None:
    states = [filled(library, frb.n_step(N, GAMMA, at=at, reward_key=KEYS)) for at in ("sample", "add")]
    _, sample = library.rb.sample(frb.Mixture(states, p=[0.5, 0.5]), library.rb.key(0), 32)
    assert set(library.numpy(sample.extras["buffer_ids"]).tolist()) == {0, 1}
    check_sums(library, sample)


@pytest.mark.parametrize("at", ["sample", "add"])
def test_saved_and_told(library: Backend, at: str) -> None:
    state = filled(library, frb.n_step(N, GAMMA, at=at, reward_key=KEYS))  # type: ignore[arg-type]  # one of two words
    assert frb.convert.from_json(frb.convert.to_json(state.spec)) == state.spec
    with tempfile.TemporaryDirectory() as path:
        frb.save(state, path)
        state = frb.load(path, library.rb)
    check_sums(library, library.sample(state, library.rb.key(0), 32)[1])


@pytest.mark.parametrize("at", ["sample", "add"])
def test_a_team_beside_its_agents(library: Backend, at: str) -> None:
    """Agents that are done one by one have sums of their own; a reward of all goes on until the last is done."""
    item = {"reward": {"each": PAIR, "team": SCALAR}, "done": frb.Binary((2,))}
    transforms = frb.n_step(3, 0.5, at=at)  # type: ignore[arg-type]  # one of two words
    state = library.init(frb.BufferSpec(item, 8, frb.InOrder(), transforms=transforms))
    flags = np.array([[False, True], [True, False], [True, True]])
    each = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    given = {"reward": {"each": each, "team": np.array([1, 2, 4], np.float32)}, "done": flags}
    _, sample = library.sample(library.add(state, given), library.rb.key(0), 3)
    assert library.numpy(sample.items["reward"]["each"]).tolist() == [[2.5, 2], [3, 7], [5, 6]]
    assert library.numpy(sample.items["reward"]["team"]).tolist() == [3, 4, 4]
    assert library.numpy(sample.extras["steps"]).tolist() == [[2, 1], [1, 2], [1, 1]]
    assert library.numpy(sample.extras["original_reward/reward/each"]).tolist() == each.tolist()


# Hindsight.


def by_agent(achieved: Any, goal: Any) -> Any:
    """For the nest and for the leaf of `KEYS`."""
    apart = achieved - goal
    return {"left": apart[..., 0], "right": {"own": apart * 2}}, achieved[..., 1]


def of_agents(achieved: Any, goal: Any) -> Any:
    """For the nest alone."""
    return by_agent(achieved, goal)[0]


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("n", [None, N])
def test_goals_of_agents(backend: Backend, n: int | None) -> None:
    her = frb.her("future", 2, reward=by_agent, reward_key=KEYS)
    transforms = her if n is None else (her, frb.n_step(n, GAMMA, reward_key=KEYS))
    _, sample = backend.sample(filled(backend, transforms), backend.rb.key(0), 64)
    check_goals(backend, sample, n or 1, alone=False)


def test_goals_of_a_nest_that_is_found_by_its_name(library: Backend) -> None:
    state = filled(library, frb.her("future", 2, reward=of_agents))
    assert frb.convert.from_json(frb.convert.to_json(state.spec), known=[of_agents]) == state.spec
    check_goals(library, library.sample(state, library.rb.key(0), 64)[1], 1, alone=True)
    if library.library == "torch":
        import torch

        program = torch.compile(lambda state, key: library.rb.sample_(state, key, 64), fullgraph=True, backend="eager")
        check_goals(library, program(state, library.rb.key(0))[1], 1, alone=True)


def check_goals(backend: Backend, sample: Any, n: int, alone: bool) -> None:
    """Rewards are those of the goal that was chosen, or those that were stored."""
    stored, achieved = of_rewards(rows()), rows()["next_obs"]["achieved_goal"]
    relabelled = backend.numpy(sample.extras["relabelled"])
    assert 0 < relabelled.sum() < relabelled.size
    goals = backend.numpy(sample.items["obs"]["desired_goal"])
    got = [backend.numpy(leaf) for leaf in of_rewards(sample.items)]
    for row, at in enumerate(backend.numpy(sample.items["obs"]["place"]).astype(int).tolist()):
        steps = range(at, at + length(at, n))
        each = [[leaf[k] for leaf in stored] for k in steps]
        if relabelled[row]:
            for leaves, k in zip(each, steps, strict=True):
                reward, cost = by_agent(achieved[k], goals[row])
                leaves[: 2 if alone else 3] = [reward["left"], reward["right"]["own"], cost][: 2 if alone else 3]
        for found, *of_steps in zip(got, *each, strict=True):
            np.testing.assert_array_equal(found[row], sum(GAMMA**k * x for k, x in enumerate(of_steps)))


# What can be told before.


BAD_KEYS: list[tuple[Any, type[Exception], str]] = [
    ([], ValueError, r"expected reward_key as the key of a leaf, or a list of several, got \[\]"),
    (["cost", "cost"], ValueError, r"expected reward_key as the key of a leaf, or a list of several"),
    (["reward", ("reward", "left")], ValueError, r"reward_key .* names leaf 'reward/left' twice; name it once"),
    (["reward", "prize"], ValueError, r"the item has no leaf 'prize'"),
    (("reward", "cost"), ValueError, r".* for several leaves write the list \['reward', 'cost'\]"),
    (["cost", 3], TypeError, r"reward_key: expected the key of a leaf as a name, .* got 3"),
]


@pytest.mark.parametrize(("key", "kind", "words"), BAD_KEYS, ids=[str(key) for key, *_ in BAD_KEYS])
@pytest.mark.parametrize("transform", ["n_step", "her"])
def test_keys_that_name_no_rewards(transform: str, key: Any, kind: type[Exception], words: str) -> None:
    settings: dict[str, Any] = {"n": N, "gamma": GAMMA} if transform == "n_step" else {"reward": max}
    with pytest.raises(kind, match=f"{transform}: {words}"):
        frb.BufferSpec(ITEM, 8, transforms=getattr(frb, transform)(reward_key=key, **settings))


def test_leaves_that_are_no_rewards() -> None:
    item = ITEM | {"reward": {"left": SCALAR, "note": frb.Unbounded((), "int32")}}
    with pytest.raises(ValueError, match=r"n_step: leaf 'reward/note': expected rewards of a float dtype, got .*int32"):
        frb.BufferSpec(item, 8, transforms=frb.n_step(N, GAMMA))


@pytest.mark.parametrize(
    ("key", "given", "words"),
    [
        (None, lambda achieved, goal: {"left": goal[..., 0]}, r"\['reward/left', 'reward/right/own'\], got one with"),
        (None, lambda achieved, goal: goal[..., 0], r"as a nest with the leaves .*, got "),
        (None, lambda achieved, goal: {"left": 1.0, "right": {"own": goal}}, r"as an array, got float"),
        (KEYS, of_agents, r"as a tuple of 2 .*, one for each of reward_key, got"),
    ],
    ids=["too few", "an array", "a number", "one of two"],
)
def test_a_function_that_gives_another_nest(library: Backend, key: Any, given: Any, words: str) -> None:
    state = filled(library, frb.her(reward=given, reward_key=key))
    with pytest.raises(TypeError, match=r"her: expected reward\(achieved, goal\) .*" + words):
        library.sample(state, library.rb.key(0), 4)
