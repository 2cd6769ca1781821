"""The arrays of a dealt buffer in memory of NumPy's: put together, taken apart, and dealt to another number of shards.

The index is the same for any number of shards. So only parts are dealt anew, and a shard needs those alone in which its
lanes, or slots, lay before. A buffer that is not sharded is its index and a part with all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer import functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters
from functional_rb.core.counters import REFUSED, Counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Array
from functional_rb.sharding.deal import Dealing, ends_of_slots
from functional_rb.sharding.deal import deal as deal
from functional_rb.structures.ring import RingState


def split(spec: BufferSpec, whole: Arrays) -> tuple[Arrays, Arrays]:
    """The index of a buffer that is not sharded, and the part that has all of its items."""
    dealing = deal(spec, 1)
    plan, known = dealing.index.plan, counters.read(spec.plan, whole.counters)
    slots = np.arange(spec.capacity, dtype=np.int32)
    kept = Draft.of(whole, spec.plan).read(numpy_ops.OPS, slots, dealing.index_leaves)
    draft = Draft.of(functions.init(numpy_ops.OPS, dealing.index), plan)
    draft.store(numpy_ops.OPS, slots, None, None, [kept[k] for k in dealing.index_leaves])
    numbers = known.replace(more={name: known.more[name] for name, _ in plan.counter_names})
    vector = counters.write(numpy_ops.OPS, plan, numbers)
    auxiliary = {name: whole.auxiliary[name] for name in plan.auxiliary}
    index = Arrays(draft.rows, draft.wide, whole.tree, vector, auxiliary)
    of_lanes = {name: known.more[name].reshape(-1, dealing.lanes) for name in _of_lanes(dealing)}
    auxiliary = {name: whole.auxiliary[name] for name in dealing.part.plan.auxiliary}
    return index, Arrays(whole.rows, whole.wide, None, _vector(dealing, 0, known.ends, of_lanes), auxiliary)


def join(spec: BufferSpec, index: Arrays, part: Arrays) -> Arrays:
    """The inverse of `split`."""
    dealing = deal(spec, 1)
    known = counters.read(dealing.index.plan, index.counters)
    of_part = counters.read(dealing.part.plan, part.counters).more
    more = {name: known.more.get(name, of_part.get(name)) for name, _ in spec.plan.counter_names}
    vector = counters.write(numpy_ops.OPS, spec.plan, known.replace(more=more))
    auxiliary = part.auxiliary | index.auxiliary
    return Arrays(part.rows, part.wide, index.tree, vector, {name: auxiliary[name] for name in spec.plan.auxiliary})


def of_whole(spec: BufferSpec, whole: Arrays, shards: int, numbers: Iterable[int]) -> tuple[Arrays, dict[int, Arrays]]:
    """The index, and the parts of some shards by number, of a buffer that is not sharded."""
    index, part = split(spec, whole)
    old, new = deal(spec, 1), deal(spec, shards)
    return index, {k: regrouped(old, index, {0: part}, new, k) for k in numbers}


def sources(old: Dealing, new: Dealing, shard: int) -> range:
    """The shards of a dealing in which the lanes, or slots, of a shard of another one lie.

    Example:
        >>> from functional_rb import BufferSpec, Unbounded
        >>> spec = BufferSpec((Unbounded(()),), 15, lanes=5)
        >>> [list(sources(deal(spec, 2), deal(spec, 3), shard)) for shard in range(3)]
        [[0], [0, 1], [1]]
    """
    first, last = _units(new, shard)
    return range(first // old.units_each, -(-last // old.units_each)) if first < last else range(0)


def regrouped(old: Dealing, index: Arrays, parts: Mapping[int, Arrays], new: Dealing, shard: int) -> Arrays:
    """The part of a shard in a new dealing, of the old parts that `sources` names; the same one, if dealt alike."""
    if old.shards == new.shards:
        return parts[shard] if shard in parts else Arrays(*functions.init(numpy_ops.OPS, new.part))
    new_part = Arrays(*functions.init(numpy_ops.OPS, new.part))
    units = _units(new, shard)
    more = {name: _numbers(new, name) for name in _of_lanes(new)}
    for k in sources(old, new, shard):
        old_part = parts[k]
        first, last = (min(max(unit, units[0]), units[1]) for unit in _units(old, k))
        arrays: list[NumpyArray] = [new_part.rows, *new_part.wide, *new_part.auxiliary.values()]
        old_arrays = [old_part.rows, *old_part.wide, *(old_part.auxiliary[name] for name in new_part.auxiliary)]
        for into, old_array in zip(arrays, old_arrays, strict=True):
            rows = len(into) // new.units_each  # of a lane: as many as it has items, frames, or steps that wait
            there = old_array[(first - k * old.units_each) * rows : (last - k * old.units_each) * rows]
            into[(first - units[0]) * rows : (last - units[0]) * rows] = there
        counted = counters.read(old.part.plan, old_part.counters).more
        for name, numbers in more.items():
            of_part = counted[name].reshape(-1, old.lanes_each)
            numbers[:, first:last] = of_part[:, first - k * old.lanes_each : last - k * old.lanes_each]
    ends = counters.read(new.index.plan, index.counters).ends
    return new_part._replace(counters=_vector(new, shard, ends, more))


def misfit(dealing: Dealing, index: Arrays, part: Arrays, shard: int) -> str | None:
    """Why a part cannot be that of a shard, whose items the index counts too; or None."""
    ends = counters.read(dealing.index.plan, index.counters).ends
    actual = counters.read(dealing.part.plan, part.counters).ends
    expected, length = _of_shard(dealing, shard, ends), dealing.part.plan.ring.length
    if (actual.sizes == expected.sizes).all() and (
        dealing.by_slots or ((actual.cursors - expected.cursors) % length == 0).all()
    ):
        return None
    where = "slots" if dealing.by_slots else "lanes"
    return (
        f"its {where} hold {actual.sizes.tolist()} items, and by the index, which all shards share, "
        f"{expected.sizes.tolist()}, or end at other places"
    )


# The lanes, or slots, of a shard, from the first to before the second.
def _units(dealing: Dealing, shard: int) -> tuple[int, int]:
    first, last = shard * dealing.units_each, (shard + 1) * dealing.units_each
    return min(first, dealing.units), min(last, dealing.units)


# The counters of a part that each lane has some of; what the writer counts of all lanes, the index counts.
def _of_lanes(dealing: Dealing) -> Iterable[str]:
    return [name for name, _ in dealing.part.plan.counter_names if name != REFUSED]


# Room for a counter of all lanes, int32 [k, lanes].
def _numbers(dealing: Dealing, name: str) -> NumpyArray:
    count = dict(dealing.part.plan.counter_names)[name] // dealing.lanes_each
    return np.zeros((count, dealing.lanes), np.int32)


# Where the rings of a shard are, lanes that the buffer does not have among them.
def _of_shard(dealing: Dealing, shard: int, ends: RingState) -> RingState:
    if dealing.by_slots:
        return ends_of_slots(numpy_ops.OPS, dealing, ends, np.array(shard, np.int32))
    limit = dealing.part.plan.ring.limit
    return RingState(_own(dealing, shard, ends.cursors % limit), _own(dealing, shard, ends.sizes))


# The numbers of a shard's lanes, [..., lanes_each], among those of all, int32 [..., lanes]; 0 for lanes there are not.
def _own(dealing: Dealing, shard: int, numbers: Array) -> Array:
    first, last = _units(dealing, shard)
    padded = np.zeros((*numbers.shape[:-1], dealing.lanes_each), np.int32)
    padded[..., : last - first] = numbers[..., first:last]
    return padded


def _vector(dealing: Dealing, shard: int, ends: RingState, more: Mapping[str, Array]) -> Array:
    nothing = np.zeros((), np.int32)
    counted = {name: _own(dealing, shard, numbers).reshape(-1) for name, numbers in more.items()}
    plan = dealing.part.plan
    counted = {name: counted.get(name, np.zeros(count, np.int32)) for name, count in plan.counter_names}
    numbers = Counters(_of_shard(dealing, shard, ends), nothing, nothing, nothing, nothing, counted)
    return counters.write(numpy_ops.OPS, plan, numbers)
