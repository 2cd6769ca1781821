"""How leaves are named: a tuple of names is the path of one leaf, a list has several keys."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.base import nest
from functional_rb.core.item_function import ItemFunction
from tests.support.backends import Backend

items = frb.items
X, IMAGE = frb.Unbounded((3,)), frb.Bounded(0, 255, (8, 6, 3), "uint8")
# Where ("next", "observation") could be read as two keys, a container and a leaf.
STEPS = {
    "observation": X,
    "pixels": IMAGE,
    "choice": frb.Categorical(4),
    "done": frb.Binary(()),
    "next": {"observation": X, "pixels": IMAGE, "choice": frb.Categorical(4), "reward": frb.Unbounded(())},
}
PATH = ("next", "observation")


def test_a_path_of_a_leaf_changes_that_leaf_alone(library: Backend) -> None:
    item = {"observation": X, "done": frb.Binary(()), "next": {"observation": X, "reward": frb.Unbounded(())}}
    scaled = frb.map_items(items.normalize(0.0, 10.0, PATH))
    state = library.init(frb.BufferSpec(item, 8, transforms=scaled))
    tens = np.full((8, 3), 10, np.float32)
    rows = {"observation": tens, "done": np.zeros(8, bool), "next": {"observation": tens, "reward": tens[:, 0]}}
    _, sample = library.sample(library.add(state, rows), library.rb.key(0), 16)
    assert (library.numpy(sample.items["next"]["observation"]) == 1).all()
    assert (library.numpy(sample.items["next"]["reward"]) == 10).all()
    assert (library.numpy(sample.items["observation"]) == 10).all()


def leaves_of(item: dict[str, Any], outer: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """The leaves by their paths, as functions of items are given them."""
    found: dict[tuple[str, ...], Any] = {}
    for name, part in item.items():
        found |= leaves_of(part, (*outer, name)) if isinstance(part, dict) else {(*outer, name): part}
    return found


def changed(function: ItemFunction, lead: int) -> set[str]:
    """The leaves that a function changes, leaves out or adds."""
    before = leaves_of(STEPS)
    after = function.spec(before, lead)
    return {nest.show(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


FUNCTIONS: dict[str, tuple[Callable[[Any], ItemFunction], str, int]] = {
    "cast": (lambda keys: items.cast("float16", keys), "observation", 1),
    "cat": (lambda keys: items.cat(keys, "joined"), "observation", 1),
    "flatten": (items.flatten, "pixels", 1),
    "normalize": (lambda keys: items.normalize(1, 2, keys), "pixels of floats", 1),
    "one_hot": (lambda keys: items.one_hot(4, keys), "choice", 1),
    "select": (lambda keys: items.select(exclude=keys), "observation", 1),
    "to_image": (items.to_image, "pixels", 1),
    "grayscale": (items.grayscale, "pixels", 1),
    "resize": (lambda keys: items.resize(4, keys=keys), "pixels", 1),
    "crop": (lambda keys: items.crop(4, keys), "pixels", 1),
    "frame_stack": (lambda keys: items.frame_stack(2, keys), "observation", 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_read_a_tuple_as_a_path(name: str) -> None:
    make, leaf, lead = FUNCTIONS[name]
    if leaf == "pixels of floats":  # of which bounds tell whether they were changed
        leaf, first = "pixels", items.to_image(["next/pixels", "pixels"])
        found = items.compose(first, make(("next", leaf)))
        assert changed(found, lead) == {"next/pixels", "pixels"}
        assert found.spec(leaves_of(STEPS), 1)["pixels",] == frb.Bounded(0, 1, (3, 8, 6))
        return
    assert changed(make(("next", leaf)), lead) - {"joined"} == {f"next/{leaf}"}
    assert changed(make([("next", leaf), leaf]), lead) - {"joined"} == {f"next/{leaf}", leaf}
    assert make(("next", leaf)) == make([("next", leaf)]) == make((("next", leaf),))
    assert make((leaf,)) == make([leaf]) == make(leaf)
    with pytest.raises(ValueError, match=r"'observation/done'.*write the list \['observation', 'done'\]"):
        changed(make(("observation", "done")), lead)


ENDS = {"obs": X, "reward": frb.Unbounded(()), "terminated": frb.Binary(()), "truncated": frb.Binary(())}
TWO: Any = ("terminated", "truncated")
SEVERAL_SPELLED = r"'terminated/truncated': for several leaves write the list \['terminated', 'truncated'\]"
READERS: dict[str, Callable[[Any], Any]] = {
    "slices": lambda keys: frb.BufferSpec(ENDS, 8, frb.Slices(2, end_keys=keys)),
    "slices once": lambda keys: frb.BufferSpec(ENDS, 8, frb.SlicesWithoutReplacement(2, end_keys=keys)),
    "slices prioritized": lambda keys: frb.BufferSpec(ENDS, 8, frb.PrioritizedSlices(2, end_keys=keys)),
    "returns": lambda keys: frb.BufferSpec(ENDS, 8, transforms=frb.n_step(2, 0.9, end_keys=keys)),
    "returns of added": lambda keys: frb.BufferSpec(ENDS, 8, transforms=frb.n_step(2, 0.9, at="add", end_keys=keys)),
    "what follows": lambda keys: frb.BufferSpec(ENDS, 8, transforms=frb.n_step(2, 0.9, next_keys=keys)),
    "goals": lambda keys: frb.BufferSpec(
        ENDS, 8, transforms=frb.her(reward=min, achieved_key="obs", goal_keys="obs", end_keys=keys)
    ),
    "burn in": lambda keys: items.burn_in(2, end_keys=keys).spec(leaves_of(ENDS), 2),
    "returns to go": lambda keys: items.reward_to_go(end_keys=keys).spec(leaves_of(ENDS), 2),
    "discounts": lambda keys: items.reward_to_go(0.9, "reward", None, end_keys=keys).spec(leaves_of(ENDS), 2),
    "stacks": lambda keys: items.frame_stack(2, "obs", end_keys=keys).spec(leaves_of(ENDS), 2),
}


@pytest.mark.parametrize("name", READERS)
def test_ends_in_a_tuple_are_refused_with_both_spellings(name: str) -> None:
    with pytest.raises(ValueError, match=f"no leaf 'terminated/truncated'.*{SEVERAL_SPELLED}"):
        READERS[name](TWO)
    READERS[name]([*TWO])
    READERS[name](tuple((key,) for key in TWO))


def test_goals_and_rewards_by_paths() -> None:
    goal = frb.Unbounded((2,))
    item = {"aim": goal, "next": {"aim": goal, "at": goal, "reward": frb.Unbounded(())}, "done": frb.Binary(())}

    def transform(goals: Any, reward: Any) -> Any:
        given = {"achieved_key": ("next", "at"), "goal_keys": goals, "reward_key": reward}
        return frb.BufferSpec(item, 8, transforms=frb.her(reward=max, **given)).transforms[0]

    one = transform(("next", "aim"), ("next", "reward"))
    assert (one.goal_keys, one.reward_key) == ((("next", "aim"),), ("next", "reward"))
    assert len(transform(["aim", ("next", "aim")], [("next", "reward")]).goal_keys) == 2
    with pytest.raises(ValueError, match=r"'aim/done': for several leaves write the list \['aim', 'done'\]"):
        transform(("aim", "done"), None)


def test_leaves_of_mixtures(library: Backend) -> None:
    first = library.init(frb.BufferSpec({"a": {"b": X}, "b": X, "c": X}, 4))
    mixed = frb.Mixture([first, first], leaves=("a", "b"))
    assert mixed.spec.leaves == ("a/b",)
    assert frb.Mixture([first, first], leaves=["a", "b"]).spec.leaves == ("a", "b")
    with pytest.raises(ValueError, match=r"no leaf 'b/c'.*for several leaves write the list \['b', 'c'\]"):
        library.rb.sample(frb.Mixture([first, first], leaves=("b", "c")), library.rb.key(0), 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda key: {"sampler": frb.Slices(2, end_keys="x", trajectory_key=key)},
        lambda key: {"sampler": frb.Groups(2, key)},
        lambda key: {"writer": frb.MaxValue(key)},
        lambda key: {"transforms": frb.n_step(2, 0.9, reward_key="y", end_keys="x", terminated_key=key)},
        lambda key: {"transforms": frb.her(achieved_key=key, goal_keys="y", end_keys="x", reward_key="y")},
        lambda key: {"transforms": frb.map_items(items.clip_reward(reward_key=key))},
        lambda key: {"compact": frb.Compact(next=(("y", key),))},
    ],
)
def test_one_key_is_no_list(make: Callable[[Any], Any]) -> None:
    item = {"x": frb.Binary(()), "y": frb.Unbounded(()), "next": {"y": frb.Unbounded((), "int32")}}
    with pytest.raises(TypeError, match=r"a list has several keys, so write \('next', 'y'\) for the path of one leaf"):
        frb.BufferSpec(item, 8, **make(["next", "y"]))


def test_lists_in_lists_and_what_is_no_key() -> None:
    with pytest.raises(TypeError, match=r"cast: keys: .*got \['a', 'b'\]; .*write \('a', 'b'\)"):
        items.cast("float32", [["a", "b"]])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"select: keys: expected the key of a leaf as a name, .* got 3"):
        items.select([3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"rename: names: .*got \['a'\].*write \('a',\)"):
        items.rename({"b": ["a"]})  # type: ignore[dict-item]


def test_keys_stay_what_they_are() -> None:
    sampler = frb.BufferSpec(ENDS, 8, frb.Slices(2)).sampler
    assert repr(sampler.end_keys) == "['terminated', 'truncated']"
    for again in (
        dataclasses.replace(sampler, length=2),
        pickle.loads(pickle.dumps(sampler)),
        dataclasses.replace(pickle.loads(pickle.dumps(sampler)), length=2),
        frb.convert.from_json(frb.convert.to_json(frb.BufferSpec(ENDS, 8, sampler))).sampler,
    ):
        assert (again, hash(again)) == (sampler, hash(sampler))
        assert frb.BufferSpec(ENDS, 8, again).sampler == sampler
    assert eval(repr(sampler), {"Slices": frb.Slices}) == sampler
