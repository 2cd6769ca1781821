"""Random keys of JAX."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base.arrays import PRNGKey
from functional_rb.buffer import checks
from jax_backend import compat
from jax_backend.arrays import rules

# Beyond the number of bits that are drawn by a key at a time.
MAP = 0xFF6D6170


def check_key(key: PRNGKey) -> None:
    """Refuse what is no single key, typed or legacy."""
    is_object_array = isinstance(key, (jax.Array, np.ndarray))
    typed = is_object_array and _is_key_type(key.dtype)
    legacy = is_object_array and key.dtype == np.uint32
    if not (typed or legacy) or key.ndim != (0 if typed else 1):
        got = f"{tuple(key.shape)} {key.dtype}" if is_object_array else type(key).__name__
        raise TypeError(
            f"key: expected one key made by rb.key(seed) or rb.split, got {got}; jax.vmap over a batch of keys"
        )


@rules.transfers
def key(seed: int | jax.Array) -> jax.Array:
    """A key of JAX's default kind: `jax.random.key(seed)`.

    Args:
        seed: a whole number, of which all 64 bits count, whether JAX's 64-bit mode is on or not; beyond, it is taken
            modulo 2^64. Or a traced integer.

    Raises:
        TypeError: for a seed that is no whole number.

    Example:
        >>> first, second = key(1), key(2**32 + 1)
        >>> bool((jax.random.key_data(first) == jax.random.key_data(second)).all())
        False
    """
    if not isinstance(seed, (int, np.integer)):
        if getattr(seed, "shape", None) != () or not jnp.issubdtype(seed.dtype, jnp.integer):
            shown = f"{tuple(seed.shape)} {seed.dtype}" if hasattr(seed, "dtype") else type(seed).__name__
            raise TypeError(f"key: expected a seed as an int, or an integer scalar, got {shown}")
        return jax.random.key(seed)
    if -(2**31) <= seed < 2**32:
        return jax.random.key(seed)
    # In its 32-bit mode JAX drops the upper bits, and gives the key of another seed.
    with jax.ensure_compile_time_eval(), compat.enable_x64(True):
        return jax.random.key((int(seed) + 2**63) % 2**64 - 2**63)


@rules.transfers
def split(key: jax.Array, n: int = 2) -> jax.Array:
    """`n` independent keys [n] from one: `jax.random.split`."""
    check_key(key)
    return jax.random.split(key, checks.count("split", "n", n))


def for_maps(key: jax.Array) -> jax.Array:
    """The key of `map_items` that follows from one, and is unrelated to what is drawn and split by it.

    It is the hash of one number; bits and split keys are those of the numbers from 0 on, which do not get so far.
    """
    return jax.random.fold_in(key, MAP)


@functools.cache
def _is_key_type(dtype: str) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)
