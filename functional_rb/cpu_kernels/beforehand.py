"""Compiling all kernels before they are called, for images and wherever no process is to wait for it."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
from pathlib import Path
from typing import Any, Final

from numba import types

from functional_rb.cpu_kernels import cache

ADDRESS: Final = types.int64
ENCODED: Final = types.Array(types.int32, 1, "C", readonly=True)
ADDRESSES: Final = types.Array(types.int64, 1, "C")
DISCOUNTS: Final = tuple(types.Array(dtype, 1, "C", readonly=True) for dtype in (types.float32, types.float64))

ENTERED: Final = ("shared", "fused", "part_kernels", "ragged")
"""The modules that call kernels, or have them."""
ADDRESSED: Final[dict[str, Any]] = {
    **dict.fromkeys(("plan", "ranges", "epoch", "windows"), ENCODED),
    **dict.fromkeys(("storage", "items", "leaves", "saved_count"), ADDRESSES),
    "saved_places": types.Array(types.int32, 1, "C"),
    "beta": types.float64,
    "discounts": DISCOUNTS,
}
"""The types of arguments by name, but in modules that have their own; all others are addresses and numbers."""
SHARED: Final[dict[str, Any]] = {
    "plan": ENCODED,
    **dict.fromkeys(("storage", "leaves", "journal"), ADDRESSES),
    **dict.fromkeys(("handles", "counters"), types.Array(types.int32, 1, "C")),
    **dict.fromkeys(("tree", "weights", "probabilities"), types.Array(types.float32, 1, "C")),
    "live": types.Array(types.uint8, 1, "C"),
    "random_bits": types.Array(types.int32, 2, "C"),
    "beta": types.float32,
    "has_rows": types.boolean,
    "room": types.Array(types.int64, 1, "C"),
}
"""The types of arguments of the kernels in `shared`, by name."""
RAGGED: Final[dict[str, Any]] = {
    **dict.fromkeys(("narrow", "left"), types.boolean),
    **dict.fromkeys(("starts", "lengths"), types.Array(types.int32, 2, "C")),
    "shared": types.Array(types.int32, 1, "C"),
    "ids": types.Array(types.int32, 3, "C"),
    "mask": types.Array(types.boolean, 3, "C"),
}
"""Those of the kernels in `ragged`."""
OWN: Final = {"shared": SHARED, "ragged": RAGGED}
"""The modules that have their own."""


def entries() -> list[tuple[Any, list[tuple[Any, ...]]]]:
    """The kernels that Python calls, and the types of the arguments that it calls each with."""
    for name in ENTERED:
        importlib.import_module(f"{__package__}.{name}")
    return [(kernel, _types(kernel)) for kernel in cache.ENTRIES]


def _types(kernel: Any) -> list[tuple[Any, ...]]:
    """Where an argument may be of several types, with each of them."""
    by_name = OWN.get(kernel.py_func.__module__.rpartition(".")[2], ADDRESSED)
    given = [by_name.get(name, ADDRESS) for name in inspect.signature(kernel.py_func).parameters]
    return list(itertools.product(*(x if isinstance(x, tuple) else (x,) for x in given)))


def compile_entries() -> None:
    """Compile what Python calls, or load it."""
    for kernel, signatures in entries():
        for signature in signatures:
            kernel.compile(signature)


def compile_handlers() -> None:
    """Compile what XLA calls, or load it: that is done when its modules are imported."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.partition("_")[0] == "xla":
            importlib.import_module(f"{__package__}.{module.name}")
