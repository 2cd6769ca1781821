"""The version chain of torch's states, where kernels are and nobody traces; see `functional_rb.native.chain`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from functional_rb.native.chain import Chains
from torch_backend.addresses import addresses
from torch_backend.convert import build_mapping
from torch_backend.library import TORCH
from torch_backend.state import State

_CODES = {
    **dict.fromkeys((torch.int8, torch.int16, torch.int32, torch.int64), 0),
    **dict.fromkeys((torch.uint8, torch.uint16, torch.uint32, torch.uint64), 1),
    **dict.fromkeys((torch.float16, torch.float32, torch.float64), 2),
    **dict.fromkeys((torch.bfloat16,), 4),
    **dict.fromkeys((torch.complex64, torch.complex128), 5),
    **dict.fromkeys((torch.bool,), 6),
}
"""DLPack's numbers of kinds of dtypes."""
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def look(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int, int] | None:
    """Address, shape, strides, kind and bits of an ordinary tensor on the CPU; None of any other."""
    code = _CODES.get(tensor.dtype)
    if code is None or not tensor.is_cpu or tensor.layout is not torch.strided or _is_wrapped(tensor):
        return None
    (address,) = addresses([tensor])
    return address, tuple(tensor.shape), tensor.stride(), code, 8 * tensor.itemsize


def made(has_exchange: bool = True) -> Any:
    """The chain, with DLPack's C interface where torch has it."""
    arrays = torch.Tensor, np.ndarray, look, from_dlpack, torch.Tensor.is_neg, torch.Tensor.is_conj
    return Chains(TORCH, addresses, build_mapping).make(State, arrays, has_exchange)


CHAIN = TORCH.chain = made()
