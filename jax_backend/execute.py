"""`functional_rb.api.Backend` on JAX: compiled once for a spec and the shapes, inlined into whatever compiles them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb import buffer, checks, layout, sum_tree
from functional_rb.buffer import Arrays
from functional_rb.buffer_spec import BufferSpec
from functional_rb.dtypes import ITEMSIZE
from functional_rb.samplers import Drawn
from functional_rb.specs import ArraySpec
from functional_rb.state import State
from jax_backend import ops, twins

jax.tree_util.register_dataclass(State, data_fields=("rows", "wide", "tree", "counters"), meta_fields=("spec",))


NUMPY = (np.ndarray, np.generic)
NUMBERS = (bool, int, float, complex)


def convert(leaf: Any, expected: ArraySpec, name: str) -> jax.Array:
    """Arrays of JAX as they are, NumPy's by a copy to the device, Python numbers for scalar leaves."""
    if isinstance(leaf, jax.Array):
        checks.check_dtype(name, leaf, expected.dtype)
        return leaf
    if isinstance(leaf, NUMPY):
        checks.check_dtype(name, leaf, expected.dtype)
        return jnp.asarray(leaf.copy())  # JAX reads in the background, the caller may write
    if isinstance(leaf, NUMBERS) and expected.shape == ():
        checks.scalar_leaf(leaf, expected, name)
        return jnp.asarray(leaf, expected.dtype)
    _refuse_torch(leaf, f"leaf {name!r}")
    raise TypeError(
        f"leaf {name!r}: expected an array of dtype {expected.dtype}, got {type(leaf).__name__}; "
        f"give JAX or NumPy arrays"
    )


def check_state(state: Any, function: str) -> None:
    """Refuse what is no state of JAX."""
    checks.check_state(state, function)
    if type(state) is not State:
        raise TypeError(
            f"{function}: expected a state of jax_backend, got one of torch; bring it over by rb.from_dlpack(state)"
        )


def as_vector(array: Any, name: str) -> Any:
    """Masks, priorities and indices from NumPy; dtypes are checked by the caller, before NumPy's could change."""
    if isinstance(array, NUMPY) and array.dtype.itemsize <= 4 and array.dtype.kind in "biuf":
        return jnp.asarray(array.copy())
    _refuse_torch(array, name)
    return array


def check_key(key: Any) -> None:
    """Refuse what is no single key, typed or legacy."""
    is_array = isinstance(key, (jax.Array, np.ndarray))
    typed = is_array and _is_key_type(key.dtype)
    legacy = is_array and key.dtype == np.uint32
    if not (typed or legacy) or key.ndim != (0 if typed else 1):
        got = f"{tuple(key.shape)} {key.dtype}" if is_array else type(key).__name__
        raise TypeError(
            f"key: expected one key made by rb.key(seed) or rb.split, got {got}; jax.vmap over a batch of keys"
        )


def _refuse_torch(array: Any, what: str) -> None:
    if type(array).__module__.split(".")[0] == "torch":
        raise TypeError(
            f"{what}: expected a JAX or NumPy array, got a torch tensor; bring it over by rb.from_dlpack(...)"
        )


@functools.cache
def _is_key_type(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def has_64_bit() -> bool:
    """Whether JAX was told to have 64-bit dtypes."""
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]  # JAX defines its options at run time


def unsupported(dtype: str) -> str | None:
    """64-bit dtypes, unless JAX was told to have them."""
    if dtype in ("int64", "uint64", "float64") and not has_64_bit():
        narrow = dtype.replace("64", "32")
        return (
            f"needs JAX's 64-bit mode, which is off; call jax.config.update('jax_enable_x64', True) "
            f"before any array is made, or use {narrow}"
        )
    assert dtype in ITEMSIZE
    return None


def build_mapping(container: type | None, parts: dict[str, Any], batch_shape: tuple[int, ...]) -> dict[str, Any]:
    """A dict: containers of torch have no meaning here, and come back when the state goes back."""
    return parts


def to_state(arrays: Arrays, spec: BufferSpec) -> State:
    """A state of new arrays."""
    return State(*arrays, spec)


def init(spec: BufferSpec, device: Any = None) -> State:
    """An empty state."""
    return to_state(buffer.init(ops, spec, device), spec)


@functools.partial(jax.jit, static_argnames=("batch", "kernels"), inline=True)
def _add(
    state: State,
    leaves: list[jax.Array],
    batch: int,
    mask: jax.Array | None,
    priorities: jax.Array | None,
    kernels: bool,
) -> State:
    return to_state(twins.add(state, leaves, batch, mask, priorities, kernels), state.spec)


def add(
    state: State,
    leaves: Sequence[jax.Array],
    batch: int,
    mask: jax.Array | None,
    priorities: jax.Array | None,
) -> State:
    """Write a batch."""
    if priorities is not None:
        priorities = priorities.reshape(batch)
    if mask is not None:
        mask = mask.reshape(batch)
    return _add(state, list(leaves), batch, mask, priorities, twins.HAVE_KERNELS)


@functools.partial(jax.jit, static_argnames=("batch", "kernels"), inline=True)
def _sample(state: State, key: jax.Array, batch: int, beta: jax.Array, kernels: bool) -> tuple[list[jax.Array], Drawn]:
    numbers = twins.draws(key, batch, state.spec.sampler.words(state.spec.capacity), kernels)
    return twins.draw(state, numbers, beta, kernels)


def sample(state: State, key: jax.Array, batch: int, beta: Any) -> tuple[list[jax.Array], Drawn]:
    """Draw items; where the result is at hand, an empty buffer is an error."""
    check_key(key)
    leaves, drawn = _sample(state, key, batch, jnp.asarray(beta, jnp.float32), twins.HAVE_KERNELS)
    if batch and not isinstance(drawn.handles, jax.core.Tracer) and drawn.handles.is_fully_addressable:
        checks.check_nonempty(np.asarray(drawn.handles)[0] >= 0, int(np.asarray(state.counters)[1]))
    return leaves, drawn


@functools.partial(jax.jit, static_argnames="kernels", inline=True)
def _update(
    state: State,
    handles: jax.Array,
    priorities: jax.Array | None,
    replacements: dict[int, jax.Array],
    kernels: bool,
) -> State:
    return to_state(twins.update(state, handles, priorities, replacements, kernels), state.spec)


def update(
    state: State, handles: jax.Array, priorities: jax.Array | None, replacements: Mapping[int, jax.Array]
) -> State:
    """Set priorities and rewrite leaves."""
    return _update(state, handles, priorities, dict(replacements), twins.HAVE_KERNELS)


@functools.partial(jax.jit, inline=True)
def get(state: State, handles: jax.Array) -> list[jax.Array]:
    """Read items by handle."""
    return buffer.get(ops, state, state.spec, handles)


@functools.partial(jax.jit, inline=True)
def items(state: State) -> list[jax.Array]:
    """All of the storage, unpacked."""
    return layout.unpack(ops, state.spec.layout, state.rows, state.wide)


@functools.partial(jax.jit, inline=True)
def is_live(state: State, handles: jax.Array) -> jax.Array:
    """Whether handles name stored items."""
    return buffer.is_live(ops, state, state.spec, handles)


@functools.partial(jax.jit, inline=True)
def has_priority(state: State) -> jax.Array:
    """Whether some item has a positive priority."""
    positive: jax.Array = sum_tree.total(state.tree) > 0
    return positive
