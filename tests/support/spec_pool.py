"""Specs that differ in what their items are stored in, and random items of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import functional_rb as frb


class Point(NamedTuple):
    """A structure for items."""

    x: Any
    y: Any


SMALL = {"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32"), "done": frb.Binary()}
TYPED = (
    Point(frb.Unbounded((2,), "bfloat16"), frb.Unbounded((), "complex64")),
    {"a": frb.Unbounded((3,), "uint8"), "b": frb.Unbounded((), "float16"), "c": frb.Unbounded((0, 2), "int16")},
    frb.Unbounded((1, 2), "uint16"),
    [frb.Unbounded((), "int8"), frb.Unbounded((), "uint32")],
)
IMAGES = {
    "image": frb.Unbounded((32, 33), "uint8"),
    "half": frb.Unbounded((600,), "bfloat16"),
    "mask": frb.Binary((1024,)),
    "words": frb.Unbounded((600,), "uint16"),
    "deep": {"er": {"still": {"more": {"leaf": frb.Binary((2,))}}}},
}
TWENTY = {f"leaf{k}": frb.Unbounded((k % 3,), ("float32", "uint8", "int16", "bool")[k % 4]) for k in range(20)}
ONE_ALPHA = frb.Prioritized(alpha=1.0, beta=1.0)
# Leaves for histories, whose bytes are random; some so large that they are stored by themselves.
OF_ALL_DTYPES = {
    "bool": frb.Binary((2,)),
    "bytes": frb.Unbounded((3,), "uint8"),
    "half": frb.Unbounded((), "float16"),
    "brain": frb.Unbounded((2,), "bfloat16"),
    "wide": frb.Unbounded((600,), "uint16"),
    "wide_brain": frb.Unbounded((600,), "bfloat16"),
    "nothing": frb.Unbounded((0, 2), "int16"),
    "words": frb.Unbounded((1, 2), "uint16"),
    "sign": frb.Unbounded((), "int8"),
    "count": frb.Unbounded((), "uint32"),
    "complex": frb.Unbounded((), "complex64"),
}
# Which JAX has in its 64-bit mode alone.
WIDE_DTYPES = {"long": frb.Unbounded((2,), "int64"), "double": frb.Unbounded((), "float64")}
# Few, because XLA compiles each anew; on torch specs are drawn freely.
POOL = [
    frb.BufferSpec(SMALL, 3, frb.Prioritized(alpha=0.6, beta=0.4)),
    frb.BufferSpec(SMALL, 17, ONE_ALPHA),
    frb.BufferSpec(TYPED, 4, frb.Prioritized(alpha=1.0, new_priority="ever")),
    frb.BufferSpec(IMAGES, 2, frb.Prioritized(alpha=1.3, beta=0.7)),
    frb.BufferSpec(TWENTY, 7),
    frb.BufferSpec({}, 5, ONE_ALPHA),
    frb.BufferSpec(frb.Unbounded((), "float32"), 1, frb.Prioritized(alpha=0.0)),
]


def random_leaf(spec: frb.specs.ArraySpec, n: int, rng: np.random.Generator) -> np.ndarray:
    """n leaves of random bytes: NaNs of all kinds, subnormals, extremes."""
    if spec.dtype == "bool":
        return rng.random((n, *spec.shape)) < 0.5
    dtype = np.dtype(ml_dtypes.bfloat16 if spec.dtype == "bfloat16" else spec.dtype)
    raw = rng.integers(0, 256, (n, math.prod(spec.shape) * dtype.itemsize), dtype=np.uint8)
    return raw.view(dtype).reshape(n, *spec.shape) if raw.size else np.zeros((n, *spec.shape), dtype)
