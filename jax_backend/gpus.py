"""The kernels for GPUs, as far as XLA calls them: whether they can be carried out, and what they are known by."""

from __future__ import annotations

import functools
from typing import Final

import jax

from functional_rb.native import gpu

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
