"""How checkpoints are read: in blocks, where they are moved into files; and what names a mixture, on any device."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
from functional_rb.checkpoint import blocks, mixtures
from functional_rb.mixture.value import MixtureSpec
from tests.support.backends import Backend

SPEC = frb.BufferSpec({"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1030,), "uint8")}, 8)


@pytest.mark.parametrize("backend", ["jax", "torch"], indirect=True)
@pytest.mark.parametrize("storage", [frb.Device(), frb.Memmap()], ids=repr)
def test_with_another_spec(backend: Backend, storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that has the items' size is made in memory."""
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


def test_a_mixtures_record_is_read_from_another_device() -> None:
    class Elsewhere:
        """As a tensor of a GPU: NumPy cannot read it."""

        def __init__(self, content: np.ndarray) -> None:
            self.content = content

        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        def cpu(self) -> torch.Tensor:
            return torch.from_numpy(self.content)

    record: Any = mixtures.record_of([4, 3], MixtureSpec(None, "exact", None, 1, False), None)
    record[mixtures.NAME][mixtures.TEXT] = Elsewhere(record[mixtures.NAME][mixtures.TEXT].copy())
    assert (parsed := mixtures._parsed(record)) is not None
    assert parsed["checkpoints"] == [4, 3]
