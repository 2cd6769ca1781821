"""Hindsight relabelling beside walks over the episodes, and its law."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.contract.goals import FLAG, GOAL, ID, PAIR, SCALAR, STRATEGIES, TASKS, how_near, tell
from tests.support.backends import Backend
from tests.support.histories import Rng, Shapes, histories, pick
from tests.support.n_step_walks import EXACT
from tests.support.random_members import VARIANTS
from tests.support.worlds import Record, assert_same, by_path, nested

ON_TORCH = Shapes((0, 1, 1, 2, 3, 5, 9, 20), (1, 4, 9), False)
ON_JAX = Shapes((3,), (9,), True)


@pytest.mark.parametrize("name", TASKS)
@histories(8)
def test_goals_come_from_the_episode(name: str, rng: Rng) -> None:
    task, lanes, length = TASKS[name], pick(rng, [None, 1, 2, 3]), pick(rng, [3, 5, 8, 13])
    samplers = [frb.Uniform(), frb.Uniform(max_times_sampled=2), frb.Prioritized(), frb.WithoutReplacement()]
    plain = frb.BufferSpec(nested(task.kind.item), length * (lanes or 1), pick(rng, samplers), lanes=lanes)
    settings = {
        "strategy": pick(rng, STRATEGIES),
        "k": pick(rng, [4, 4, 0.5, 0]),
        "reward": pick(rng, [how_near, None]),
    }
    settings |= {"n": pick(rng, [None, None, 1, 3]), "gamma": pick(rng, EXACT)}
    tell(rng, [pick(rng, VARIANTS)], task, plain, ON_TORCH, 20, **settings)


@pytest.mark.parametrize(("strategy", "n"), [("future", None), ("episode", 2)])
@histories(2)
def test_from_one_backend_to_the_other(strategy: str, n: int | None, rng: Rng) -> None:
    task = TASKS["ted"]
    plain = frb.BufferSpec(nested(task.kind.item), 14, frb.Prioritized(), lanes=2)
    tell(rng, ["jax", "torch"], task, plain, ON_JAX, 15, strategy=strategy, k=4, reward=how_near, n=n, gamma=0.5)


# The law.


# A mark for each step of a lane: "|" ends an episode.
EPISODES = {"a lane": ["..|....|.|..."], "two lanes": ["...|..", "|....|.."]}
DRAWS = 40_000
# Standard deviations: they happen to a correct program once in 5e8 tries.
FAR = 6.0


def filled(backend: Backend, lanes: list[str], transforms: Any) -> tuple[Any, list[list[int]]]:
    """A buffer whose lanes have gone round once, and the handles' episodes by the walk: lists of handles."""
    task = TASKS["flat rows"]
    length, count = max(map(len, lanes)), len(lanes)
    spec = frb.BufferSpec(nested(task.kind.item), length * count, lanes=count, transforms=transforms)
    record = Record(task.kind, length, ((),) * count)
    state = backend.init(spec)
    marks = np.array([list("." * length + lane.rjust(length, "|")) for lane in lanes]).T == "|"
    steps = np.arange(marks.size).reshape(marks.shape)
    leaves = {
        path: np.broadcast_to(steps.reshape(*steps.shape, *(1 for _ in leaf.shape)), (*steps.shape, *leaf.shape))
        for path, leaf in task.kind.item.items()
    }
    leaves = {path: leaf.astype(task.kind.item[path].dtype) for path, leaf in leaves.items()} | {"done": marks}
    state, record = backend.add(state, leaves), record.written(leaves, None)
    episodes: dict[tuple[int, int], list[int]] = {}
    for handle, (lane, place) in record.places.items():
        episodes.setdefault((lane, record.live(lane)[place].episode), []).append(handle)
    return state, list(episodes.values())


@pytest.mark.few_on_jax(3)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("lanes", EPISODES)
def test_law(library: Backend, strategy: str, lanes: str) -> None:
    k = {"future": 4, "final": 1, "episode": 3, "random": 0.25}[strategy]
    state, episodes = filled(library, EPISODES[lanes], frb.her(strategy, k, reward=how_near))
    _, sample = library.sample(state, library.rb.key(0), DRAWS)
    drawn = zip(*(library.numpy(x).tolist() for x in (sample.indices, sample.extras["goal_indices"])), strict=True)
    counts = Counter(drawn)
    expected: dict[tuple[int, int], float] = {}
    stored = sum(map(len, episodes))
    for handles in episodes:
        for place, handle in enumerate(handles):
            expected[handle, -1] = 1 / (k + 1) / stored
            chosen = {"future": handles[place:], "final": handles[-1:], "episode": handles}.get(strategy)
            chosen = [goal for others in episodes for goal in others] if chosen is None else chosen
            expected |= {(handle, goal): k / (k + 1) / len(chosen) / stored for goal in chosen}
    assert abs(sum(expected.values()) - 1) < 1e-9
    assert counts.keys() <= expected.keys()
    # Pearson's statistic, by Wilson and Hilferty's cube root nearly normal.
    statistic = sum((counts[pair] - DRAWS * p) ** 2 / (DRAWS * p) for pair, p in expected.items())
    freedom = len(expected) - 1
    assert abs((statistic / freedom) ** (1 / 3) - 1 + 2 / 9 / freedom) / np.sqrt(2 / 9 / freedom) < FAR
    relabelled = library.numpy(sample.extras["relabelled"]).mean()
    assert abs(relabelled - k / (k + 1)) < FAR * np.sqrt(k / (k + 1) ** 2 / DRAWS)


@pytest.mark.parametrize("k", [7 / 3, float("inf")])
def test_fractions_of_goals(library: Backend, k: float) -> None:
    state, _ = filled(library, EPISODES["a lane"], frb.her("future", k, reward=how_near))
    assert frb.convert.from_json(frb.convert.to_json(state.spec), known=[how_near]) == state.spec
    _, sample = library.sample(state, library.rb.key(0), DRAWS)
    ratio = 1.0 if k == np.inf else k / (k + 1)
    relabelled = library.numpy(sample.extras["relabelled"]).mean()
    assert abs(relabelled - ratio) <= FAR * np.sqrt(ratio * (1 - ratio) / DRAWS)


def test_goals_of_any_trajectory_need_no_ends(library: Backend) -> None:
    item = {"next_achieved_goal": SCALAR, "desired_goal": SCALAR, "reward": SCALAR}
    spec = frb.BufferSpec(item, 8, transforms=frb.her("random", float("inf"), reward=lambda a, g: a - g))
    assert spec.plan.boundaries is None
    state, names = library.init(spec), list(item)
    state = library.add(state, {name: np.arange(12, dtype=np.float32) for name in names})
    _, sample = library.sample(state, library.rb.key(0), 200)
    got = {name: library.numpy(leaf) for name, leaf in sample.items.items()}
    assert set(got["desired_goal"].tolist()) == {float(k) for k in range(4, 12)}
    np.testing.assert_array_equal(got["reward"], got["next_achieved_goal"] - got["desired_goal"])
    np.testing.assert_array_equal(library.numpy(sample.extras["goal_indices"]), got["desired_goal"])


def test_no_goals_for_nothing(library: Backend) -> None:
    state, _ = filled(library, EPISODES["a lane"], frb.her("future", 0, reward=how_near))
    plain, _ = filled(library, EPISODES["a lane"], ())
    _, sample = library.sample(state, library.rb.key(0), 1000)
    assert not library.numpy(sample.extras["relabelled"]).any()
    stored = by_path(library, library.rb.get(plain, sample.indices))
    for path, leaf in by_path(library, sample.items).items():
        assert_same(leaf, stored[path], path)


def test_the_same_key_draws_the_same_goals(library: Backend) -> None:
    state, _ = filled(library, EPISODES["two lanes"], frb.her("episode"))
    told = [library.sample(state, library.rb.key(seed), 64)[1].extras["goal_indices"] for seed in (3, 3, 4)]
    one, same, other = (library.numpy(x).tolist() for x in told)
    assert one == same != other


def test_extras_are_the_caller_s_own(library: Backend) -> None:
    state = library.rb.add(library.rb.init(frb.BufferSpec({"x": SCALAR}, 4)), {"x": np.zeros(4, np.float32)})
    extras = library.sample(state, library.rb.key(0), 2)[1].extras
    assert isinstance(extras, dict)
    extras["mine"] = 1
    assert not library.sample(state, library.rb.key(0), 2)[1].extras


# What can be told before.


ITEM = TASKS["flat rows"].kind.item
SETTINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"strategy": "nearest"}, ValueError, r"her: expected strategy 'future', 'final', .* or 'random', got 'nearest'"),
    ({"k": -1}, ValueError, r"her: expected k as a number from 0 to \d+, or infinity, got -1"),
    ({"k": -0.5}, ValueError, r"her: expected k .* got -0.5"),
    ({"k": float("nan")}, ValueError, r"her: expected k .* got nan"),
    ({"k": "4"}, ValueError, r"her: expected k .* got '4'"),
    ({"k": True}, ValueError, r"her: expected k .* got True"),
    ({"reward": 3}, TypeError, r"her: expected reward as a function of \(achieved, goal\), got 3"),
]


@pytest.mark.parametrize(("settings", "kind", "words"), SETTINGS, ids=[str(case[0]) for case in SETTINGS])
def test_settings_that_make_no_sense(settings: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        frb.her(**settings)


def without(name: str, **others: Any) -> dict[str, Any]:
    return {key: spec for key, spec in ITEM.items() if key != name} | others


SPECS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    (
        "no achieved goal",
        without("next_achieved_goal"),
        {},
        {},
        r"one leaf 'achieved_goal'.*got \[\]; give achieved_key",
    ),
    (
        "two achieved goals",
        ITEM | {"next": {"achieved_goal": GOAL}},
        {},
        {},
        r"one leaf 'achieved_goal'.*got \['next_achieved_goal', 'next/achieved_goal'\]; give achieved_key=",
    ),
    (
        "no goal",
        {"next_achieved_goal": GOAL, "done": FLAG},
        {},
        {},
        r"no leaf 'desired_goal'; give goal_keys=\[\.\.\.\], of the leaves",
    ),
    (
        "goals of another shape",
        ITEM | {"desired_goal": PAIR},
        {},
        {},
        r"leaf 'desired_goal': expected goals like the achieved ones in 'next_achieved_goal'.*\(3,\).*got .*\(2,\)",
    ),
    ("no reward", without("reward"), {"reward": how_near}, {}, r"no leaf 'reward' to compute anew; give reward_key="),
    ("another goal", ITEM, {"goal_keys": "aim"}, {}, r"her: the item has no leaf 'aim'"),
    ("another end", ITEM, {"end_keys": "over"}, {}, r"her: the item has no leaf 'over'"),
    ("slices", ITEM, {}, {"sampler": frb.Slices(2)}, r"her: relabels single transitions, and Slices gives slices"),
    ("windows", ITEM, {}, {"sampler": frb.Queue(2)}, r"her: relabels single transitions, and Queue gives slices"),
    ("no order", ITEM, {}, {"writer": frb.Reservoir()}, r"her: needs items in the order of .*Reservoir"),
]


@pytest.mark.parametrize(
    ("item", "settings", "others", "words"), [case[1:] for case in SPECS], ids=[x[0] for x in SPECS]
)
def test_items_that_do_not_fit(item: Any, settings: dict[str, Any], others: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        frb.BufferSpec(item, 8, transforms=frb.her(**settings), **others)


def test_rewards_that_were_added_up_before() -> None:
    with pytest.raises(ValueError, match=r"rewards are added up before.*give n_step\(at='sample'\)"):
        frb.BufferSpec(ITEM, 8, transforms=(frb.her(), frb.n_step(3, 0.9, at="add")))


REWARDS: list[tuple[Any, Any, type[Exception], str]] = [
    (lambda achieved, goal: achieved - goal, SCALAR, ValueError, r"of shape \(4,\), got \(4, 3\); reduce over"),
    (lambda achieved, goal: (achieved - goal).sum(), SCALAR, ValueError, r"of shape \(4,\), got \(\); reduce over"),
    (lambda achieved, goal: -1.0, SCALAR, TypeError, r"as an array, got float"),
    (lambda achieved, goal: (achieved - goal).sum(-1) / 2, ID, TypeError, r"of dtype int32, got float32; round"),
]


@pytest.mark.parametrize(("reward", "spec", "kind", "words"), REWARDS, ids=["per axis", "one", "number", "rounded"])
def test_rewards_that_do_not_fit(
    library: Backend, reward: Any, spec: frb.specs.ArraySpec, kind: type[Exception], words: str
) -> None:
    item = ITEM | {"reward": spec}
    state = library.rb.init(frb.BufferSpec(item, 8, transforms=frb.her(reward=reward)))
    state = library.rb.add(state, {name: np.zeros((6, *leaf.shape), leaf.dtype) for name, leaf in item.items()})
    with pytest.raises(kind, match=r"her: expected reward\(achieved, goal\) " + words):
        library.sample(state, library.rb.key(0), 4)


@pytest.mark.parametrize("sampler", [frb.WithoutReplacement(), frb.Uniform(max_times_sampled=1)], ids=["pass", "once"])
def test_a_reward_that_fails_leaves_the_state_as_it_was(library: Backend, sampler: Any) -> None:
    def failing(achieved: Any, goal: Any) -> Any:
        if fails:
            raise ValueError("no reward")
        return how_near(achieved, goal)

    fails = False
    spec = frb.BufferSpec(ITEM, 8, sampler, transforms=frb.her(reward=failing))
    rows = {name: np.zeros((6, *leaf.shape), leaf.dtype) for name, leaf in ITEM.items()}
    state = library.rb.add(library.rb.init(spec), rows)
    _, sample = library.sample(state, library.rb.key(0), 4)
    fails = True
    with pytest.raises(ValueError, match="no reward"):
        library.sample(state, library.rb.key(0), 3)  # of another shape, so that it is traced anew
    if library.library == "torch":
        with pytest.raises(ValueError, match="no reward"):
            library.rb.sample_(state, library.rb.key(0), 3)
    fails = False
    _, again = library.sample(state, library.rb.key(0), 4)
    assert library.numpy(again.indices).tolist() == library.numpy(sample.indices).tolist()
