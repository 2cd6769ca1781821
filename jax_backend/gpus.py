"""The kernels for GPUs, as far as XLA calls them: whether they can be carried out, and what they are known by."""

from __future__ import annotations

import functools
from typing import Final

import jax

from functional_rb.native import gpu
from functional_rb.native.kernels import Kernel

PREFIX: Final = "functional_rb_gpu_"
"""What the names of handlers begin with."""


@functools.cache
def ready() -> bool:
    """Whether kernels can be carried out on all GPUs of this process; XLA is then told of the handlers."""
    devices = jax.local_devices()
    if "cuda" not in devices[0].client.platform_version.lower():
        return False
    able = all(gpu.ready(device.local_hardware_id, "XLA") for device in devices)
    if able:
        register("CUDA")
    return able


def register(platform: str) -> None:
    """Tell XLA of the handlers, for a platform."""
    from functional_rb import _native

    for name, handler in _native.GPU_HANDLERS.items():
        jax.ffi.register_ffi_target(PREFIX + name, handler, platform=platform)


def fits(kernel: Kernel) -> bool:
    """Whether there is a launch for a kernel that can name all that the buffer has."""
    from functional_rb import _native

    if kernel.on_gpu is None:
        return False
    plan, *others = [x for x in kernel.records if not isinstance(x, int)]
    most, numbers, rings = _native.GPU_ROOM
    leaves, wide = plan[:2]  # of the record of a buffer
    return bool(leaves <= most and wide < most and len(plan) <= numbers and all(len(x) <= rings for x in others))


def scratch(kernel: Kernel) -> int:
    """How many numbers of int32 a call wants for its own use."""
    from functional_rb import _native

    assert kernel.on_gpu is not None
    name, batch, masked = kernel.on_gpu
    found: int = _native.gpu_scratch(name, kernel.records[0], batch, masked)
    return found
