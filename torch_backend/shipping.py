"""What is sent from the CPU's memory to a GPU: side by side in pinned memory, out of which one copy takes all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

# Bytes between whose multiples tensors begin, as torch's allocator has it.
LINE: Final = 256


def shipped(values: Sequence[Any], device: torch.device) -> list[object]:
    """Tensors on a device, the others on their way to it: whoever uses torch's current stream there finds them whole.

    What is no tensor stays as it is. Nobody waits: the copy is asynchronous, and torch keeps the pinned memory, which
    may be let go at once, until it is done.
    """
    places = [k for k, x in enumerate(values) if isinstance(x, torch.Tensor) and x.device.type == "cpu"]
    found = dict[int, Any]()
    if places and device.type == "cuda":
        found = dict(zip(places, _copied([values[k] for k in places], device), strict=True))
    return [
        x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x
        for x in (found.get(k, x) for k, x in enumerate(values))
    ]


def _copied(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    begins, size = [], 0
    for x in tensors:
        begins.append(size)
        size += -(-x.nbytes // LINE) * LINE
    pinned = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    for begin, x in zip(begins, tensors, strict=True):
        part(pinned, begin, x.dtype, x.shape).copy_(x)
    there = pinned.to(device, non_blocking=True)
    return [part(there, begin, x.dtype, x.shape) for begin, x in zip(begins, tensors, strict=True)]


def part(piece: torch.Tensor, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of a dtype and a shape in a piece of bytes, from one of them on."""
    return piece[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
