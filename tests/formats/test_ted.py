"""Steps in TED: checked, made of rows and of Gymnasium's steps, taken apart, recorded and read back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict

import functional_rb as frb
from functional_rb import ted
from tests.support import recorded
from tests.support.backends import Backend
from tests.support.recorded import EPISODES, MODES, Episode

FLAGS = ("done", "terminated", "truncated")
NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def trajectory(done: np.ndarray, one: bool = False) -> dict[str, Any]:
    """Steps of numbered observations with these ends, bool [T, E]; flags and reward with a last axis of one if so."""
    number = np.arange(1, done.size + 1, dtype=np.float32).reshape(done.shape)
    after = number + 0.5
    before = number.copy()
    for t in range(1, len(done)):
        before[t] = np.where(done[t - 1], before[t], after[t - 1])
    axis = (lambda x: x[..., None]) if one else (lambda x: x)
    kind = number % 3  # truncated, terminated, or both
    ends = {"done": axis(done), "terminated": axis(done & (kind != 0)), "truncated": axis(done & (kind != 1))}
    reward = axis(number)
    return {
        "observation": np.stack([before, -before], -1),
        "deep": {"scalar": before.copy()},
        "action": number.copy(),
        "policy": np.zeros((*done.shape, 2)),
        **{flag: axis(done & False) for flag in FLAGS},
        "next": {"observation": np.stack([after, -after], -1), "deep": {"scalar": after}, "reward": reward, **ends},
    }


def changed(nest: Any, path: str, value: Any) -> Any:
    """The same nest with another leaf (None: without it)."""
    name, _, rest = path.partition("/")
    made = dict(nest)
    if rest:
        made[name] = changed(made[name], rest, value)
    elif value is None:
        del made[name]
    else:
        made[name] = value
    return made


STEPS = trajectory(np.array([[0, 0], [1, 0], [0, 1]], bool))


# --- check ----------------------------------------------------------------------------------------------------------


def test_check_accepts_steps_of_either_library(library: Backend) -> None:
    for steps in (STEPS, trajectory(STEPS["next"]["done"], one=True)):
        ted.check(library.tree(steps), time_axis=0)
        ted.check(library.tree(recorded.at(steps, (0, 0))))
    with pytest.raises(ValueError, match=r"done'.*expected terminated | truncated"):
        ted.check(library.tree(changed(STEPS, "done", ~STEPS["done"])))


def test_check_accepts_specs_and_containers() -> None:
    item = frb.spec_of(recorded.at(STEPS, (0, 0)))
    for steps in (item, frb.BufferSpec(item, 4), TensorDict(dict(STEPS), [3, 2]), TensorDict.from_dict(STEPS)):
        ted.check(steps)
    with pytest.raises(TypeError, match=r"leaf 'next/done': expected dtype bool, got float32"):
        ted.check(changed(item, "next", changed(item["next"], "done", frb.Unbounded(()))))

    class Step(NamedTuple):
        observation: Any
        action: Any
        done: Any
        terminated: Any
        truncated: Any
        next: Any

    ted.check(Step(**{name: STEPS[name] for name in Step._fields if name != "next"}, next=_without_deep(STEPS["next"])))


def _without_deep(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "deep"}


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("where", ["", "next/"])
def test_check_needs_every_flag(where: str, flag: str) -> None:
    with pytest.raises(ValueError, match=f"leaf '{where}{flag}' is missing"):
        ted.check(changed(STEPS, where + flag, None))
    with pytest.raises(TypeError, match=f"leaf '{where}{flag}': expected dtype bool, got int8; convert"):
        ted.check(changed(STEPS, where + flag, np.zeros((3, 2), np.int8)))
    with pytest.raises(ValueError, match=r"expected shape \(.*\) as leaf 'done' has, got \(.*\); reshape"):
        ted.check(changed(STEPS, where + flag, np.zeros(2, bool)))


@pytest.mark.parametrize(
    ("path", "value", "error", "message"),
    [
        ("next", None, ValueError, "expected the part 'next'.*from_transitions"),
        ("next", np.zeros(3), TypeError, "expected the part 'next' as a nest with names"),
        ("action", None, ValueError, "leaf 'action' is missing; give it at the root only"),
        ("next/action", np.zeros(2), ValueError, "leaf 'next/action' is out of place: expected 'action'"),
        ("next/reward", None, ValueError, "leaf 'next/reward' is missing; give it in 'next' only"),
        ("reward", np.zeros(2), ValueError, "leaf 'reward' is out of place: expected 'next/reward', in 'next' only"),
        ("observation", None, ValueError, "leaf 'next/observation': expected a leaf 'observation' at the root"),
        (
            "next/observation",
            np.zeros((3, 2, 1), np.float32),
            ValueError,
            r"'next/observation': expected shape \(3, 2, 2\)",
        ),
        ("next/deep/scalar", np.zeros((3, 2)), TypeError, "'next/deep/scalar': expected dtype float32.*got float64"),
        ("next/deep", [np.zeros((3, 2), np.float32)], ValueError, "'next/deep/0': expected a leaf 'deep/0'"),
        ("policy", 3.0, TypeError, "leaf 'policy': expected an array.*got float; give np.asarray"),
    ],
)
def test_check_names_what_is_wrong(path: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ted.check(changed(STEPS, path, value))


def test_check_refuses_what_has_no_names_or_no_observation() -> None:
    with pytest.raises(TypeError, match=r"expected the steps as a nest with names.*got tuple"):
        ted.check(tuple(STEPS.values()))
    with pytest.raises(TypeError, match="names that are strings, got 1; rename it to '1'"):
        ted.check(STEPS | {1: np.zeros(3)})
    with pytest.raises(ValueError, match="'next' has no observation"):
        ted.check(changed(changed(STEPS, "next/observation", None), "next/deep", None))


def test_check_takes_other_names_of_action_and_reward() -> None:
    steps = changed(STEPS, "action", None) | {"agents": {"action": {"left": STEPS["action"], "right": STEPS["action"]}}}
    steps["next"] = changed(steps["next"], "reward", None) | {"agents": {"reward": STEPS["action"]}}
    ted.check(steps, action_key=("agents", "action"), reward_key=("agents", "reward"), time_axis=0)
    with pytest.raises(ValueError, match="leaf 'action' is missing"):
        ted.check(steps)


@hypothesis.given(
    done=hnp.arrays(bool, st.tuples(st.integers(1, 5), st.integers(1, 3))),
    mask=st.none() | st.integers(0, 2**15 - 1),
    data=st.data(),
    one=st.booleans(),
    axis=st.sampled_from([0, 1]),
)
def test_check_sees_a_step_that_does_not_follow(
    done: np.ndarray, mask: int | None, data: st.DataObject, one: bool, axis: int
) -> None:
    """One value at the root of step (t, e) is changed: seen if step (t - 1, e) is not done, and both are marked."""
    steps = trajectory(done, one)
    t, e = (data.draw(st.integers(0, n - 1)) for n in done.shape)
    path = data.draw(st.sampled_from(["", "observation", "deep/scalar", "done", "terminated"]))
    marks = np.ones_like(done) if mask is None else (mask >> np.arange(done.size) & 1 == 1).reshape(done.shape)
    seen = False
    if path:
        name, _, inner = path.partition("/")
        leaf = steps[name][inner] if inner else steps[name]
        cell = leaf[t, e : e + 1] if leaf.ndim == 2 else leaf[t, e]
        cell[-1] = ~cell[-1] if leaf.dtype == bool else cell[-1] + 0.25
        seen = bool(t > 0 and not done[t - 1, e] and marks[t, e] and marks[t - 1, e])
        if leaf.dtype == bool:  # then done is no more terminated | truncated
            seen = bool(marks[t, e])
    if axis:
        steps = _swapped(steps)
        marks = marks.T
    if not seen:
        ted.check(steps, time_axis=axis, mask=marks)
        return
    where = f"{e}, {t}" if axis else f"{t}, {e}"
    expected = "expected terminated" if path in FLAGS else rf"leaf '{path}': expected at \({where}[,)]"
    with pytest.raises(ValueError, match=expected):
        ted.check(steps, time_axis=axis, mask=marks)


def _swapped(nest: Any) -> Any:
    return {k: _swapped(v) for k, v in nest.items()} if isinstance(nest, dict) else np.swapaxes(nest, 0, 1)


def test_check_compares_bits(library: Backend) -> None:
    steps = trajectory(np.zeros((2, 1), bool))
    steps["next"]["deep"]["scalar"][0] = steps["deep"]["scalar"][1] = np.nan
    ted.check(library.tree(steps), time_axis=0)
    steps["next"]["deep"]["scalar"][0], steps["deep"]["scalar"][1] = 0.0, -0.0
    with pytest.raises(ValueError, match=r"'deep/scalar': expected at \(1, 0\).*mark the last one.*as truncated"):
        ted.check(library.tree(steps), time_axis=0)
    ted.check(library.tree(steps))  # neighbours have nothing to do with each other
    ml_dtypes = pytest.importorskip("ml_dtypes")
    narrow = trajectory(np.zeros((3, 1), bool))
    narrow["deep"]["scalar"] = narrow["deep"]["scalar"].astype(ml_dtypes.bfloat16)
    narrow["next"]["deep"]["scalar"] = narrow["next"]["deep"]["scalar"].astype(ml_dtypes.bfloat16)
    ted.check(library.tree(narrow), time_axis=0)
    narrow["deep"]["scalar"][2] += 1
    with pytest.raises(ValueError, match=r"'deep/scalar': expected at \(2, 0\)"):
        ted.check(library.tree(narrow), time_axis=0)


def test_check_root_flags_follow_too() -> None:
    steps = trajectory(np.zeros((2, 1), bool))
    for flag in ("done", "terminated"):
        steps[flag][1] = True
    with pytest.raises(ValueError, match=r"leaf 'done': expected at \(1, 0\) what 'next/done' was"):
        ted.check(steps, time_axis=0)


@pytest.mark.parametrize("axis", [-1, 2, 3])
def test_check_needs_the_time_axis_in_every_leaf(axis: int) -> None:
    with pytest.raises(ValueError, match=f"expected shape .* with time as axis {axis}"):
        ted.check(STEPS, time_axis=axis)
    with pytest.raises(ValueError, match=r"leaf 'policy': expected shape \(3, '...'\) with time as axis 0, got \(2,\)"):
        ted.check(STEPS | {"policy": np.zeros(2)}, time_axis=0)
    short = changed(changed(STEPS, "observation", np.zeros(3)), "next/observation", np.zeros(3))
    with pytest.raises(ValueError, match=r"leaf 'observation': expected the leading axes \(3, 2\)"):
        ted.check(short, time_axis=0)
    with pytest.raises(ValueError, match=r"mask: expected bool \(3, 2\)"):
        ted.check(STEPS, mask=np.ones(3, bool))


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend="eager")


@pytest.mark.parametrize(
    ("trace", "array"),
    [
        (jax.jit, jax.numpy.asarray),
        (lambda function: jax.vmap(function, 1, 1), jax.numpy.asarray),
        (lambda function: torch.vmap(function, 1, 1), torch.from_numpy),
        (_compiled, torch.from_numpy),
    ],
    ids=["jit", "jax-vmap", "torch-vmap", "compile"],
)
def test_while_tracing_the_static_part_is_checked(trace: Any, array: Any) -> None:
    def checked(steps: Any) -> Any:
        ted.check(steps, time_axis=0, mask=steps["done"])
        return ted.step_mdp(steps)["observation"] * 2

    # What is wrong here, only values tell.
    given = _each(array, changed(changed(STEPS, "done", ~STEPS["done"]), "next/deep/scalar", STEPS["deep"]["scalar"]))
    assert np.array_equal(np.asarray(trace(checked)(given)), STEPS["next"]["observation"] * 2)
    if trace is not _compiled:  # which tells of errors in its own way
        with pytest.raises(ValueError, match="leaf 'next/reward' is missing; give it in 'next' only"):
            trace(checked)(changed(given, "next/reward", None))


def _each(function: Callable[[Any], Any], nest: Any) -> Any:
    return {k: _each(function, v) for k, v in nest.items()} if isinstance(nest, dict) else function(nest)


# --- step_mdp -------------------------------------------------------------------------------------------------------


def names(nest: Any) -> set[str]:
    return {f"{k}/{n}" for k, v in nest.items() if not hasattr(v, "dtype") or hasattr(v, "keys") for n in names(v)} | {
        k for k, v in nest.items() if hasattr(v, "dtype") and not hasattr(v, "keys")
    }


MOVED = {"observation", "deep/scalar"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {*MOVED, *FLAGS, "policy"}),
        ({"keep_other": False}, {*MOVED, *FLAGS}),
        ({"exclude_done": True}, {*MOVED, "policy"}),
        ({"exclude_reward": False}, {*MOVED, *FLAGS, "policy", "reward"}),
        ({"exclude_action": False}, {*MOVED, *FLAGS, "policy", "action"}),
        ({"exclude_action": False, "keep_other": False}, {*MOVED, *FLAGS, "action"}),
    ],
)
def test_step_mdp_goes_on(settings: dict[str, bool], expected: set[str]) -> None:
    given = copy.deepcopy(STEPS)
    for container in (lambda x: x, TensorDict.from_dict):
        made = ted.step_mdp(container(given), **settings)
        assert names(made) == expected
        assert type(made) is type(container(given))
        for name in expected:
            path = tuple(name.split("/"))
            source = STEPS if name in ("policy", "action") else STEPS["next"]
            for key in path:
                made, source = made[key], source[key]
            assert np.array_equal(np.asarray(made), source), name
            made = ted.step_mdp(container(given), **settings)
    assert recorded.same(given, STEPS)


def test_step_mdp_merges_what_is_nested() -> None:
    steps: Any = {"a": {"x": 1, "y": 2, "action": 3}, "next": {"a": {"x": 4, "reward": 5}}, "action": 6}
    assert ted.step_mdp(steps) == {"a": {"x": 4, "y": 2, "action": 3, "reward": 5}}
    keys: Any = {"action_key": ("a", "action"), "reward_key": ("a", "reward")}
    assert ted.step_mdp(steps, **keys) == {"a": {"x": 4, "y": 2}, "action": 6}
    only = ted.step_mdp(steps, **keys, keep_other=False, exclude_action=False)
    assert only == {"a": {"x": 4, "action": 3}}
    assert steps["a"] == {"x": 1, "y": 2, "action": 3}
    assert steps["next"] == {"a": {"x": 4, "reward": 5}}
    assert ted.step_mdp(steps, **keys, keep_other=False) == {"a": {"x": 4}}


def test_step_mdp_of_specs_and_dataclasses() -> None:
    item = frb.spec_of(recorded.at(STEPS, (0, 0)))
    following = ted.step_mdp(item)
    assert isinstance(following, frb.Composite)
    assert set(following) == {"observation", "deep", "policy", *FLAGS}

    @dataclasses.dataclass
    class Step:
        x: Any
        action: Any
        next: Any

    assert ted.step_mdp(Step(1, 2, {"x": 3})) == {"x": 3}
    with pytest.raises(ValueError, match=r"ted.step_mdp: expected the part 'next'"):
        ted.step_mdp({"x": 1})
    with pytest.raises(TypeError, match=r"ted.step_mdp: expected the steps as a nest with names"):
        ted.step_mdp([1, 2])


def test_step_mdp_keeps_batch_size_and_device() -> None:
    steps = TensorDict.from_dict(STEPS, device="cpu").auto_batch_size_(2)
    made = ted.step_mdp(steps)
    assert made.batch_size == torch.Size([3, 2])
    assert made.device == torch.device("cpu")


# --- rows -----------------------------------------------------------------------------------------------------------


@hypothesis.given(
    lead=st.sampled_from([(), (4,), (2, 3)]),
    kind=st.sampled_from(["array", "dict", "tuple"]),
    key=st.sampled_from([None, "seen"]),
    seed=st.integers(0, 100),
)
def test_rows_and_back(lead: tuple[int, ...], kind: str, key: str | None, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def observation() -> Any:
        x, n = rng.normal(size=(*lead, 2)), rng.integers(9, size=lead)
        return {"array": x, "dict": {"x": x, "in": {"n": n}}, "tuple": (x, n)}[kind]

    terminated, truncated = (np.asarray(rng.random(lead) < 0.5) for _ in range(2))
    rows = ted.Transition(
        observation(), rng.normal(size=lead), rng.normal(size=lead), observation(), terminated, truncated
    )
    steps = ted.from_transitions(*rows, observation_key=key)
    ted.check(steps)
    assert not any(np.any(steps[flag]) for flag in FLAGS)
    assert recorded.same(steps["next"]["done"], rows.done)
    spread = rows.observation if kind == "dict" and key is None else {key or "observation": rows.observation}
    assert recorded.same({name: steps[name] for name in spread}, spread)
    back = ted.to_transitions(steps, observation_key=key)
    assert all(recorded.same(a, b) for a, b in zip(back, rows, strict=True))
    assert back.action is steps["action"]  # nothing is copied


def test_rows_of_either_library(library: Backend) -> None:
    rows = library.tree(list(ted.to_transitions(STEPS)))
    steps = ted.from_transitions(*rows)
    ted.check(steps, time_axis=0)
    assert type(steps["done"]) is type(rows[-1])
    assert recorded.same(library.numpy(steps["next"]["done"]), STEPS["next"]["done"])
    assert recorded.same(library.numpy(steps["done"]), STEPS["done"])
    compiled = jax.jit if library.library == "jax" else _compiled
    following = compiled(lambda *rows: ted.to_transitions(ted.from_transitions(*rows)).done)(*rows)
    assert recorded.same(library.numpy(following), STEPS["next"]["done"])


NO, YES = np.zeros(4, bool), np.ones(4, bool)
TERMINATED, TRUNCATED = np.array([0, 1, 0, 1], bool), np.array([0, 0, 1, 1], bool)


@pytest.mark.parametrize(
    ("given", "terminated", "truncated"),
    [
        ({"terminated": TERMINATED, "truncated": TRUNCATED}, TERMINATED, TRUNCATED),
        ({"terminated": TERMINATED}, TERMINATED, NO),
        ({"truncated": TRUNCATED}, NO, TRUNCATED),
        ({"done": TERMINATED}, TERMINATED, NO),
        ({"done": TERMINATED | TRUNCATED, "truncated": TRUNCATED}, TERMINATED & ~TRUNCATED, TRUNCATED),
        ({"done": TERMINATED | TRUNCATED, "terminated": TERMINATED}, TERMINATED, TRUNCATED & ~TERMINATED),
    ],
)
def test_flags_of_rows(given: dict[str, np.ndarray], terminated: np.ndarray, truncated: np.ndarray) -> None:
    zero = np.zeros(4)
    after = ted.from_transitions(zero, zero, zero, zero, **given)["next"]
    assert after["terminated"].tolist() == terminated.tolist()
    assert after["truncated"].tolist() == truncated.tolist()
    assert after["done"].tolist() == (terminated | truncated).tolist()


def test_rows_refuse_what_does_not_fit() -> None:
    x = np.zeros((4, 2))
    rows: Any = (x, x, x)
    with pytest.raises(ValueError, match="expected terminated, truncated, done, or two of them, got none"):
        ted.from_transitions(*rows, x)
    with pytest.raises(ValueError, match=r"or two of them, got \['terminated', 'truncated', 'done'\]"):
        ted.from_transitions(*rows, x, NO, NO, done=NO)
    with pytest.raises(TypeError, match=r"ted.from_transitions: done: expected an array of dtype bool, got float64"):
        ted.from_transitions(*rows, x, done=np.zeros(4))
    with pytest.raises(ValueError, match=r"flags of one shape, got \[\(2,\), \(4,\)\]"):
        ted.from_transitions(*rows, x, NO, np.zeros(2, bool))
    with pytest.raises(TypeError, match="from_transitions: leaf 'next/observation': expected dtype float64"):
        ted.from_transitions(*rows, np.float32(x), NO)
    with pytest.raises(ValueError, match=r"the observation has a part 'reward'.*observation_key='observation'"):
        ted.from_transitions({"reward": x}, x, x, {"reward": x}, NO)
    with pytest.raises(ValueError, match="the observation has a part 'done'"):
        ted.from_transitions(*rows, x, NO, observation_key="done")
    with pytest.raises(ValueError, match=r"ted.to_transitions: 'next' has no observation 'seen'; name one of \["):
        ted.to_transitions(STEPS, observation_key="seen")
    with pytest.raises(ValueError, match=r"ted.to_transitions: leaf 'truncated' is missing"):
        ted.to_transitions(changed(STEPS, "truncated", None))


def test_rows_of_python_numbers() -> None:
    steps = ted.from_transitions(1, 2, 3.0, 4, True)
    assert (steps["observation"].dtype, steps["next"]["reward"].dtype) == (np.int64, np.float64)
    assert (bool(steps["done"]), bool(steps["next"]["done"])) == (False, True)


# --- Gymnasium ------------------------------------------------------------------------------------------------------


def told(env: Any, mode: AutoresetMode, calls: int, item: Any = None) -> list[list[Any]]:
    """By lane, the steps that were marked."""
    rows: list[list[Any]] = [[] for _ in range(env.num_envs)]
    for items, mask in recorded.stream(env, mode, calls, item):
        for lane in np.flatnonzero(mask):
            rows[lane].append(recorded.at(items, lane))
    return rows


def equals_by_hand(rows: Any, episodes: Any, calls: int, mode: AutoresetMode, kind: str, narrow: bool) -> None:
    for lane, its in enumerate(episodes):
        expected = recorded.by_hand(lane, its, calls, mode, kind, narrow)
        assert len(rows[lane]) == len(expected)
        for got, want in zip(rows[lane], expected, strict=True):
            assert recorded.same(got, want), (lane, got, want)


@pytest.mark.parametrize("kind", recorded.OBSERVE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("narrow", [False, True])
def test_recorded_as_by_hand(mode: AutoresetMode, kind: str, narrow: bool) -> None:
    env = recorded.make(EPISODES, mode, kind, copy=narrow)  # without a copy, the environment writes to its memory again
    item = frb.item_from_env(env, narrow=True) if narrow else None
    equals_by_hand(told(env, mode, 16, item), EPISODES, 16, mode, kind, narrow)


episodes = st.lists(
    st.lists(
        st.builds(Episode, st.integers(1, 4), st.sampled_from(["terminated", "truncated", "both"])),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)


@hypothesis.given(
    its=episodes, mode=st.sampled_from(MODES), kind=st.sampled_from(["discrete", "tuple"]), calls=st.integers(1, 14)
)
@hypothesis.settings(max_examples=40)
def test_any_episodes_are_recorded_as_by_hand(its: Any, mode: AutoresetMode, kind: str, calls: int) -> None:
    equals_by_hand(told(recorded.make(its, mode, kind), mode, calls), its, calls, mode, kind, narrow=False)
    if mode == NEXT_STEP:
        env = recorded.make(its, mode, kind, "own")
        equals_by_hand(told(env, mode, calls, frb.item_from_env(env, narrow=True)), its, calls, mode, kind, narrow=True)


def test_unmarked_rows_are_in_ted_too() -> None:
    steps = recorded.stacked([items for items, _ in recorded.stream(recorded.make(EPISODES, NEXT_STEP), NEXT_STEP, 20)])
    ted.check(steps, time_axis=0)


def test_and_back_to_gymnasium() -> None:
    for items, _ in recorded.stream(recorded.make(EPISODES, SAME_STEP, "dict"), SAME_STEP, 6):
        carry, action, step = ted.to_gymnasium(items)
        following, again, mask = ted.from_gymnasium(carry, action, step, DISABLED)
        assert recorded.same(again, items)
        assert mask.all()
        assert recorded.same(following.observation, {name: items["next"][name] for name in ("position", "inner")})


def read_back(backend: Backend, mode: AutoresetMode, vectorised: str) -> None:
    length, calls = 8, 14  # wraps in some lanes
    made = recorded.record(
        backend, mode, calls, vectorised=vectorised, length=length, sampler=frb.Slices(3, strict_length=False)
    )
    items = recorded.as_numpy(backend, backend.rb.items(made.state))
    live = set()
    for lane, expected in enumerate(made.expected):
        for k, step in list(enumerate(expected))[-length:]:
            assert recorded.same(recorded.at(items, lane * length + k % length), step)
            live.add(recorded.number_of(step))
    assert int(backend.rb.size(made.state)) == len(live)
    _, sample = backend.sample(made.state, backend.rb.key(1), 40)
    assert bool(backend.numpy(backend.rb.is_live(made.state, sample.indices[:, 0])).all())
    slices = recorded.as_numpy(backend, sample.items)
    mask, first, last = (backend.numpy(getattr(sample, name)) for name in ("mask", "is_first", "is_last"))
    ted.check(sample.items, time_axis=1, mask=sample.mask)
    handles = sample.indices.reshape(-1)
    rows = recorded.as_numpy(backend, backend.rb.get(made.state, handles))
    drawn = set()
    for b, t in np.argwhere(mask):
        step = recorded.at(slices, (b, t))
        number = recorded.number_of(step)
        drawn.add(number)
        assert number in live
        assert recorded.same(step, made.by_number[number])
        assert recorded.same(recorded.at(rows, b * 3 + t), step)
        assert first[b, t] == (number % 1000 == 0)
        assert last[b, t] == made.by_number[number]["next"]["done"]
        if t:
            assert number == recorded.number_of(recorded.at(slices, (b, t - 1))) + 1
    assert len(drawn) > len(live) / 2


@pytest.mark.parametrize("mode", MODES)
def test_recorded_into_lanes_and_read_back(library: Backend, mode: AutoresetMode) -> None:
    read_back(library, mode, "sync")


def test_vectorised_environment_into_lanes_and_read_back(library: Backend) -> None:
    read_back(library, NEXT_STEP, "own")


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_plain_environment(library: Backend, kind: str) -> None:
    env = recorded.Numbered(2, EPISODES[0], kind)
    item = frb.item_from_env(env, narrow=True)
    state = library.init(frb.BufferSpec(item, 16))
    expected = recorded.by_hand(2, EPISODES[0], 9, DISABLED, kind)
    carry = ted.begin(env.reset()[0])
    for k in range(9):
        action = recorded.action_of(2, k)
        carry, step, mask = ted.from_gymnasium(carry, action, env.step(action), "Disabled", item=item)
        state = library.add(state, step, mask=mask)
        if step["next"]["done"]:
            carry = ted.begin(env.reset()[0])
    items = recorded.as_numpy(library, library.rb.items(state))
    assert all(recorded.same(recorded.at(items, k), expected[k]) for k in range(9))


def test_gymnasiums_own_vectorised_cartpole() -> None:
    env = gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point", max_episode_steps=12)
    item = frb.item_from_env(env, narrow=True)
    observation, _ = env.reset(seed=1)
    carry, recording = ted.begin(observation), []
    for k in range(60):
        action = np.array([k // 3 % 2, 1, 0])
        carry, items, mask = ted.from_gymnasium(
            carry, action, env.step(action), env.metadata["autoreset_mode"], item=item
        )
        recording.append((items, mask))
    steps, masks = recorded.stacked([items for items, _ in recording]), np.stack([mask for _, mask in recording])
    ted.check(steps, time_axis=0)
    done = steps["next"]["done"]
    assert steps["next"]["truncated"].any()
    assert steps["next"]["terminated"].any()
    assert np.array_equal(masks[1:], ~done[:-1])
    assert (steps["next"]["reward"] == masks).all()
    begins = np.concatenate([np.ones((1, 3), bool), ~masks[:-1]])
    assert (np.abs(steps["observation"])[begins] <= 0.05).all()


def test_dtypes_stay_unless_an_item_says_otherwise() -> None:
    x = np.zeros((2, 1))
    ends = dict.fromkeys(FLAGS, frb.Binary())

    def record(observation: Any, reward: Any, action: Any, item: Any) -> Any:
        step = (observation, reward, NO[:2], NO[:2], {})
        return ted.from_gymnasium(ted.begin(x), action, step, DISABLED, item=item)[1]

    seen = {"observation": frb.Unbounded((1,))}
    spec = {**seen, "action": frb.Unbounded((), "int32"), **ends, "next": {**seen, "reward": frb.Unbounded(()), **ends}}
    plain = record(x, np.ones(2), np.array([1, 2]), None)
    assert [plain[name].dtype for name in ("observation", "action")] == [np.float64, np.int64]
    assert plain["next"]["reward"].dtype == np.float64
    for item in (spec, frb.BufferSpec(spec, 4, lanes=2)):
        made = record(x + 0.1, np.array([1e-3, 2.0]), np.array([1, 2]), item)
        after = made["next"]
        assert made["observation"].dtype == after["observation"].dtype == after["reward"].dtype == np.float32
        assert made["action"].dtype == np.int32
        assert made["next"]["reward"].tolist() == np.float32([1e-3, 2.0]).tolist()
    with pytest.raises(ValueError, match=r"leaf 'action': 4294967296 does not fit into int32"):
        record(x, x[:, 0], np.array([1, 2**32]), spec)
    with pytest.raises(ValueError, match=r"leaf 'next/reward': 1e\+300 does not fit into float32"):
        record(x, np.array([1e300, np.inf]), np.array([1, 2]), spec)
    single = record(np.float32(x), x[:, 0], np.array([1, 2]), spec)  # an environment that is not of one mind
    assert single["next"]["observation"].dtype == single["observation"].dtype == np.float32
    assert record(x, np.array([np.nan, np.inf]), np.array([1, 2]), spec)["next"]["reward"][1] == np.inf
    with pytest.raises(TypeError, match="leaf 'action': expected dtype int32 or what it can hold, got float64"):
        record(x, x[:, 0], np.array([1.0, 2.0]), spec)
    with pytest.raises(TypeError, match=r"leaf 'action': expected dtype int32, got int64; convert it yourself"):
        record(x, x[:, 0], torch.tensor([1, 2]), spec)


def test_items_of_environments() -> None:
    env = recorded.make(EPISODES, NEXT_STEP, "dict")
    item = frb.item_from_env(env)
    ted.check(item)
    assert item["position"] == frb.Bounded(-(2**24), 2**24, (2,))
    assert item["inner", "count"].dtype == item["action"].dtype == "int64"
    assert item["action"] == frb.Categorical(recorded.ACTIONS, dtype="int64")
    assert item["next", "reward"].dtype == "float64"
    assert frb.item_from_env(env.envs[0]) == item
    seen = frb.item_from_env(env, observation_key="seen")
    assert set(seen["seen"]) == {"position", "inner"}
    both = gym.spaces.Tuple((gym.spaces.MultiBinary(3), gym.spaces.Box(0, 1, (2,), bool)))
    env.single_observation_space = both
    assert frb.item_from_env(env)["observation"] == (frb.Binary((3,), "int8"), frb.Binary((2,)))


def test_final_observations_may_come_as_one_batch(library: Backend) -> None:
    def record(observation: Any, final: Any, terminated: Any) -> Any:
        step = (observation, terminated * 1.0, terminated, terminated ^ terminated, {"final_obs": final})
        carry, items, mask = ted.from_gymnasium(ted.begin(observation), terminated * 2, step, SAME_STEP)
        return carry.observation, items["next"], mask

    observation = {"x": np.float32([[1, 1], [2, 2]]), "n": np.int32([3, 4])}
    final = {"x": -observation["x"], "n": -observation["n"]}
    given = library.tree([observation, final, np.array([False, True])])
    compiled = jax.jit if library.library == "jax" else _compiled
    for function in (record, compiled(record)):
        carried, after, mask = function(*given)
        assert recorded.same(as_dict(library, carried), observation)
        assert library.numpy(after["x"]).tolist() == [[1, 1], [-2, -2]]
        assert library.numpy(after["n"]).tolist() == [3, -4]
        assert library.numpy(mask).tolist() == [True, True]


def as_dict(library: Backend, nest: Any) -> Any:
    return {name: library.numpy(part) for name, part in nest.items()}


def test_recorder_works_on_either_library(library: Backend) -> None:
    zero, no, end = library.tree([np.zeros(3, np.float32), np.zeros(3, bool), np.array([True, False, False])])
    carry = ted.begin(zero)
    carry, _, mask = ted.from_gymnasium(carry, zero, (zero + 1, zero, end, no, {}), NEXT_STEP)
    assert library.numpy(mask).tolist() == [True] * 3
    carry, items, mask = ted.from_gymnasium(carry, zero, (zero + 2, zero, no, no, {}), NEXT_STEP)
    assert library.numpy(mask).tolist() == [False, True, True]
    carry, items, _ = ted.from_gymnasium(ted.begin(zero), zero, (zero + 1, zero, end, no, {}), DISABLED)
    with pytest.raises(ValueError, match=r"environments \[0\] have ended"):
        ted.from_gymnasium(carry, zero, (zero + 1, zero, no, no, {}), DISABLED)
    carry = ted.reset(carry, zero + 7, end)
    assert library.numpy(carry.observation).tolist() == [7, 1, 1]
    _, items, mask = ted.from_gymnasium(carry, zero, (zero + 2, zero, no, no, {}), DISABLED)
    assert library.numpy(mask).all()
    assert library.numpy(items["observation"]).tolist() == [7, 1, 1]


def test_what_is_stepped_after_its_end_while_tracing_is_not_marked() -> None:
    @jax.jit
    def record(zero: Any, end: Any) -> Any:
        carry, masks = ted.begin(zero), []
        for ends in (end, end ^ end, end ^ end):
            carry, _, mask = ted.from_gymnasium(carry, zero, (zero + 1, zero, ends, end ^ end, {}), DISABLED)
            masks.append(mask)
        carry = ted.reset(carry, zero, end)
        return [*masks, ted.from_gymnasium(carry, zero, (zero + 1, zero, end, end, {}), DISABLED)[2]]

    masks = record(np.zeros(2, np.float32), np.array([True, False]))
    assert np.stack(masks).tolist() == [[True, True], [False, True], [False, True], [True, True]]


def test_manual_resets_are_checked() -> None:
    x, zero, end = np.zeros((2, 1)), np.zeros(2), np.array([True, False])
    carry, _, _ = ted.from_gymnasium(ted.begin(x), zero, (x, zero, end, ~YES[:2], {}), DISABLED)
    with pytest.raises(
        ValueError, match=r"ted.reset: environments \[1\] had not ended; record their last step as truncated"
    ):
        ted.reset(carry, x, YES[:2])
    with pytest.raises(TypeError, match=r"ted.reset: mask: expected an array of dtype bool, got int64"):
        ted.reset(carry, x, np.array([1, 0]))
    with pytest.raises(
        ValueError, match=r"ted.reset: the observation: expected the structure of the observations before"
    ):
        ted.reset(carry, {"x": x}, end)
    # An episode that is cut off says so in what is recorded.
    carry, items, _ = ted.from_gymnasium(ted.begin(x), zero, (x, zero, end, ~end, {}), DISABLED)
    assert items["next"]["truncated"].tolist() == [False, True]
    assert not ted.reset(carry, x, YES[:2]).ended.any()


X, ZERO, END = np.zeros((2, 1), np.float32), np.zeros(2), np.array([True, False])


def finals(*rows: Any) -> dict[str, Any]:
    array = np.full(2, None, object)
    for i, each in enumerate(rows):
        array[i] = each
    return {"final_obs": array, "_final_obs": END}


@pytest.mark.parametrize(
    ("step", "mode", "error", "message"),
    [
        ((X, ZERO, END, END), DISABLED, ValueError, r"expected step as \(observation, reward, terminated"),
        ((X, ZERO, END, END, {}), "Both", ValueError, "expected autoreset_mode as one of 'NextStep'.*got 'Both'"),
        ((X, ZERO, ZERO, END, {}), DISABLED, TypeError, "terminated: expected an array bool"),
        ((X, ZERO, END, NO, {}), DISABLED, TypeError, "truncated: expected an array bool of one shape"),
        (
            (X, ZERO, END, END, {}),
            SAME_STEP,
            ValueError,
            r"environments \[0\] are done, but infos has no \"final_obs\"",
        ),
        ((X, ZERO, END, END, finals()), SAME_STEP, ValueError, r"environment 0 is done.*\[0\] is None"),
        ((X, ZERO, END, END, finals(X[0])), NEXT_STEP, ValueError, 'give autoreset_mode="SameStep"'),
        (
            (X, ZERO, END, END, finals(X)),
            SAME_STEP,
            ValueError,
            r"expected shape \(1,\) and dtype float32.*got \(2, 1\)",
        ),
        ((X, ZERO, END, END, finals(1j * X[0])), SAME_STEP, ValueError, "and dtype float32.*and complex64"),
        (
            (X, ZERO, END, END, finals({"x": X[0]})),
            SAME_STEP,
            ValueError,
            r"infos\[\"final_obs\"\]\[0\]: expected the structure",
        ),
        ((X[0], ZERO, END, END, {}), DISABLED, ValueError, "leaf 'next/observation': expected shape"),
        ((X, np.zeros(3), END, END, {}), DISABLED, ValueError, r"leaf 'next/reward': expected shape \(2, '...'\)"),
    ],
)
def test_recorder_names_what_is_wrong(step: Any, mode: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ted.from_gymnasium(ted.begin(X), ZERO, step, mode)


def test_flags_as_python_values_need_no_lanes() -> None:
    carry, item, mask = ted.from_gymnasium(ted.begin(X[0]), 0, (X[1], 1.0, True, False, {}), DISABLED)
    assert (item["next"]["done"].shape, bool(mask), bool(carry.ended)) == ((), True, True)
    with pytest.raises(ValueError, match=r"plain ones: ted.begin"):
        ted.from_gymnasium(carry, 0, (X[1], 1.0, True, False, {}), DISABLED)
