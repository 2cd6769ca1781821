"""The version chain of torch's states, where kernels are and nobody traces; see `functional_rb.native.chain`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from functional_rb.native.chain import Chains, dlpack_dtype
from torch_backend.arrays import ops
from torch_backend.arrays.convert import build_mapping
from torch_backend.engines.shared import SharedState
from torch_backend.memory.gpus import ON_GPU
from torch_backend.memory.library import TORCH
from torch_backend.memory.state import State

_DLPACK = {dtype: dlpack_dtype(name) for name, dtype in ops.DTYPES.items()}
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def look(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int, int, int, int] | None:
    """Address, shape, strides, kind, bits and device, as DLPack has them, of an ordinary tensor; None of any other."""
    dtype = _DLPACK.get(tensor.dtype)
    device = (1, 0) if tensor.is_cpu else (2, tensor.get_device()) if tensor.is_cuda else None
    if dtype is None or device is None or tensor.layout is not torch.strided or _is_wrapped(tensor):
        return None
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), *dtype, *device


def ready(tensor: torch.Tensor, writes: bool) -> torch.Tensor:
    """What kernels read in place of a tensor that they cannot: one in a row, of no other class.

    Raises:
        ValueError: if it is to be written, or lies elsewhere. Functions of the library see to that beforehand, this is
            for the case that one forgets it: the process would end, or go on with wrong bits.
    """
    if not tensor.is_cpu:
        raise ValueError(
            f"a kernel of the CPU: expected tensors on the CPU, got one on {tensor.device}; please report that as an "
            f"error of functional_rb, and go on with frb.kernels(False)"
        )
    if writes:
        raise ValueError(f"a kernel: expected an ordinary tensor in a row, to write to, got {type(tensor)}")
    return tensor.detach().resolve_conj().resolve_neg().contiguous().as_subclass(torch.Tensor)


def made(has_exchange: bool = True) -> Any:
    """The chain, with DLPack's C interface where torch has it."""
    arrays = torch.Tensor, np.ndarray, look, from_dlpack, torch.Tensor.is_neg, torch.Tensor.is_conj, ready
    return Chains(TORCH, build_mapping).make(State, arrays, has_exchange, SharedState, ON_GPU)


CHAIN: Final = made()
