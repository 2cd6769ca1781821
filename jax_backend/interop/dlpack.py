"""Arrays of torch and NumPy on JAX, in the same memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base.arrays import BackendArray, Nest, NumpyArray
from functional_rb.base.dtypes import shown
from functional_rb.buffer import checks
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.interop import dlpack
from functional_rb.interop.dlpack import TakeLeaf
from jax_backend import compat
from jax_backend.arrays import convert, lent, rules
from jax_backend.engines import hosted


@rules.transfers
def from_dlpack(tree: object, copy: bool = False) -> Nest:
    """Take arrays and states of torch (or NumPy) over, in the same memory.

    Args:
        tree: a nest of arrays, a `State`, or a nest with states in it. TensorDicts become dicts.
        copy: copy what cannot be shared (misaligned or strided memory, another device, a tensor that requires grad) and
            all the rest too.

    Returns:
        The same nest of JAX arrays. A state goes on exactly as if it had never left; neither side's writes
        are ever seen by the other.

    Raises:
        ValueError: for an array that cannot be shared, naming its path and the remedy.
        TypeError: for a leaf that is no array, or of a dtype that JAX lacks (64-bit ones, unless enabled).

    Example:
        >>> rb.from_dlpack({"x": np.arange(16, dtype=np.float32)}, copy=True)["x"].shape
        (16,)
    """

    def take(name: str, array: object) -> jax.Array:
        return _copied(name, array) if copy else _shared(name, array)

    def take_state(state: State, take: TakeLeaf) -> State:
        if not state.spec.storage.on_host:
            checks.leaves_for_backend(state.spec, convert.unsupported)
            return State(**dlpack.state_arrays(state, take), spec=state.spec)
        checks.leaves_for_backend(state.spec, hosted.unsupported)
        # A buffer on the host stays there: its arrays are shared with NumPy, not with JAX.
        arrays = dlpack.state_arrays(state, (lambda name, x: np.array(_copied(name, x))) if copy else _on_host)
        return hosted.of_arrays(Arrays(**arrays), state.spec)

    return dlpack.take_over(tree, take, take_state, convert.build_mapping)


def _check_dtype(name: str, array: BackendArray) -> None:
    dtype = shown(array.dtype)
    if dtype in ("int64", "uint64", "float64", "complex128") and not convert.has_64_bit():
        raise TypeError(
            f"from_dlpack: leaf {name!r}: dtype {dtype} needs JAX's 64-bit mode, which is off; "
            f"call jax.config.update('jax_enable_x64', True), or convert the leaf first"
        )


def _shared(name: str, array: object) -> jax.Array:
    if isinstance(array, jax.Array):
        return array
    _check_dtype(name, array)
    dlpack.check_shareable(name, array)
    try:
        return lent.held(compat.shared(array))
    except Exception as error:
        raise dlpack.refusal(name, array, error) from error


# An array of a state in the host's memory, which NumPy has.
def _on_host(name: str, array: BackendArray) -> NumpyArray:
    if isinstance(array, np.ndarray):
        return array
    dlpack.check_shareable(name, array)
    try:
        return np.from_dlpack(array)
    except Exception as error:
        raise dlpack.refusal(name, array, error) from error


def _copied(name: str, array: object) -> jax.Array:
    if isinstance(array, jax.Array):
        return jnp.array(array, copy=True)
    _check_dtype(name, array)
    try:
        if isinstance(array, np.ndarray):
            return convert.copied(array)
        if hasattr(array, "detach"):
            return _cloned(array.detach().resolve_conj().resolve_neg())
        # Waited for, as whoever owns the memory may write to it then.
        return jax.block_until_ready(jnp.array(jax.dlpack.from_dlpack(array), copy=True))
    except Exception as error:
        raise dlpack.refusal(name, array, error) from error


# A copy of a tensor: on a GPU where that is and JAX has it, else where JAX has its arrays.
def _cloned(tensor: BackendArray) -> jax.Array:
    on_gpu = jax.default_backend() == "gpu"
    if on_gpu and tensor.device.type == "cuda":
        return jnp.array(jax.dlpack.from_dlpack(tensor.clone().contiguous()), copy=True)
    # Cloned here and then shared: JAX 0.10's own copy=True hands the same memory back where it can.
    shared = jax.dlpack.from_dlpack(tensor.cpu().clone().contiguous())
    return jax.device_put(shared, jax.devices()[0]) if on_gpu else shared
