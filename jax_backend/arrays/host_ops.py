"""The array primitives of the host engine: NumPy's, but for the user's functions, which get JAX's arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from functional_rb.ops import numpy_ops
from functional_rb.ops.numpy_ops import Vector


def call(function: Callable[..., object], *arrays: Vector) -> Any:
    """A function of the user's, compiled as it is in buffers on a device; what is no array is for the caller to see."""
    results = jax.jit(function)(*arrays)
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, results)


# The primitives of `functional_rb.ops.protocol.Ops`.
OPS = SimpleNamespace(**vars(numpy_ops) | {"call": call})
