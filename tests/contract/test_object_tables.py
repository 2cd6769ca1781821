"""The tables of Python objects: states of all ages read their own, and what nobody can read goes."""

from __future__ import annotations

import contextlib
import copy
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
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb
from functional_rb.versions import object_table as tokens
from tests.contract.notes import STEPS, WITH_OBJECTS, Note, batch, spec_of, steps, values
from tests.support import backends, emulated_gpu
from tests.support.backends import Backend


@pytest.fixture(params=WITH_OBJECTS)
def variant(request: pytest.FixtureRequest) -> Any:
    with backends.make(request.param) as made:
        yield made


def sweep_always(patch: pytest.MonkeyPatch) -> None:
    """Whatever is in a table, its limit is below."""
    patch.setattr(tokens, "SLACK", -(10**9))


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write sweeps."""
    sweep_always(monkeypatch)


def held(state: Any) -> int:
    """How many objects a state's table has, None apart."""
    return len(state._version.own().table._objects) - 1


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


def test_after_clearing_sweeps_are_as_seldom_as_before() -> None:
    """Each write that follows would else look through the whole buffer."""
    state = rb.add(rb.clear(rb.add(rb.init(spec_of()), batch(0))), batch(1))  # the one sweep
    for k in range(20):
        state = rb.add(state, batch(2 + k))
    assert held(state) > 20  # what was overwritten is still there


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
    given_out, others = tokens.Table.tokens, []

    def interrupted(*args: Any) -> Any:
        fresh = given_out(*args)
        if threading.current_thread() is threading.main_thread():
            others.append(threading.Thread(target=lambda: rb.add(base, batch(9))))
            others[-1].start()
            others[-1].join(0.1)
        return fresh

    monkeypatch.setattr(tokens.Table, "tokens", interrupted)
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


@pytest.mark.parametrize(
    "where", [contextlib.nullcontext, lambda: emulated_gpu.using("forward")], ids=["cpu", "as on a gpu"]
)
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
