"""Functions in specs: equal if they do the same, saved by name, refused with a remedy where they have none."""

from __future__ import annotations

import copy
import functools
import pickle
import tempfile
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends

GOAL = frb.Unbounded((2,))
ITEM = {"next_achieved_goal": GOAL, "desired_goal": GOAL, "reward": frb.Unbounded(()), "done": frb.Binary()}
VARIANTS = ["jax", "jax-host", "torch", "torch-host"]


def scaled(achieved: Any, goal: Any, scale: float = 1.0, shift: Any = 0.0) -> Any:
    return ((achieved - goal) ** 2).sum(-1) * scale + shift


def local() -> Any:
    def inner(achieved: Any, goal: Any) -> Any:
        return scaled(achieved, goal)

    return inner


UNNAMED = [lambda achieved, goal: scaled(achieved, goal), functools.partial(lambda a, g, s: a.sum(-1), s=1)]


def spec_of(reward: Any) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, 8, transforms=frb.her("future", 8, reward=reward))


def batch() -> dict[str, Any]:
    goals = np.arange(8, dtype=np.float32).reshape(4, 2)
    ends = np.arange(4) == 3
    return {"next_achieved_goal": goals, "desired_goal": -goals, "reward": np.ones(4, np.float32), "done": ends}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Any:
    with backends.make(request.param) as made:
        yield made


@pytest.mark.parametrize("reward", [*UNNAMED, local()])
def test_what_cannot_be_pickled_says_so(variant: backends.Backend, reward: Any) -> None:
    state = variant.add(variant.init(spec_of(reward)), batch())
    expected = r"her\(reward=...\): the function .* cannot be pickled .*; define it by def at the top of a module, or"
    for thing in (state, state.spec, state.spec.transforms):
        with pytest.raises(pickle.PicklingError, match=expected):
            pickle.dumps(thing)
        assert copy.deepcopy(thing) is not None
        assert copy.copy(thing) is not None
    assert copy.deepcopy(state).spec == state.spec
    cloudpickle = pytest.importorskip("cloudpickle")
    again = cloudpickle.loads(cloudpickle.dumps(state.spec))  # which has means of its own
    assert again.capacity == 8


@pytest.mark.parametrize("reward", UNNAMED)
def test_what_has_no_name_is_not_saved(variant: backends.Backend, reward: Any) -> None:
    state = variant.add(variant.init(spec_of(reward)), batch())
    expected = r"transforms/0/reward.*: expected a class or function with a name.*; define it by def at the top"
    with tempfile.TemporaryDirectory() as path:
        for save in (lambda: frb.save(state, path), lambda: variant.rb.state_dict(state)):
            with pytest.raises(ValueError, match=expected):
                save()
        assert frb.checkpoint.checkpoints(path) == []


def test_partial_functions_are_saved_and_compare_by_what_they_call(variant: backends.Backend) -> None:
    reward = functools.partial(scaled, scale=2.0, shift=1)
    spec = spec_of(reward)
    assert spec == spec_of(functools.partial(scaled, shift=1, scale=2.0))
    assert hash(spec) == hash(spec_of(functools.partial(scaled, scale=2.0, shift=1)))
    assert spec != spec_of(functools.partial(scaled, scale=3.0, shift=1))
    state = variant.add(variant.init(spec), batch())

    def check(other: Any) -> None:
        assert other.spec == state.spec
        (_, one), (_, two) = (variant.sample(s, variant.rb.key(4), 8) for s in (state, other))
        assert np.array_equal(np.asarray(one.items["reward"]), np.asarray(two.items["reward"]))
        assert set(np.asarray(one.items["reward"]).tolist()) >= {1.0}

    check(pickle.loads(pickle.dumps(state)))
    check(variant.rb.load_state_dict(state.spec, variant.rb.state_dict(state)))
    with tempfile.TemporaryDirectory() as path:
        frb.save(state, path)
        for known in (scaled, reward):
            check(frb.load(path, variant.library, frb.checkpoint.LoadOptions(known=[known])))
        with pytest.raises(ValueError, match=r"names '.*:scaled', which is not among those known"):
            frb.load(path, variant.library)


def test_partial_functions_of_what_cannot_be_compared() -> None:
    array = np.ones(2, np.float32)
    spec = spec_of(functools.partial(scaled, shift=array))
    assert isinstance(spec.transforms[0].reward, functools.partial)  # type: ignore[index,union-attr]  # a tuple of Hindsight
    assert pickle.loads(pickle.dumps(spec)).capacity == 8
    with pytest.raises(TypeError, match=r"keywords/shift: ndarray has no form in JSON"):
        frb.convert.to_json(spec)
    damaged = frb.convert.to_json(spec_of(functools.partial(scaled, scale=2.0))).replace('"args": []', '"args": 3')
    with pytest.raises(ValueError, match=r"transforms/0/reward: expected a function and its arguments"):
        frb.convert.from_json(damaged, known=[scaled])
