"""Kernels called with tensors; see `functional_rb.cpu_kernels.addresses`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from functional_rb.cpu_kernels.addresses import Held, caller, storage_caller

address = torch.Tensor.data_ptr
call, call_storage = caller(address), storage_caller(address)


def held(tensors: Sequence[torch.Tensor]) -> Held:
    """Tensors and their addresses."""
    return Held(tensors, address)
