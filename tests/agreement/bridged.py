"""What tests of the bridge between the libraries see of an array of either: where it lies, and its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def address(array: Any) -> int:
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.unsafe_buffer_pointer()


def as_bytes(array: Any) -> bytes:
    if isinstance(array, torch.Tensor):
        array = array.contiguous().reshape(-1).view(torch.uint8).numpy() if array.numel() else np.empty(0)
    return np.asarray(array).tobytes()


def arrays(state: Any) -> list[Any]:
    return [state.rows, *state.wide, *([] if state.tree is None else [state.tree]), state.counters]
