"""Small buffers that processes share, and their items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.shared import files

ITEM = {
    "id": frb.Unbounded((), "int32"),
    "image": frb.Unbounded((1100,), "uint8"),
    "half": frb.Unbounded((600,), "bfloat16"),
    "done": frb.Binary(),
    "small": frb.Unbounded((3,), "float16"),
}

NAMES = frb.BufferSpec(ITEM, 1).plan.names


def spec_at(path: Any, **fields: Any) -> frb.BufferSpec:
    """A small shared buffer."""
    path = None if path is None else str(path)
    return frb.BufferSpec(**{"item": ITEM, "capacity": 6, "storage": frb.Memmap(path, shared=True), **fields})


def batch_of(first: int, count: int) -> dict[str, np.ndarray]:
    """Items that differ from each other in all leaves."""
    import ml_dtypes

    ids = np.arange(first, first + count, dtype=np.int32)
    return {
        "id": ids,
        "image": np.broadcast_to((ids % 251)[:, None], (count, 1100)).astype(np.uint8),
        "half": np.broadcast_to((ids % 17)[:, None], (count, 600)).astype(ml_dtypes.bfloat16),
        "done": ids % 2 == 1,
        "small": np.broadcast_to((ids % 7)[:, None], (count, 3)).astype(np.float16),
    }


def small_journal(patch: pytest.MonkeyPatch) -> None:
    """Let updates be written in several pieces."""
    patch.setattr(files, "JOURNAL_BYTES", 3 * 2400)
    patch.setattr(files, "JOURNAL_SLOTS", 5)
