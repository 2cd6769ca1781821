"""A life of a buffer, and its bits: the same with native code and, as a program, without it: "jax" or "torch"."""

import importlib
import sys
from typing import Any

import numpy as np

import functional_rb as frb

ITEM = {"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int16"), "image": frb.Unbounded((40, 40), "uint8")}
SWITCH = {"jax": "jax_backend.compiling.compile", "torch": "torch_backend.memory.library"}


def bits(rb: Any) -> str:
    state, rng = rb.init(frb.BufferSpec(ITEM, 19, frb.Prioritized(0.7, 0.5))), np.random.default_rng(0)
    parts: list[Any] = []
    for i in range(5):
        batch = {
            "x": rng.normal(size=(8, 3)).astype("f4"),
            "n": rng.integers(0, 99, 8, "i2"),
            "image": rng.integers(0, 255, (8, 40, 40), "u1"),
        }
        state = rb.add(state, batch, mask=rng.random(8) < 0.7)
        state, sample = rb.sample(state, rb.key(i), 6)
        priorities = np.r_[rng.exponential(size=4), 0, np.nan].astype("f4")
        state = rb.update(state, sample.indices, priorities, {"n": sample.items["n"]})
        parts += [*sample[1:4], *sample.items.values()]
    parts += [state.rows, *state.wide, state.counters, state.tree]
    return "".join(np.asarray(part.cpu() if hasattr(part, "cpu") else part).tobytes().hex() for part in parts)


def without_native_code(library: str) -> None:
    sys.modules["functional_rb._native"] = None  # type: ignore[assignment]  # so that it cannot be imported
    rb = importlib.import_module(f"{library}_backend")
    assert not importlib.import_module(SWITCH[library]).HAVE_KERNELS
    sys.stdout.write(bits(rb))
    try:
        rb.init(frb.BufferSpec(ITEM, 19, storage=frb.Memmap(shared=True)))
    except ImportError as error:
        assert "needs functional_rb._native, which is missing: install" in str(error), error
    else:
        raise AssertionError("processes share a buffer by native code alone")


if __name__ == "__main__":
    without_native_code(sys.argv[1])
