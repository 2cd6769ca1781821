"""The kernels that stand in for functions of the core, each declared once.

A declaration takes what its function takes behind `ops` and names a handler of `functional_rb/native/src/kernels.cpp`,
its operands, results and records. JAX makes custom calls of it (`jax_backend.kernels.custom_call`), torch and NumPy
call it on their arrays (`functional_rb.native.calls`), and torch.compile sees it as one operation
(`torch_backend.kernels.custom_ops`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from functional_rb.base.arrays import BackendArray, NumpyArray
from functional_rb.base.dtypes import shown
from functional_rb.buffer import functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import frame_store
from functional_rb.core.draft import Arrays, HasArrays
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.frame_store import FramePlan
from functional_rb.core.handles import CURRENT
from functional_rb.core.strategy import Selection
from functional_rb.items import crops
from functional_rb.native import descriptor
from functional_rb.ops import random_bits
from functional_rb.ops.protocol import Array
from functional_rb.samplers import importance, staleness
from functional_rb.samplers.draw_limits import TIMES
from functional_rb.samplers.prioritized_slices import VALUE
from functional_rb.structures import episode_windows, frame_ring, hash_map, ring, row_layout, sparse_set, sum_tree
from functional_rb.structures.episode_windows import Entries, Lanes, Rule, Slices
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.hash_map import HashTable, MapPlan
from functional_rb.structures.ring import Removal, Ring, RingState
from functional_rb.structures.row_layout import Layout
from functional_rb.structures.sparse_set import SparseSet
from functional_rb.transforms import returns, step_queue
from functional_rb.transforms.step_queue import Line


@dataclasses.dataclass(slots=True, eq=False)
class Made:
    """An array that a kernel fills, of a shape and of a dtype by its name.

    Attributes:
        over: an operand that may be given up for it: XLA knows whether anybody needs that, and has one memory for both.
    """

    shape: tuple[int, ...]
    dtype: str
    over: Array | None = None


class Launch(NamedTuple):
    """What does the same on a GPU, see `src/xla_launches.cpp`.

    Attributes:
        name: of its handler.
        few: whether XLA makes few operations of the same.
    """

    name: str
    few: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Kernel:
    """A call of a kernel.

    Attributes:
        name: of the handler; empty if there is none for CPUs.
        operands: arrays in the order in which the handler takes them; None for one that is not given.
        results: what the function returns, with `Made` for each new array, the operand itself for one that is changed
            in place, and `ABSENT` for one that the handler leaves out.
        records: vectors of int32, or numbers, which the handler has before the operands.
        cut: how many of the first results are cut to as many rows as the handler tells in one more result, int32 [1].
        outputs: the results in the order in which the handler takes them; where these are all, as they stand.
        on_gpu: the launch for it; None if there is none.
        record_names: what each of the records is, by a field's name, where the first is a form (see `of_buffer`).
    """

    name: str
    operands: Sequence[BackendArray | None]
    results: Any
    records: Sequence[NumpyArray | int] = ()
    cut: int = 0
    outputs: Sequence[Any] | None = None
    on_gpu: Launch | None = None
    record_names: Sequence[str] = ()

    @property
    def vectors(self) -> list[descriptor.Vector]:
        """The records, where numbers are vectors too."""
        return [descriptor.encode_number(x) if isinstance(x, int) else x for x in self.records]

    @property
    def in_order(self) -> list[Any]:
        """The results in the order in which the handler takes them."""
        results: list[Any] = []
        if self.outputs is None:
            rebuilt(self.results, results.append)
        return results if self.outputs is None else list(self.outputs)

    @property
    def in_place(self) -> dict[int, int]:
        """Which operands lend their memory to which of the results in order, both by position."""
        places = {id(operand): k for k, operand in enumerate(self.operands) if operand is not None}
        lent = [places.get(id(x.over if isinstance(x, Made) else x)) for x in self.in_order]
        return {k: place for place, k in enumerate(lent) if k is not None}

    def described(self, describe: Callable[[BackendArray], object]) -> Kernel:
        """The same call, which holds no arrays: of each operand there is a description."""
        by_id: dict[int, Any] = {id(x): None if x is None else describe(x) for x in self.operands}

        def change(x: object) -> Any:
            return Made(x.shape, x.dtype, by_id.get(id(x.over))) if isinstance(x, Made) else by_id.get(id(x), x)

        outputs = [change(x) for x in self.in_order]
        return dataclasses.replace(self, operands=[by_id[id(x)] for x in self.operands], results=(), outputs=outputs)


ABSENT: Final = "absent"
# What returns None leaves its arguments to the core.
Declaration = Callable[..., Kernel | None]
# The kernels of parts of the core, by the function that each replaces.
DECLARED: Final[dict[Callable[..., Any], Declaration]] = {}
# The kernels of whole functions of a buffer, by these; where arrays change in place, nothing is saved of the old.
WHOLE: Final[dict[Callable[..., Any], Declaration]] = {}


def stands_in_for(
    function: Callable[..., object], among: dict[Callable[..., object], Declaration] = DECLARED
) -> Callable[[Declaration], Declaration]:
    """Declare the kernel of a function of the core."""

    def declared(declaration: Declaration) -> Declaration:
        among[function] = declaration
        return declaration

    return declared


def rebuilt(results: object, change: Callable[[object], object]) -> Any:
    """Results with what a function makes of each, in their order."""
    if isinstance(results, dict):
        return {name: rebuilt(x, change) for name, x in results.items()}
    if not isinstance(results, tuple | list):
        return None if results is None else change(results)
    changed = [rebuilt(x, change) for x in results]
    if isinstance(results, list):
        return changed
    return type(results)(*changed) if hasattr(results, "_fields") else tuple(changed)


def ints(*shape: int) -> BackendArray:
    """An array int32 that is made."""
    return Made(shape, "int32")


def bools(*shape: int) -> BackendArray:
    """An array bool that is made."""
    return Made(shape, "bool")


def floats(*shape: int) -> Made:
    """An array float32 that is made."""
    return Made(shape, "float32")


# --- whole functions of a buffer --------------------------------------------------------------------------------------

# The fields of calls that have several arrays.
SEVERAL: Final = {"storage", "items", "beside"}


def of_buffer(
    name: str,
    records: Mapping[str, Any],
    changed: Mapping[str, Any],
    inputs: Mapping[str, Any],
    filled: Mapping[str, Any],
    results: object,
    on_gpu: Launch | None = None,
) -> Kernel:
    """A call of a kernel that takes what the version chain tells others of a buffer (`src/buffer_call.h`).

    Records, and arrays that are changed in place, that are read alone, and that are filled, have the names of its
    fields, as `buffer_frame.h` has them. None stands for an array that is not there.
    """
    operands, outputs = [*each_of(changed), *each_of(inputs)], [*each_of(changed), *each_of(filled)]
    named = [*each_of(inputs), *outputs]  # of what is changed the kernel is given the output
    form = descriptor.encode_form((*records, *("" for _ in each_of(changed)), *(field for field, _ in named)))
    arrays, new = [x for _, x in operands], [ABSENT if x is None else x for _, x in outputs]
    return Kernel(name, arrays, results, [form, *records.values()], outputs=new, on_gpu=on_gpu, record_names=[*records])


def each_of(arrays: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each array with its field; of some fields there are several, some of which may not be there."""
    for field, x in arrays.items():
        for array in x if field in SEVERAL else () if x is None else (x,):
            yield field, array


@stands_in_for(functions.add, WHOLE)
def add(
    state: HasArrays,
    spec: BufferSpec,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
    draws: Array | None = None,
) -> Kernel | None:
    """Add to a buffer that the native code knows whole."""
    if not spec.known.buffer or not batch:
        return None
    counters = _counters(state)
    return of_buffer(
        "add",
        {"plan": descriptor.encode(spec), "batch": batch},
        _stored(state),
        {"counters": state.counters, "mask": mask, "priorities": priorities, "items": leaves},
        {"new_counters": counters},
        Arrays(state.rows, tuple(state.wide), state.tree, counters, {}),
        Launch("add", few=mask is None and state.tree is None),
    )


def drawn(selection: Selection) -> dict[str, Array | None]:
    """The arrays of a selection of single items, by the fields of a call."""
    handles, weights, probabilities = selection[:3]
    return {"handles": handles, "weights": weights, "probabilities": probabilities}


@stands_in_for(functions.update, WHOLE)
def update(
    state: HasArrays,
    spec: BufferSpec,
    wanted: Array,
    priorities: Array | None,
    replacements: Mapping[int, Array],
) -> Kernel | None:
    """Update a buffer that the native code knows whole; of others, where items lie in rings, priorities alone."""
    alone = spec.known.updates and priorities is not None and not replacements
    if not (alone or spec.known.buffer) or not wanted.shape[0]:
        return None
    counters, records = _counters(state), {"plan": descriptor.encode(spec), "batch": wanted.shape[0]}
    inputs = {"counters": state.counters, "given_handles": wanted, "priorities": priorities}
    results = Arrays(state.rows, tuple(state.wide), state.tree, counters, dict(state.auxiliary))
    if alone:
        kept, name = state.auxiliary.get(VALUE), "update_priorities"
        changed = {"tree": state.tree, "kept": kept}
        inputs["in_episode"] = None if kept is None else state.auxiliary.get(STEP_IN_EPISODE)
        inputs |= {"times": state.auxiliary.get(TIMES), "current": state.auxiliary.get(CURRENT)}
        records["ring"] = descriptor.encode_rings(spec)
    else:
        name, changed = "update", _stored(state) if replacements else {"tree": state.tree}
        inputs["items"] = [replacements.get(k) for k in range(len(spec.plan.leaves))] if replacements else ()
    launch = Launch(name) if alone or replacements else None
    return of_buffer(name, records, changed, inputs, {"new_counters": counters}, results, launch)


def _stored(state: HasArrays) -> dict[str, Any]:
    return {"storage": [state.rows, *state.wide], "tree": state.tree}


def _counters(state: HasArrays) -> Made:
    return Made(state.counters.shape, "int32", over=state.counters)


def fill_draws(key: Array, batch: int, words: int) -> Kernel:
    """Random bits by a key of torch's, int64."""
    return Kernel("fill_draws", (key,), ints(batch, words))


def threefry(key: Array, batch: int, words: int, wanted: Array | None) -> Kernel | None:
    """Random bits by a key of JAX's, uint32 [2]."""
    return Kernel("threefry", (key, wanted), ints(batch, words)) if batch else None


# --- sum tree and priorities ------------------------------------------------------------------------------------------


@stands_in_for(sum_tree.descend)
def _descend(tree: Array, capacity: int, draws: Array) -> Kernel | None:
    batch = draws.shape[0]
    return Kernel("descend", (tree, draws), ints(batch), [descriptor.encode_tree(capacity)]) if batch else None


@stands_in_for(sum_tree.draw_in_span)
def _draw_in_span(tree: Array, capacity: int, first: Array, end: Array, which: Array, draws: Array) -> Kernel | None:
    count, batch = first.shape[0], draws.shape[0]
    results = ints(batch), floats(count), floats(count)
    encoded = descriptor.encode_tree(capacity)
    return Kernel("draw_in_span", (tree, first, end, which, draws), results, [encoded]) if batch else None


@stands_in_for(sum_tree.set_leaves)
def _set_leaves(tree: Array, capacity: int, leaves: Array, values: Array, consecutive: bool = False) -> Kernel | None:
    encoded = descriptor.encode_tree(capacity)
    return Kernel("set_leaves", (tree, leaves, values), tree, [encoded]) if leaves.shape[0] else None


@stands_in_for(importance.stored_value)
def _stored_value(priorities: Array, alpha: float) -> Kernel | None:
    count = priorities.shape[0]
    results = floats(count), bools(count)
    return Kernel("stored_values", (priorities,), results, [descriptor.encode_alpha(alpha)]) if count else None


@stands_in_for(importance.updated_values)
def _updated_values(slots: Array, live: Array, priorities: Array, alpha: float) -> Kernel | None:
    count = slots.shape[0]
    results = floats(count), bools(count), ints(), ints()
    operands = slots, live, priorities
    return Kernel("updated_values", operands, results, [descriptor.encode_alpha(alpha)]) if count else None


@stands_in_for(importance.importance_weights)
def _importance_weights(values: Array, smallest: Array, beta: Array) -> Kernel | None:
    count = values.shape[0]
    return Kernel("importance_weights", (values, smallest, beta), floats(count)) if count else None


@stands_in_for(staleness.freshness)
def _freshness(version: Array, made_by: Array, max_staleness: int | None, power: int) -> Kernel | None:
    count, encoded = made_by.shape[0], descriptor.encode_freshness(max_staleness, power)
    return Kernel("freshness", (version, made_by), floats(count), [encoded]) if count else None


@stands_in_for(random_bits.below)
def _below(draws: Array, n: Array) -> Kernel | None:
    return Kernel("below", (draws, n), ints(draws.shape[0])) if draws.shape[0] else None


# --- row layout -------------------------------------------------------------------------------------------------------


@stands_in_for(row_layout.read)
def _read(layout: Layout, rows: Array, wide: Sequence[Array], slots: Array) -> Kernel | None:
    batch = slots.shape[0]
    leaves = [Made((batch, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
    if not batch or not leaves:
        return None
    records = {"plan": descriptor.encode_layout(layout), "batch": batch, "capacity": rows.shape[0]}
    return of_buffer("read", records, {}, {"storage": [rows, *wide], "slots": slots}, {"items": leaves}, leaves)


@stands_in_for(row_layout.store)
def _store(
    layout: Layout,
    rows: Array,
    wide: Sequence[Array],
    slots: Array,
    source: Array | None,
    live: Array | None,
    leaves: Sequence[Array],
) -> Kernel | None:
    batch, storage = slots.shape[0], [rows, *wide]
    if not batch or not leaves:
        return None
    sizes = {"batch": batch, "capacity": rows.shape[0], "rows": leaves[0].shape[0]}
    inputs = {"slots": slots, "source": source, "mask": live, "items": leaves}
    records = {"plan": descriptor.encode_layout(layout), **sizes}
    return of_buffer("store", records, {"storage": storage}, inputs, {}, (rows, tuple(wide)))


@stands_in_for(row_layout.pack_rows)
def _pack_rows(layout: Layout, leaves: Sequence[Array], like: Array) -> Kernel | None:
    packed, batch = layout.packed, like.shape[0]
    if not batch or not packed:
        return None
    records = {"plan": descriptor.encode_layout(layout.part(packed)), "batch": batch}
    words = ints(batch, layout.row_words)
    return of_buffer("pack", records, {}, {"items": [leaves[k] for k in packed]}, {"storage": [words]}, words)


# --- rings and windows ------------------------------------------------------------------------------------------------


@stands_in_for(ring.choose_slots)
def _choose_slots(ring: Ring, ends: RingState, batch: int, mask: Array | None) -> Kernel | None:
    steps = batch // ring.lanes
    n = min(steps, ring.length) * ring.lanes
    chosen = (ABSENT, ABSENT) if mask is None else (ints(n), bools(n))
    results = (ints(n), *chosen, ints(ring.lanes), RingState(ints(ring.lanes), ints(ring.lanes)))
    records = descriptor.encode_ring(ring), steps
    return Kernel("choose_slots", (*ends, mask), results, records) if batch else None


@stands_in_for(episode_windows.steps_in_episodes)
def _steps_in_episodes(
    next_in_episode: Array, written: Array, begins: Array | None = None, ends: Array | None = None
) -> Kernel:
    flags: Any = begins if ends is None else ends
    results = ints(*flags.shape), ints(*next_in_episode.shape)
    return Kernel("steps_in_episodes", (next_in_episode, written, begins, ends), results)


@stands_in_for(episode_windows.changed)
def _changed(rule: Rule, lanes: Lanes, in_episode: Array, n: int, by_trajectory: bool) -> Kernel:
    distances = descriptor.encode_distances(lanes.ring, rule, n, by_trajectory)
    count = descriptor.entries(lanes.ring, distances)
    records = descriptor.encode_windows(lanes.ring, rule, by_trajectory), distances
    return Kernel("changed", (*lanes.ends, in_episode), Entries(*(ints(count) for _ in Entries._fields)), records)


@stands_in_for(episode_windows.weights_at)
def _weights_at(rule: Rule, lanes: Lanes, in_episode: Array, slots: Array) -> Kernel | None:
    encoded = descriptor.encode_windows(lanes.ring, rule, False)
    operands = (*lanes.ends, in_episode, slots)
    return Kernel("weights_at", operands, ints(*slots.shape), [encoded]) if slots.shape[0] else None


@stands_in_for(episode_windows.expand)
def _expand(
    rule: Rule,
    lanes: Lanes,
    in_episode: Array,
    next_in_episode: Array,
    slots: Array,
    draws: Array,
    live: Array | None,
    by_trajectory: bool,
) -> Kernel | None:
    shape = slots.shape[0], rule.length
    results = Slices(ints(*shape), ints(*shape), *(bools(*shape) for _ in Slices._fields[2:]))
    operands = (*lanes.ends, in_episode, next_in_episode, slots, draws, live)
    encoded = descriptor.encode_windows(lanes.ring, rule, by_trajectory)
    return Kernel("expand", operands, results, [encoded]) if slots.shape[0] else None


@stands_in_for(episode_windows.following)
def _following(lanes: Lanes, in_episode: Array, slots: Array, n: int) -> Kernel | None:
    shape = slots.shape[0], n
    operands = (*lanes.ends, in_episode, slots)
    results = ints(*shape), bools(*shape)
    return Kernel("following", operands, results, [descriptor.encode_ring(lanes.ring)]) if slots.shape[0] else None


@stands_in_for(episode_windows.extent)
def _extent(lanes: Lanes, in_episode: Array, slots: Array) -> Kernel | None:
    operands = (*lanes.ends, in_episode, slots)
    results = ints(*slots.shape), ints(*slots.shape)
    return Kernel("extent", operands, results, [descriptor.encode_ring(lanes.ring)]) if slots.shape[0] else None


# --- frames -----------------------------------------------------------------------------------------------------------


@stands_in_for(frame_ring.places)
def _places(chain: Chain, at: Array, slots: Array, depth: int, following: bool) -> Kernel | None:
    encoded = descriptor.encode_stacks(chain, depth, following)
    return Kernel("places", (at, slots), ints(slots.shape[0] * depth), [encoded]) if slots.shape[0] else None


@stands_in_for(frame_store.plan_frames)
def _plan_frames(chain: Chain, cursor: Array, written: Array, shares: Array, moves: Array | None) -> Kernel | None:
    lanes, rows = cursor.shape[0], shares.shape[0]
    n = lanes * min(chain.most * (rows // lanes), chain.room)
    results = FramePlan(ints(n), ints(n), bools(n), after=ints(lanes), at=ints(lanes, rows // lanes))
    operands = cursor, written, shares, moves
    return Kernel("plan_frames", operands, results, [descriptor.encode_chain(chain)]) if rows else None


@stands_in_for(frame_store.overwritten)
def _overwritten(chain: Chain, at: Array, ends: RingState, after: Array, steps: int) -> Kernel | None:
    lanes = ends.cursors.shape[0]
    n = lanes * min(chain.most * steps, chain.items.length)
    slots, gone, sizes = ints(n), bools(n), ints(lanes)
    results, outputs = Removal(slots, gone, RingState(ends.cursors, sizes)), (slots, gone, ABSENT, sizes)
    encoded = descriptor.encode_chain(chain)
    return Kernel("overwritten", (at, *ends, after), results, [encoded], outputs=outputs) if steps else None


# --- returns and the queue of steps -----------------------------------------------------------------------------------


@stands_in_for(returns.fold_floats)
def _fold_floats(rewards: Array, real: Array, gamma: float) -> Kernel | None:
    m, n, *shape = rewards.shape
    dtype = shown(rewards.dtype)
    results = Made((m, *shape), dtype), ints(m)
    discounts = descriptor.encode_discounts(gamma, n, dtype)
    return Kernel(f"fold_{dtype}", (rewards, real), results, [discounts]) if m else None


@stands_in_for(step_queue.plan_line)
def _plan_line(pending: Array, ended: Array, ids: Array | None, mask: Array | None, n: int) -> Kernel:
    lanes = pending.shape[0]
    rows = ended.shape[0] + lanes * (n - 1)
    results = Line(ints(rows, n), bools(rows, n), bools(rows), ints(lanes * (n - 1)), ints(lanes))
    return Kernel("plan_line", (pending, ended, ids, mask), results)


# --- sparse set -------------------------------------------------------------------------------------------------------


@stands_in_for(sparse_set.members)
def _members(sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> Kernel | None:
    operands = (*sparse_set, count, slots, marked)
    return Kernel("members", operands, bools(slots.shape[0])) if slots.shape[0] else None


@stands_in_for(sparse_set.exchanges)
def _exchanges(sparse_set: SparseSet, boundary: Array, positions: Array, marked: Array) -> Kernel | None:
    batch = positions.shape[0]
    operands = (*sparse_set, boundary, positions, marked)
    results = ints(2 * batch), ints(2 * batch), ints(*boundary.shape)
    return Kernel("exchanges", operands, results, cut=2) if batch else None


@stands_in_for(sparse_set.appended)
def _appended(sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> Kernel | None:
    batch = slots.shape[0]
    operands = (*sparse_set, count, slots, marked)
    return Kernel("appended", operands, (ints(batch), ints(batch), ints(*count.shape)), cut=2) if batch else None


@stands_in_for(sparse_set.distinct)
def _distinct(draws: Array, n: Array) -> Kernel | None:
    return Kernel("distinct", (draws, n), ints(draws.shape[0])) if draws.shape[0] else None


# --- hash map ---------------------------------------------------------------------------------------------------------


@stands_in_for(hash_map.lookup)
def _lookup(plan: MapPlan, map: HashTable, rows: Array) -> Kernel | None:
    batch = rows.shape[0]
    ids, records = ints(batch), {"map": descriptor.encode_map(plan), "batch": batch}
    inputs, filled = {"storage": map, "items": [rows]}, {"items": [ids]}
    return of_buffer("map_lookup", records, {}, inputs, filled, ids, Launch("map_lookup")) if batch else None


@stands_in_for(hash_map.insert)
def _insert(plan: MapPlan, map: HashTable, rows: Array, mask: Array | None) -> Kernel | None:
    batch = rows.shape[0]
    ids, fresh, records = ints(batch), bools(batch), {"map": descriptor.encode_map(plan), "batch": batch}
    changed, inputs, filled = {"storage": map}, {"items": [rows], "mask": mask}, {"items": [ids, fresh]}
    results, launch = (map, ids, fresh), Launch("map_insert")
    return of_buffer("map_insert", records, changed, inputs, filled, results, launch) if batch else None


# --- images -----------------------------------------------------------------------------------------------------------


@stands_in_for(crops.windows)
def _windows(images: Array, top: Array, left: Array, size: tuple[int, int]) -> Kernel | None:
    count, _, _, channels = images.shape
    results = Made((count, *size, channels), shown(images.dtype))
    pixel = channels * images.dtype.itemsize
    return Kernel("windows", (images, top, left), results, [pixel]) if math.prod(results.shape) else None
