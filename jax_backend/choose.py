"""Whether a kernel or the core does a piece of work, decided when the program is compiled."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

HANDLERS = {
    "xla": ("add", "draw", "threefry", "update"),
    "xla_chain": ("places",),
    "xla_order": ("settle",),
    "xla_parts": ("descend", "importance_weights", "read", "set_leaves", "store", "stored_values"),
    "xla_rings": ("changed", "expand", "plan_write", "step_ages", "weights_at"),
    "xla_steps": ("extent", "fold", "following", "plan_line"),
}
"""The modules of `functional_rb.native` with kernels for XLA, and which these are."""


@functools.cache
def _register(module: str) -> None:
    """Compile the kernels of a module (or load what an earlier process compiled), and tell XLA of them."""
    handlers = importlib.import_module(f"functional_rb.native.{module}")
    for name in HANDLERS[module]:
        handler = jax.ffi.pycapsule(getattr(handlers, name).ctypes)
        jax.ffi.register_ffi_target(f"functional_rb_{name}", handler, platform="cpu")


def choose(kernel: Callable[..., Any] | None, core: Callable[..., Any], *args: Any, module: str = "xla") -> Any:
    """The kernel where the program is compiled for a CPU, else the core. No derivative goes through either.

    Where an accelerator is the default the kernels are left alone: few programs there run on the CPU, and all would
    wait for the kernels to be compiled.

    Args:
        kernel: makes a custom call of the arguments; None if there is none.
        core: does the same by the array primitives.
        args: pytrees of arrays.
        module: where the kernel is, a key of `HANDLERS`.
    """
    args = lax.stop_gradient(args)
    if kernel is None or jax.default_backend() != "cpu":
        return core(*args)
    _register(module)
    batched = jax.custom_batching.custom_vmap(kernel)

    @batched.def_vmap
    def rule(axis_size: int, in_batched: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, list(in_batched))
        out = jax.vmap(core, in_axes=axes, axis_size=axis_size)(*args)
        return out, jax.tree.map(lambda _: True, out)

    return lax.platform_dependent(*args, cpu=batched, default=core)
