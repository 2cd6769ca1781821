"""The part kernels for arrays of any library that have an address: a table of what replaces which function of the core.

Each method takes what its function of the core takes behind `ops`, and returns the same bits. As `set_at` of these
libraries does, what writes does so in place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb import _native
from functional_rb.base.dtypes import shown
from functional_rb.core import frame_store
from functional_rb.core.frame_store import FramePlan
from functional_rb.items import crops
from functional_rb.native import descriptor
from functional_rb.native.addresses import Held, Library, caller, storage_caller
from functional_rb.ops import random_bits
from functional_rb.ops.part_kernels import Table
from functional_rb.ops.protocol import Array
from functional_rb.samplers import importance
from functional_rb.structures import episode_windows, frame_ring, hash_map, ring, row_layout, sparse_set, sum_tree
from functional_rb.structures.episode_windows import Entries, Lanes, Rule, Slices
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.hash_map import HashMap, MapPlan
from functional_rb.structures.ring import Removal, Ring, RingState
from functional_rb.structures.row_layout import Layout
from functional_rb.structures.sparse_set import SparseSet
from functional_rb.transforms import returns, step_queue
from functional_rb.transforms.step_queue import Line


class PartKernels:
    """The part kernels on arrays of one library."""

    def __init__(self, library: Library) -> None:
        """Take the library; nothing is compiled yet."""
        self._library, self._ready, self._none = library, library.ready, library.none
        self._call, self._call_storage = caller(library.addresses), storage_caller(library.addresses)
        self._int32, self._bool, self._float32 = (library.dtypes[name] for name in ("int32", "bool", "float32"))
        self._ints = functools.partial(library.empty, dtype=self._int32)
        self._bools = functools.partial(library.empty, dtype=self._bool)
        self._floats = functools.partial(library.empty, dtype=self._float32)

    @property
    def table(self) -> Table:
        """What replaces which function of the core."""
        return {
            sum_tree.descend: self.descend,
            sum_tree.set_leaves: self.set_leaves,
            row_layout.read: self.read,
            row_layout.store: self.store,
            row_layout.pack_rows: self.pack_rows,
            random_bits.below: self.below,
            importance.stored_value: self.stored_value,
            importance.updated_values: self.updated_values,
            importance.importance_weights: self.importance_weights,
            ring.choose_slots: self.choose_slots,
            episode_windows.steps_in_episodes: self.steps_in_episodes,
            episode_windows.changed: self.changed,
            episode_windows.weights_at: self.weights_at,
            episode_windows.expand: self.expand,
            episode_windows.following: self.following,
            episode_windows.extent: self.extent,
            frame_store.plan_frames: self.plan_frames,
            frame_store.overwritten: self.overwritten,
            frame_ring.places: self.places,
            returns.fold_floats: self.fold_floats,
            step_queue.plan_line: self.plan_line,
            sparse_set.members: self.members,
            sparse_set.exchanges: self.exchanges,
            sparse_set.appended: self.appended,
            sparse_set.distinct: self.distinct,
            hash_map.lookup: self.lookup,
            hash_map.insert: self.insert,
            crops.windows: self.windows,
        }

    def _ready_some(self, array: Array | None, dtype: Any) -> Array:
        return self._none if array is None else self._ready(array, dtype)

    def _numbers(self, *arrays: Array) -> list[Array]:
        """Arrays of int32 as kernels read them."""
        return [self._ready(x, self._int32) for x in arrays]

    def _held(self, rows: Array, wide: Sequence[Array]) -> Held:
        return Held([rows, *wide], self._library.addresses)

    # --- sum tree ---------------------------------------------------------------------------------------------------

    def descend(self, tree: Array, capacity: int, draws: Array) -> Array:
        """Do what `sum_tree.descend` does."""
        draws = self._ready(draws, self._int32)
        batch, words = draws.shape
        leaves = self._ints(batch)
        self._call(_native.descend, (tree, draws, leaves), descriptor.encode_tree(capacity), batch, words)
        return leaves

    def set_leaves(self, tree: Array, capacity: int, leaves: Array, values: Array, consecutive: bool = False) -> Array:
        """Do what `sum_tree.set_leaves` does."""
        leaves, values = self._ready(leaves, self._int32), self._ready(values, self._float32)
        encoded = descriptor.encode_tree(capacity)
        self._call(_native.set_leaves, (tree, leaves, values), encoded, leaves.shape[0])
        return tree

    def stored_value(self, priorities: Array, alpha: float) -> tuple[Array, Array]:
        """Do what `importance.stored_value` does."""
        priorities = self._ready(priorities, self._float32)
        count = priorities.shape[0]
        values, good = self._floats(count), self._bools(count)
        self._call(_native.stored_values, (priorities, values, good), descriptor.encode_alpha(alpha), count)
        return values, good

    def updated_values(
        self, slots: Array, live: Array, priorities: Array, alpha: float
    ) -> tuple[Array, Array, Array, Array]:
        """Do what `importance.updated_values` does."""
        slots, live = self._ready(slots, self._int32), self._ready(live, self._bool)
        priorities, count = self._ready(priorities, self._float32), slots.shape[0]
        found = self._floats(count), self._bools(count), self._ints(()), self._ints(())
        arrays = slots, live, priorities, *found
        self._call(_native.updated_values, arrays, descriptor.encode_alpha(alpha), count)
        return found

    def importance_weights(self, values: Array, smallest: Array, beta: Array) -> Array:
        """Do what `importance.importance_weights` does."""
        values, smallest, beta = (self._ready(x, self._float32) for x in (values, smallest, beta))
        found = self._floats(values.shape[0])
        self._call(_native.importance_weights, (values, smallest, beta, found), values.shape[0])
        return found

    def below(self, draws: Array, n: Array) -> Array:
        """Do what `random_bits.below` does."""
        draws, n = self._numbers(draws, n)
        chosen = self._ints(draws.shape[0])
        self._call(_native.below_each, (draws, n, chosen), math.prod(n.shape), chosen.shape[0])
        return chosen

    # --- row layout -------------------------------------------------------------------------------------------------

    def read(self, layout: Layout, rows: Array, wide: Sequence[Array], slots: Array) -> list[Array]:
        """Do what `row_layout.read` does."""
        slots = self._ready(slots, self._int32)
        leaves = self._library.leaves(layout, slots.shape[0])
        storage, encoded = self._held(rows, wide), descriptor.encode_layout(layout)
        self._call_storage(_native.read, (slots,), storage, leaves, encoded, rows.shape[0], slots.shape[0])
        return leaves

    def store(
        self,
        layout: Layout,
        rows: Array,
        wide: Sequence[Array],
        slots: Array,
        source: Array | None,
        live: Array | None,
        leaves: Sequence[Array],
    ) -> tuple[Array, tuple[Array, ...]]:
        """Do what `row_layout.store` does."""
        slots = self._ready(slots, self._int32)
        marked = self._ready_some(source, self._int32), self._ready_some(live, self._bool)
        dtypes = self._library.dtypes
        leaves = [self._ready(leaf, dtypes[kind.dtype]) for leaf, kind in zip(leaves, layout.leaves, strict=True)]
        batch = leaves[0].shape[0] if leaves else 0
        storage, encoded = self._held(rows, wide), descriptor.encode_layout(layout)
        sizes = rows.shape[0], slots.shape[0], batch
        self._call_storage(_native.store, (slots, *marked), storage, leaves, encoded, *sizes)
        return rows, tuple(wide)

    def pack_rows(self, layout: Layout, leaves: Sequence[Array], like: Array) -> Array:
        """Do what `row_layout.pack_rows` does."""
        return row_layout.pack_rows_by_store(self._library.ops, layout, leaves, like)

    # --- ring and episode windows -----------------------------------------------------------------------------------

    def choose_slots(
        self, ring: Ring, ends: RingState, batch: int, mask: Array | None
    ) -> tuple[Array, Array | None, Array | None, Array, RingState]:
        """Do what `ring.choose_slots` does."""
        cursors, sizes = self._numbers(*ends)
        steps = batch // ring.lanes
        n = min(steps, ring.length) * ring.lanes
        slots, written = self._ints(n), self._ints(ring.lanes)
        after = RingState(self._ints(ring.lanes), self._ints(ring.lanes))
        marked, source, live = self._none, self._none, self._none
        if mask is not None:
            marked, source, live = self._ready(mask, self._bool), self._ints(n), self._bools(n)
        arrays = (cursors, sizes, marked, slots, source, live, written, *after)
        self._call(_native.choose_slots, arrays, descriptor.encode_ring(ring), steps, n)
        return (slots, None, None, written, after) if mask is None else (slots, source, live, written, after)

    def steps_in_episodes(
        self, next_in_episode: Array, written: Array, begins: Array | None = None, ends: Array | None = None
    ) -> tuple[Array, Array]:
        """Do what `episode_windows.steps_in_episodes` does."""
        next_in_episode, written = self._numbers(next_in_episode, written)
        given: Any = begins if ends is None else ends
        steps, following = self._ints(tuple(given.shape)), self._ints(next_in_episode.shape[0])
        marked = self._ready_some(begins, self._bool), self._ready_some(ends, self._bool)
        arrays = (next_in_episode, written, *marked, steps, following)
        self._call(_native.steps_in_episodes, arrays, next_in_episode.shape[0], math.prod(steps.shape))
        return steps, following

    def changed(self, rule: Rule, lanes: Lanes, in_episode: Array, n: int, by_trajectory: bool) -> Entries:
        """Do what `episode_windows.changed` does."""
        distances = descriptor.encode_distances(lanes.ring, rule, n, by_trajectory)
        count = descriptor.entries(lanes.ring, distances)
        entries = Entries(*(self._ints(count) for _ in Entries._fields))
        encoded = descriptor.encode_windows(lanes.ring, rule, by_trajectory)
        self._call(
            _native.changed,
            (*self._numbers(*lanes.ends), in_episode, *entries),
            encoded,
            distances,
            count,
        )
        return entries

    def weights_at(self, rule: Rule, lanes: Lanes, in_episode: Array, slots: Array) -> Array:
        """Do what `episode_windows.weights_at` does."""
        slots = self._ready(slots, self._int32)
        numbers = self._ints(slots.shape[0])
        encoded = descriptor.encode_windows(lanes.ring, rule, False)
        arrays = (*self._numbers(*lanes.ends), in_episode, slots, numbers)
        self._call(_native.weights_at, arrays, encoded, slots.shape[0])
        return numbers

    def expand(
        self,
        rule: Rule,
        lanes: Lanes,
        in_episode: Array,
        next_in_episode: Array,
        slots: Array,
        draws: Array,
        live: Array | None,
        by_trajectory: bool,
    ) -> Slices:
        """Do what `episode_windows.expand` does."""
        next_in_episode, slots, draws = self._numbers(next_in_episode, slots, draws)
        shape = (slots.shape[0], rule.length)
        numbers = [self._ints(shape) for _ in range(2)]
        slices = Slices(*numbers, *(self._bools(shape) for _ in range(4)))
        ends, live = self._numbers(*lanes.ends), self._ready_some(live, self._bool)
        arrays = (*ends, in_episode, next_in_episode, slots, draws, live, *slices)
        self._call(_native.expand, arrays, descriptor.encode_windows(lanes.ring, rule, by_trajectory), shape[0])
        return slices

    def following(self, lanes: Lanes, in_episode: Array, slots: Array, n: int) -> tuple[Array, Array]:
        """Do what `episode_windows.following` does."""
        cursors, slots = self._numbers(lanes.ends.cursors, slots)
        shape = (slots.shape[0], n)
        found, real = self._ints(shape), self._bools(shape)
        arrays = (cursors, in_episode, slots, found, real)
        self._call(_native.following, arrays, descriptor.encode_ring(lanes.ring), *shape)
        return found, real

    def extent(self, lanes: Lanes, in_episode: Array, slots: Array) -> tuple[Array, Array]:
        """Do what `episode_windows.extent` does."""
        slots = self._ready(slots, self._int32)
        count = slots.shape[0]
        before, after = self._ints(count), self._ints(count)
        arrays = (*self._numbers(*lanes.ends), in_episode, slots, before, after)
        self._call(_native.extent, arrays, descriptor.encode_ring(lanes.ring), count)
        return before, after

    # --- frame ring -------------------------------------------------------------------------------------------------

    def plan_frames(self, chain: Chain, cursor: Array, written: Array, shares: Array, moves: Array | None) -> FramePlan:
        """Do what `frame_store.plan_frames` does."""
        (cursor, written), shares = self._numbers(cursor, written), self._ready(shares, self._bool)
        lanes, rows = cursor.shape[0], shares.shape[0]
        n = lanes * min(chain.most * (rows // lanes), chain.room)
        slots, source, live = self._ints(n), self._ints(n), self._bools(n)
        plan = FramePlan(slots, source, live, after=self._ints(lanes), at=self._ints((lanes, rows // lanes)))
        arrays = (cursor, written, shares, self._ready_some(moves, self._bool), *plan)
        self._call(_native.plan_frames, arrays, descriptor.encode_chain(chain), lanes, rows, n)
        return plan

    def overwritten(self, chain: Chain, at: Array, ends: RingState, after: Array, steps: int) -> Removal:
        """Do what `frame_store.overwritten` does."""
        cursors, sizes, after = self._numbers(*ends, after)
        lanes = cursors.shape[0]
        n = lanes * min(chain.most * steps, chain.items.length)
        slots, gone, left = self._ints(n), self._bools(n), self._ints(lanes)
        arrays = (at, cursors, sizes, after, slots, gone, left)
        self._call(_native.overwritten, arrays, descriptor.encode_chain(chain), at.shape[0], lanes, n)
        return Removal(slots, gone, RingState(ends.cursors, left))

    def places(self, chain: Chain, at: Array, slots: Array, depth: int, following: bool) -> Array:
        """Do what `frame_ring.places` does."""
        slots = self._ready(slots, self._int32)
        count = slots.shape[0]
        found = self._ints(count * depth)
        encoded = descriptor.encode_stacks(chain, depth, following)
        self._call(_native.places, (at, slots, found), encoded, at.shape[0], count)
        return found

    # --- returns and the queue of steps -----------------------------------------------------------------------------

    def fold_floats(self, rewards: Array, real: Array, gamma: float) -> tuple[Array, Array]:
        """Do what `returns.fold_floats` does."""
        rewards, real = self._ready(rewards, rewards.dtype), self._ready(real, self._bool)
        m, n, *shape = rewards.shape
        total, steps = self._library.empty((m, *shape), dtype=rewards.dtype), self._ints(m)
        discounts = descriptor.encode_discounts(gamma, n, shown(rewards.dtype))
        fold = _native.fold_float32 if discounts.dtype == np.float32 else _native.fold_float64
        self._call(fold, (rewards, real, total, steps), discounts, m, math.prod(shape))
        return total, steps

    def plan_line(self, pending: Array, ended: Array, ids: Array | None, mask: Array | None, n: int) -> Line:
        """Do what `step_queue.plan_line` does."""
        pending, ended = self._ready(pending, self._int32), self._ready(ended, self._bool)
        words = 0 if ids is None or not math.prod(ids.shape) else ids.shape[1]
        ids, mask = self._ready_some(ids, self._int32), self._ready_some(mask, self._bool)
        lanes, batch = pending.shape[0], ended.shape[0]
        rows = batch + lanes * (n - 1)
        window, real, complete = self._ints((rows, n)), self._bools((rows, n)), self._bools(rows)
        line = Line(window, real, complete, self._ints(lanes * (n - 1)), self._ints(lanes))
        self._call(_native.plan_line, (pending, ended, ids, mask, *line), lanes, batch, words, n)
        return line

    # --- sparse set -------------------------------------------------------------------------------------------------

    def members(self, sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> Array:
        """Do what `sparse_set.members` does."""
        (count, slots), marked = self._numbers(count, slots), self._ready(marked, self._bool)
        found = self._bools(slots.shape[0])
        arrays = (*sparse_set, count, slots, marked, found)
        self._call(_native.members, arrays, sparse_set.order.shape[0], slots.shape[0])
        return found

    def exchanges(
        self, sparse_set: SparseSet, boundary: Array, positions: Array, marked: Array
    ) -> tuple[Array, Array, Array]:
        """Do what `sparse_set.exchanges` does, of which only what changes something is returned."""
        (boundary, positions), marked = self._numbers(boundary, positions), self._ready(marked, self._bool)
        batch, order = positions.shape[0], sparse_set.order
        at, slots = self._ints(2 * batch), self._ints(2 * batch)
        after = self._ints(tuple(boundary.shape))
        arrays = (order, boundary, positions, marked, at, slots, after)
        count = self._call(_native.move_back, arrays, order.shape[0], batch)
        return at[:count], slots[:count], after

    def appended(self, sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> tuple[Array, Array, Array]:
        """Do what `sparse_set.appended` does, of which only what changes something is returned."""
        (count, slots), marked = self._numbers(count, slots), self._ready(marked, self._bool)
        at, new = self._ints(slots.shape[0]), self._ints(slots.shape[0])
        after = self._ints(tuple(count.shape))
        found = self._call(_native.appended, (count, slots, marked, at, new, after), slots.shape[0])
        return at[:found], new[:found], after

    def distinct(self, draws: Array, n: Array) -> Array:
        """Do what `sparse_set.distinct` does."""
        draws, n = self._numbers(draws, n)
        chosen = self._ints(draws.shape[0])
        self._call(_native.distinct, (draws, n, chosen), chosen.shape[0])
        return chosen

    # --- hash map ---------------------------------------------------------------------------------------------------

    def lookup(self, plan: MapPlan, map: HashMap, rows: Array) -> Array:
        """Do what `hash_map.lookup` does."""
        rows = self._ready(rows, self._int32)
        ids = self._ints(rows.shape[0])
        arrays = *self._numbers(map.table, map.keys), rows, ids
        self._call(_native.map_lookup, arrays, descriptor.encode_map(plan), rows.shape[0])
        return ids

    def insert(self, plan: MapPlan, map: HashMap, rows: Array, mask: Array | None) -> tuple[HashMap, Array, Array]:
        """Do what `hash_map.insert` does, in place."""
        rows, marked = self._ready(rows, self._int32), self._ready_some(mask, self._bool)
        ids, fresh = self._ints(rows.shape[0]), self._bools(rows.shape[0])
        map = HashMap(*self._numbers(*map))
        arrays = (*map, rows, marked, ids, fresh)
        self._call(_native.map_insert, arrays, descriptor.encode_map(plan), rows.shape[0])
        return map, ids, fresh

    # --- images -----------------------------------------------------------------------------------------------------

    def windows(self, images: Array, top: Array, left: Array, size: tuple[int, int]) -> Array:
        """Do what `items.crops.windows` does."""
        count, height, width, channels = images.shape
        images, (top, left) = self._ready(images, images.dtype), self._numbers(top, left)
        made = self._library.empty((count, *size, channels), dtype=images.dtype)
        sizes = count, height, width, *size, channels * images.dtype.itemsize
        self._call(_native.windows, (images, top, left, made), *sizes)
        return made
