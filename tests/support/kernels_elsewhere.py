"""Kernels for GPUs, emulated on the memory of the tests' own device, and the items that tests of both store there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

import functional_rb as frb
from functional_rb.native.chain import Chains, dlpack_dtype
from tests.support import device, emulated_gpu
from torch_backend.arrays.convert import build_mapping
from torch_backend.kernels import chain
from torch_backend.memory import gpus
from torch_backend.memory.library import TORCH

ITEM = {"obs": frb.Unbounded((17,)), "image": frb.Bounded(0, 255, (40, 40), "uint8"), "done": frb.Binary()}


def batch_of(count: int, where: Any = None) -> dict[str, torch.Tensor]:
    where = where or device.NAME
    return {
        "obs": torch.arange(count * 17.0, device=where).reshape(count, 17),
        "image": torch.ones(count, 40, 40, dtype=torch.uint8, device=where),
        "done": torch.arange(count, device=where) % 5 == 4,
    }


class OnTheDevice(emulated_gpu.OnTheCpu):
    """Makes what kernels for GPUs work on in the device's memory."""

    def has(self, memory: Any) -> bool:
        return memory.rows.device.type == device.NAME and memory.fits

    def where(self, device: torch.device) -> tuple[tuple[int, int], int]:
        return (2, device.index), stream_of(device.index)

    def works_on(self, arrays: Any) -> bool:
        return all(x.device.type == device.NAME for x in arrays)


def look(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """What the chain sees of a tensor: one of this device as one of a GPU."""
    if tensor.device.type != device.NAME:
        return chain.look(tensor)
    kind = dlpack_dtype(str(tensor.dtype).removeprefix("torch."))
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), *kind, 2, tensor.get_device()


def stream_of(index: int) -> int:
    return torch.accelerator.current_stream(torch.device(device.NAME, index)).stream_id


@pytest.fixture
def kernels() -> Iterator[emulated_gpu.Emulated]:
    """Kernels for GPUs, emulated, on this device's memory, which is open to them alone."""
    made = gpus.prototype, torch.empty_like, gpus.like_outside_inference, torch.is_inference_mode_enabled
    arrays = torch.Tensor, np.ndarray, look, from_dlpack, torch.Tensor.is_neg, torch.Tensor.is_conj, chain.ready
    own = Chains(TORCH, build_mapping).make(chain.State, arrays, False, None, (*made, stream_of, gpus.in_order))
    before = TORCH.chain, TORCH.gpus
    TORCH.chain, TORCH.gpus = own, OnTheDevice()
    try:
        with emulated_gpu.launching("scattered", on=device.library()) as emulated:
            yield emulated
    finally:
        TORCH.chain, TORCH.gpus = before
