"""Counts the Python functions that one `add` and one `sample` enter, on each carrier.

A function counts as often as it is entered, if it is one of the library; `--names` lists them in their order.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.buffer import functions
from functional_rb.ops import numpy_ops

PACKAGES = ("functional_rb", "jax_backend", "torch_backend")
ITEM = {"obs": frb.Unbounded((17,)), "reward": frb.Unbounded(()), "done": frb.Binary()}
BATCH = 64
# One spec, as programs have: of several that are equal JAX would compare all fields at every call.
SPEC = frb.BufferSpec(ITEM, 10_000, frb.Prioritized())


def entered(call: Callable[[], Any]) -> list[str]:
    """The library's functions that a call enters, as `package.module.function`."""
    names: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.partition(".")[0] in PACKAGES and not frame.f_code.co_name.startswith("<"):
            names.append(f"{module}.{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def batch_of(convert: Callable[[Any], Any]) -> dict[str, Any]:
    """A batch in a library's arrays."""
    items = {
        "obs": np.ones((BATCH, 17), np.float32),
        "reward": np.ones(BATCH, np.float32),
        "done": np.zeros(BATCH, bool),
    }
    return {name: convert(leaf) for name, leaf in items.items()}


def public(library: str, storage: Any = None, in_place: bool = False) -> tuple[list[str], list[str]]:
    """What `add` and `sample` of a backend enter, once all is compiled."""
    rb = importlib.import_module(f"{library}_backend")
    convert = (
        importlib.import_module("jax.numpy").asarray if library == "jax" else importlib.import_module("torch").tensor
    )
    spec = SPEC if storage is None else dataclasses.replace(SPEC, storage=storage)
    state, batch = rb.init(spec), batch_of(convert)
    add, sample = (rb.add_, rb.sample_) if in_place else (rb.add, rb.sample)
    for _ in range(3):
        state = add(state, batch)
        state, _ = sample(state, rb.key(0), 256)
    held = [state]
    key = rb.key(1)
    adding = entered(lambda: held.append(add(held.pop(), batch)))
    sampling = entered(lambda: held.append(sample(held.pop(), key, 256)[0]))
    return adding, sampling


def core() -> tuple[list[str], list[str]]:
    """What the core enters over NumPy's operations."""
    leaves = list(dict(sorted(batch_of(np.asarray).items())).values())
    held = [functions.init(numpy_ops, SPEC)]
    adding = entered(lambda: held.append(functions.add(numpy_ops, held.pop(), SPEC, leaves, BATCH, None, None)))
    rows, words = SPEC.sampler.draw_shape(SPEC.plan, 256)
    bits = np.random.default_rng(0).integers(0, 2**31, (rows, words), np.int32)
    beta = np.asarray(0.4, np.float32)
    sampling = entered(lambda: functions.draw(numpy_ops, held[0], SPEC, bits, beta, 256))
    return adding, sampling


def counts() -> dict[str, tuple[list[str], list[str]]]:
    """Of every carrier, what an `add` and a `sample` of a prioritized buffer enter."""
    with tempfile.TemporaryDirectory() as path:
        return {
            "JAX, eager": public("jax"),
            "JAX, in place": public("jax", in_place=True),
            "JAX, `Host()`": public("jax", frb.Host()),
            "JAX, `Memmap`": public("jax", frb.Memmap(f"{path}/jax")),
            "torch, eager": public("torch"),
            "torch, in place": public("torch", in_place=True),
            "shared, on torch": public("torch", frb.Memmap(f"{path}/shared", shared=True)),
            "shared, on JAX": public("jax", frb.Memmap(f"{path}/shared-jax", shared=True)),
            "core on NumPy": core(),
        }


def main() -> None:
    """Print the table of docs/internals.md."""
    for carrier, (adding, sampling) in counts().items():
        print(f"| {carrier} | {len(adding)} | {len(sampling)} |")
        if "--names" in sys.argv:
            for names in (adding, sampling):
                print("   ", ", ".join(f"{name} x{n}" for name, n in collections.Counter(names).items()))


if __name__ == "__main__":
    main()
