"""The kernels for GPUs on torch's own streams and memory; `functional_rb.native.gpu` compiles them."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
from typing import Any

import torch

from functional_rb.native import gpu


class Driver:
    """The kernels on the GPUs of this process."""

    def ready(self, device: int) -> bool:
        """Whether kernels can be carried out on a device; a warning says once why they cannot."""
        return gpu.ready(device, "torch")

    def launch(
        self, device: int, name: str, call: ctypes.Array[Any], grid: tuple[int, int], threads: int, done: list[int]
    ) -> None:
        """Have a kernel carried out on a device, on torch's current stream there, by a copy of its record.

        What CUDA says, 0 for all is well, is put into `done` at once: an interrupt comes before both or after both.

        Raises:
            RuntimeError: if the driver refuses, in whose words it is told.
        """
        there = gpu.loaded(device)
        cuda, before = gpu.cuda(), c_void_p()
        cuda.cuCtxGetCurrent(byref(before))
        if before.value != there.context:  # a new thread has none, and several devices take turns
            gpu.check(cuda.cuCtxPushCurrent_v2(c_void_p(there.context)), "cuCtxPushCurrent")
        try:
            stream = c_void_p(torch._C._cuda_getCurrentRawStream(device))
            pointers = (c_void_p * 1)(ctypes.addressof(call))
            given = (c_void_p(there.kernels[name]), *grid, 1, threads, 1, 1, 0, stream, pointers, None)
            # Python looks for interrupts between two steps of its own, and all of this is one.
            done.extend(map(cuda.cuLaunchKernel, *[(each,) for each in given]))
            gpu.check(done[-1], f"{name} on cuda:{device}")
        finally:
            if before.value != there.context:
                cuda.cuCtxPopCurrent_v2(byref(c_void_p()))
