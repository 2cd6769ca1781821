"""What JAX has of kernels for GPUs, on the CPU: their handlers are XLA's own calls there, and the launches emulated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import pytest
from jax.interpreters import mlir

from jax_backend.kernels import custom_call, gpus
from tests.support import emulated_gpu
from tests.support.emulated_gpu import BLOCKS, SHARE, Emulated


@contextlib.contextmanager
def using(order: str, blocks: int = BLOCKS, share: int = SHARE, all_of_them: bool = True) -> Iterator[Emulated]:
    """Let what is compiled meanwhile call kernels for GPUs, threads and blocks taking turns in an order.

    By default also where XLA's operations would be quicker.
    """
    gpus.register("cpu")
    jax.clear_caches()
    with (
        emulated_gpu.launching(order, blocks, share) as emulated,
        pytest.MonkeyPatch.context() as patch,
        jax.default_device(jax.devices("cpu")[0]),
    ):
        patch.setattr(jax, "default_backend", lambda: "gpu")
        patch.setattr(gpus, "ready", lambda: True)
        if all_of_them:
            patch.setattr(gpus, "pays", lambda kernel: True)
        mlir.register_lowering(custom_call._work, custom_call.lower_on_gpu, platform="cpu")
        try:
            yield emulated
        finally:
            mlir.register_lowering(custom_call._work, custom_call._lower_on_cpu, platform="cpu")
            jax.clear_caches()


@contextlib.contextmanager
def by_the_cpu() -> Iterator[None]:
    """Have all done on the CPU, by its own kernels, also where there is a GPU."""
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch, jax.default_device(jax.devices("cpu")[0]):
        patch.setattr(jax, "default_backend", lambda: "cpu")
        try:
            yield
        finally:
            jax.clear_caches()
