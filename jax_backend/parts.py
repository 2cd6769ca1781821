"""Parts of the core on JAX: on CPUs as compiled kernels, else as XLA operations; see `functional_rb.ops.Native`.

What writes does so in its operand's memory; JAX copies first where the old value is still needed. numba must be
installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb import layout as layouts
from functional_rb import sum_tree
from functional_rb.layout import Layout
from jax_backend import ops
from jax_backend.choose import choose

Storage = tuple[jax.Array, tuple[jax.Array, ...]]


def descend(tree: jax.Array, capacity: int, draws: jax.Array) -> jax.Array:
    """`sum_tree.descend`: leaves int32 [B] by draws int32 [B, levels]."""

    def core(tree: jax.Array, draws: jax.Array) -> jax.Array:
        return sum_tree.descend(ops, tree, capacity, draws)

    def kernel(tree: jax.Array, draws: jax.Array) -> jax.Array:
        call = jax.ffi.ffi_call("functional_rb_descend", jax.ShapeDtypeStruct(draws.shape[:1], jnp.int32))
        return call(_tree_plan(capacity), tree, draws)

    leaves: jax.Array = choose(kernel if draws.shape[0] else None, core, tree, draws, module="xla_parts")
    return leaves


def set_leaves(tree: jax.Array, capacity: int, leaves: jax.Array, values: jax.Array) -> jax.Array:
    """`sum_tree.set_leaves`: leaves int32 [n], values float32 [n]."""

    def core(tree: jax.Array, leaves: jax.Array, values: jax.Array) -> jax.Array:
        return sum_tree.set_leaves(ops, tree, capacity, leaves, values)

    def kernel(tree: jax.Array, leaves: jax.Array, values: jax.Array) -> jax.Array:
        result = jax.ShapeDtypeStruct(tree.shape, tree.dtype)
        call = jax.ffi.ffi_call("functional_rb_set_leaves", result, input_output_aliases={1: 0})
        return call(_tree_plan(capacity), tree, leaves, values)

    new: jax.Array = choose(kernel if leaves.shape[0] else None, core, tree, leaves, values, module="xla_parts")
    return new


def settle(arrays: Sequence[jax.Array], after: Sequence[jax.Array]) -> list[jax.Array]:
    """The same arrays, by a custom call: XLA neither repeats one nor lets what depends on it go first."""

    def core(arrays: list[jax.Array], after: list[jax.Array]) -> list[jax.Array]:
        return arrays

    def kernel(arrays: list[jax.Array], after: list[jax.Array]) -> list[jax.Array]:
        results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
        aliases = {k: k for k in range(len(arrays))}
        return list(jax.ffi.ffi_call("functional_rb_settle", results, input_output_aliases=aliases)(*arrays, *after))

    settled: list[jax.Array] = choose(kernel, core, list(arrays), list(after), module="xla_order")
    return settled


def read(layout: Layout, rows: jax.Array, wide: Sequence[jax.Array], slots: jax.Array) -> list[jax.Array]:
    """`layout.read`: the leaves [B, *shape] in slots int32 [B]."""
    batch = slots.shape[0]

    def core(rows: jax.Array, wide: tuple[jax.Array, ...], slots: jax.Array) -> list[jax.Array]:
        return layouts.read(ops, layout, rows, wide, slots)

    def kernel(rows: jax.Array, wide: tuple[jax.Array, ...], slots: jax.Array) -> list[jax.Array]:
        results = [jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
        call = jax.ffi.ffi_call("functional_rb_read", results)
        return list(call(_layout_plan(layout), rows, *wide, slots))

    worth_it = batch and layout.leaves
    leaves: list[jax.Array] = choose(kernel if worth_it else None, core, rows, tuple(wide), slots, module="xla_parts")
    return leaves


def store(
    layout: Layout,
    rows: jax.Array,
    wide: Sequence[jax.Array],
    slots: jax.Array,
    source: jax.Array | None,
    live: jax.Array | None,
    leaves: Sequence[jax.Array],
) -> Storage:
    """`layout.store`: rows of leaves [B, *shape], those of source int32 [n], to slots int32 [n] where live bool [n]."""

    def core(rows: jax.Array, wide: tuple[jax.Array, ...], slots: jax.Array, *batch: Any) -> Storage:
        return layouts.store(ops, layout, rows, wide, slots, *batch)

    def kernel(
        rows: jax.Array, wide: tuple[jax.Array, ...], slots: jax.Array, source: Any, live: Any, leaves: list[jax.Array]
    ) -> Storage:
        storage = [rows, *wide]
        call = jax.ffi.ffi_call(
            "functional_rb_store",
            [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in storage],
            input_output_aliases={k + 1: k for k in range(len(storage))},
        )
        extra = [
            jnp.zeros(0, jnp.int32) if source is None else source,
            jnp.zeros(0, jnp.bool_) if live is None else live,
        ]
        new_rows, *new_wide = call(_layout_plan(layout), *storage, slots, *extra, *leaves)
        return new_rows, tuple(new_wide)

    if not slots.shape[0] or not leaves:
        return rows, tuple(wide)
    args = (rows, tuple(wide), slots, source, live, list(leaves))
    new: Storage = choose(kernel, core, *args, module="xla_parts")
    return new


def _tree_plan(capacity: int) -> np.ndarray:
    from functional_rb.native import plan

    return plan.encode_tree(capacity)


def _layout_plan(layout: Layout) -> np.ndarray:
    from functional_rb.native import plan

    return plan.encode_layout(layout)
