"""Functions of items: what they see, what containers become of what they give, and what is refused.

Those on the host read the items that a sample would have without them, however these are made.
"""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.core.item_function import HostFunction, ItemFunction, by_item, chosen, item_after
from functional_rb.ops import numpy_ops
from functional_rb.specs.regrouped import leaves_of, regrouped
from functional_rb.testing.map_rules import applied
from tests.support.backends import Backend


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Step:
    obs: Any
    reward: Any


NUMBER, TRIPLE = frb.Unbounded(()), frb.Unbounded((3,))


@pytest.mark.parametrize(
    "item",
    [
        NUMBER,
        {"b": NUMBER, "a": {"x": TRIPLE}},
        (NUMBER, [TRIPLE]),
        Pair(NUMBER, {"x": TRIPLE}),
        Step({"x": TRIPLE}, NUMBER),
        frb.Composite.like(dict, {"x": frb.Unbounded((2, 3))}, (2,)),
        {"name": frb.specs.Text(4), "any": frb.specs.NonTensor()},
    ],
    ids=lambda item: type(item).__name__,
)
def test_other_leaves_stay_in_the_containers_that_can_hold_them(item: Any) -> None:
    leaves = leaves_of(item)
    assert regrouped(item, leaves) is item
    floats = {path: leaf for path, leaf in leaves.items() if leaf.dtype == "float32"}
    halves = leaves | {path: frb.Unbounded(leaf.shape, "float16") for path, leaf in floats.items()}
    after = regrouped(item, halves)
    assert leaves_of(after) == halves
    assert type(after) is type(item) or isinstance(item, dict)
    if isinstance(after, frb.Composite) and isinstance(item, frb.Composite):
        assert after._like[0] is item._like[0]
        assert after.batch_shape == item.batch_shape


def test_leaves_keep_their_order_and_new_ones_come_last() -> None:
    made = regrouped({"b": NUMBER, "a": NUMBER}, {("c",): NUMBER, ("a",): TRIPLE, ("b",): TRIPLE})
    assert list(made) == ["b", "a", "c"]


def test_containers_that_cannot_hold_the_leaves_become_dicts() -> None:
    without = regrouped(Pair(NUMBER, TRIPLE), {("left",): NUMBER})
    assert without == frb.Composite(left=NUMBER)
    assert regrouped(Step(NUMBER, TRIPLE), {("obs", "x"): NUMBER, ("reward",): NUMBER}) == Step(
        frb.Composite(x=NUMBER), NUMBER
    )
    assert regrouped((NUMBER, TRIPLE), {(1,): TRIPLE}) == frb.Composite({"1": TRIPLE})
    batch = frb.Composite.like(dict, {"x": frb.Unbounded((2, 3)), "y": frb.Unbounded((2,))}, (2,))
    assert regrouped(batch, {("x",): frb.Unbounded((6,)), ("y",): frb.Unbounded((2,))}).batch_shape == ()
    with pytest.raises(ValueError, match=r"'b'.*rename"):
        regrouped({"a": NUMBER}, {("a",): NUMBER, ("a", "b"): NUMBER})


@dataclasses.dataclass(frozen=True)
class Flipped(ItemFunction):
    gives: Any = None

    @property
    def words(self) -> int:
        return 1

    def spec(self, leaves: Any, lead: int) -> Any:
        return leaves

    def apply(self, ops: Any, leaves: Any, lead: Any, draws: Any, mask: Any) -> Any:
        if self.gives is not None:
            return self.gives
        sign = ops.cast((draws[:, 0] & 1) * 2 - 1, "float32")
        return leaves | {("x",): by_item(sign, leaves["x",], lead) * leaves["x",]}


def test_a_function_is_given_leaves_by_path_and_one_row_of_draws_for_each_item() -> None:
    item = {"x": TRIPLE, "n": frb.Unbounded((), "int32")}
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    draws = np.array([[1], [0], [3], [2]], np.int32)
    given = {("x",): x, ("n",): np.zeros((2, 2), np.int32)}
    made = applied(Flipped(), numpy_ops, leaves_of(item), given, (2, 2), draws, None)
    np.testing.assert_array_equal(made["x",], x * np.array([[1, -1], [1, -1]], np.float32)[:, :, None])


@pytest.mark.parametrize(
    ("gives", "error", "message"),
    [
        ({("x",): np.zeros((2, 3), np.float32)}, ValueError, r"'n': got none"),
        ({("x",): 0, ("n",): np.zeros(2, np.int32)}, TypeError, r"'x': expected an array, got int"),
        ({("x",): np.zeros(3, np.float32), ("n",): 0}, ValueError, r"'x': expected shape \(2, 3\).*got \(3,\)"),
        ({("x",): np.zeros((2, 3)), ("n",): 0}, TypeError, r"'x': expected float32.*got float64"),
    ],
)
def test_what_is_not_as_the_spec_says_is_refused(gives: Any, error: type[Exception], message: str) -> None:
    leaves = leaves_of({"x": TRIPLE, "n": frb.Unbounded((), "int32")})
    with pytest.raises(error, match=message):
        applied(Flipped(gives), numpy_ops, leaves, {}, (2,), None, None)


def test_keys_name_leaves_and_all_below_a_container() -> None:
    leaves = leaves_of({"obs": {"x": TRIPLE, "n": frb.Unbounded((), "int32")}, "observed": frb.Binary()})
    assert set(chosen(leaves, None, "me")) == set(leaves)
    assert set(chosen(leaves, None, "me", ("float",))) == {("obs", "x")}
    assert set(chosen(leaves, ("obs",), "me")) == {("obs", "x"), ("obs", "n")}
    assert chosen(leaves, (("obs", "n"), "obs/n"), "me", ("int",)) == (("obs", "n"),)
    with pytest.raises(ValueError, match=r"me: the item has no leaf 'ob'; name some of"):
        chosen(leaves, ("ob",), "me")
    with pytest.raises(ValueError, match=r"me: leaf 'observed': expected a dtype of float or int, got bool"):
        chosen(leaves, ("observed",), "me", ("float", "int"))


def test_cast_changes_the_named_leaves() -> None:
    item = Pair({"image": frb.Bounded(0, 255, (2,), "uint8")}, frb.Binary())
    function = frb.items.cast("float32", keys=["left"])
    after = item_after(function, item)
    assert after == Pair(frb.Composite(image=frb.Unbounded((2,))), frb.Binary())
    image = np.array([[3, 255]], np.uint8)
    given = {("left", "image"): image, ("right",): np.ones(1, bool)}
    made = applied(function, numpy_ops, leaves_of(item), given, (1,), None, None)
    assert made["left", "image"].dtype == np.float32
    assert made["left", "image"].tolist() == [[3, 255]]
    assert made["right",] is given["right",]
    with pytest.raises(ValueError, match=r"cast: leaf 'any': expected a dtype of float or int or bool, got object"):
        item_after(frb.items.cast("int32", keys="any"), {"any": frb.specs.NonTensor()})


def test_functions_choose_leaves_by_paths_names_and_lists() -> None:
    paths = [("next", "observation"), ("next", "reward"), ("observation",)]
    assert chosen(paths, ("next", "observation"), "me") == (("next", "observation"),)
    assert chosen(paths, ["next", "observation"], "me") == tuple(paths)
    assert chosen(paths, "observation", "me") == (("observation",),)


# --- on the host ------------------------------------------------------------------------------------------------------


N = 12
ROW: dict[str, Any] = {"x": frb.Unbounded((3,)), "reward": frb.Unbounded(())}
ROW |= {"done": frb.Binary(), "next": {"x": frb.Unbounded((3,))}}
RETURNS = frb.n_step(2, 0.9, reward_key="reward", terminated_key="done", end_keys=("done",), next_keys=(("next", "x"),))

SINGLE = (frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement())


@dataclasses.dataclass(frozen=True)
class Copied(HostFunction):
    """Gives what it is given, in one level."""

    @property
    def gives(self) -> None:
        return None

    def read(self, leaves: Mapping[str, np.ndarray], as_array: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        assert all(isinstance(leaf, np.ndarray) for leaf in leaves.values())
        return {name: as_array(leaf.copy()) for name, leaf in leaves.items()}


@dataclasses.dataclass(frozen=True)
class Sums(HostFunction):
    """Gives little of what is much."""

    @property
    def gives(self) -> None:
        return None

    def read(self, leaves: Mapping[str, np.ndarray], as_array: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        return {"sum": as_array(leaves["x"].sum(1, dtype=np.int32))}


def drawn(library: Backend, spec: frb.BufferSpec) -> Any:
    numbers = np.arange(N, dtype=np.float32)
    x = numbers[:, None] + np.zeros(3, np.float32)
    rows = {"x": x, "reward": numbers, "done": numbers % 5 == 4, "next": {"x": x + 1}}
    state = library.rb.add(library.rb.init(spec), library.tree(rows))
    return library.rb.sample(state, library.rb.key(3), 6)[1]


@pytest.mark.parametrize("compact", [None, frb.Compact()], ids=["plain", "compact"])
@pytest.mark.parametrize(
    ("sampler", "inner"),
    [
        *((sampler, inner) for sampler in SINGLE for inner in ((), (RETURNS,))),
        (frb.Slices(2, end_keys=("done",)), ()),  # n-step returns are of single steps
    ],
    ids=lambda given: type(given).__name__ if not isinstance(given, tuple) else "n_step" if given else "alone",
)
def test_they_read_what_a_sample_has(library: Backend, sampler: Any, inner: Any, compact: Any) -> None:
    spec = frb.BufferSpec(ROW, N, sampler, transforms=inner, compact=compact, storage=frb.Host())
    expected = drawn(library, spec)
    found = drawn(library, dataclasses.replace(spec, transforms=(*inner, frb.map_items(Copied()))))
    items = {**expected.items, "next/x": expected.items["next"]["x"]}
    del items["next"]
    assert found.items.keys() == items.keys()
    for name, leaf in items.items():
        np.testing.assert_array_equal(library.numpy(found.items[name]), library.numpy(leaf))
    np.testing.assert_array_equal(library.numpy(found.indices), library.numpy(expected.indices))


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.WithoutReplacement()], ids=repr)
def test_what_they_read_is_not_kept_with_the_state_or_the_indices(library: Backend, sampler: Any) -> None:
    """What a sample tells lies in memory of its own, or a state would keep the items of the batch before."""
    rb, image = library.rb, frb.Unbounded((5000,), "uint8")
    function = frb.map_items(Sums())
    spec = frb.BufferSpec({"x": image}, 64, sampler, transforms=function, storage=frb.Host())
    state = rb.add(rb.init(spec), {"x": np.ones((64, 5000), np.uint8)})
    keys, kept = rb.split(rb.key(0), 12), []
    state, _ = rb.sample(state, keys[0], 32)
    tracemalloc.start()
    try:
        for key in keys[1:]:
            state, sample = rb.sample(state, key, 32)
            kept.append((state, sample.indices, sample.weights))
        del sample
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * 32 * 5000, "of the items of 11 batches, of which libraries may hold the last"
