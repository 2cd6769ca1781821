"""A living buffer is emptied, given another spec, and asked for what it knows; histories have it among all the rest."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.shared import control
from functional_rb.shared.buffer import SharedBuffer
from tests import backends
from tests.backends import Backend

STEP = {"id": frb.Unbounded((), "int32"), "reward": frb.Unbounded(()), "done": frb.Binary()}
CORES = ["jax", "torch", "jax-host"]


def steps(*ids: int, done: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Steps by number."""
    numbers = np.array(ids, np.int32)
    return {"id": numbers, "reward": numbers.astype(np.float32), "done": np.isin(numbers, done)}


def stored(backend: Backend, state: Any) -> list[int]:
    """The numbers of all that is stored, by handle."""
    size = int(backend.rb.size(state))
    handles = np.arange(4 * state.spec.capacity, dtype=np.int32)
    live = backend.numpy(backend.rb.is_live(state, backend.array(handles)))
    assert live.sum() == size
    got = backend.rb.get(state, backend.array(handles[live]))
    return backend.numpy(got["id"]).tolist()


# --- clear ----------------------------------------------------------------------------------------------------------


def test_what_was_counted_stays_counted(backend: Backend) -> None:
    rb = backend.rb
    spec = frb.BufferSpec(STEP, 8, frb.Prioritized(new_priority="ever"))
    state = backend.add(rb.init(spec), steps(0, 1, 2), priorities=backend.array(np.array([9, np.nan, 1], np.float32)))
    state = backend.update(state, backend.array(np.array([7], np.int32)), backend.array(np.ones(1, np.float32)))
    state = backend.clear(state)
    assert [int(count(state)) for count in (rb.size, rb.rejected, rb.stale)] == [0, 1, 1]
    assert not bool(rb.can_sample(state))
    state = backend.add(state, steps(3))
    # Not the largest of those that were there: all begins anew.
    assert backend.numpy(state.tree).reshape(-1)[:8].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("name", CORES)
def test_steps_that_wait_for_their_returns_are_dropped(name: str) -> None:
    with backends.make(name) as backend:
        spec = frb.BufferSpec(STEP, 8, frb.Fifo(), transforms=frb.n_step(3, 0.5, at="add"))
        state = backend.add(backend.init(spec), steps(1, 2, 3, 4))
        state = backend.add(backend.clear(state), steps(10, 20, 30))
        _, sample = backend.sample(state, backend.rb.key(0), 1)
        assert backend.numpy(sample.items["reward"]).tolist() == [10 + 20 / 2 + 30 / 4]
        assert int(backend.rb.size(state)) == 1


@pytest.mark.parametrize("name", CORES)
def test_the_next_step_begins_a_trajectory(name: str) -> None:
    with backends.make(name) as backend:
        state = backend.add(backend.init(frb.BufferSpec(STEP, 8, frb.Slices(2))), steps(1, 2, 3))
        state = backend.add(backend.clear(state), steps(4, 5))
        _, sample = backend.sample(state, backend.rb.key(0), 3)
        assert backend.numpy(sample.items["id"]).tolist() == [[4, 5]] * 3
        assert backend.numpy(sample.is_first).tolist() == [[True, False]] * 3


def test_no_row_is_copied(library: Backend) -> None:
    rb = library.rb
    state = library.add(rb.init(frb.BufferSpec(STEP, 64, frb.Prioritized())), steps(0, 1))
    where = (lambda x: x.unsafe_buffer_pointer()) if library.library == "jax" else torch.Tensor.data_ptr
    cleared = rb.clear(state)
    # On torch the rows are the older state's no more, if anybody asks for those.
    rows = cleared.rows if library.library == "jax" else cleared._version.memory.rows
    older = state.rows if library.library == "jax" else None
    assert older is None or where(older) == where(rows)
    assert stored(library, state) == [0, 1]
    assert stored(library, library.add(cleared, steps(5))) == [5]
    assert stored(library, state) == [0, 1]


def test_arrays_that_were_given_out_stay_as_they_are(library: Backend) -> None:
    rb = library.rb
    state = library.add(rb.init(frb.BufferSpec(STEP, 4, frb.Prioritized())), steps(0, 1, 2))
    given, tree = rb.items(state)["id"], state.tree
    cleared = rb.add(rb.clear(state), steps(7, 8, 9))
    assert library.numpy(given).tolist() == [0, 1, 2, 0]
    assert library.numpy(tree).reshape(-1)[:4].tolist() == [1, 1, 1, 0]
    assert stored(library, cleared) == [7, 8, 9]
    assert stored(library, state) == [0, 1, 2]


def test_traced_mapped_and_in_loops() -> None:
    rb, spec = jax_backend, frb.BufferSpec(STEP, 4, frb.Prioritized(), batch_size=2)
    one = {name: jnp.asarray(leaf[0]) for name, leaf in steps(1).items()}

    def episode(state: Any, full: Any) -> tuple[Any, Any]:
        state = jax.lax.cond(full, rb.clear, lambda s: s, state)
        state = rb.add(state, one)
        return state, rb.size(state)

    marks = jnp.array([False, False, True, False, True])
    state, sizes = jax.jit(lambda state: jax.lax.scan(episode, state, marks))(rb.init(spec))
    assert sizes.tolist() == [1, 2, 1, 2, 1]
    assert rb.is_live(state, np.arange(5, dtype=np.int32)).tolist() == [False] * 4 + [True]
    many = jax.vmap(lambda _: rb.init(spec))(jnp.arange(2))
    many = jax.vmap(rb.clear)(jax.vmap(lambda s: rb.add(s, one))(many))
    assert rb.size(many).tolist() == [0, 0]


def test_compiled_by_torch() -> None:
    rb, spec = torch_backend, frb.BufferSpec(STEP, 4, frb.Slices(1), writer=frb.StopWhenFull())

    @torch.compile(fullgraph=True, backend="eager")
    def refill(state: Any, batch: Any) -> Any:
        return rb.add_(rb.clear_(state), batch)

    state = rb.init(spec)
    for k in range(3):
        state = refill(state, {name: torch.from_numpy(leaf) for name, leaf in steps(k, k + 1).items()})
    _, sample = rb.sample(state, rb.key(0), 8)
    assert set(sample.items["id"].reshape(-1).tolist()) == {2, 3}
    assert rb.is_live(state, np.arange(6, dtype=np.int32)).tolist() == [False] * 4 + [True] * 2


def test_consumed_in_place() -> None:
    rb = torch_backend
    state = rb.add_(rb.init(frb.BufferSpec(STEP, 4)), steps(1))
    older = rb.add(state, steps(2))
    cleared = rb.clear_(older)
    assert int(rb.size(cleared)) == 0
    assert stored(next_of(rb), state) == [1]
    with pytest.raises(RuntimeError, match="consumed"):
        rb.size(older)


def next_of(rb: Any) -> Backend:
    """Plain torch, for helpers."""
    with backends.make("torch") as backend:
        return backend


class Note:
    """A Python object."""


@pytest.mark.parametrize("how", ["jax", "torch", "torch-inplace"])
def test_python_objects_are_let_go(how: str) -> None:
    with backends.make(how) as backend:
        item = {"id": frb.Unbounded((), "int32"), "note": frb.NonTensor()}
        spec = frb.BufferSpec(item, 4, storage=frb.Objects())
        note, kept = Note(), Note()
        gone = weakref.ref(note)
        state = backend.add(backend.init(spec), {"id": np.int32(0), "note": note})
        older = None if backend.consumes else state
        state = backend.clear(state)
        if older is not None:
            assert backend.rb.get(older, np.array([0], np.int32))["note"].tolist() == [note]
        del note, older
        state = backend.add(state, {"id": np.int32(1), "note": kept})
        gc.collect()
        assert gone() is None
        assert backend.rb.get(state, np.array([0, 1], np.int32))["note"].tolist() == [None, kept]


def test_a_dataset_cannot_be_emptied(backend: Backend) -> None:
    state = backend.rb.init(frb.BufferSpec(STEP, 4, writer=frb.Immutable()), items=backend.tree(steps(1, 2)))
    with pytest.raises(ValueError, match="Immutable"):
        backend.clear(state)


@pytest.mark.parametrize("storage", [frb.Device(), frb.Memmap()], ids=["memory", "files"])
def test_saved_while_it_is_emptied(library: Backend, storage: Any, tmp_path: Any) -> None:
    rb = library.rb
    spec = frb.BufferSpec(STEP, 8, frb.Prioritized(), storage=storage)
    state = library.add(rb.init(spec), steps(1, 2, 3))
    frb.save(state, tmp_path)
    state = library.add(state, steps(4))
    reader = state.reader()  # of what is to be emptied: a save in the background has one
    cleared = library.add(rb.clear(state), steps(5))
    assert reader.read("tree", 0, 1)[0, :5].tolist() == [1, 1, 1, 1, 0]
    assert reader.read("rows", 0, 8)[:5].any(1).tolist() == [True, True, True, True, False]
    reader.close()
    frb.save(cleared, tmp_path, incremental=True)
    loaded = frb.load(tmp_path, rb)
    assert stored(library, loaded) == stored(library, cleared) == [5]
    assert library.numpy(loaded.tree).tolist() == library.numpy(cleared.tree).tolist()
    assert rb.is_live(library.add(loaded, steps(6)), np.arange(7, dtype=np.int32)).tolist() == [False] * 4 + [
        True,
        True,
        False,
    ]


def test_a_shared_buffer_is_emptied_for_all(library: Backend, tmp_path: Any) -> None:
    rb = library.rb
    spec = frb.BufferSpec(STEP, 6, frb.Prioritized(), storage=frb.Memmap(str(tmp_path / "shared"), shared=True))
    state = rb.add(rb.init(spec), steps(1, 2, 3), priorities=library.array(np.array([1, 9, 1], np.float32)))
    other = copy.copy(state)
    assert rb.clear(state) is state
    assert int(rb.size(other)) == 0
    assert not bool(rb.can_sample(other))
    rb.update(other, np.array([1], np.int32), library.array(np.ones(1, np.float32)))
    rb.add(other, steps(4, 5))
    assert int(rb.stale(state)) == 1
    assert stored(library, state) == [4, 5]
    assert library.numpy(state.tree).reshape(-1)[:6].tolist() == [0, 0, 0, 1, 1, 0]


def test_who_dies_as_he_empties_a_shared_buffer_has_emptied_it(tmp_path: Any, monkeypatch: Any) -> None:
    spec = frb.BufferSpec(STEP, 6, frb.Prioritized(), storage=frb.Memmap(str(tmp_path / "shared"), shared=True))
    shared = SharedBuffer.open(spec)
    leaves = [steps(1, 2)[name] for name in spec.names]
    shared.add(leaves, 2, None, None)

    def dies(*args: Any) -> None:
        shared.files.tree[0, 0] = 0
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("functional_rb.native.shared.commit", dies)
        with pytest.raises(KeyboardInterrupt):
            shared.clear()
    # Whoever comes next finds a write under way, and ends it.
    assert shared.files.control[control.SEQUENCE] % 2 == 0
    assert shared.counters()[:2].tolist() == [2, 0]
    assert not shared.files.tree.any()
    assert shared.lost().tolist() == [0]
