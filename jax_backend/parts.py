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

from functional_rb import deck as decks
from functional_rb import frame_writes, frames, integers, sum_tree, windows
from functional_rb import layout as layouts
from functional_rb import ring as core_ring
from functional_rb.deck import Deck
from functional_rb.frame_writes import FramePlan
from functional_rb.frames import Chain
from functional_rb.layout import Layout
from functional_rb.ring import Ends, Removal, Ring, Write
from functional_rb.samplers import weights
from functional_rb.transforms import line as lines
from functional_rb.transforms import returns
from functional_rb.transforms.line import Line
from functional_rb.windows import Entries, Lanes, Rule, Slices
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


def read_batches(
    layout: Layout, rows: jax.Array, wide: Sequence[jax.Array], batches: Sequence[jax.Array]
) -> list[list[jax.Array]]:
    """`layout.read_batches`: one by one, as XLA would copy the parts out of a whole."""
    return [read(layout, rows, wide, slots) for slots in batches]


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


def stored_value(priorities: jax.Array, alpha: float) -> tuple[jax.Array, jax.Array]:
    """`weights.stored_value`: values float32 [B], and which are good, bool [B]."""

    def core(priorities: jax.Array) -> tuple[jax.Array, jax.Array]:
        return weights.stored_value(ops, priorities, alpha)

    def kernel(priorities: jax.Array) -> tuple[jax.Array, jax.Array]:
        from functional_rb.native import plan

        results = [jax.ShapeDtypeStruct(priorities.shape, dtype) for dtype in (jnp.float32, jnp.bool_)]
        values, good = jax.ffi.ffi_call("functional_rb_stored_values", results)(plan.encode_alpha(alpha), priorities)
        return values, good

    found: tuple[jax.Array, jax.Array]
    found = choose(kernel if priorities.shape[0] else None, core, priorities, module="xla_parts")
    return found


def importance_weights(values: jax.Array, smallest: jax.Array, beta: jax.Array) -> jax.Array:
    """`weights.importance_weights`: float32 [B], for scalars smallest and beta."""

    def core(values: jax.Array, smallest: jax.Array, beta: jax.Array) -> jax.Array:
        return weights.importance_weights(ops, values, smallest, beta)

    def kernel(values: jax.Array, smallest: jax.Array, beta: jax.Array) -> jax.Array:
        call = jax.ffi.ffi_call("functional_rb_importance_weights", jax.ShapeDtypeStruct(values.shape, values.dtype))
        found: jax.Array = call(values, smallest.reshape(1), beta.reshape(1))
        return found

    worth_it = values.shape[0]
    found: jax.Array = choose(kernel if worth_it else None, core, values, smallest, beta, module="xla_parts")
    return found


def below(draws: jax.Array, n: jax.Array) -> jax.Array:
    """`integers.below`: XLA makes one loop of it."""
    return integers.below(ops, draws, n)


def plan_write(ring: Ring, ends: Ends, batch: int, mask: jax.Array | None) -> Write:
    """`ring.plan_write`: mask bool [batch]."""

    def core(ends: Ends, mask: jax.Array | None) -> Write:
        return core_ring.plan_write(ops, ring, ends, batch, mask)

    def kernel(ends: Ends, mask: jax.Array | None) -> Write:
        from functional_rb.native import plan

        steps = batch // ring.lanes
        n = min(steps, ring.length) * ring.lanes
        chosen = 0 if mask is None else n
        results = [_ints(n), _ints(chosen), _marks(chosen), *(_ints(ring.lanes) for _ in range(3))]
        given = jnp.zeros(0, jnp.bool_) if mask is None else mask
        call = jax.ffi.ffi_call("functional_rb_plan_write", results)
        found = call(plan.encode_ring(ring), *ends, jnp.zeros((steps, 0), jnp.int32), given)
        slots, source, live, written, cursors, sizes = found
        after = Ends(cursors, sizes)
        if mask is None:
            return Write(slots, None, None, written, after)
        return Write(slots, source, live, written, after, mask)

    write: Write = choose(kernel if batch else None, core, ends, mask, module="xla_rings")
    return write


def step_ages(
    next_age: jax.Array, written: jax.Array, begins: jax.Array | None, ends: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """`windows.step_ages`: begins and ends bool [E, T], next_age and written int32 [E]."""

    def core(next_age: jax.Array, written: jax.Array, begins: Any, ends: Any) -> tuple[jax.Array, jax.Array]:
        return windows.step_ages(ops, next_age, written, begins=begins, ends=ends)

    def kernel(next_age: jax.Array, written: jax.Array, begins: Any, ends: Any) -> tuple[jax.Array, jax.Array]:
        shape = (begins if ends is None else ends).shape
        call = jax.ffi.ffi_call("functional_rb_step_ages", [_ints(*shape), _ints(*next_age.shape)])
        nothing = jnp.zeros(0, jnp.bool_)
        marks = [nothing if x is None else x for x in (begins, ends)]
        ages, following = call(next_age, written, *marks)
        return ages, following

    found: tuple[jax.Array, jax.Array] = choose(kernel, core, next_age, written, begins, ends, module="xla_rings")
    return found


def changed(rule: Rule, lanes: Lanes, age: jax.Array, n: int, by_trajectory: bool) -> Entries:
    """`windows.changed`."""

    def core(ends: Ends, age: jax.Array) -> Entries:
        return windows.changed(ops, rule, Lanes(lanes.ring, ends), age, n, by_trajectory)

    def kernel(ends: Ends, age: jax.Array) -> Entries:
        from functional_rb.native import plan

        distances = plan.encode_distances(lanes.ring, rule, n, by_trajectory)
        results = [_ints(plan.entries(lanes.ring, distances))] * len(Entries._fields)
        call = jax.ffi.ffi_call("functional_rb_changed", results)
        return Entries(*call(plan.encode_windows(lanes.ring, rule, by_trajectory), distances, *ends, age))

    entries: Entries = choose(kernel, core, lanes.ends, age, module="xla_rings")
    return entries


def weights_at(rule: Rule, lanes: Lanes, age: jax.Array, slots: jax.Array) -> jax.Array:
    """`windows.weights_at`: slots int32 [n]."""

    def core(ends: Ends, age: jax.Array, slots: jax.Array) -> jax.Array:
        return windows.weights_at(ops, rule, Lanes(lanes.ring, ends), age, slots)

    def kernel(ends: Ends, age: jax.Array, slots: jax.Array) -> jax.Array:
        from functional_rb.native import plan

        call = jax.ffi.ffi_call("functional_rb_weights_at", _ints(*slots.shape))
        numbers: jax.Array = call(plan.encode_windows(lanes.ring, rule, False), *ends, age, slots)
        return numbers

    numbers: jax.Array = choose(kernel if slots.shape[0] else None, core, lanes.ends, age, slots, module="xla_rings")
    return numbers


def members(deck: Deck, count: jax.Array, slots: jax.Array, marked: jax.Array) -> jax.Array:
    """`deck.members`, as XLA's operations."""
    return decks.members(ops, deck, count, slots, marked)


def exchanges(
    deck: Deck, boundary: jax.Array, positions: jax.Array, marked: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`deck.exchanges`, as XLA's operations."""
    return decks.exchanges(ops, deck, boundary, positions, marked)


def appended(
    deck: Deck, count: jax.Array, slots: jax.Array, marked: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`deck.appended`, as XLA's operations."""
    return decks.appended(ops, deck, count, slots, marked)


def distinct(draws: jax.Array, n: jax.Array) -> jax.Array:
    """`deck.distinct`, as XLA's operations."""
    return decks.distinct(ops, draws, n)


def plan_frames(
    chain: Chain, cursor: jax.Array, written: jax.Array, shares: jax.Array, moves: jax.Array | None
) -> FramePlan:
    """`frame_writes.plan_frames`, as XLA's operations: it fuses them."""
    return frame_writes.plan_frames(ops, chain, cursor, written, shares, moves)


def overwritten(chain: Chain, at: jax.Array, ends: Ends, after: jax.Array, steps: int) -> Removal:
    """`frame_writes.overwritten`, likewise."""
    return frame_writes.overwritten(ops, chain, at, ends, after, steps)


def places(chain: Chain, at: jax.Array, slots: jax.Array, depth: int, following: bool) -> jax.Array:
    """`frames.places`: slots int32 [n]."""

    def core(at: jax.Array, slots: jax.Array) -> jax.Array:
        return frames.places(ops, chain, at, slots, depth, following)

    def kernel(at: jax.Array, slots: jax.Array) -> jax.Array:
        from functional_rb.native.chain import encode

        call = jax.ffi.ffi_call("functional_rb_places", _ints(slots.shape[0] * depth))
        found: jax.Array = call(encode(chain, depth, following), at, slots)
        return found

    found: jax.Array = choose(kernel if slots.shape[0] else None, core, at, slots, module="xla_chain")
    return found


def expand(
    rule: Rule,
    lanes: Lanes,
    age: jax.Array,
    next_age: jax.Array,
    slots: jax.Array,
    draws: jax.Array,
    live: jax.Array | None,
    by_trajectory: bool,
) -> Slices:
    """`windows.expand`: slots int32 [S], draws int32 [S, 2], live bool [S] or None."""

    def core(ends: Ends, age: Any, next_age: Any, slots: Any, draws: Any, live: Any) -> Slices:
        rings = Lanes(lanes.ring, ends)
        return windows.expand(ops, rule, rings, age, next_age, slots, draws, live, by_trajectory)

    def kernel(ends: Ends, *args: Any) -> Slices:
        from functional_rb.native import plan

        shape = (slots.shape[0], rule.length)
        call = jax.ffi.ffi_call("functional_rb_expand", [_ints(*shape)] * 2 + [_marks(*shape)] * 4)
        given = args if live is not None else (*args[:-1], jnp.zeros(0, jnp.bool_))
        return Slices(*call(plan.encode_windows(lanes.ring, rule, by_trajectory), *ends, *given))

    args = (lanes.ends, age, next_age, slots, draws, live)
    slices: Slices = choose(kernel if slots.shape[0] else None, core, *args, module="xla_rings")
    return slices


def following(lanes: Lanes, age: jax.Array, slots: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """`windows.following`: slots int32 [m]."""

    def core(ends: Ends, age: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        return windows.following(ops, Lanes(lanes.ring, ends), age, slots, n)

    def kernel(ends: Ends, age: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        from functional_rb.native import plan

        shape = (slots.shape[0], n)
        call = jax.ffi.ffi_call("functional_rb_following", [_ints(*shape), _marks(*shape)])
        steps, real = call(plan.encode_ring(lanes.ring), ends.cursors, age, slots)
        return steps, real

    found: tuple[jax.Array, jax.Array]
    found = choose(kernel if slots.shape[0] else None, core, lanes.ends, age, slots, module="xla_steps")
    return found


def extent(lanes: Lanes, age: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`windows.extent`: slots int32 [m]."""

    def core(ends: Ends, age: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        return windows.extent(ops, Lanes(lanes.ring, ends), age, slots)

    def kernel(ends: Ends, age: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        from functional_rb.native import plan

        call = jax.ffi.ffi_call("functional_rb_extent", [_ints(*slots.shape)] * 2)
        before, after = call(plan.encode_ring(lanes.ring), *ends, age, slots)
        return before, after

    found: tuple[jax.Array, jax.Array]
    found = choose(kernel if slots.shape[0] else None, core, lanes.ends, age, slots, module="xla_steps")
    return found


def fold(rewards: jax.Array, real: jax.Array, gamma: float) -> tuple[jax.Array, jax.Array]:
    """`returns.fold`: rewards float32 or float64 [m, n, *shape], real bool [m, n]; the core adds up float64."""
    m, n, *shape = rewards.shape

    def core(rewards: jax.Array, real: jax.Array) -> tuple[jax.Array, jax.Array]:
        return returns.fold(ops, rewards, real, gamma)

    def kernel(rewards: jax.Array, real: jax.Array) -> tuple[jax.Array, jax.Array]:
        from functional_rb.native import plan

        call = jax.ffi.ffi_call("functional_rb_fold", [jax.ShapeDtypeStruct((m, *shape), jnp.float32), _ints(m)])
        total, steps = call(plan.encode_discounts(gamma, n, "float32"), rewards, real)
        return total, steps

    worth_it = m and rewards.dtype == jnp.float32
    folded: tuple[jax.Array, jax.Array]
    folded = choose(kernel if worth_it else None, core, rewards, real, module="xla_steps")
    return folded


def plan_line(pending: jax.Array, ended: jax.Array, ids: jax.Array | None, mask: jax.Array | None, n: int) -> Line:
    """`line.plan_line`: ended and mask bool [batch], ids int32 [rows, words]."""
    lanes = pending.shape[0]
    rows = ended.shape[0] + lanes * (n - 1)

    def core(pending: jax.Array, ended: jax.Array, ids: Any, mask: Any) -> Line:
        return lines.plan_line(ops, pending, ended, ids, mask, n)

    def kernel(pending: jax.Array, ended: jax.Array, ids: Any, mask: Any) -> Line:
        given = [
            jnp.zeros((rows, 0), jnp.int32) if ids is None else ids,
            jnp.zeros(0, jnp.bool_) if mask is None else mask,
        ]
        results = [_ints(rows, n), _marks(rows, n), _marks(rows), _ints(lanes * (n - 1)), _ints(lanes)]
        return Line(*jax.ffi.ffi_call("functional_rb_plan_line", results)(pending, ended, *given))

    line: Line = choose(kernel, core, pending, ended, ids, mask, module="xla_steps")
    return line


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _marks(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bool_)


def _tree_plan(capacity: int) -> np.ndarray:
    from functional_rb.native import plan

    return plan.encode_tree(capacity)


def _layout_plan(layout: Layout) -> np.ndarray:
    from functional_rb.native import plan

    return plan.encode_layout(layout)
