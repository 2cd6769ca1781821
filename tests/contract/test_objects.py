"""Leaves that are Python objects: stored as tokens for which a table has the objects, on JAX only on the host."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import pickle
import random
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, set_list_to_stack
from torch.utils import _pytree as pytree

import functional_rb as frb
import jax_backend
import torch_backend as rb
from functional_rb.base.object_arrays import array_of
from functional_rb.specs import Composite
from functional_rb.versions import object_table as tokens
from tests.support import backends, emulated_gpu, members
from tests.support.backends import Backend
from torch_backend.memory import objects

WITH_OBJECTS = [*(name for name in backends.VARIANTS if name.startswith("torch")), *backends.HOST_VARIANTS]
ITEM = {"id": frb.Unbounded((), "int32"), "note": frb.specs.NonTensor()}


@dataclasses.dataclass
class Note:
    """What is stored: it compares by value, and can be referred to weakly."""

    value: Any

    __hash__ = object.__hash__


@pytest.fixture(params=WITH_OBJECTS)
def variant(request: pytest.FixtureRequest) -> Any:
    with backends.make(request.param) as made:
        yield made


def on_a_gpu() -> Any:
    return emulated_gpu.using("forward")


def sweep_always(patch: pytest.MonkeyPatch) -> None:
    """Whatever is in a table, its limit is below."""
    patch.setattr(tokens, "SLACK", -(10**9))


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write sweeps."""
    sweep_always(monkeypatch)


def spec_of(capacity: int = 4, **more: Any) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, capacity, **more)


def batch(*ids: int, notes: list[Any] | None = None) -> dict[str, Any]:
    return {"id": np.array(ids, np.int32), "note": [Note(k) for k in ids] if notes is None else notes}


def values(array: Any) -> list[Any]:
    """The values of notes, None where there is none."""
    assert isinstance(array, np.ndarray)
    assert array.dtype == object
    return [None if note is None else note.value for note in array.reshape(-1).tolist()]


def held(state: Any) -> int:
    """How many objects a state's table has, None apart."""
    return len(state._version.own().table._objects) - 1


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
    pairs = array_of([Note(k) for k in range(12)], (3, 2, 2, 1))
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
    state = variant.add(state, [1, 2] if variant.library == "torch" else [[1, 2]])  # one item; of `Objects` a batch
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

STEPS = {
    "obs": frb.Unbounded((), "int32"),
    "note": frb.specs.NonTensor(),
    "reward": frb.Unbounded(()),
    "next_obs": frb.Unbounded((), "int32"),
    "next_note": frb.specs.NonTensor(),
    "done": frb.Binary(),
}


def steps(first: int, n: int, notes: list[Any]) -> dict[str, Any]:
    ids = np.arange(first, first + n, dtype=np.int32)
    return {
        "obs": ids,
        "note": [notes[k] for k in ids],
        "reward": np.ones(n, np.float32),
        "next_obs": ids + 1,
        "next_note": [notes[k + 1] for k in ids],
        "done": ids % 7 == 6,
    }


@pytest.mark.parametrize("at", ["sample", "add"])
def test_n_step_takes_what_follows_from_the_last_step(variant: Backend, swept: None, at: Any) -> None:
    notes = [None, *map(Note, range(1, 100))]
    state = variant.init(frb.BufferSpec(STEPS, 8, transforms=frb.n_step(3, 0.9, at=at)))
    far = 0
    for k in range(12):
        state = variant.add(state, steps(1 + 5 * k, 5, notes))
        state, sample = variant.sample(state, variant.rb.key(k), 16)
        items = sample.items
        far += int((items["next_obs"] - items["obs"] > 1).sum())
        for name in ("", "next_"):
            found = zip(items[f"{name}obs"], items[f"{name}note"], strict=True)
            assert all(note is notes[int(number)] for number, note in found)
    assert far > 50


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


def test_update_rewrites_objects(variant: Backend, swept: None) -> None:
    state = variant.add(variant.init(spec_of()), batch(0, 1, 2, 3))
    older = copy.copy(state)
    handles = np.array([1, 3, 1, 77], np.int32)
    new = [Note("dropped"), Note("b"), Note("a"), Note("stale")]
    state = variant.update(state, handles, None, {"note": new})
    state = variant.update(state, np.array([0], np.int32), None, {"id": np.array([9], np.int32)})
    assert values(variant.rb.items(state)["note"]) == [0, "a", 2, "b"]
    assert variant.rb.items(state)["note"][1] is new[2]
    assert values(variant.rb.items(older)["note"]) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"leaf 'note': expected objects of shape \(4,\), got a list of 3"):
        variant.rb.update(state, handles, items={"note": new[:3]})


def test_epochs_and_masks(variant: Backend) -> None:
    state = variant.rb.add(variant.init(spec_of(8, sampler=frb.WithoutReplacement(shuffle=False))), batch(*range(5)))
    assert [values(sample.items["note"]) for _, sample in variant.rb.epochs(state, variant.rb.key(0), 2)] == [
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
    item = Composite.like(
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


# ---------------------------------------------------------------- states are values

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "to a process": lambda state: pickle.loads(ForkingPickler.dumps(state)),
    "pytree": lambda state: pytree.tree_map(torch.clone, state),
}

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add_", "update", "drop", "deepcopy", "pickle", "read", "give"]), st.integers(0, 99)
    ),
    min_size=5,
    max_size=30,
)


class Slots:
    """A buffer of capacity 4 in plain Python."""

    def __init__(self, notes: list[Any], written: int) -> None:
        self.notes, self.written = notes, written

    def added(self, notes: list[Any]) -> Slots:
        after = list(self.notes)
        for k, note in enumerate(notes):
            after[(self.written + k) % 4] = note
        return Slots(after, self.written + len(notes))

    def updated(self, slot: int, note: Any) -> Slots:
        return Slots([note if k == slot else old for k, old in enumerate(self.notes)], self.written)


@pytest.mark.parametrize("name", ["torch", "torch-core", *backends.HOST_VARIANTS])
@hypothesis.settings(max_examples=60)
@hypothesis.given(actions=ACTIONS)
def test_every_state_reads_its_own_objects(name: str, actions: list[tuple[str, int]]) -> None:
    """Against lists, with every table swept at every write, and with states of all ages alive."""
    with pytest.MonkeyPatch.context() as patch, backends.make(name) as made_by:
        sweep_always(patch)
        fresh = iter(range(10**6))
        rb = made_by.rb
        alive = [(made_by.init(spec_of()), Slots([None] * 4, 0))]
        for action, number in actions:
            at = number % len(alive)
            state, model = alive[at]
            action = "add" if made_by.library == "jax" and action == "add_" else action
            if action in ("add", "add_"):
                new = [next(fresh) for _ in range(1 + number % 5)]
                made = getattr(rb, action)(state, batch(*new)), model.added(new)
                if action == "add_":
                    del alive[at]
            elif action == "update" and model.written:
                handle, note = model.written - 1 - number % min(model.written, 4), next(fresh)
                state = rb.update(state, np.array([handle], np.int32), items={"note": [Note(note)]})
                made = state, model.updated(handle % 4, note)
            elif action in ("deepcopy", "pickle"):
                made = COPIES[action](state), model
            else:
                if action == "drop" and len(alive) > 1:
                    del alive[at]
                elif action == "give":
                    assert state.rows.shape == (4, 4)
                elif action == "read":
                    assert values(rb.items(state)["note"]) == model.notes
                continue
            alive.append(made)
        for state, model in alive:
            assert values(rb.items(state)["note"]) == model.notes
            live = [k for k in range(model.written - 4, model.written) if k >= 0]
            assert values(rb.get(state, np.array(live, np.int32))["note"]) == [model.notes[k % 4] for k in live]


@pytest.mark.parametrize("way", list(COPIES))
def test_copies(swept: None, way: str, request: pytest.FixtureRequest) -> None:
    """Waiting steps have objects too."""
    if way == "to a process":  # on a GPU it is CUDA that shares memory, if the machine lets it
        request.getfixturevalue("tensors_of_the_cpu")
    notes = [None, *map(Note, range(1, 100))]
    state = rb.init(frb.BufferSpec(STEPS, 4, transforms=frb.n_step(3, 0.9, at="add")))
    state = rb.add(state, steps(1, 5, notes))
    newer = rb.add(state, steps(6, 3, notes))
    copied = COPIES[way](state)
    stored = values(rb.items(state)["note"])
    del state
    newer = rb.add(newer, steps(9, 9, notes))
    after = rb.add(copied, steps(6, 9, notes))
    assert values(rb.items(copied)["note"]) == stored == [1, 2, 3, None]
    items = rb.items(after)
    assert values(items["note"]) == items["obs"].tolist()
    assert sorted(items["obs"].tolist()) == [10, 11, 12, 13]
    assert values(items["next_note"]) == items["next_obs"].tolist()
    assert rb.items(newer)["note"][0] is notes[int(rb.items(newer)["obs"][0])]
    copies = way in ("deepcopy", "pickle", "to a process")
    assert (rb.items(copied)["note"][0] is notes[1]) != copies


def test_deepcopy_copies_an_object_once() -> None:
    note = Note([])
    state = rb.add(rb.init(spec_of()), batch(0, 1, notes=[note, note]))
    copied, beside = copy.deepcopy((state, note))
    assert rb.items(copied)["note"][0] is rb.items(copied)["note"][1] is beside
    assert beside is not note


def test_leaves_of_a_pytree_keep_their_objects(swept: None) -> None:
    state = rb.add(rb.init(spec_of()), batch(0, 1, 2, 3))
    leaves, outline = pytree.tree_flatten(state)
    state = rb.add(state, batch(4, 5, 6, 7))
    state = rb.add(state, batch(8, 9))
    back = pytree.tree_unflatten(leaves, outline)
    assert values(rb.items(back)["note"]) == [0, 1, 2, 3]
    assert outline == pytree.tree_structure(state)
    other = rb.add(rb.init(spec_of()), batch(0, 1))
    assert outline != pytree.tree_structure(other)
    with pytest.raises(ValueError, match=r"leaf 'note': .* objects are not here; pickle or deepcopy states whole"):
        rb.items(pytree.tree_unflatten(pytree.tree_leaves(other), outline))


# ---------------------------------------------------------------- what nobody can read goes


@pytest.mark.parametrize("capacity", [10, 3000])
def test_overwritten_objects_are_freed(variant: Backend, capacity: int) -> None:
    """Never more than twice what is stored, and a thousand."""
    state = variant.init(spec_of(capacity))
    notes: list[weakref.ref[Note]] = []
    freed: list[object] = []
    for k in range(0, 6 * capacity + 6000, 100):
        rows = batch(*range(k, k + 100))
        notes += [weakref.ref(note, freed.append) for note in rows["note"]]
        state = variant.add(state, rows)
        del rows
        assert len(notes) - len(freed) <= 2 * capacity + tokens.SLACK + 100
    last = len(notes) - capacity
    assert all(note() is not None for note in notes[last:])
    del state
    assert not any(note() is not None for note in notes)


def test_an_older_state_keeps_its_own(swept: None) -> None:
    state = rb.add(rb.init(spec_of()), batch(0, 1, 2, 3))
    notes = [weakref.ref(note) for note in rb.items(state)["note"]]
    older = [state]
    for k in range(4, 10):
        state = rb.add(state, batch(k))
        older.append(state)
    assert all(note() is not None for note in notes)
    del older[0]  # the next one has lost note 0 only, and state 4 on has none of them
    state = rb.add(state, batch(10))
    assert [note() is not None for note in notes] == [False, True, True, True]
    del older[:3]
    state = rb.add(state, batch(11))
    assert not any(note() is not None for note in notes)
    assert [values(rb.items(old)["note"]) for old in older[:2]] == [[4, 5, 6, 7], [8, 5, 6, 7]]


def test_rewritten_objects_are_freed(variant: Backend, swept: None) -> None:
    state = variant.add(variant.init(spec_of()), batch(0, 1, 2, 3))
    for k in range(20):
        state = variant.update(state, np.array([2], np.int32), None, {"note": [Note(k)]})
    assert held(state) <= 4 + 1  # and the last one overwritten
    assert values(variant.rb.items(state)["note"]) == [0, 1, 19, 3]


def test_masked_and_refused_objects_are_freed(swept: None) -> None:
    state = rb.init(spec_of(writer=frb.MaxValue("id")))
    for k in range(20):
        state = rb.add(state, batch(100 - k, 50 - k), np.array([True, False]))
    assert held(state) <= 4 + 2
    assert values(rb.items(state)["note"]) == [100, 99, 98, 97]


def test_objects_that_refer_to_their_state_are_collected() -> None:
    state = rb.add(rb.init(spec_of()), batch(0))
    note = rb.items(state)["note"][0]
    note.value = state
    seen = weakref.ref(note)
    del note, state
    gc.collect()
    assert seen() is None


def test_what_dies_may_use_the_buffer(swept: None) -> None:
    """Destructors run when the buffer is at rest."""
    found = []

    class Last:
        def __del__(self) -> None:
            found.append(int(rb.size(box[0])))
            box[0] = rb.add(box[0], batch(77))

    box = [rb.add(rb.init(spec_of()), batch(0, notes=[Last()]))]
    for k in range(1, 9):
        box[0] = rb.add(box[0], batch(k))
    assert found == [4]
    assert None not in values(rb.items(box[0])["note"])


@pytest.mark.parametrize("pure", [True, False])
def test_others_do_not_sweep_before_new_tokens_are_in_memory(
    swept: None, monkeypatch: pytest.MonkeyPatch, pure: bool
) -> None:
    base = rb.add(rb.init(spec_of()), batch(0, 1))
    state = rb.own_(rb.add(base, batch(2)))
    stored, others = objects.Table.stored, []

    def interrupted(*args: Any) -> Any:
        tokens = stored(*args)
        if threading.current_thread() is threading.main_thread():
            others.append(threading.Thread(target=lambda: rb.add(base, batch(9))))
            others[-1].start()
            others[-1].join(0.1)
        return tokens

    monkeypatch.setattr(objects.Table, "stored", interrupted)
    state = (rb.add if pure else rb.add_)(state, batch(3, 4))
    state = (rb.update if pure else rb.update_)(state, np.array([0], np.int32), items={"note": [Note("stale")]})
    state = (rb.update if pure else rb.update_)(state, np.array([1], np.int32), items={"note": [Note("new")]})
    for other in others:
        other.join()
    assert values(rb.items(state)["note"]) == [4, "new", 2, 3]


def test_threads(swept: None) -> None:
    """States that share a table, written to in place and not, swept all the time."""
    base = rb.add(rb.init(spec_of(64)), batch(*range(64)))
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            rng, state = random.Random(number), base
            for k in range(60):
                rows = batch(*range(10**6 * number + 10 * k, 10**6 * number + 10 * k + rng.randrange(1, 9)))
                state = rb.add(state, rows) if number % 2 or not k else rb.add_(state, rows)
                _, sample = rb.sample(state, rb.key(k), 32)
                assert values(sample.items["note"]) == sample.items["id"].tolist()
            items = rb.items(state)
            assert values(items["note"]) == items["id"].tolist()
        except BaseException as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
    assert values(rb.items(base)["note"]) == list(range(64))


# ---------------------------------------------------------------- what is refused


def test_jax_refuses_objects_elsewhere_than_on_the_host() -> None:
    remedy = r"leaf 'note': dtype object means Python objects, .*storage=frb.Objects\(\)\), .* int32 leaf"
    with pytest.raises(TypeError, match=remedy):
        jax_backend.init(spec_of())
    with pytest.raises(TypeError, match=remedy):
        jax.jit(lambda: jax_backend.init(spec_of()))()
    with pytest.raises(TypeError, match=remedy):
        jax_backend.init(spec_of(storage=frb.Host()))
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


@pytest.mark.parametrize("where", [contextlib.nullcontext, on_a_gpu], ids=["cpu", "as on a gpu"])
def test_compact_storage_leaves_objects_as_they_are(swept: None, where: Any) -> None:
    with where():
        compact_life()


def compact_life() -> None:
    notes = [None, *map(Note, range(1, 100))]
    spec = frb.BufferSpec(STEPS, 6, compact=frb.Compact())
    assert [spec.plan.names[k] for k in spec.plan.stored] == ["done", "next_note", "note", "reward"]
    assert frb.BufferSpec(
        {"x": frb.Unbounded((4,)), "note": frb.specs.NonTensor((4,))}, 6, compact=frb.Compact(next={}, stack=4)
    ).plan.stored == (0,)
    state = rb.init(spec)
    for k in range(0, 30, 3):
        state = rb.add(state, steps(1 + k, 3, notes))
    _, sample = rb.sample(state, rb.key(0), 9)
    assert values(sample.items["note"]) == sample.items["obs"].tolist()
    assert values(sample.items["next_note"]) == sample.items["next_obs"].tolist()
    handles = np.array([29, 0], np.int32)
    assert values(rb.get(state, handles)["note"]) == [30, None]
    state = rb.update(state, handles, items={"note": [Note("new"), None]})
    assert values(rb.items(state)["note"])[5] == "new"
