"""Leaves that are Python objects: stored as tokens for which a table has the objects, on JAX only on the host."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, set_list_to_stack
from torch.utils import _pytree as pytree

import functional_rb as frb
import jax_backend
import torch_backend as rb
from tests.contract.notes import ITEM, STEPS, WITH_OBJECTS, Note, batch, spec_of, values
from tests.support import backends, members
from tests.support.backends import Backend


@pytest.fixture(params=WITH_OBJECTS)
def variant(request: pytest.FixtureRequest) -> Any:
    with backends.make(request.param) as made:
        yield made


# ---------------------------------------------------------------- what goes in comes out


def test_batches_items_and_what_was_never_written(variant: Backend) -> None:
    odd: list[Any] = [[1, 2], np.arange(3), np.array(5), "text", None, (), {"a": 1}, torch.ones(2)]
    state = variant.init(spec_of(10))
    state = variant.add(state, batch(*range(8), notes=odd))
    state = variant.add(state, {"id": 8, "note": ["one", "item"]})
    stored = variant.rb.items(state)["note"]
    assert all(got is put for got, put in zip(stored, odd, strict=False))
    assert stored[8] == ["one", "item"]
    assert stored[9] is None
    got = variant.rb.get(state, np.array([7, 99, -1, 3], np.int32))
    assert got["note"][0] is odd[7]
    assert got["note"][1:].tolist() == [None, None, "text"]
    state, sample = variant.sample(state, variant.rb.key(0), 20)
    assert sample.items["note"].shape == (20,)
    assert all(note is odd[k] for k, note in zip(sample.items["id"], sample.items["note"], strict=True) if k < 8)


def test_shapes_and_lanes(variant: Backend) -> None:
    spec = frb.BufferSpec(
        {"id": frb.Unbounded((2,)), "pair": frb.specs.NonTensor((2, 1)), "none": frb.specs.NonTensor((0,))}, 6, lanes=2
    )
    assert spec.item_bytes == 24
    state = variant.init(spec)
    pairs = np.array([Note(k) for k in range(12)], object).reshape(3, 2, 2, 1)
    state = variant.add(
        state, {"id": np.zeros((3, 2, 2), np.float32), "pair": pairs, "none": np.empty((3, 2, 0), object)}
    )
    got = variant.rb.items(state)
    assert got["pair"].shape == (6, 2, 1)
    assert values(got["pair"]) == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]  # lane by lane
    assert got["none"].shape == (6, 0)
    nested = [[["a"], ["b"]], [[Note(1)], [None]]]
    state = variant.add(state, {"id": np.zeros((2, 2), np.float32), "pair": nested, "none": [[], []]})
    assert variant.rb.items(state)["pair"][0].tolist() == [["a"], ["b"]]


def test_items_of_objects_alone(variant: Backend) -> None:
    state = variant.init(frb.BufferSpec(frb.specs.NonTensor(), 5))
    state = variant.add(state, [1, 2] if variant.library == "torch" else [[1, 2]])  # one item; of `Host` a batch
    state = variant.add(state, np.array(["a", "b"], object))
    state = variant.add(state, np.array({"c"}, object))
    assert variant.rb.items(state).tolist() == [[1, 2], "a", "b", {"c"}, None]
    assert type(variant.rb.items(state)[3]) is set
    state = variant.add(state, np.array([0, 1, 2, 3, 4, 5, 6], object))
    assert sorted(variant.rb.items(state).tolist()) == [2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match=r"leaf 'the item': expected shape \(2,\) for a step of all lanes"):
        variant.rb.add(variant.init(frb.BufferSpec(frb.specs.NonTensor(), 4, lanes=2)), "x")


def test_what_callers_do_with_their_arrays_afterwards() -> None:
    given = np.array(["a", "b"], object)
    state = rb.add(rb.init(spec_of()), batch(0, 1, notes=given))  # type: ignore[arg-type]  # notes of any kind
    given[:] = "changed"
    got = rb.items(state)["note"]
    got[:] = "changed"
    assert rb.items(state)["note"].tolist() == ["a", "b", None, None]


def test_specs_with_objects_are_values() -> None:
    spec, same = spec_of(), spec_of()
    assert spec == same == pickle.loads(pickle.dumps(spec))
    assert hash(spec) == hash(same)
    assert spec != frb.BufferSpec(ITEM | {"note": frb.Unbounded((), "int64")}, 4)
    assert spec.plan.objects == (1,)
    assert frb.BufferSpec({"id": frb.Unbounded(())}, 4).plan.objects == ()
    assert spec.item_bytes == 16
    assert "'note': NonTensor()" in repr(spec)


@pytest.mark.parametrize("name", list(members.MEMBERS))
def test_objects_go_where_their_items_go(variant: Backend, name: str) -> None:
    """Whatever a sampler and a writer do: an item's object is the one that was added with its number."""
    member = members.MEMBERS[name]
    plain, rng = member.spec, np.random.default_rng(3)
    spec = dataclasses.replace(plain, item=members.ITEM | {"note": frb.specs.NonTensor()}, writer=plain.writer)
    lanes = spec.lanes or 1
    notes = np.array([None, *map(Note, range(1, 400))], object)

    def rows(first: int, steps: int) -> dict[str, Any]:
        lead = (steps, lanes) if spec.lanes else (steps,)
        ids = np.arange(first, first + steps * lanes, dtype=np.int32).reshape(lead)
        x = np.repeat(ids[..., None].astype(np.float32), 2, -1)
        return {"id": ids, "x": x, "done": rng.random(lead) < 0.3, "episode": ids // 9, "note": notes[ids]}

    def check(ids: Any, got: Any) -> None:
        ids = np.asarray(ids)
        assert got.shape == ids.shape
        assert all(note is notes[k] for k, note in zip(ids.reshape(-1), got.reshape(-1), strict=True))

    fixed = isinstance(spec.writer, frb.Immutable)
    state = variant.init(spec, items=rows(1, 12)) if fixed else variant.init(spec)
    per_add = members.BATCH // lanes
    for number in range(5):
        first = 50 + number * members.BATCH
        if not fixed and (number < 2 or "queue" not in name):
            mask = np.arange(members.BATCH).reshape((per_add, lanes) if spec.lanes else -1) % 4 != number
            key = variant.rb.key(number) if isinstance(spec.writer, frb.Reservoir) else None
            state = variant.add(state, rows(first, per_add), mask, None, key)
        stored = variant.rb.items(state)
        check(stored["id"], stored["note"])
        if bool(variant.rb.can_sample(state, members.BATCH)):
            state, sample = variant.sample(state, variant.rb.key(number), members.BATCH)
            check(sample.items["id"], sample.items["note"])
            found = variant.rb.get(state, sample.indices.reshape(-1))
            check(found["id"], found["note"])


# ---------------------------------------------------------------- transforms and the rest of the functions


def test_goals_in_hindsight_may_be_objects(variant: Backend) -> None:
    number = frb.Unbounded((), "int32")
    item = {"id": number, "goal": number, "achieved": number, "done": frb.Binary()}
    item |= {"note": frb.specs.NonTensor(), "goal_note": frb.specs.NonTensor(), "achieved_note": frb.specs.NonTensor()}
    keys = {"goal_keys": ("goal_note",), "achieved_key": "achieved_note"}
    state = variant.init(frb.BufferSpec(item, 8, transforms=frb.her("future", 1, **keys)))
    ids = np.arange(8, dtype=np.int32)
    notes = {"note": [*ids], "goal_note": [*(100 + ids)], "achieved_note": [*(200 + ids)]}
    state = variant.add(state, {"id": ids, "goal": ids, "achieved": ids, "done": ids % 4 == 3, **notes})
    state, sample = variant.sample(state, variant.rb.key(0), 64)
    handles, chosen = np.asarray(sample.extras["goal_indices"]), np.asarray(sample.extras["relabelled"])
    own = np.asarray(sample.items["id"])
    assert 10 < chosen.sum() < 54
    assert sample.items["note"].tolist() == own.tolist()
    assert sample.items["goal_note"].tolist() == np.where(chosen, 200 + handles, 100 + own).tolist()


def test_epochs_and_masks(variant: Backend) -> None:
    state = variant.rb.add(variant.init(spec_of(8, sampler=frb.WithoutReplacement(shuffle=False))), batch(*range(5)))
    assert [
        values(sample.items["note"]) for sample in frb.iterate(variant.rb, state, variant.rb.key(0), 2, epochs=1)
    ] == [
        [0, 1],
        [2, 3],
        [4],
    ]
    state = variant.add(state, batch(5, 6, 7), np.array([True, False, True]))
    assert values(variant.rb.items(state)["note"]) == [0, 1, 2, 3, 4, 5, 7, None]


def test_validation_is_of_the_other_leaves(variant: Backend) -> None:
    state = variant.init(frb.BufferSpec(ITEM | {"id": frb.Bounded(0, 9, (), "int32")}, 4))
    state = (variant.rb.add_ if variant.consumes else variant.rb.add)(state, batch(1, 2), validate=True)
    with pytest.raises(ValueError, match="leaf 'id': row 1 lies outside"):
        variant.rb.add(state, batch(1, 10), validate=True)
    assert values(variant.rb.items(state)["note"]) == [1, 2, None, None]


@set_list_to_stack(True)  # as it is by default from tensordict 0.10 on
def test_specs_of_tensordicts_with_objects() -> None:
    batch = TensorDict({"x": torch.zeros(3, 2), "note": ["a", "b", "c"]}, batch_size=[3])
    expected = {"x": frb.Unbounded((2,)), "note": frb.specs.NonTensor()}
    assert frb.specs.spec_of(batch[0]) == frb.Composite.like(TensorDict, expected)
    assert frb.specs.spec_of(batch)["note"] == frb.specs.NonTensor((3,))
    state = rb.add(rb.init(frb.BufferSpec(frb.specs.spec_of(batch[0]), capacity=3)), batch)
    assert list(rb.items(state)["note"]) == ["a", "b", "c"]


@set_list_to_stack(True)
def test_tensordicts() -> None:
    item = frb.Composite.like(
        TensorDict, {"id": frb.Unbounded((), "int32"), "note": frb.specs.NonTensor(), "two": frb.specs.NonTensor((2,))}
    )
    state = rb.init(frb.BufferSpec(item, 4))
    two = NonTensorStack(*(NonTensorStack(NonTensorData(k), NonTensorData([k])) for k in range(3)))
    many = TensorDict(
        {"id": torch.arange(3, dtype=torch.int32), "note": NonTensorStack("a", ["b"], None), "two": two}, [3]
    )
    state = rb.add(state, many)
    state = rb.add(state, TensorDict({"id": torch.tensor(3, dtype=torch.int32), "note": [1, 2], "two": ["p", "q"]}, []))
    got = rb.items(state)
    assert type(got) is TensorDict
    assert got.get("two").tolist() == [[0, [0]], [1, [1]], [2, [2]], ["p", "q"]]
    same = TensorDict({"id": torch.zeros(2, dtype=torch.int32), "note": "same", "two": got.get("two")[:2]}, [2])
    state = rb.add(rb.add(state, got), same)  # and back in, as they came out
    assert [str(x) for x in rb.items(state).get("note").tolist()] == ["same", "same", "None", str(torch.tensor([1, 2]))]
    assert rb.get(state, torch.zeros(0, dtype=torch.int32)).batch_size == (0,)


# ---------------------------------------------------------------- what is refused


def test_jax_refuses_objects_elsewhere_than_on_the_host() -> None:
    remedy = r"leaf 'note': dtype object means Python objects, .*storage=frb.Host\(\)\), .* int32 leaf"
    with pytest.raises(TypeError, match=remedy):
        jax_backend.init(spec_of())
    with pytest.raises(TypeError, match=remedy):
        jax.jit(lambda: jax_backend.init(spec_of()))()
    state = jax_backend.init(frb.BufferSpec({"note": frb.Unbounded(())}, 4))
    with pytest.raises(TypeError, match="leaf 'note': expected dtype float32, got object"):
        jax.jit(lambda s: jax_backend.add(s, {"note": np.array(["a"], object)}))(state)
    with pytest.raises(TypeError, match="leaf 'note': expected an array of dtype float32, got list"):
        jax_backend.add(state, {"note": ["a"]})
    with pytest.raises(TypeError, match="leaf 'note': dtype object means Python objects"):
        jax_backend.from_dlpack(rb.add(rb.init(spec_of()), batch(1)))


def test_the_bridge_refuses_objects() -> None:
    with pytest.raises(TypeError, match=r"leaf 'note' of the state holds Python objects, .* leave the leaf out"):
        rb.from_dlpack({"state": rb.init(spec_of())})


@pytest.mark.parametrize("function", ["add_", "sample_", "update_", "own_"])
def test_compiled_functions_refuse_objects(function: str) -> None:
    torch._dynamo.reset()
    state = rb.add(rb.init(spec_of()), batch(0, 1))
    rows = {"id": torch.arange(2, dtype=torch.int32), "note": ["a", "b"]}
    call: Any = {
        "add_": lambda s: rb.add_(s, rows),
        "sample_": lambda s: rb.sample_(s, rb.key(0), 2),
        "update_": lambda s: rb.update_(s, rows["id"], items={"id": rows["id"]}),
        "own_": rb.own_,
    }[function]
    with pytest.raises(Exception, match=r"leaf 'note' holds Python objects, which torch\.compile cannot"):
        torch.compile(call, fullgraph=True, backend="eager")(state)
    assert values(rb.items(state)["note"]) == [0, 1, None, None]  # it was not consumed


def test_vmap_refuses_objects() -> None:
    state = rb.add(rb.init(spec_of()), batch(0, 1))
    with pytest.raises(TypeError, match=r"leaf 'note': Python objects cannot be batched by torch\.func\.vmap"):
        torch.func.vmap(lambda key: rb.sample(state, key, 2)[1].items["id"])(rb.split(rb.key(0), 3))
    stacked = pytree.tree_map(lambda x: torch.stack([x, x]), state)
    with pytest.raises(TypeError, match=r"leaf 'note': Python objects cannot be batched by torch\.func\.vmap"):
        torch.func.vmap(rb.size)(stacked)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "rank": (lambda: spec_of(writer=frb.MaxValue("note")), r"leaf 'note': expected real numbers .* got object"),
    "end": (
        lambda: spec_of(sampler=frb.Slices(2, end_keys="note")),
        r"end key 'note': expected one bool .* got object",
    ),
    "trajectory": (
        lambda: spec_of(sampler=frb.Slices(2, trajectory_key="note")),
        r"trajectory key 'note': expected one integer .* got object",
    ),
    "reward": (
        lambda: frb.BufferSpec(STEPS, 4, transforms=frb.n_step(2, 0.9, reward_key="note")),
        r"leaf 'note': expected rewards of a float dtype, got NonTensor\(\)",
    ),
    "terminated": (
        lambda: frb.BufferSpec(STEPS, 4, transforms=frb.n_step(2, 0.9, terminated_key="note")),
        r"leaf 'note': expected one bool an item, got object",
    ),
    "truncated": (
        lambda: frb.BufferSpec(STEPS | {"truncated": frb.specs.NonTensor()}, 4, transforms=frb.n_step(2, 0.9)),
        r"leaf 'truncated': expected one bool an item, got object",
    ),
    "relabelled": (
        lambda: frb.BufferSpec(STEPS, 4, transforms=frb.her(reward=min, achieved_key="next_note", goal_keys=("note",))),
        r"leaf 'next_note' holds Python objects, and rewards are computed of arrays",
    ),
    "relabelled reward": (
        lambda: frb.BufferSpec(
            STEPS, 4, transforms=frb.her(reward=min, achieved_key="next_obs", goal_keys=("obs",), reward_key="note")
        ),
        r"leaf 'note' holds Python objects, and rewards are computed of arrays",
    ),
    "goal": (
        lambda: frb.BufferSpec(
            STEPS | {"goal": frb.Unbounded((), "int64")},
            4,
            transforms=frb.her(achieved_key="next_note", goal_keys=("goal",)),
        ),
        r"leaf 'goal': expected goals like the achieved ones in 'next_note', NonTensor\(\)",
    ),
    "pair": (
        lambda: frb.BufferSpec(STEPS, 4, compact=frb.Compact(next={"next_note": "note"})),
        r"leaf 'next_note' holds Python objects, which are neither compared nor shared; leave it out",
    ),
    "stack": (
        lambda: frb.BufferSpec({"note": frb.specs.NonTensor((4,))}, 4, compact=frb.Compact(next={}, stack={"note": 4})),
        r"leaf 'note' holds Python objects",
    ),
    "rows": (
        lambda: rb.add(rb.init(spec_of()), {"id": np.zeros(2, np.int32), "note": ["a"]}),
        r"leaf 'note': expected objects of shape \(2,\), got a list of 1 where 2 belong",
    ),
    "text": (
        lambda: rb.add(rb.init(spec_of()), {"id": np.zeros(2, np.int32), "note": "ab"}),
        r"leaf 'note': expected objects of shape \(2,\), .* got str",
    ),
    "numbers": (
        lambda: rb.add(rb.init(spec_of()), {"id": np.zeros(2, np.int32), "note": np.zeros(2)}),
        r"leaf 'note': .* got ndarray; give numpy\.asarray\(x\)\.astype\(object\), or a list",
    ),
    "tensor": (
        lambda: rb.add(rb.init(spec_of()), {"id": np.zeros(2, np.int32), "note": torch.zeros(2, dtype=torch.int64)}),
        r"leaf 'note': .* got Tensor",
    ),
    "other rows": (
        lambda: rb.add(rb.init(spec_of()), {"id": np.zeros(2, np.int32), "note": np.empty(3, object)}),
        r"leaf 'note': expected objects of shape \(2,\), got an array of shape \(3,\)",
    ),
    "the other leaf": (
        lambda: rb.add(rb.init(spec_of()), {"note": ["a"], "id": np.zeros((1, 2, 3), np.int32)}),
        r"leaf 'id': expected shape \(\) for one item or \('B',\) for a batch, got \(1, 2, 3\)",
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_refusals_name_the_leaf(what: str) -> None:
    made, message = REFUSED[what]
    with pytest.raises((TypeError, ValueError), match=message):
        made()
