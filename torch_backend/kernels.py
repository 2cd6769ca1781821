"""The compiled twins of the core's functions, for states in the CPU's memory; see `functional_rb.cpu_kernels.fused`."""

from __future__ import annotations

import functools

import torch

from functional_rb.buffer.spec import BufferSpec
from functional_rb.cpu_kernels import fused
from torch_backend import ops
from torch_backend.addresses import address


class Tensors:
    """How tensors are found and made."""

    address = staticmethod(address)
    empty = staticmethod(ops.empty)
    dtypes = ops.DTYPES

    @staticmethod
    def placed(tensor: torch.Tensor) -> torch.Tensor:
        """The same: torch is asked quickly."""
        return tensor

    @staticmethod
    def results(spec: BufferSpec, batch: int) -> list[torch.Tensor]:
        """Likewise for each leaf."""
        return [
            torch.empty_strided(shape, strides, dtype=dtype, device=ops.CPU)
            for shape, strides, dtype in _results(spec, batch)
        ]


@functools.lru_cache(maxsize=1024)
def _results(spec: BufferSpec, batch: int) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    """Shape, strides and dtype of each leaf of a sample: allocated by strides, torch is twice as fast."""
    shapes = [(batch, *leaf.shape) for leaf in spec.plan.layout.leaves]
    strides = [torch.empty(shape, device="meta").stride() for shape in shapes]
    dtypes = [ops.DTYPES[leaf.dtype] for leaf in spec.plan.layout.leaves]
    return list(zip(shapes, strides, dtypes, strict=True))


_kernels = fused.Kernels(Tensors())
room, add, update, sample = _kernels.room, _kernels.add, _kernels.update, _kernels.sample
