"""Torch's memory on GPUs, for the version chain: how arrays are made there, and on which streams they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from functional_rb.base.tracing import constant
from functional_rb.buffer.spec import BufferSpec
from functional_rb.native import gpu
from functional_rb.versions.memory import Memory
from torch_backend.arrays import modes, ops
from torch_backend.memory import streams

NUMBERS = torch.int32, torch.float32, torch.bool, torch.uint8


class Gpus:
    """Those that torch has."""

    def has(self, memory: Memory) -> bool:
        """Whether kernels can be carried out where a memory lies."""
        device = memory.rows.device
        if not (device.type == "cuda" and memory.fits and all(map(memory.is_plain_array, memory.arrays))):
            return False
        return gpu.ready(device.index, "torch")

    def makers(self, memory: Memory, spec: BufferSpec) -> tuple[dict[str, object], ...] | None:
        """Keywords of `torch.empty` for what a memory's states and samples are made of; None if it is on no GPU."""
        return keywords(memory.rows.device, spec) if self.has(memory) else None

    def where(self, device: torch.device) -> tuple[tuple[int, int], int]:
        """A device as DLPack has it, and torch's current stream there."""
        return (2, device.index), torch._C._cuda_getCurrentRawStream(device.index)

    def traces(self, arrays: Sequence[torch.Tensor]) -> bool:
        """Whether arrays lie on one GPU with kernels, while torch.compile traces what is done with them."""
        device = arrays[0].device
        return device.type == "cuda" and all(x.device == device for x in arrays) and _ready(device.index)

    def works_on(self, arrays: Sequence[torch.Tensor]) -> bool:
        """Whether arrays lie on one GPU with kernels, while nobody traces."""
        device = arrays[0].device
        return device.type == "cuda" and all(x.device == device for x in arrays) and gpu.ready(device.index, "torch")


@constant
def _ready(device: int) -> bool:
    return gpu.ready(device, "torch")


def keywords(device: torch.device, spec: BufferSpec) -> tuple[dict[str, object], ...]:
    """Those of `torch.empty` for numbers, masks and bytes, and for each leaf that a launch reads."""
    plan = spec.plan
    whole = plan.frames is not None and spec.known.appends and not plan.objects  # then also what is stored as frames
    leaves = [ops.DTYPES[leaf.dtype] for leaf in (plan.leaves if whole else plan.layout.leaves)]
    return tuple({"dtype": dtype, "device": device} for dtype in (*NUMBERS, *leaves))


def prototype(options: dict[str, Any], shape: tuple[int, ...]) -> torch.Tensor:
    """An array of a shape with one element, in place of all."""
    return torch.empty(1, **options).expand(shape)


def like_outside_inference(array: torch.Tensor) -> torch.Tensor:
    """An array that may be written to later, also outside of inference mode."""
    with modes.outside_inference():
        return torch.empty_like(array)


def in_order(memory: Any, counters: torch.Tensor, stream: int) -> None:
    """Have torch's current stream, of this number, find a memory and a state's counters as others have left them."""
    memory.join_stream()
    streams.keep(counters)
    memory.stream = stream


_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # of a device, its handle
# What the version chain asks; see `functional_rb.native.chain.Chains.make`.
ON_GPU = prototype, torch.empty_like, like_outside_inference, torch.is_inference_mode_enabled, _stream, in_order
