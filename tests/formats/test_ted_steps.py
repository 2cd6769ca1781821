"""Steps in TED: checked, made of rows, and taken apart."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import functional_rb as frb
from functional_rb import ted
from tests.formats import recorded
from tests.formats.recorded import FLAGS, NO
from tests.support.backends import Backend


def compiled_whole(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend="eager")


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
    item = frb.specs.spec_of(recorded.at(STEPS, (0, 0)))
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


@pytest.mark.parametrize(
    ("trace", "array"),
    [
        (jax.jit, jax.numpy.asarray),
        (lambda function: jax.vmap(function, 1, 1), jax.numpy.asarray),
        (lambda function: torch.vmap(function, 1, 1), torch.from_numpy),
        (compiled_whole, torch.from_numpy),
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
    if trace is not compiled_whole:  # which tells of errors in its own way
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
    nested: Any = {"action": {"left": 1, "right": {"arm": 2}}, "policy": 3, "next": {"x": 4}}
    assert ted.step_mdp(nested, keep_other=False, exclude_action=False) == {"action": nested["action"], "x": 4}


def test_step_mdp_of_specs_and_dataclasses() -> None:
    item = frb.specs.spec_of(recorded.at(STEPS, (0, 0)))
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
    before, following = observation(), observation()
    rows = (before, rng.normal(size=lead), rng.normal(size=lead), following, terminated, truncated)
    steps = ted.from_transitions(*rows, observation_key=key)
    ted.check(steps)
    assert not any(np.any(steps[flag]) for flag in FLAGS)
    assert recorded.same(steps["next"]["done"], terminated | truncated)
    spread = before if kind == "dict" and key is None else {key or "observation": before}
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
    compiled = jax.jit if library.library == "jax" else compiled_whole
    following = compiled(lambda *rows: ted.to_transitions(ted.from_transitions(*rows)).done)(*rows)
    assert recorded.same(library.numpy(following), STEPS["next"]["done"])


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
