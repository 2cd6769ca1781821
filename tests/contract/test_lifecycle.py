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
from tests.support import backends
from tests.support.backends import Backend
from tests.support.effort import effort

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
    assert (int(rb.size(state)), *map(int, rb.counts(state)[:2])) == (0, 1, 1)
    assert not bool(rb.can_sample(state))
    state = backend.add(state, steps(3))
    # Not the largest of those that were there: all begins anew.
    assert backend.numpy(state.tree).reshape(-1)[:8].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("backend", CORES, indirect=True)
def test_steps_that_wait_for_their_returns_are_dropped(backend: Backend) -> None:
    spec = frb.BufferSpec(STEP, 8, frb.InOrder(), transforms=frb.n_step(3, 0.5, at="add"))
    state = backend.add(backend.init(spec), steps(1, 2, 3, 4))
    state = backend.add(backend.clear(state), steps(10, 20, 30))
    _, sample = backend.sample(state, backend.rb.key(0), 1)
    assert backend.numpy(sample.items["reward"]).tolist() == [10 + 20 / 2 + 30 / 4]
    assert int(backend.rb.size(state)) == 1


@pytest.mark.parametrize("backend", CORES, indirect=True)
def test_the_next_step_begins_a_trajectory(backend: Backend) -> None:
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


@pytest.mark.parametrize("rb", [jax_backend, torch_backend])
def test_counters_of_a_consumed_state_of_the_host_are_refused(rb: Any) -> None:
    older = rb.init(frb.BufferSpec(STEP, 4, storage=frb.Host()))
    rb.add_(older, steps(1))
    with pytest.raises(RuntimeError, match="consumed"):
        _ = older.counters


def next_of(rb: Any) -> Backend:
    """Plain torch, for helpers."""
    with backends.make("torch") as backend:
        return backend


class Note:
    """A Python object."""


@pytest.mark.parametrize("backend", ["jax", "torch", "torch-inplace"], indirect=True)
def test_python_objects_are_let_go(backend: Backend) -> None:
    item = {"id": frb.Unbounded((), "int32"), "note": frb.specs.NonTensor()}
    spec = frb.BufferSpec(item, 4, storage=frb.Host())
    note, auxiliary = Note(), Note()
    gone = weakref.ref(note)
    state = backend.add(backend.init(spec), {"id": np.int32(0), "note": note})
    older = None if backend.consumes else state
    state = backend.clear(state)
    if older is not None:
        assert backend.rb.get(older, np.array([0], np.int32))["note"].tolist() == [note]
    del note, older
    state = backend.add(state, {"id": np.int32(1), "note": auxiliary})
    gc.collect()
    assert gone() is None
    assert backend.rb.get(state, np.array([0, 1], np.int32))["note"].tolist() == [None, auxiliary]


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
    assert int(rb.counts(state).stale) == 1
    assert stored(library, state) == [4, 5]
    assert library.numpy(state.tree).reshape(-1)[:6].tolist() == [0, 0, 0, 1, 1, 0]


# --- what is known of items -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0, 1.7])
def test_priorities_given_back_change_nothing(library: Backend, alpha: float) -> None:
    if library.library == "jax" and alpha not in effort((0.6,), (0.0, 0.3, 0.6, 1.0, 1.7)):
        pytest.skip("a long search: make test-all")
    rb, count = library.rb, 2000
    spec = frb.BufferSpec(frb.Unbounded((), "int32"), count, frb.Prioritized(alpha=alpha))
    rng = np.random.default_rng(0)
    given = np.exp2(rng.uniform(-120, 120, count) * (rng.random(count) < 0.3)).astype(np.float32)
    given[:3] = 0, 1e-40, 3e38
    handles = np.arange(count, dtype=np.int32)
    state = rb.add(rb.init(spec), handles, priorities=library.array(given))
    read = rb.priorities(state, handles)
    again = rb.update(state, handles, read)
    assert library.numpy(again.tree).tobytes() == library.numpy(state.tree).tobytes()
    held = (given == 0) | ((given.astype(float) ** alpha > 2.0**-100) & (given.astype(float) ** alpha < 2.0**95))
    held &= (given == 0) | (given >= 2.0**-126)  # smaller ones count as that
    expected = given if alpha else (given > 0).astype(np.float32)
    np.testing.assert_allclose(library.numpy(read)[held], expected[held], rtol=2.0**-23 / min(alpha or 1, 1))


@pytest.mark.parametrize("newest_first", [False, True])
def test_in_order_there_are_no_more_than_are_stored(newest_first: bool) -> None:
    for name in ("jax-core", "torch", "torch-core"):
        with backends.make(name) as backend:
            sampler = frb.InOrder(newest_first=newest_first)
            state = backend.init(frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 4, sampler))
            state = backend.add(state, backend.tree({"id": np.arange(3, dtype=np.int32)}))
            _, sample = backend.sample(state, backend.rb.key(0), 5)
            assert sample.mask.tolist() == [True] * 3 + [False] * 2
            assert sample.indices.tolist() == [*([2, 1, 0] if newest_first else [0, 1, 2]), -1, -1]


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "slices", "without replacement"])
def test_what_is_told_is_what_is_drawn(kind: str) -> None:
    with backends.make("torch") as library:
        told_and_drawn(library, kind)


def told_and_drawn(library: Backend, kind: str) -> None:
    """Many draws of one state."""
    samplers = {
        "uniform": frb.Uniform(max_times_sampled=3),
        "prioritized": frb.Prioritized(alpha=1.0, replacement=False),
        "slices": frb.Slices(2, strict_length=False, span=True),
        "without replacement": frb.WithoutReplacement(),
    }
    rb, spec = library.rb, frb.BufferSpec(STEP, 8, samplers[kind])
    state = rb.add(rb.init(spec), steps(*range(10), done=(3, 4, 8)))
    handles = rb.newest(state, 8)
    if kind == "prioritized":
        state = rb.update(state, handles, library.array(np.array([0, 1, 5, 2, 0, 3, 1, 8], np.float32)))
    state, _ = rb.sample(state, rb.key(0), 3)
    probabilities = library.numpy(rb.probabilities(state, handles)).astype(float)
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-6)
    seen, draws = np.zeros(8), 400
    for key in rb.split(rb.key(1), draws):  # one draw each, of the same state
        _, sample = rb.sample(state, key, 1)
        seen += library.numpy(handles) == library.numpy(sample.indices).reshape(-1)[0]
    assert not seen[probabilities == 0].any()
    expected = draws * probabilities[probabilities > 0]
    assert ((seen[probabilities > 0] - expected) ** 2 / expected).sum() < 24.3  # chi-square of 7 degrees, 1 in 1000


def test_of_what_was_just_added(backend: Backend) -> None:
    rb = backend.rb
    state = rb.init(frb.BufferSpec(STEP, 6, frb.Prioritized(alpha=1.0), lanes=2))
    assert backend.numpy(rb.counts(state).cursor).tolist() == [0, 3]
    rows = {name: leaf.reshape(2, 2) for name, leaf in steps(0, 1, 2, 3).items()}
    state = backend.add(state, rows, mask=backend.array(np.array([[True, False], [True, True]])))
    handles = rb.newest(state, 2)
    assert backend.numpy(handles).tolist() == [[0, -1], [1, 3]]
    state = backend.update(state, handles.reshape(-1), backend.array(np.array([4, 9, 5, 6], np.float32)))
    assert int(rb.counts(state).stale) == 0
    assert backend.numpy(rb.priorities(state, handles.reshape(-1))).tolist() == [4, 0, 5, 6]
    assert backend.numpy(rb.counts(state).cursor).tolist() == [2, 4]


@pytest.mark.parametrize("backend", CORES, indirect=True)
def test_what_cannot_be_told(backend: Backend) -> None:
    rb = backend.rb
    state = backend.init(frb.BufferSpec(STEP, 6, writer=frb.MaxValue("reward")))
    assert int(rb.counts(state).cursor) == -1
    with pytest.raises(ValueError, match=r"MaxValue\(.*chooses slots"):
        rb.newest(state, 1)
    with pytest.raises(ValueError, match=r"priorities: the sampler Uniform\(.*has no priorities"):
        rb.priorities(state, np.array([0], np.int32))
    with pytest.raises(TypeError, match="n as a Python int"):
        rb.newest(backend.init(frb.BufferSpec(STEP, 6)), 1.5)


def test_told_of_a_shared_buffer(library: Backend, tmp_path: Any) -> None:
    rb = library.rb
    spec = frb.BufferSpec(STEP, 6, frb.Prioritized(alpha=0.5), storage=frb.Memmap(str(tmp_path), shared=True))
    state = rb.add(rb.init(spec), steps(1, 2), priorities=library.array(np.array([9, 1], np.float32)))
    handles = rb.newest(state, 3)
    assert library.numpy(handles).tolist() == [-1, 0, 1]
    assert library.numpy(rb.priorities(state, handles)).tolist() == [0, 9, 1]
    np.testing.assert_allclose(library.numpy(rb.probabilities(state, handles)), [0, 0.75, 0.25])
    assert int(rb.counts(state).cursor) == 2


# --- batches [E, T] -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CORES, "jax-jit", "torch-inplace"])
def test_lanes_first(name: str) -> None:
    with backends.make(name) as backend:
        spec = frb.BufferSpec(STEP | {"pair": frb.Unbounded((2,))}, 12, frb.Prioritized(alpha=1.0), lanes=2)
        ids = np.arange(6, dtype=np.int32).reshape(2, 3)  # [E, T]
        rows = {"id": ids, "reward": ids.astype(np.float32), "done": ids == 2}
        rows["pair"] = np.stack([ids, ids + 10], -1).astype(np.float32)
        mask = np.array([[True, True, False], [True, True, True]])
        priorities = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
        given = [backend.tree(rows), backend.array(mask), backend.array(priorities)]
        turned = [
            {name: backend.array(leaf.swapaxes(0, 1)) for name, leaf in rows.items()},
            backend.array(mask.T),
            backend.array(priorities.T[..., None]),
        ]
        function = backend._function("add")
        if name == "jax-jit":
            function = jax.jit(backend.rb.add, static_argnames="time_major")
        states = [function(backend.init(spec), *given, time_major=False), function(backend.init(spec), *turned)]
        read = [backend.numpy(backend.rb.get(state, np.arange(12))["pair"]).tolist() for state in states]
        assert read[0] == read[1]
        assert read[0][:3] == [[0, 10], [1, 11], [0, 0]]
        trees = [backend.numpy(state.tree).tolist() for state in states]
        assert trees[0] == trees[1]
        step = {name: leaf[:, 0] for name, leaf in rows.items()}
        assert int(backend.rb.size(function(states[0], backend.tree(step), time_major=False))) == 7


def test_lanes_first_of_objects() -> None:
    rb = torch_backend
    item = {"id": frb.Unbounded((), "int32"), "note": frb.specs.NonTensor()}
    state = rb.init(frb.BufferSpec(item, 6, frb.InOrder(), lanes=None))
    spec = frb.BufferSpec(item, 6, lanes=2)
    ids = np.arange(6, dtype=np.int32).reshape(2, 3)
    state = rb.add(rb.init(spec), {"id": ids, "note": [["a", "b", "c"], ["d", "e", "f"]]}, time_major=False)
    assert rb.get(state, np.arange(6))["note"].tolist() == ["a", "b", "c", "d", "e", "f"]
    alone = rb.add(
        rb.init(frb.BufferSpec(frb.specs.NonTensor(), 6, lanes=2, storage=frb.Host())),
        [[1, 2, 3], [4, 5, 6]],
        time_major=False,
    )
    assert rb.get(alone, np.arange(6)).tolist() == [1, 2, 3, 4, 5, 6]


def test_axes_that_are_meant_otherwise(library: Backend) -> None:
    rb = library.rb
    lanes = rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, 12, lanes=2))
    rows = {"x": np.zeros((2, 3), np.float32)}
    with pytest.raises(
        ValueError, match=r"expected shape .* \('T', 2\) for several, got \(2, 3\).* give time_major=False"
    ):
        rb.add(lanes, rows)
    with pytest.raises(ValueError, match=r"\(2, 'T'\) for several, got \(3, 2\).* give time_major=True"):
        rb.add(lanes, {"x": np.zeros((3, 2), np.float32)}, time_major=False)
    with pytest.raises(ValueError, match="time_major=False is for the batches"):
        rb.add(rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, 12)), rows, time_major=False)
    with pytest.raises(ValueError, match="mask: expected leading axes"):
        rb.add(lanes, rows, mask=library.array(np.ones((3, 2), bool)), time_major=False)
