"""The core's functions on JAX: on CPUs as compiled kernels, where numba is installed, else as XLA operations.

The kernels are custom calls that write into the state's own memory, as XLA's scatter does; JAX copies first where
the old state is still needed. `vmap` falls back to the core, whose operations batch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from functional_rb import buffer, frames
from functional_rb.buffer_spec import BufferSpec
from functional_rb.draft import Arrays
from functional_rb.ops import Ops
from functional_rb.samplers import Drawn
from functional_rb.state import State
from jax_backend import kernel_ops, ops
from jax_backend.choose import choose
from jax_backend.parts import settle

HAVE_KERNELS = importlib.util.find_spec("numba") is not None


def add(
    state: State,
    leaves: list[jax.Array],
    batch: int,
    mask: jax.Array | None,
    priorities: jax.Array | None,
    draws: jax.Array | None,
    kernels: bool,
) -> Arrays:
    """Write a batch."""
    spec = state.spec
    if not spec.plain:
        return buffer.add(parts(kernels), state, spec, leaves, batch, mask, priorities, draws)

    def core(arrays: Arrays, leaves: list[jax.Array], mask: Any, priorities: Any) -> Arrays:
        return buffer.add(ops, arrays, spec, leaves, batch, mask, priorities)

    def kernel(arrays: Arrays, leaves: list[jax.Array], mask: Any, priorities: Any) -> Arrays:
        extra = [
            jnp.zeros(0, jnp.bool_) if mask is None else mask,
            jnp.zeros(0, jnp.float32) if priorities is None else priorities,
            jnp.zeros((batch, 0), jnp.int32),
        ]
        return _call_in_place("add", spec, arrays, [*extra, *leaves])

    return choose(kernel if kernels and batch else None, core, _arrays(state), leaves, mask, priorities)


def draws(key: jax.Array, batch: int, words: int, kernels: bool) -> jax.Array:
    """Uniform int32 [batch, words] in [0, 2^31) from a key: the upper bits of `jax.random.bits`.

    On CPUs a kernel computes the same Threefry, JAX's default: XLA makes a dozen small steps of it, handed from thread
    to thread, which took longer than all the rest of sampling.
    """
    typed = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    partitionable: bool = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]  # defined at run time
    default = str(jax.random.key_impl(typed)) == "threefry2x32" and partitionable

    def core(key: jax.Array) -> jax.Array:
        return (jax.random.bits(key, (batch, words), jnp.uint32) >> 1).astype(jnp.int32)

    def kernel(key: jax.Array) -> jax.Array:
        call = jax.ffi.ffi_call("functional_rb_threefry", jax.ShapeDtypeStruct((batch, words), jnp.int32))
        numbers: jax.Array = call(jax.random.key_data(key))
        return numbers

    numbers: jax.Array = choose(kernel if kernels and default and batch else None, core, typed)
    return numbers


def draw(
    state: State, draws: jax.Array, more: jax.Array | None, beta: jax.Array, batch: int, kernels: bool
) -> tuple[Arrays, list[jax.Array], Drawn]:
    """Choose items by draws int32 [rows, words], and read them; more draws are for transforms."""
    spec = state.spec
    if not spec.plain_draws or spec.transforms:
        return buffer.draw(parts(kernels), state, spec, draws, beta, batch, more)

    def core(arrays: Arrays, draws: jax.Array, beta: jax.Array) -> tuple[list[jax.Array], Drawn]:
        leaves, drawn = buffer.draw(ops, arrays, spec, draws, beta, batch)[1:]
        return [leaves[k] for k in spec.stored], drawn

    def kernel(arrays: Arrays, draws: jax.Array, beta: jax.Array) -> tuple[list[jax.Array], Drawn]:
        results = [jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for leaf in spec.layout.leaves]
        results += [jax.ShapeDtypeStruct((batch,), dtype) for dtype in ("int32", "float32", "float32")]
        call = jax.ffi.ffi_call("functional_rb_draw", results)
        found = list(call(*_operands(spec, arrays), draws, beta.reshape(1)))
        handles, weights, probabilities = found[-3:]
        return found[:-3], Drawn(handles, weights, probabilities)

    arrays = _arrays(state)
    leaves, drawn = choose(kernel if kernels and batch else None, core, arrays, draws, beta)
    if spec.frames is not None:
        slots = drawn.handles % spec.capacity
        found = frames.read(parts(kernels), spec.frames, arrays.kept, slots, range(len(spec.leaves)))
        found |= zip(spec.stored, leaves, strict=True)
        leaves = [found[k] for k in range(len(spec.leaves))]
    if kernels:
        # What is written to the state that is returned comes after this read: else XLA might copy the storage.
        (counters,) = settle([arrays.counters], [*leaves, *drawn[:3]])
        arrays = arrays._replace(counters=counters)
    return arrays, leaves, drawn


def update(
    state: State,
    handles: jax.Array,
    priorities: jax.Array | None,
    replacements: Mapping[int, jax.Array],
    kernels: bool,
) -> Arrays:
    """Set priorities and rewrite leaves."""
    spec = state.spec
    if not spec.plain:
        return buffer.update(parts(kernels), state, spec, handles, priorities, replacements)

    def core(arrays: Arrays, handles: jax.Array, priorities: Any, replacements: dict[int, jax.Array]) -> Arrays:
        return buffer.update(ops, arrays, spec, handles, priorities, replacements)

    def kernel(arrays: Arrays, handles: jax.Array, priorities: Any, replacements: dict[int, jax.Array]) -> Arrays:
        leaves = [replacements.get(k, jnp.zeros(0, leaf.dtype)) for k, leaf in enumerate(spec.leaves) if replacements]
        new = jnp.zeros(0, jnp.float32) if priorities is None else priorities
        return _call_in_place("update", spec, arrays, [handles, new, *leaves])

    return choose(
        kernel if kernels and handles.shape[0] else None,
        core,
        _arrays(state),
        handles,
        priorities,
        dict(replacements),
    )


def parts(kernels: bool) -> Ops:
    """The primitives for what the whole-function kernels do not know: with kernels for parts of it, where there are."""
    return kernel_ops if kernels else ops


def _arrays(state: State) -> Arrays:
    """The state's arrays."""
    return Arrays(state.rows, state.wide, state.tree, state.counters, dict(state.kept))


def _operands(spec: BufferSpec, arrays: Arrays) -> list[jax.Array]:
    from functional_rb.native import plan

    tree = jnp.zeros(0, jnp.float32) if arrays.tree is None else arrays.tree
    return [jnp.asarray(plan.encode(spec)), arrays.rows, *arrays.wide, tree, arrays.counters]


def _call_in_place(name: str, spec: BufferSpec, arrays: Arrays, extra: Sequence[jax.Array]) -> Arrays:
    """Call a kernel whose results lie in the memory of the state's arrays."""
    operands = _operands(spec, arrays)
    state = operands[1:]
    call = jax.ffi.ffi_call(
        f"functional_rb_{name}",
        [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in state],
        input_output_aliases={k + 1: k for k in range(len(state))},
    )
    rows, *wide, tree, counters = call(*operands, *extra)
    return Arrays(rows, tuple(wide), None if arrays.tree is None else tree, counters, arrays.kept)
