"""What the version chain does with buffers of any kind, in programs: calls on CPUs, and launches for GPUs.

Each is declared once, as `kernels` has the others. Some have a launch alone, and what they do the core does in programs
for CPUs. A declaration gives None for what neither does.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer import functions
from functional_rb.buffer.known import Draws
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays, HasArrays
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.handles import CURRENT
from functional_rb.core.strategy import Selection
from functional_rb.mixture.value import MixtureSpec
from functional_rb.native import descriptor, gpu, kernels
from functional_rb.native.kernels import (
    WHOLE,
    Kernel,
    Launch,
    Made,
    bools,
    drawn,
    each_of,
    floats,
    ints,
    of_buffer,
    stands_in_for,
)
from functional_rb.ops.protocol import Array
from functional_rb.samplers.draw_limits import TIMES
from functional_rb.samplers.epochs import ORDER
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.specs import ArraySpec
from functional_rb.structures import frame_ring
from functional_rb.structures.hash_map import HashTable, MapPlan
from functional_rb.structures.key_rows import KeyRows
from functional_rb.structures.ring import Ring, RingState
from functional_rb.structures.row_layout import Layout
from functional_rb.transforms.her import Strategy
from functional_rb.transforms.returns import NStep

# How elements of keys are stored, `Stored` in `src/gpu_maps.h`; those of other dtypes as they are.
STORED: Final = {"float16": 1, "bfloat16": 2, "float32": 3, "complex64": 3, "float64": 4}

# Leaves that the chain names of an item.
MOST_LEAVES: Final = 64
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
# The fields of calls for what samplers keep.
_KEPT: Final = dict(zip(("order", "place", "in_episode", "kept", "current"), (*descriptor.KEPT, CURRENT), strict=True))


def add(
    state: HasArrays,
    spec: BufferSpec,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
    draws: Array | None = None,
) -> Kernel | None:
    """What `functions.add` does where items lie in rings, with all that a sampler keeps of them.

    Items may share frames: those of a batch are compared with each other, and with the newest that are stored. Steps
    may wait for those that follow them.
    """
    beside = descriptor.beside(spec)
    if not spec.known.appends or not batch or (len(beside.queue) and priorities is not None):
        return None
    counters = Made(state.counters.shape, "int32", over=state.counters)
    changed, keeps = _kept(state) | _beside(state, beside), state.tree is not None or bool(state.auxiliary)
    launch = Launch("add_to_rings", few=mask is None and not (keeps or len(beside.queue)))
    return of_buffer(
        "add_to_rings",
        _records(spec, batch=batch, words=spec.writer.words) | _epochs(spec) | _records_beside(beside),
        changed,
        {"counters": state.counters, "mask": mask, "priorities": priorities, "draws": draws, "items": leaves},
        {"new_counters": counters},
        Arrays(state.rows, tuple(state.wide), state.tree, counters, dict(state.auxiliary)),
        launch,
    )


def whole_add(
    state: HasArrays,
    spec: BufferSpec,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
    draws: Array | None = None,
) -> Kernel | None:
    """What `functions.add` does, wherever items lie."""
    kernel = kernels.add(state, spec, leaves, batch, mask, priorities)
    return add(state, spec, leaves, batch, mask, priorities, draws) if kernel is None else kernel


def draw(
    state: HasArrays,
    spec: BufferSpec,
    draws: Array | None,
    key: Array | None,
    beta: Array,
    batch: int,
    wanted: Array | None = None,
) -> Kernel | None:
    """What `functions.draw` gives, by random words int32 [rows, words], or by those of a key of JAX's, uint32 [2].

    The counters are told again where they stay as they are: they are there once all has been read. Of items that share
    frames these are read too. With returns over n steps, and by slices or epochs, that is so on CPUs alone.
    """
    known, in_frames, (told, returns) = spec.known, reads_frames(spec), told_of_returns(spec)
    if not (batch and known.draws) or not (known.plain or in_frames or told):
        return None
    lead = spec.sampler.leading_shape(batch)
    leaves = [Made((*lead, *leaf.shape), leaf.dtype) for leaf in spec.plan.leaves]
    extras = {name: Made((*lead, *leaf.shape), leaf.dtype) for name, leaf in told.items()}
    beside = descriptor.beside(spec) if in_frames else descriptor.NOTHING_BESIDE
    inputs = {"draws": draws, "threefry_at": key, "beta_at": beta, "wanted_at": wanted} | _beside(state, beside)
    records = {**_records_beside(beside), **({"returns": returns} if told else {})}
    kernel = _drawn(state, spec, leaves, inputs, batch, records, extras)
    return kernel if known.plain or _draws_with_frames(spec) else dataclasses.replace(kernel, on_gpu=None)


@stands_in_for(functions.draw, WHOLE)
def draw_nothing_in_place(
    state: HasArrays,
    spec: BufferSpec,
    draws: Array,
    beta: Array,
    batch: int,
    more: Array | None = None,
    wanted: Array | None = None,
) -> Kernel | None:
    """What `functions.draw` gives of samplers that keep nothing in arrays of what they have drawn."""
    return None if {TIMES, ORDER} & {*state.auxiliary} else draw(state, spec, draws, None, beta, batch, wanted)


def sample_mixture(
    states: Sequence[HasArrays],
    specs: Sequence[BufferSpec],
    spec: MixtureSpec,
    key: Array,
    listed: tuple[float, ...] | None,
    shares: Array | None,
    beta: Array | None,
    batch: int,
) -> Kernel | None:
    """What `drawing.draw` gives of a mixture of buffers alike, by a key of JAX's; on a GPU by a launch for each buffer.

    Args:
        states: the buffers, all of which draw single items, or slices alike, of the same leaves.
        specs: theirs.
        spec: the mixture's.
        key: uint32 [2].
        listed: the shares, or an empty tuple, see `descriptor.encode_mixture`; None where an array has them.
        shares: that array, float32 [K].
        beta: float32 scalar; None for no weights.
        batch: B.
    """
    from functional_rb import _native

    records_of_each = [_records(each, batch=batch, words=each.draw_shape(batch)[1]) for each in specs]
    if not batch or len(specs) > _native.GPU_MIXED or not all(map(gpu.has_room, records_of_each)):
        return None
    # Flat slices come with two axes, as mixtures have them.
    sampler = specs[0].sampler
    lead = (batch, sampler.length) if isinstance(sampler, Trajectories) else (batch,)
    leaves = [Made((*lead, *leaf.shape), leaf.dtype) for leaf in specs[0].plan.layout.leaves]
    selection, counters = (ints(*lead, 2), floats(batch), floats(batch)), [ints(*x.counters.shape) for x in states]
    flags = [bools(*lead) for _ in range(4)] if isinstance(sampler, Trajectories) else []
    names = "handles", "weights", "probabilities", "drawn", "is_first", "is_last", "truncated"
    fields = {"items": leaves, **dict(zip(names, (*selection, *flags), strict=False))}
    # Of which buffer each array is, none for those of all.
    of_all = {"threefry_at": key, "": shares, "beta_at": beta}
    inputs: list[tuple[int | None, str, Any]] = [(None, field, x) for field, x in of_all.items()]
    for k, state in enumerate(states):
        of_one = {x: array for x, array in _kept(state).items() if x not in ("order", "place")}
        inputs += [(k, field, x) for field, x in each_of(of_one | {"counters": state.counters})]
    filled: list[tuple[int | None, str, Any]] = [(None, field, x) for field, x in each_of(fields)]
    filled += [(k, "new_counters", x) for k, x in enumerate(counters)]
    records: list[Any] = [descriptor.encode_mixture(spec, len(specs), batch, listed, beta is not None)]
    for k, buffer_records in enumerate(records_of_each):
        there = (field if of in (None, k) and x is not None else "" for of, field, x in (*inputs, *filled))
        records += [descriptor.encode_form((*buffer_records, *there)), *buffer_records.values()]
    arrays, outputs = [x for *_, x in inputs], [x for *_, x in filled]
    results = leaves, (*selection, flags), counters
    return Kernel("sample_mixture", arrays, results, records, outputs=outputs, on_gpu=Launch("sample_mixture"))


def pack_keys(keys: KeyRows, leaves: Sequence[Array]) -> Kernel | None:
    """What `hash_maps.functions.rows_of_keys` gives, int32 [B, words]."""
    batch, (layout, stored) = leaves[0].shape[0], _records_of_keys(keys)
    records = {"plan": layout, "stored": stored, "batch": batch}
    if not batch or not gpu.has_room(records):
        return None
    words = ints(batch, keys.words)
    packed = {"items": [leaves[k] for k in keys.layout.packed]}
    return of_buffer("", records, {}, packed, {"items": [words]}, words, Launch("pack_keys", few=True))


def insert_keys(
    keys: KeyRows, plan: MapPlan, map: HashTable, leaves: Sequence[Array], mask: Array | None
) -> Kernel | None:
    """What `hash_maps.functions.insert` gives: the launch that looks for keys packs them, too."""
    ids, fresh = ints(leaves[0].shape[0]), bools(leaves[0].shape[0])
    changed, results = {"storage": map}, (map, ids, fresh)
    return _of_keys("map_insert", keys, plan, leaves, changed, {"mask": mask}, [ids, fresh], results)


def find_keys(keys: KeyRows, plan: MapPlan, map: HashTable, leaves: Sequence[Array]) -> Kernel | None:
    """What `hash_maps.functions.find` gives: the launch packs the keys, too."""
    ids = ints(leaves[0].shape[0])
    return _of_keys("map_lookup", keys, plan, leaves, {}, {"storage": map}, [ids], ids)


def _of_keys(
    launch: str,
    keys: KeyRows,
    plan: MapPlan,
    leaves: Sequence[Array],
    changed: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: list[Made],
    results: object,
) -> Kernel | None:
    batch, (layout, stored) = leaves[0].shape[0], _records_of_keys(keys)
    if not batch or not gpu.has_room({"plan": layout}):
        return None
    records = {"map": descriptor.encode_map(plan), "beside_plan": layout, "stored": stored, "batch": batch}
    inputs = {**inputs, "items": [leaves[k] for k in keys.layout.packed]}
    filled = {"items": [ints(batch, keys.words), *outputs]}
    return of_buffer("", records, changed, inputs, filled, results, Launch(launch))


def _records_of_keys(keys: KeyRows) -> tuple[NumpyArray, NumpyArray]:
    """The layout of the leaves that have elements, as others have no place in a row; and how each is stored."""
    layout = descriptor.encode_layout(keys.layout.part(keys.layout.packed))
    return layout, np.array([STORED.get(keys.leaves[k][2], 0) for k in keys.layout.packed], np.int32)


def find_goals(
    strategy: Strategy,
    k: int | float,
    held: Ring,
    ends: RingState,
    in_episode: Array | None,
    slots: Array,
    real: Array,
    draws: Array,
) -> Kernel | None:
    """What `transforms.her.find_goals` gives."""
    from functional_rb import _native

    m = slots.shape[0]
    if not m or (strategy == "random" and held.lanes > _native.GPU_LANES_OF_GOALS):
        return None
    records = {"ring": descriptor.encode_ring(held), "goals": descriptor.encode_goals(strategy, k), "batch": m}
    inputs, results = (*ends, in_episode, slots, real, draws), (bools(m), ints(m), ints(m))
    return of_buffer("", records, {}, {"items": inputs}, {"items": results}, results, Launch("find_goals"))


def apart(paths: tuple[tuple[int, ...], ...], indices: Array) -> Kernel | None:
    """What `mixture.functions.apart` gives: for each buffer its own handles."""
    from functional_rb import _native

    batch, columns = indices.shape
    record, (most, of_plan, *_) = descriptor.encode_paths(paths, columns), _native.GPU_ROOM
    if not batch or len(paths) >= most or len(record) > of_plan:
        return None
    handles = [ints(batch) for _ in paths]
    records = {"paths": record, "batch": batch}
    return of_buffer("", records, {}, {"items": [indices]}, {"items": handles}, handles, Launch("apart", few=True))


def choose(
    state: HasArrays,
    spec: BufferSpec,
    draws: Array | None,
    key: Array | None,
    beta: Array,
    batch: int,
    wanted: Array | None = None,
) -> Kernel | None:
    """The arrays afterwards, the slots, and what a sampler draws, as `draw` has it."""
    if not (batch and spec.known.draws):
        return None
    inputs = {"draws": draws, "threefry_at": key, "beta_at": beta, "wanted_at": wanted}
    return _drawn(state, spec, None, inputs, batch)


def read(state: HasArrays, spec: BufferSpec, slots: Array) -> Kernel | None:
    """The leaves of items in slots int32 [m], and what is told beside them: what `functions.read_drawn` gives."""
    returns = returns_read(spec)
    if returns is None or not slots.shape[0]:
        return None
    plan, m = spec.plan, slots.shape[0]
    leaves = [Made((m, *leaf.shape), leaf.dtype) for leaf in plan.leaves]
    outputs, info = [*leaves], dict[str, Any]()
    for transform in spec.inner:
        assert isinstance(transform, NStep)
        info = {name: Made((m, *leaf.shape), leaf.dtype) for name, leaf in transform.told(plan).items()}
        outputs += info.values()
    beside = descriptor.beside(spec) if plan.frames is not None else descriptor.NOTHING_BESIDE
    of_returns = {"returns": returns} if len(returns) else {}
    in_episode = {"counters": state.counters, "in_episode": state.auxiliary.get(STEP_IN_EPISODE), "slots": slots}
    return of_buffer(
        "",
        _records(spec, batch=m) | of_returns | _records_beside(beside),
        {},
        {"storage": [state.rows, *state.wide]} | in_episode | _beside(state, beside),
        {"items": outputs},
        (leaves, info),
        Launch("read_drawn"),
    )


def told_of_returns(spec: BufferSpec) -> tuple[dict[str, ArraySpec], descriptor.Vector]:
    """What kernels on CPUs tell of returns beside the items that they read, by name, and the record; or nothing."""
    returns = returns_read(spec)
    if returns is None or not len(returns) or not (spec.plan.frames is None or spec.known.appends):
        return {}, descriptor.NOTHING
    (transform,) = spec.inner
    assert isinstance(transform, NStep)
    told = transform.told(spec.plan)
    return (told, returns) if len(spec.plan.leaves) + len(told) <= MOST_LEAVES else ({}, descriptor.NOTHING)


def read_rows(layout: Layout, rows: Array, wide: Sequence[Array], slots: Array) -> Kernel | None:
    """What `row_layout.read` gives."""
    m, plan = slots.shape[0], descriptor.encode_layout(layout, rows.shape[0])
    if not m or not gpu.has_room({"plan": plan}):
        return None
    leaves, inputs = [Made((m, *leaf.shape), leaf.dtype) for leaf in layout.leaves], {"storage": [rows, *wide]}
    records, launch = {"plan": plan, "batch": m}, Launch("read_drawn")
    return of_buffer("", records, {}, inputs | {"slots": slots}, {"items": leaves}, leaves, launch)


def reads_later(spec: BufferSpec) -> bool:
    """Whether what is drawn of a buffer is read by a launch of its own."""
    return returns_read(spec) is not None and not spec.known.plain and not _draws_with_frames(spec)


def _draws_with_frames(spec: BufferSpec) -> bool:
    """Whether one launch draws and reads items that share frames."""
    return reads_frames(spec) and not spec.inner and spec.known.draws in (Draws.ITEMS, Draws.RECENT)


def reads_frames(spec: BufferSpec) -> bool:
    """Whether what draws items on CPUs reads frames that they share, too."""
    plan = spec.plan
    if plan.frames is None or spec.inner:
        return plan.frames is not None and bool(told_of_returns(spec)[0])
    return spec.known.appends and not plan.objects and len(plan.leaves) <= MOST_LEAVES


@functools.cache
def returns_read(spec: BufferSpec) -> descriptor.Vector | None:
    """The record of returns of a buffer whose items a launch can read; None if none can."""
    return None if spec.plan.objects else descriptor.encode_returns(spec)


def _drawn(
    state: HasArrays,
    spec: BufferSpec,
    leaves: list[Made] | None,
    inputs: Mapping[str, Any],
    batch: int,
    records: Mapping[str, descriptor.Vector] = NOTHING,
    extras: Mapping[str, Made] = NOTHING,
) -> Kernel:
    """What is drawn, with the slots in place of the leaves, if there are none.

    There are more records where items share frames, or have returns, and extras of the latter.
    """
    sampler, lead, masked = spec.sampler, spec.sampler.leading_shape(batch), spec.known.masked
    count = sampler.slices_of(batch) if isinstance(sampler, Trajectories) else batch
    selection = Selection(ints(*lead), floats(count), floats(count), mask=bools(*lead) if masked else None)
    if isinstance(sampler, Trajectories):
        selection = selection._replace(is_first=bools(*lead), is_last=bools(*lead), truncated=bools(*lead))
    selection = selection._replace(extras=dict(extras))
    counters = Made(state.counters.shape, "int32", over=state.counters)
    slots = ints(math.prod(lead)) if leaves is None else None
    masks = {"drawn": selection.mask, **{x: getattr(selection, x) for x in ("is_first", "is_last", "truncated")}}
    changing = ("tree", "times") if TIMES in state.auxiliary else ("order", "place")
    kept, inputs = _kept(state), {**inputs, **({} if sampler.heeds_wanted else {"wanted_at": None})}
    after = Arrays(state.rows, tuple(state.wide), state.tree, counters, dict(state.auxiliary))
    simple = leaves is not None and not masked and state.tree is None and spec.plan.ring.lanes == 1
    items = [*(leaves or ()), *extras.values()]
    launch = None if spec.known.draws is Draws.FRESH_SLICES else Launch("draw", few=simple and not records)
    return of_buffer(
        "draw",
        _records(spec, batch=count, words=spec.draw_shape(batch)[1]) | _epochs(spec) | {**records},
        {field: kept.pop(field) for field in changing},
        kept | {"counters": state.counters, **inputs},
        {"items": items, "slots": slots, **drawn(selection), **masks, "new_counters": counters},
        (after, slots if leaves is None else leaves, selection),
        launch,
    )


def _records(spec: BufferSpec, **numbers: int) -> dict[str, Any]:
    return {"plan": descriptor.encode(spec), "ring": descriptor.encode_rings(spec), **numbers}


def _epochs(spec: BufferSpec) -> dict[str, descriptor.Vector]:
    is_epoch = spec.known.draws in (Draws.EPOCH, Draws.EPOCH_OF_SLICES, Draws.IN_TURN)
    return {"epoch": descriptor.encode_epoch(spec)} if is_epoch else {}


def _kept(state: HasArrays) -> dict[str, Any]:
    """All arrays but the counters, None for those that a buffer has not."""
    kept = {field: state.auxiliary.get(name) for field, name in _KEPT.items()}
    kept["times"] = state.auxiliary.get(descriptor.numbers_of_items(state.auxiliary))
    return {"storage": [state.rows, *state.wide], "tree": state.tree, **kept}


def _records_beside(beside: descriptor.Beside) -> dict[str, descriptor.Vector]:
    records = {"queue": beside.queue, "frames": beside.frames, "beside_plan": beside.layout}
    return {field: record for field, record in records.items() if len(record)}


def _beside(state: HasArrays, beside: descriptor.Beside) -> dict[str, Any]:
    """The arrays beside the rows of items."""
    frames = {"frame_at": state.auxiliary[frame_ring.AT]} if len(beside.frames) else {}
    return {"beside": [state.auxiliary[name] for name in beside.names], **frames}
