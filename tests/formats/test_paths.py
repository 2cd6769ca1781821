"""Gymnasium environments of each autoreset mode, recorded and read back along every path that steps can take.

What comes back is compared with a loop over single environments, written by hand in `tests.formats.recorded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import functional_rb as frb
from tests.formats import recorded
from tests.formats.recorded import EPISODES, MODES, Recording, as_numpy, at, number_of, record, same
from tests.support.backends import Backend
from tests.support.effort import effort

# Each lane wraps around about twice.
LENGTH, CALLS = 16, 41
# Lane by lane, each from its oldest step on.
IN_ORDER = frb.WithoutReplacement(shuffle=False)
GAMMA = 0.5  # sums of the rewards, which are quarters, are exact
Step = dict[str, Any]


@pytest.fixture(autouse=True)
def one_mode_on_jax(request: pytest.FixtureRequest) -> None:
    """What is recorded is NumPy's, whatever the mode; on JAX, which compiles each path, one is read."""
    params = getattr(request.node, "callspec", None) and request.node.callspec.params
    if params and params.get("library") == "jax" and params.get("mode") not in effort((MODES[0], None), (*MODES, None)):
        pytest.skip("a long search: make test-all")


def all_of(backend: Backend, recording: Recording) -> tuple[list[Step], dict[str, np.ndarray], np.ndarray]:
    """All items that are stored, what is told of them, and their handles."""
    state = recording.state
    count = int(backend.rb.size(state))
    _, sample = backend.sample(state, backend.rb.key(3), count)
    assert backend.numpy(sample.mask).all()
    items = as_numpy(backend, sample.items)
    extras = {name: backend.numpy(x) for name, x in sample.extras.items()}
    return [at(items, k) for k in range(count)], extras, backend.numpy(sample.indices)


def newest(steps: Sequence[Step]) -> list[int]:
    """Which of a lane's steps are stored."""
    return list(range(max(len(steps) - LENGTH, 0), len(steps)))


def equal_to(found: Sequence[Step], expected: Sequence[Step]) -> None:
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert same(mine, theirs), (mine, theirs)


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("compact", [None, frb.Compact()], ids=["plain", "compact"])
@pytest.mark.parametrize(("mode", "kind"), list(zip(MODES, ["box", "goal", "frame"], strict=True)))
def test_single_steps(library: Backend, mode: AutoresetMode, kind: str, compact: frb.Compact | None) -> None:
    spare = compact and frb.Compact(spare=3 * LENGTH)  # room for as many ends
    recording = record(library, mode, CALLS, kind=kind, length=LENGTH, sampler=IN_ORDER, compact=spare)
    found, extras, _ = all_of(library, recording)
    equal_to(found, [steps[k] for steps in recording.expected for k in newest(steps)])
    assert not extras


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("compact", [None, frb.Compact(stack=3, spare=9 * LENGTH)], ids=["plain", "compact"])
@pytest.mark.parametrize("mode", MODES)
def test_stacks_of_frames(
    library: Backend, mode: AutoresetMode, compact: frb.Compact | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = recorded.Numbered

    def stacked(lane: int, episodes: Any, kind: str = "box") -> Any:
        return gym.wrappers.FrameStackObservation(single(lane, episodes, kind), 3)

    monkeypatch.setattr(recorded, "Numbered", stacked)
    monkeypatch.setattr(recorded, "number_of", lambda step: int(step["observation"][-1, 0]))
    recording = record(library, mode, CALLS, length=LENGTH, sampler=IN_ORDER, compact=compact)
    assert recording.expected[0][0]["observation"].shape == (3, 2)
    found, _, _ = all_of(library, recording)
    equal_to(found, [steps[k] for steps in recording.expected for k in newest(steps)])


def over(steps: Sequence[Step], k: int, n: int) -> tuple[Step, dict[str, Any], bool]:
    """The n-step item of step k, what is told of it, and whether no later step could change it."""
    last = k
    while last - k + 1 < n and not steps[last]["next"]["done"] and last + 1 < len(steps):
        last += 1
    m = last - k + 1
    total = sum(GAMMA**j * float(steps[k + j]["next"]["reward"]) for j in range(m))
    end = steps[last]["next"]
    item = steps[k] | {"next": end | {"reward": np.float32(total)}}
    told = {"steps": m, "discount": GAMMA**m, "nonterminal": not end["terminated"]}
    told["original_reward"] = float(steps[k]["next"]["reward"])
    return item, told, m == n or bool(end["done"])


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize("path", ["sample", "compact", "add"])
@pytest.mark.parametrize(("mode", "n"), list(zip(MODES, [3, 2, 1], strict=True)))
def test_n_steps(library: Backend, mode: AutoresetMode, path: str, n: int) -> None:
    compact = frb.Compact(spare=3 * LENGTH) if path == "compact" else None
    transforms = frb.n_step(n, GAMMA, at="add" if path == "add" else "sample")
    settings: dict[str, Any] = {"sampler": IN_ORDER, "compact": compact, "transforms": transforms}
    recording = record(library, mode, CALLS, length=LENGTH, **settings)
    found, extras, _ = all_of(library, recording)
    expected = []
    for steps in recording.expected:
        made = [over(steps, k, n) for k in range(len(steps))]
        if path == "add":
            made = [one for one in made if one[2]]
        expected += made[-LENGTH:]
    equal_to(found, [item for item, _, _ in expected])
    for name, values in extras.items():
        assert values.tolist() == [told[name] for _, told, _ in expected], name


def reward(achieved: Any, goal: Any) -> Any:
    return (achieved - goal)[:, 0]


@pytest.mark.few_on_jax(1)
@pytest.mark.parametrize("compact", [None, frb.Compact(spare=3 * LENGTH)], ids=["plain", "compact"])
@pytest.mark.parametrize("mode", MODES)
def test_hindsight(library: Backend, mode: AutoresetMode, compact: frb.Compact | None) -> None:
    hindsight = frb.her("future", k=4, reward=reward)
    settings: dict[str, Any] = {"sampler": IN_ORDER, "compact": compact, "transforms": hindsight}
    recording = record(library, mode, CALLS, kind="goal", length=LENGTH, **settings)
    found, extras, handles = all_of(library, recording)
    originals = [steps[k] for steps in recording.expected for k in newest(steps)]
    by_handle = dict(zip(handles.tolist(), originals, strict=True))
    assert 0 < extras["relabelled"].sum() < len(found)
    for item, original, relabelled, source in zip(
        found, originals, extras["relabelled"], extras["goal_indices"], strict=True
    ):
        expected = original
        if relabelled:
            other = by_handle[int(source)]
            assert 0 <= number_of(other) - number_of(original) < 1000  # of the same episode, and not before
            goal = other["next"]["achieved_goal"]
            after = original["next"] | {"desired_goal": goal, "reward": reward_of(original, goal)}
            expected = original | {"desired_goal": goal, "next": after}
        else:
            assert source == -1
        assert same(item, expected)


def reward_of(step: Step, goal: np.ndarray) -> np.floating[Any]:
    return np.float32(step["next"]["achieved_goal"][0] - goal[0])


def test_there_are_all_kinds_of_ends() -> None:
    assert {end for its in EPISODES for _, end in its} == {"terminated", "truncated", "both"}
    assert 1 in {length for its in EPISODES for length, _ in its}
