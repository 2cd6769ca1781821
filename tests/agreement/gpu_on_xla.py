"""What JAX has of kernels for GPUs, on the CPU: their handlers are XLA's own calls there, and the launches emulated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from jax.interpreters import mlir

from jax_backend import compat
from jax_backend.kernels import custom_call, gpus
from tests.support import emulated_gpu
from tests.support.emulated_gpu import BLOCKS, SHARE, Emulated

_setters: list[Callable[[Any], object]] = []
compat.on_each_change(_setters.append, False)


@contextlib.contextmanager
def found_by(how: str) -> Iterator[None]:
    """Let JAX find what is traced and compiled meanwhile by how that was, and not anything from before."""
    (tell,) = _setters
    tell(how)
    try:
        yield
    finally:
        tell(False)


@contextlib.contextmanager
def using(order: str, blocks: int = BLOCKS, share: int = SHARE, all_of_them: bool = True) -> Iterator[Emulated]:
    """Let what is compiled meanwhile call kernels for GPUs, threads and blocks taking turns in an order.

    By default also where XLA's operations would be quicker.
    """
    gpus.register("cpu")
    with (
        found_by("all by launches" if all_of_them else "launches where they pay"),
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


@contextlib.contextmanager
def by_the_cpu() -> Iterator[None]:
    """Have all done on the CPU, by its own kernels, also where there is a GPU."""
    with (
        found_by("by the CPU"),
        pytest.MonkeyPatch.context() as patch,
        jax.default_device(jax.devices("cpu")[0]),
    ):
        patch.setattr(jax, "default_backend", lambda: "cpu")
        yield
