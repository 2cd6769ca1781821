"""`functional_rb.buffer.api.Backend` on JAX for buffers that processes share: a state is a handle, and stays one.

The functions are called outside of `jit`: a shared state is no pytree, and what is traced is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.samplers import Selection
from functional_rb.shared import check, state
from functional_rb.specs import ArraySpec
from functional_rb.structures import row_layout
from jax_backend import devices, execute, hosted, ops, twins
from jax_backend.execute import (
    as_vector,
    build_mapping,
    count_invalid,
    inside,
    random_crop,
    split,
    unsupported,
    value_of,
)

if TYPE_CHECKING:
    from functional_rb.shared.buffer import SharedBuffer

__all__ = [
    "SharedState",
    "add",
    "add_",
    "as_vector",
    "build_mapping",
    "check_state",
    "clear",
    "clear_",
    "convert",
    "count_invalid",
    "drawable",
    "get",
    "init",
    "inside",
    "is_live",
    "items",
    "known",
    "look",
    "random_crop",
    "sample",
    "sample_",
    "split",
    "unsupported",
    "update",
    "update_",
    "value_of",
]


class SharedState(state.SharedState):
    """A handle of a shared buffer, on JAX."""

    __slots__ = ()

    def __init__(self, buffer: SharedBuffer, device: Any = None) -> None:
        """Name a buffer, whose dtypes this process must have: it may be one that another has made."""
        checks.leaves_for_backend(buffer.spec, unsupported)
        super().__init__(buffer, device)

    def given(self, array: Any, dtype: str) -> jax.Array:
        """An array on the state's device."""
        array = array.view(jnp.dtype(dtype))
        return jnp.asarray(array) if self.device is None else jax.device_put(array, self.device)


def init(spec: BufferSpec, device: Any = None) -> State:
    """A handle of the buffer that the spec names; the device is where samples go."""
    check.check_spec(spec)
    hosted.refuse_tracing()
    from functional_rb.shared.buffer import SharedBuffer  # needs numba

    where = devices.resolve(device)
    return SharedState(SharedBuffer.open(spec), where)


def restored(spec: BufferSpec, arrays: Arrays, device: Any) -> State:
    """A handle of a buffer that has had nothing in it so far, with the content of some arrays."""
    state = init(spec, device)
    assert isinstance(state, SharedState)
    state.buffer.fill(arrays)
    return state


def check_state(state: Any, function: str) -> None:
    """Refuse what is no state."""
    checks.check_state(state, function)


def convert(leaf: Any, expected: ArraySpec, name: str) -> Any:
    """NumPy's arrays as they are, the rest as JAX's."""
    if isinstance(leaf, np.ndarray):
        checks.check_numpy(name, leaf)
        checks.check_dtype(name, leaf, expected.dtype)
        return leaf
    return execute.convert(leaf, expected, name)


def _buffer(state: State) -> SharedBuffer:
    assert isinstance(state, SharedState)
    return state.buffer


def _numpy(array: Any) -> Any:
    """An array as a contiguous one of NumPy; None stays None."""
    if array is None:
        return None
    if isinstance(array, jax.core.Tracer):
        raise TypeError(
            "a buffer that other processes write is used outside of jax.jit, vmap and scan: what a compiled function "
            "did while it was traced, it would not do again; call rb.add, rb.sample and rb.update between the steps"
        )
    return np.asarray(array, order="C")


def add(
    state: State,
    leaves: Sequence[Any],
    batch: int,
    mask: jax.Array | None,
    priorities: jax.Array | None,
    key: jax.Array | None,
) -> State:
    """Write a batch."""
    if key is not None:
        execute.check_key(key)
    some = [None if x is None else _numpy(x.reshape(batch)) for x in (mask, priorities)]
    _buffer(state).add([_numpy(leaf) for leaf in leaves], batch, *some)
    return state


def known(state: State, mask: jax.Array | None) -> tuple[Any, Any] | None:
    """The counters and a mask as NumPy arrays."""
    return _buffer(state).counters(), _numpy(mask)


@functools.partial(jax.jit, static_argnames=("batch", "words", "kernels"))
def _draws(key: jax.Array, batch: int, words: int, kernels: bool) -> jax.Array:
    return twins.draws(key, batch, words, kernels)


def sample(state: State, key: jax.Array, batch: int, beta: Any) -> tuple[State, list[jax.Array], Selection]:
    """Draw items."""
    assert isinstance(state, SharedState)
    execute.check_key(key)
    draws = _numpy(_draws(key, *state.spec.sampler.draw_shape(state.spec, batch), twins.use_kernels()))
    leaves, selection = state.buffer.sample(draws, float(_numpy(beta)))
    weights, probabilities = state.given(selection.weights, "float32"), state.given(selection.probabilities, "float32")
    return state, _given(state, leaves), Selection(state.given(selection.handles, "int32"), weights, probabilities)


def _given(state: SharedState, leaves: Sequence[Any]) -> list[jax.Array]:
    return [state.given(x, leaf.dtype) for x, leaf in zip(leaves, state.spec.layout.leaves, strict=True)]


def update(state: State, handles: jax.Array, priorities: jax.Array | None, replacements: Mapping[int, Any]) -> State:
    """Set priorities and rewrite leaves."""
    new = {k: _numpy(leaf) for k, leaf in replacements.items()}
    _buffer(state).update(_numpy(handles), _numpy(priorities), new)
    return state


def clear(state: State) -> State:
    """Take all items out."""
    _buffer(state).clear()
    return state


def with_spec(state: State, spec: BufferSpec) -> State:
    """A handle of the same buffer by another spec: one that all processes agree with."""
    assert isinstance(state, SharedState)
    check.check_agreed(state.spec, spec)
    from functional_rb.shared.buffer import SharedBuffer  # needs numba

    return SharedState(SharedBuffer.attach(spec, state.directory), state.device)


def get(state: State, handles: jax.Array) -> list[jax.Array]:
    """Read items by handle."""
    assert isinstance(state, SharedState)
    return _given(state, state.buffer.get(_numpy(handles)))


def items(state: State) -> list[jax.Array]:
    """All of the storage, a copy of one moment."""
    assert isinstance(state, SharedState)
    copied = state.detached()
    return row_layout.unpack(ops, state.spec.layout, copied.rows, copied.wide)


def is_live(state: State, handles: jax.Array) -> jax.Array:
    """Whether handles name stored items."""
    assert isinstance(state, SharedState)
    live: jax.Array = state.given(state.buffer.is_live(_numpy(handles)), "bool")
    return live


def look(
    state: State, function: Callable[..., Any], handles: jax.Array | None = None, n: int | None = None
) -> jax.Array:
    """What a function of `buffer` reads off a state."""
    assert isinstance(state, SharedState)
    given = [x if isinstance(x, int) else _numpy(x) for x in (handles, n) if x is not None]
    found = state.buffer.look(function, *given)
    read: jax.Array = state.given(found, found.dtype.name)
    return read


def drawable(state: State, n: int) -> jax.Array:
    """Whether n can be drawn."""
    assert isinstance(state, SharedState)
    possible: jax.Array = state.given(np.array([state.buffer.drawable(n)]), "bool")[0]
    return possible


add_, sample_, update_, clear_ = add, sample, update, clear
"""All is in place, and a handle stays one."""
