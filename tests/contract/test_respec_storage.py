"""Another spec for what lies in any storage, compact storage or a checkpoint: all items come along, or nothing does."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.structures import ring
from tests.contract.numbered_steps import STEPS, bits, filled, ids_of, steps
from tests.support.backends import Backend
from tests.support.full_disks import fill_after

STORAGES = {
    "device": lambda path: frb.Device(),
    "host": lambda path: frb.Host(),
    "files": lambda path: frb.Memmap(),
    "a directory": lambda path: frb.Memmap(str(path / "files")),
    "shared": lambda path: frb.Memmap(str(path / "shared"), shared=True),
}


@pytest.mark.parametrize(
    ("backend", "where"), [*(("torch", where) for where in STORAGES), ("jax", "files")], indirect=["backend"]
)
def test_into_another_storage(backend: Backend, where: str, tmp_path: Any) -> None:
    rb = backend.rb
    for k, (origin, make) in enumerate(STORAGES.items()):
        place = tmp_path / str(k)
        place.mkdir()
        if origin == "shared" or where == "shared":
            sampler, larger = frb.Prioritized(alpha=0.5), frb.Prioritized(alpha=1.0)
        else:
            sampler, larger = frb.Prioritized(alpha=0.5, replacement=False), frb.PrioritizedSlices(2, alpha=1.0)
        state = rb.init(frb.BufferSpec(STEPS, 8, sampler, storage=make(place)))
        state = rb.add(state, steps(0, 11))
        state = rb.update(state, np.arange(11), backend.array(np.arange(11, dtype=np.float32)))
        storage = STORAGES[where](place / "new")
        for spec in (
            dataclasses.replace(state.spec, storage=storage, batch_size=2),
            dataclasses.replace(state.spec, storage=storage, capacity=20, sampler=larger),
        ):
            if origin == where == "shared":
                (place / "new").mkdir(exist_ok=True)
                spec = dataclasses.replace(spec, storage=frb.Memmap(str(place / f"{spec.capacity}"), shared=True))
            elif where in ("a directory", "shared"):
                unlike = frb.Memmap(str(place / f"to {spec.capacity}"), shared=where == "shared")
                spec = dataclasses.replace(spec, storage=unlike)
            after = rb.with_spec(state, spec)
            assert ids_of(backend, after) == {k: k for k in range(3, 11)}
            np.testing.assert_allclose(
                backend.numpy(rb.priorities(after, np.arange(3, 11))), np.arange(3, 11), rtol=1e-6
            )
            after = rb.add(after, steps(11, 2))
            assert ids_of(backend, after) == {k: k for k in range(13 - min(spec.capacity, 10), 13)}
            assert ids_of(backend, state) == {k: k for k in range(3, 11)}


def test_files_of_ones_own(library: Backend, tmp_path: Any) -> None:
    rb = library.rb
    state = filled(library, frb.Prioritized(alpha=1.0), storage=frb.Memmap(str(tmp_path / "a")))
    with pytest.raises(ValueError, match=r"the items have to be moved, and .*/a has the files"):
        rb.with_spec(state, dataclasses.replace(state.spec, capacity=20))
    after = rb.with_spec(state, dataclasses.replace(state.spec, sampler=frb.Slices(2)))
    after = rb.add(after, steps(11, 2))  # in the same files
    assert ids_of(library, after) == {k: k for k in range(5, 13)}
    assert ids_of(library, state) == {k: k for k in range(3, 11)}
    frb.save(after, tmp_path / "a")
    assert ids_of(library, frb.load(tmp_path / "a", rb, storage=frb.Host())) == ids_of(library, after)


def test_by_which_spec_other_processes_go(library: Backend, tmp_path: Any) -> None:
    rb = library.rb
    spec = frb.BufferSpec(STEPS, 8, frb.Prioritized(), storage=frb.Memmap(str(tmp_path / "a"), shared=True))
    state = rb.add(rb.init(spec), steps(0, 5))
    other = rb.with_spec(state, dataclasses.replace(spec, batch_size=3))
    rb.add(state, steps(5, 1))
    assert int(rb.size(other)) == 6
    assert rb.sample(other, rb.key(0))[1].indices.shape == (3,)
    with pytest.raises(
        ValueError, match=r"other processes go by the spec .* batch_size .*; storage=frb.Device\(\) takes"
    ):
        rb.with_spec(state, dataclasses.replace(spec, sampler=frb.Prioritized(alpha=0.1)))


# --- compact storage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch-core", "jax"], indirect=True)
def test_handles_beyond_the_numbers_of_another_capacity_are_stale(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 8 slots go up to 40 here, those of 12 up to 36: all items keep theirs, or none does."""
    monkeypatch.setattr(ring, "INT32_MAX", 40)
    item = {"numbers up to 40": frb.Unbounded((), "int32")}  # no other test's plans are these
    state, others = backend.init(frb.BufferSpec(item, 8)), frb.BufferSpec(item, 12)
    for count in range(1, 39):
        state = backend.add(state, {"numbers up to 40": np.array([count - 1], np.int32)})
        if count < 35:
            continue
        handles = np.arange(count - 8, count, dtype=np.int32)
        after = backend.rb.with_spec(state, others)
        assert backend.numpy(backend.rb.is_live(after, handles)).tolist() == [count <= 36] * 8
        stored = backend.numpy(backend.rb.items(after)["numbers up to 40"])
        assert sorted(stored[stored > 0].tolist()) == handles.tolist()


@pytest.mark.parametrize("backend", ["torch"], indirect=True)
def test_handles_of_lanes_begin_beyond_all_that_were_given(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more than half of the numbers are used up, as long as there are others."""
    monkeypatch.setattr(ring, "INT32_MAX", 400)
    item = {"numbers up to 400": frb.Unbounded((), "int32")}  # no other test's plans are these
    state = backend.init(frb.BufferSpec(item, 8, lanes=2))
    for turns in range(30):
        state = backend.add(state, {"numbers up to 400": np.full((4, 2), turns, np.int32)})
    given = backend.numpy(backend.rb.newest(state, 4))
    after = backend.rb.with_spec(state, frb.BufferSpec(item, 12, lanes=2))
    assert backend.numpy(backend.rb.newest(after, 4)).min() > given.max() >= 200


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("backend", ["torch", "jax-host"], indirect=True)
def test_frames_come_along(backend: Backend, stack: int) -> None:
    rb = backend.rb
    shape = (stack, 2) if stack > 1 else (2,)
    item = {"id": STEPS["id"], "obs": frb.Unbounded(shape), "next_obs": frb.Unbounded(shape), "done": frb.Binary()}
    frames = np.arange(400, dtype=np.float32).reshape(200, 2)

    def rows(first: int, count: int) -> dict[str, np.ndarray]:
        """Episodes of five; of each the frames are its own."""
        ids = np.arange(first, first + count, dtype=np.int32)
        newest = ids + ids // 5 * stack + stack  # stacks reach back to frames of their own episode
        back = np.arange(1 - stack, 1)
        obs, following = (frames[(newest + k)[:, None] + back] for k in (0, 1))
        leaves = {"obs": obs, "next_obs": following}
        if stack == 1:
            leaves = {key: leaf[:, 0] for key, leaf in leaves.items()}
        return {"id": ids, "done": ids % 5 == 4, **leaves}

    compact = frb.Compact(stack=stack)
    spec = frb.BufferSpec(item, 12, frb.PrioritizedSlices(2, alpha=1.0), compact=compact)
    state = backend.add(backend.init(spec), rows(0, 17))
    state = backend.add(state, rows(17, 6))
    before = int(rb.size(state))
    for capacity in (30, 7, 12):
        for sampler in (spec.sampler, frb.Uniform()):
            other = dataclasses.replace(state.spec, capacity=capacity, sampler=sampler)
            after, added = rb.with_spec(state, other), 23
            assert int(rb.size(after)) >= min(before, capacity) - (capacity < 12) * 2
            for _ in range(3):
                handles = np.arange(60)
                live = handles[backend.numpy(rb.is_live(after, handles))]
                assert live.tolist() == list(range(added - len(live), added))
                got, expected = rb.get(after, live), rows(int(live[0]), len(live))
                for key, leaf in expected.items():
                    np.testing.assert_array_equal(backend.numpy(got[key]), leaf)
                after, added = backend.add(after, rows(added, 4)), added + 4
    assert int(rb.size(state)) == before
    # Frames that stay where they are go on being written behind the newest ones.
    same = rb.with_spec(state, dataclasses.replace(state.spec, sampler=frb.Uniform()))
    assert int(rb.size(backend.add(same, rows(23, 4)))) == int(rb.size(backend.add(state, rows(23, 4))))
    with pytest.raises(ValueError, match=r"with_spec: BufferSpec\.compact: the buffer has Compact.*got None"):
        rb.with_spec(state, dataclasses.replace(state.spec, compact=None))


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "origin", "where"),
    [
        *(
            ("torch", origin, where)
            for origin in ("device", "here", "files")
            for where in ("device", "host", "a directory")
        ),
        ("jax", "device", "a directory"),
        ("jax", "here", "device"),
    ],
    indirect=["backend"],
)
def test_loaded_with_another_spec(backend: Backend, origin: str, where: str, tmp_path: Any) -> None:
    rb = backend.rb
    there = tmp_path / "saved"
    storage = {"device": frb.Device(), "here": frb.Memmap(str(there)), "files": frb.Memmap()}[origin]
    state = filled(backend, frb.Prioritized(alpha=0.5), storage=storage)
    frb.save(state, there)
    state = backend.add(state, steps(11, 1))
    frb.save(state, there, incremental=True)
    del state
    for capacity in (8, 20):
        target = STORAGES[where](tmp_path / f"new {capacity}")
        spec = frb.BufferSpec(STEPS, capacity, frb.PrioritizedSlices(2, alpha=1.0), storage=target)
        loaded = frb.load(there, rb, spec=spec)
        assert loaded.spec == spec
        assert ids_of(backend, loaded) == {k: k for k in range(4, 12)}
        got = backend.numpy(rb.priorities(loaded, np.arange(4, 12)))
        np.testing.assert_allclose(got, [4, 5, 6, 7, 8, 9, 10, 10], rtol=1e-6)
        loaded = backend.add(loaded, steps(12, 1))
        assert ids_of(backend, loaded)[12] == 12
        del loaded


def test_going_on_in_the_same_files_with_another_spec(library: Backend, tmp_path: Any) -> None:
    rb = library.rb
    storage = frb.Memmap(str(tmp_path / "run"))
    state = filled(library, frb.Prioritized(alpha=0.5), storage=storage)
    frb.save(state, tmp_path / "run")
    del state
    spec = frb.BufferSpec(STEPS, 8, frb.Slices(2), storage=storage)
    loaded = frb.load(tmp_path / "run", rb, spec=spec)
    loaded = library.add(loaded, steps(11, 2))
    frb.save(loaded, tmp_path / "run", incremental=True)
    del loaded
    assert ids_of(library, frb.load(tmp_path / "run", rb)) == {k: k for k in range(5, 13)}
    with pytest.raises(ValueError, match=r"with_spec: BufferSpec.item: leaf 'done'"):
        frb.load(tmp_path / "run", rb, spec=frb.BufferSpec({"id": STEPS["id"]}, 8))
    with pytest.raises(TypeError, match="load: expected a BufferSpec"):
        frb.load(tmp_path / "run", rb, spec=8)


def test_a_checkpoint_is_not_moved_into_the_files_in_which_it_lies(library: Backend, tmp_path: Any) -> None:
    rb, there = library.rb, tmp_path / "run"
    state = filled(library, frb.Prioritized(alpha=0.5), storage=frb.Memmap(str(there)))
    frb.save(state, there)
    del state
    for existsok in (False, True):
        for changes in ({"capacity": 20}, {"writer": frb.MaxValue("id")}):
            spec = frb.BufferSpec(STEPS, **{"capacity": 8} | changes, storage=frb.Memmap(str(there), existsok=existsok))
            with pytest.raises(ValueError, match=r"with_spec: the items have to be moved, and .*/run has the files"):
                frb.load(there, rb, spec=spec)
    assert ids_of(library, frb.load(there, rb)) == {k: k for k in range(3, 11)}


@pytest.mark.parametrize("room", [0, 2])
@pytest.mark.parametrize("backend", ["torch", "jax-host"], indirect=True)
def test_a_full_disk_changes_nothing(backend: Backend, room: int, tmp_path: Any, monkeypatch: Any) -> None:
    rb = backend.rb
    state = filled(backend, frb.Prioritized(alpha=1.0), storage=frb.Memmap(str(tmp_path / "a")))
    frb.save(state, tmp_path / "saved")
    before = bits(backend, state)
    spec = dataclasses.replace(state.spec, capacity=20, storage=frb.Memmap(str(tmp_path / "b")))
    for make in (rb.with_spec, lambda _, spec: frb.load(tmp_path / "saved", rb, spec=spec)):
        with monkeypatch.context() as patch:
            fill_after(patch, room)
            with pytest.raises(frb.errors.StorageFullError):
                make(state, spec)
        left = {path.name for path in (tmp_path / "b").iterdir()} if (tmp_path / "b").exists() else set()
        assert left <= {"storage.lock"}
        assert bits(backend, state) == before
        assert ids_of(backend, state) == {k: k for k in range(3, 11)}
    after = rb.with_spec(state, spec)
    assert ids_of(backend, backend.add(after, steps(11, 2))) == {k: k for k in range(3, 13)}
