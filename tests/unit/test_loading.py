"""How checkpoints are read: in blocks, where they are moved into files."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend

CAPACITY, WIDTH = 20_000, 1030
SPEC = frb.BufferSpec({"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((WIDTH,), "uint8")}, CAPACITY)


@pytest.mark.parametrize("backend", ["jax", "torch"], indirect=True)
@pytest.mark.parametrize("storage", [frb.Device(), frb.Memmap()], ids=repr)
def test_with_another_spec(backend: Backend, storage: Any, tmp_path: Path) -> None:
    """Nothing that has the items' size is made in memory."""
    rb = backend.rb
    numbers = np.arange(CAPACITY, dtype=np.int32)
    items = {"id": numbers, "image": np.repeat(numbers.astype(np.uint8)[:, None], WIDTH, 1)}
    frb.save(rb.init(dataclasses.replace(SPEC, storage=storage), items=items), tmp_path / "saved")
    for capacity in (CAPACITY, CAPACITY + 12):
        files = frb.Memmap(str(tmp_path / f"{capacity}"))
        spec = dataclasses.replace(SPEC, capacity=capacity, sampler=frb.Prioritized(), storage=files)
        tracemalloc.start()
        state = frb.load(tmp_path / "saved", rb, spec=spec)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < CAPACITY * WIDTH * 3 / 4
        found = rb.get(state, numbers[-9:])
        assert backend.numpy(found["id"]).tolist() == numbers[-9:].tolist()
        np.testing.assert_array_equal(backend.numpy(found["image"]), items["image"][-9:])
