"""What users give as arrays of JAX, refused where a dtype would change."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base import dtypes, nest
from functional_rb.base.arrays import ArrayLike, BackendArray, NumpyArray
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.buffer import checks
from functional_rb.core.handles import NO_HANDLE
from functional_rb.specs import ArraySpec

NUMPY = (np.ndarray, np.generic)
NUMBERS = (bool, int, float, complex)


def to_array(leaf: object, expected: ArraySpec, name: str) -> jax.Array:
    """As `convert` has them, with NumPy's on the device."""
    array = convert(leaf, expected, name)
    return array if isinstance(array, jax.Array) else on_device(array)


def convert(leaf: object, expected: ArraySpec, name: str) -> jax.Array | NumpyArray:
    """Arrays of JAX as they are, of NumPy's copies in NumPy, Python numbers for scalar leaves as arrays.

    A compiled function takes all of NumPy's to the device in one call; to take each there beforehand costs more than
    the whole of a small `add`. They are copies, as JAX reads in the background what the caller may write to.
    """
    if isinstance(leaf, jax.Array):
        checks.check_dtype(name, leaf, expected.dtype)
        return leaf
    if isinstance(leaf, NUMPY):
        checks.check_numpy(name, leaf)
        checks.check_dtype(name, leaf, expected.dtype)
        return np.array(leaf)
    if isinstance(leaf, NUMBERS) and expected.shape == ():
        dtypes.check_scalar(leaf, expected.dtype, name)
        return jnp.asarray(leaf, expected.dtype)
    _refuse_torch(leaf, f"leaf {name!r}")
    raise TypeError(
        f"leaf {name!r}: expected an array of dtype {expected.dtype}, got {type(leaf).__name__}; "
        f"give JAX or NumPy arrays"
    )


def on_device(array: NumpyArray) -> jax.Array:
    """An array of NumPy's that nobody else writes to: `jnp.asarray` would compile a program for each new shape."""
    placed: jax.Array = jax.device_put(array)
    return placed


def copied(array: NumpyArray) -> jax.Array:
    """A copy on the device of an array of NumPy's, made before this returns.

    `jnp.array(array, copy=True)` reads it in the background, once what was dispatched before is done (JAX 0.10).
    """
    return on_device(np.array(array))


def as_vector(array: BackendArray, name: str) -> BackendArray:
    """Masks, priorities and indices, of NumPy's copies as `convert` has them; the caller checks dtypes."""
    if checks.are_listed(array, name):
        array = np.asarray(array, np.int64)
    if isinstance(array, NUMPY):
        checks.check_numpy(name, array)
        return exactly(np.array(array), name)
    if isinstance(array, jax.Array):
        return exactly(array, name)
    _refuse_torch(array, name)
    return array


def exactly(array: BackendArray, name: str) -> BackendArray:
    """Handles as int32, and priorities as float32, where nothing is lost; the rest as it is, for the caller to refuse.

    Whether float32 has all of float64 numbers can only be seen where the numbers are at hand.
    """
    dtype = array.dtype.name
    if name == "indices" and dtype in ("int16", "int8", "uint8"):
        return array.astype(np.int32)
    if name == "indices" and dtype == "int64":
        library: Any = np if isinstance(array, NUMPY) else jnp
        known = (array >= -1) & (array < NO_HANDLE)
        return library.where(known, array, NO_HANDLE).astype(np.int32)
    if name == "priorities" and dtype in ("float16", "bfloat16"):
        return array.astype(np.float32)
    if name == "priorities" and dtype in ("int8", "uint8", "int16", "uint16"):
        return array.astype(np.float32)
    if name == "priorities" and dtype.startswith(("int", "uint", "float64")):  # keys have a dtype without a kind
        return _wide_priorities(array)
    return array


# Numbers of 32 and 64 bits as float32, where it has all of them; the rest as it is.
#
# NumPy compares them, as JAX would trace that in a traced function that has them from outside, and would compare
# float64 that is weakly typed in float32.
def _wide_priorities(array: jax.Array) -> object:
    if isinstance(array, jax.core.Tracer) or not getattr(array, "is_fully_addressable", True):
        return array
    numbers = np.asarray(array)
    known = numbers.astype(np.float64)  # which has all whole numbers up to 2^53
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is another number
        narrow = known.astype(np.float32)
    same = (narrow == known) | (known != known)
    if numbers.dtype.kind != "f":
        same &= np.abs(known) < 2.0**53
    return array.astype(np.float32) if same.all() else array


def value_of(scalar: object) -> float | None:
    """The number in a scalar array, None while tracing."""
    if isinstance(scalar, jax.core.Tracer) or not getattr(scalar, "is_fully_addressable", True):
        return None
    return float(np.asarray(scalar))


def number(x: Any, dtype: type[np.float32 | np.int32] = np.float32) -> ArrayLike:
    """A scalar; one of NumPy's is taken by a compiled function in a tenth of the time of `jnp.asarray`."""
    return jnp.asarray(x, dtype) if isinstance(x, jax.Array) else dtype(x)


def _refuse_torch(array: object, what: str) -> None:
    if type(array).__module__.split(".")[0] == "torch":
        raise TypeError(
            f"{what}: expected a JAX or NumPy array, got a torch tensor; bring it over by rb.from_dlpack(...)"
        )


def has_64_bit() -> bool:
    """Whether 64-bit dtypes are enabled in JAX."""
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]  # JAX defines its options at run time


def unsupported(dtype: str) -> str | None:
    """Python objects, and 64-bit dtypes unless they are enabled in JAX."""
    if dtype == "object":
        return (
            "means Python objects, which JAX can neither have on a device nor trace; give "
            "BufferSpec(storage=frb.Host()), which keeps them on the host, or keep them in a list of your own and "
            "store their position as an int32 leaf"
        )
    if dtype in ("int64", "uint64", "float64") and not has_64_bit():
        narrow = dtype.replace("64", "32")
        return (
            f"needs JAX's 64-bit mode, which is off; call jax.config.update('jax_enable_x64', True) "
            f"before any array is made, or use {narrow}"
        )
    assert dtype in ITEMSIZE
    return None


# TensorDicts have no meaning here, and come back when the state goes back.
build_mapping = nest.plain_mapping
