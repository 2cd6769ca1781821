"""The core's functions on JAX: on CPUs as compiled kernels, where numba is installed, else as XLA operations.

The kernels are custom calls that write into the state's own memory, as XLA's scatter does; JAX copies first where
the old state is still needed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.buffer import functions
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.cpu_kernels import descriptor
from functional_rb.cpu_kernels.switch import switch
from functional_rb.ops.protocol import Ops
from functional_rb.samplers import Selection
from functional_rb.structures import frame_ring
from jax_backend import kernel_ops, ops
from jax_backend.choose import ABSENT, Kernel, choose, settle
from jax_backend.parts import like

HAVE_KERNELS = importlib.util.find_spec("numba") is not None


_wanted = jax.make_user_context(switch.on)
"""The switch, as a part of what JAX finds traced and compiled functions by."""
switch.tell(_wanted.set_global)


def use_kernels() -> bool:
    """Whether to use kernels; asked whenever a function is called, or traced in another."""
    return HAVE_KERNELS and switch.on


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
    if not spec.plan.fused:
        return functions.add(parts(kernels), state, spec, leaves, batch, mask, priorities, draws)

    def core(arrays: Arrays, mask: Any, priorities: Any, leaves: list[jax.Array]) -> Arrays:
        return functions.add(ops, arrays, spec, leaves, batch, mask, priorities)

    arrays = _arrays(state)
    in_place = {k: k for k in range(3 + len(arrays.wide))}
    kernel = Kernel("add", _like_all(arrays), [descriptor.encode(spec), np.full(1, batch, np.int32)], in_place)
    return choose(kernel if kernels and batch else None, core, arrays, mask, priorities, leaves)


def draws(key: jax.Array, batch: int, words: int, kernels: bool) -> jax.Array:
    """Uniform int32 [batch, words] in [0, 2^31) from a key: the upper bits of `jax.random.bits`.

    On CPUs a kernel computes the same Threefry, JAX's default: XLA makes a dozen small steps of it, handed from thread
    to thread, which took longer than all the rest of sampling.
    """
    typed = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    partitionable: bool = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]  # defined at run time
    kind = jax.random.key_impl(typed)
    default = str(kind) == "threefry2x32" and partitionable

    def core(data: jax.Array) -> jax.Array:
        bits = jax.random.bits(jax.random.wrap_key_data(data, impl=kind), (batch, words), jnp.uint32)
        return (bits >> 1).astype(jnp.int32)

    kernel = Kernel("threefry", jax.ShapeDtypeStruct((batch, words), jnp.int32))
    numbers: jax.Array
    numbers = choose(kernel if kernels and default and batch else None, core, jax.random.key_data(typed))
    return numbers


def draw(
    state: State, draws: jax.Array, more: jax.Array | None, beta: jax.Array, batch: int, kernels: bool
) -> tuple[Arrays, list[jax.Array], Selection]:
    """Choose items by draws int32 [rows, words], and read them; more draws are for transforms."""
    spec = state.spec
    if not spec.plan.fused_draws or spec.transforms:
        return functions.draw(parts(kernels), state, spec, draws, beta, batch, more)

    def core(rows: Any, wide: Any, tree: Any, counters: Any, draws: Any, beta: Any, auxiliary: Any) -> Any:
        arrays = Arrays(rows, wide, tree, counters, auxiliary)
        leaves, selection = functions.draw(ops, arrays, spec, draws, beta, batch)[1:]
        return [leaves[k] for k in spec.plan.stored], selection

    arrays = _arrays(state)
    results = [jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for leaf in spec.plan.layout.leaves]
    handles, numbers = (jax.ShapeDtypeStruct((batch,), dtype) for dtype in (jnp.int32, jnp.float32))
    kernel = Kernel("draw", (results, Selection(handles, numbers, numbers)), [descriptor.encode(spec)])
    leaves, selection = choose(kernel if kernels and batch else None, core, *arrays[:-1], draws, beta, arrays.auxiliary)
    if spec.plan.frames is not None:
        slots = selection.handles % spec.capacity
        found = frame_ring.read(parts(kernels), spec.plan.frames, arrays.auxiliary, slots, range(len(spec.plan.leaves)))
        found |= zip(spec.plan.stored, leaves, strict=True)
        leaves = [found[k] for k in range(len(spec.plan.leaves))]
    if kernels:
        # What is written to the state that is returned comes after this read: else XLA might copy the storage.
        (counters,) = settle([arrays.counters], [*leaves, *selection[:3]])
        arrays = arrays._replace(counters=counters)
    return arrays, leaves, selection


def update(
    state: State,
    handles: jax.Array,
    priorities: jax.Array | None,
    replacements: Mapping[int, jax.Array],
    kernels: bool,
) -> Arrays:
    """Set priorities and rewrite leaves."""
    spec = state.spec
    if not spec.plan.fused:
        return functions.update(parts(kernels), state, spec, handles, priorities, replacements)

    # The storage is handed over where it is written only: else `vmap` over priorities would copy it for each.
    storage = (state.rows, *state.wide) if replacements else ()
    given = [replacements.get(k) for k in range(len(spec.plan.leaves))] if replacements else []

    def core(tree: Any, counters: Any, handles: Any, priorities: Any, storage: Any, given: Any) -> Any:
        rows, *wide = storage or (None,)
        new = {k: leaf for k, leaf in enumerate(given) if leaf is not None}
        after = functions.update(ops, Arrays(rows, tuple(wide), tree, counters, {}), spec, handles, priorities, new)
        return after.tree, after.counters, storage and (after.rows, *after.wide)

    tree = ABSENT if state.tree is None else like(state.tree)
    results = tree, like(state.counters), tuple(map(like, storage))
    in_place = {0: 0, 1: 1} | {4 + k: 2 + k for k in range(len(storage))}
    kernel = Kernel("update", results, [descriptor.encode(spec)], in_place)
    tree, vector, storage = choose(
        kernel if kernels and handles.shape[0] else None,
        core,
        state.tree,
        state.counters,
        handles,
        priorities,
        storage,
        given,
    )
    rows, *wide = storage or (state.rows, *state.wide)
    return Arrays(rows, tuple(wide), tree, vector, dict(state.auxiliary))


def parts(kernels: bool) -> Ops:
    """The primitives for what the whole-function kernels do not know: with kernels for parts of it, where there are."""
    return kernel_ops if kernels else ops


def _arrays(state: State) -> Arrays:
    """The state's arrays."""
    return Arrays(state.rows, state.wide, state.tree, state.counters, dict(state.auxiliary))


def _like_all(arrays: Arrays) -> Arrays:
    """Shapes and dtypes."""
    tree = ABSENT if arrays.tree is None else like(arrays.tree)
    return Arrays(like(arrays.rows), tuple(map(like, arrays.wide)), tree, like(arrays.counters), {})
