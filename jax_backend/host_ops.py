"""The array primitives of the host engine, which calls the user's functions on JAX's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from functional_rb.ops.numpy_ops import Vector
from functional_rb.ops.numpy_ops import all_rows as all_rows
from functional_rb.ops.numpy_ops import arange as arange
from functional_rb.ops.numpy_ops import argsort as argsort
from functional_rb.ops.numpy_ops import bitcast as bitcast
from functional_rb.ops.numpy_ops import cast as cast
from functional_rb.ops.numpy_ops import concat as concat
from functional_rb.ops.numpy_ops import constant as constant
from functional_rb.ops.numpy_ops import count as count
from functional_rb.ops.numpy_ops import cummax as cummax
from functional_rb.ops.numpy_ops import cumsum as cumsum
from functional_rb.ops.numpy_ops import floats as floats
from functional_rb.ops.numpy_ops import full_like as full_like
from functional_rb.ops.numpy_ops import maximum as maximum
from functional_rb.ops.numpy_ops import minimum as minimum
from functional_rb.ops.numpy_ops import moveaxis as moveaxis
from functional_rb.ops.numpy_ops import mul_wide as mul_wide
from functional_rb.ops.numpy_ops import searchsorted as searchsorted
from functional_rb.ops.numpy_ops import set_at as set_at
from functional_rb.ops.numpy_ops import set_flat as set_flat
from functional_rb.ops.numpy_ops import stack as stack
from functional_rb.ops.numpy_ops import take as take
from functional_rb.ops.numpy_ops import where as where
from functional_rb.ops.numpy_ops import zeros as zeros


def call(function: Callable[..., Any], *arrays: Vector) -> Any:
    """A function of the user's, compiled as it is in buffers on a device; what is no array is for the caller to see."""
    made = jax.jit(function)(*arrays)
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, made)
