"""A checkpoint that is moved into files is read in blocks: nothing that has the items' size is made in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.checkpoint import blocks
from tests.support.backends import Backend

SPEC = frb.BufferSpec({"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1030,), "uint8")}, 8)


@pytest.mark.parametrize("backend", ["jax", "torch"], indirect=True)
@pytest.mark.parametrize("storage", [frb.Device(), frb.Memmap()], ids=repr)
def test_with_another_spec(backend: Backend, storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rb, made = backend.rb, blocks.Stored.blank_array
    items = {"id": np.arange(8, dtype=np.int32), "image": np.ones((8, 1030), np.uint8)}
    frb.save(rb.add(rb.init(dataclasses.replace(SPEC, storage=storage)), items), tmp_path / "saved")

    def small(self: Any) -> Any:
        assert self.name not in ("rows", "wide_0")
        return made(self)

    monkeypatch.setattr(blocks.Stored, "blank_array", small)
    for capacity in (8, 20):
        files = frb.Memmap(str(tmp_path / f"{capacity}"))
        spec = dataclasses.replace(SPEC, capacity=capacity, sampler=frb.Prioritized(), storage=files)
        assert rb.get(frb.load(tmp_path / "saved", rb, spec=spec), np.arange(8))["id"].tolist() == [*range(8)]
