"""Checkpoints that are loaded into each kind of storage, also by the other backend, and saved out of it."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from tests.checkpoint.mapped_lives import (
    STEP,
    read_back,
)
from tests.support import interrupts
from tests.support.backends import Backend
from tests.support.checkpoints import bits, lies_in_files


@pytest.mark.parametrize("storage", ["host", "scratch", "path", "device"])
def test_loads_into_every_storage(library: Backend, storage: str, tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, frb.Prioritized())
    items = {"id": np.arange(5, dtype=np.int32), "x": np.ones((5, 2), np.float32), "done": np.zeros(5, bool)}
    state = library.rb.add(library.rb.init(spec), items)
    frb.save(state, tmp_path / "checkpoint")
    path = tmp_path / "files"
    if storage == "path":  # with other content
        old = library.rb.init(dataclasses.replace(spec, storage=frb.Memmap(path)))
        for _ in range(4):
            old = library.rb.add(old, library.tree(items))
        del old
    where = {
        "host": frb.Host(),
        "scratch": frb.Memmap(),
        "path": frb.Memmap(path, existsok=True),
        "device": frb.Device("cpu"),
    }[storage]
    loaded = frb.load(
        tmp_path / "checkpoint", library.library, frb.checkpoint.LoadOptions(mmap=storage == "host"), storage=where
    )
    assert loaded.spec.storage == where
    plain = frb.load(tmp_path / "checkpoint", library.library)
    for _ in range(3):
        loaded, plain = (library.rb.add(x, items) for x in (loaded, plain))  # NumPy's go to any device
        assert np.array_equal(
            library.numpy(library.rb.items(loaded)["id"]), library.numpy(library.rb.items(plain)["id"])
        )
    if storage == "path":
        assert (path / "rows.bin").stat().st_size == 8 * 4 * 4
        del loaded
        with pytest.raises(FileExistsError, match="existsok"):
            frb.load(tmp_path / "checkpoint", library.library, storage=frb.Memmap(path))


def test_in_place_on_jax_and_over_to_torch(tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, frb.Prioritized(), storage=frb.Memmap(tmp_path))
    items = {"id": np.arange(5, dtype=np.int32), "x": np.ones((5, 2), np.float32), "done": np.zeros(5, bool)}
    state = jax_backend.add(jax_backend.init(spec), items)
    older = state
    state = jax_backend.add(state, items)
    info = frb.save(state, tmp_path, background=True)
    expected = bits(state)
    state = jax_backend.add(state, items)
    assert info.result().written < 3000
    frb.save(older, tmp_path, incremental=True, keep=3)  # not the newest: copied
    assert not lies_in_files(tmp_path, 2)
    assert read_back(tmp_path, 1) == expected
    assert read_back(tmp_path, 2) == bits(older)
    frb.save(state, tmp_path, incremental=True, keep=3)
    with pytest.raises(frb.errors.StorageInUseError):
        frb.load(tmp_path, "jax", storage=frb.Memmap(tmp_path))
    assert frb.load(tmp_path, "jax").spec.storage == frb.Host()
    expected = bits(state)
    del state, older
    gc.collect()
    there = frb.load(tmp_path, "torch")
    assert bits(there) == expected
    there = torch_backend.add_(there, {name: torch.from_numpy(x) for name, x in items.items()})
    assert read_back(tmp_path, 3) == expected


def test_compiled_forms_are_refused_while_checkpoints_lie_in_the_files(tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, storage=frb.Memmap(tmp_path))
    items = {"id": torch.arange(3, dtype=torch.int32), "x": torch.ones(3, 2), "done": torch.zeros(3, dtype=torch.bool)}
    state = torch_backend.add_(torch_backend.init(spec), items)
    state = torch_backend.own_(state)
    state._version.own().files.prepare(0, 8)
    add = torch.compile(torch_backend.add_, fullgraph=True, backend="eager")
    state = add(state, items)
    frb.save(state, tmp_path)
    gc.collect()
    with pytest.raises(Exception, match="outside of the compiled function, or save to another directory"):
        add(torch_backend.own_(state), items)


def test_files_that_are_removed_in_the_end_are_copied(tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, storage=frb.Memmap(tmp_path, auto_cleanup=True))
    state = torch_backend.init(spec)
    frb.save(state, tmp_path)
    assert not lies_in_files(tmp_path, 1)
    del state
    gc.collect()
    assert int(torch_backend.size(frb.load(tmp_path, "torch", storage=frb.Host()))) == 0


def test_shared_buffers_are_saved_and_made_of_checkpoints(library: Backend, tmp_path: Path) -> None:
    rb, shared = library.rb, frb.Memmap(tmp_path / "shared", shared=True, auto_cleanup=True)
    spec = frb.BufferSpec(STEP, 8, frb.Prioritized(), storage=shared)
    items = {"id": np.arange(5, dtype=np.int32), "x": np.ones((5, 2), np.float32), "done": np.zeros(5, bool)}
    state = rb.add(rb.init(spec), library.tree(items))
    state = rb.add(state, library.tree(items), priorities=np.arange(1, 6, dtype=np.float32))
    frb.save(state, tmp_path / "checkpoint")
    expected = bits(state.detached())
    state = rb.add(state, library.tree(items))
    with pytest.raises(FileExistsError, match=r"joins it"):
        frb.load(tmp_path / "checkpoint", library.library, storage=shared)
    other = frb.Memmap(tmp_path / "other", shared=True, auto_cleanup=True)
    loaded = frb.load(tmp_path / "checkpoint", library.library, storage=other)
    assert bits(loaded.detached()) == expected
    assert int(loaded.lost) == 0
    joined = rb.init(dataclasses.replace(loaded.spec, storage=dataclasses.replace(other, existsok=True)))
    assert library.numpy(rb.newest(joined, 8)).tolist() == [*range(2, 10)]


def test_who_dies_as_a_shared_buffer_is_made_of_a_checkpoint_leaves_it_empty_or_whole(tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, frb.Prioritized())
    items = {"id": torch.arange(5, dtype=torch.int32), "x": torch.ones(5, 2), "done": torch.zeros(5, dtype=torch.bool)}
    whole = torch_backend.add(torch_backend.init(spec), items)
    frb.save(whole, tmp_path / "checkpoint")

    def load(name: str) -> Any:
        storage = frb.Memmap(tmp_path / name, shared=True, auto_cleanup=True)
        return frb.load(tmp_path / "checkpoint", "torch", storage=storage)

    places = interrupts.lines(load, "undisturbed")
    writing = [k for k, (file, _) in enumerate(places) if file.endswith("shared/buffer.py")]
    sizes = set()
    for line in writing:
        assert interrupts.interrupted(line, load, f"at {line}")
        storage = frb.Memmap(tmp_path / f"at {line}", existsok=True, shared=True, auto_cleanup=True)
        joined = torch_backend.init(dataclasses.replace(spec, storage=storage))
        size = int(torch_backend.size(joined))
        sizes.add(size)
        loaded = joined if size else load(f"at {line}")
        assert bits(loaded.detached()) == bits(whole), f"line {line}"
    assert sizes == {0, 5}
