"""Random keys of JAX."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MAP = 0xFF6D6170
"""Beyond the number of bits that are drawn by a key at a time."""


def check_key(key: Any) -> None:
    """Refuse what is no single key, typed or legacy."""
    is_object_array = isinstance(key, (jax.Array, np.ndarray))
    typed = is_object_array and _is_key_type(key.dtype)
    legacy = is_object_array and key.dtype == np.uint32
    if not (typed or legacy) or key.ndim != (0 if typed else 1):
        got = f"{tuple(key.shape)} {key.dtype}" if is_object_array else type(key).__name__
        raise TypeError(
            f"key: expected one key made by rb.key(seed) or rb.split, got {got}; jax.vmap over a batch of keys"
        )


def split(key: jax.Array) -> jax.Array:
    """Two keys from one."""
    check_key(key)
    return jax.random.split(key)


def for_maps(key: jax.Array) -> jax.Array:
    """The key of `map_items` that follows from one, and is unrelated to what is drawn and split by it.

    It is the hash of one number; bits and split keys are those of the numbers from 0 on, which do not get so far.
    """
    return jax.random.fold_in(key, MAP)


@functools.cache
def _is_key_type(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)
