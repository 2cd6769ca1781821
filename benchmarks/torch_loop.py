"""What all torch contenders share: tensors of a batch, and waiting for the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch


def to_tensors(batch: dict[str, np.ndarray], device: str) -> dict[str, torch.Tensor]:
    """A NumPy batch as tensors on `device`."""
    return {name: torch.as_tensor(leaf, device=device) for name, leaf in batch.items()}


def synchronizer(device: str) -> Callable[[], None]:
    """A call that waits until `device` has done its work; nothing to wait for on the CPU."""
    return torch.cuda.synchronize if torch.device(device).type == "cuda" else _nothing


def _nothing() -> None:
    pass
