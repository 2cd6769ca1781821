"""Which blocks a save has to write.

Of the items a state that comes after the last checkpoint (see `storage.save_history`) differs from it in the slots
between the two cursors, and nothing has to be read to know that. Of all else, and of states whose past nobody knows,
the blocks' checksums tell.
"""

from __future__ import annotations

import numpy as np

from functional_rb.buffer.reader import Reader
from functional_rb.checkpoint.blocks import Mask, Run, Stored, bytes_of, chunks, runs_of, stored_arrays
from functional_rb.checkpoint.opened import Opened
from functional_rb.core import counters, handles
from functional_rb.samplers import Queue
from functional_rb.structures.ring import around
from functional_rb.structures.stored_arrays import auxiliary_name, is_items

# Segments that a save leaves a checkpoint: what reading opens, and what a manifest tells, stays small.
MOST = 16

Masks = dict[str, Mask]
Vector = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


def changed(reader: Reader, vector: Vector, base: Opened | None) -> Masks:
    """The blocks of each array that are not as in a checkpoint, or, without one, not as in an empty buffer."""
    arrays = stored_arrays(reader.spec)
    # The files know of their own rows which were ever written.
    present = {} if reader.in_place is None else reader.in_place.present
    written = None if present else _written(reader, vector)
    added = None if base is None else _added(reader, vector, base)
    masks = {}
    for name, stored in arrays.items():
        if is_items(name) and added is not None:
            masks[name] = _blocks(stored, added)
        elif name in present:
            masks[name] = present[name] if base is None else _differing(reader, stored, base, present[name])
        elif is_items(name) and written is not None:
            there = _blocks(stored, written)
            masks[name] = there if base is None else _differing(reader, stored, base, there)
        else:
            masks[name] = _differing(reader, stored, base, np.ones(stored.count, bool))
    return masks


def _written(reader: Reader, vector: Vector) -> list[Run] | None:
    # Outside of these slots no row was ever written; None if that is not known.
    spec = reader.spec
    if spec.plan.frames is not None or isinstance(spec.sampler, Queue):  # these take items out, and leave their rows
        return None
    if not spec.writer.in_order:
        # Handles start at 0, so that a slot whose handle is -1 never had an item.
        return runs_of(reader.read(auxiliary_name(handles.CURRENT), 0, spec.capacity) >= 0)
    ends = counters.read(spec.plan, vector).ends
    length = spec.plan.ring.length
    slots: list[Run] = []
    for lane, (cursor, size) in enumerate(zip(ends.cursors.tolist(), ends.sizes.tolist(), strict=True)):
        slots += [(lane * length + start, lane * length + stop) for start, stop in around(cursor - size, size, length)]
    return slots


def _added(reader: Reader, vector: Vector, base: Opened) -> list[Run] | None:
    # None if nothing proves that the state comes after the checkpoint.
    spec = reader.spec
    most = reader.save_history.since(base.manifest.stamp)
    if most is None or not spec.writer.in_order:
        return None
    length, limit = spec.plan.ring.length, spec.plan.ring.limit
    before = counters.read(spec.plan, np.array(base.manifest.counters, np.int32)).ends.cursors.tolist()
    now = counters.read(spec.plan, vector).ends.cursors.tolist()
    slots: list[Run] = []
    for lane, (first, last) in enumerate(zip(before, now, strict=True)):
        # Cursors begin again at 0 below 2^31; after so many rows their distance says nothing.
        count = length if most >= limit else (last - first) % limit
        slots += [(lane * length + start, lane * length + stop) for start, stop in around(first, count, length)]
    return slots


def _blocks(stored: Stored, slots: list[Run]) -> Mask:
    mask = np.zeros(stored.count, bool)
    for start, stop in slots:
        mask[stored.of_rows(start, stop)] = True
    return mask


def _differing(reader: Reader, stored: Stored, base: Opened | None, there: Mask) -> Mask:
    # Only blocks that may have been written, here or in the checkpoint, are read.
    if base is None:
        table = stored.blank()
    else:
        table = base.whole_table(stored.name)
        there = there | (base.owners(stored.name) >= 0)
    differs = np.zeros(stored.count, bool)
    for chunk in chunks(runs_of(there)):
        content = bytes_of(reader.read(stored.name, *stored.span(chunk)))
        digests = np.frombuffer(stored.digests(content), np.uint8).reshape(chunk[1] - chunk[0], -1)
        differs[slice(*chunk)] = (digests != table[slice(*chunk)]).any(axis=1)
    return differs


def absorb(base: Opened, masks: Masks) -> list[int]:
    """The segments that stay, after the blocks of those that go were added to the masks: a save writes these anew.

    So there are few segments: each costs a read, and is mostly overwritten. A segment goes if what still counts of it
    is no more than what is to be written (or if there are too many). So a block is written again only with at least as
    much as it came with, and the base at last, when the deltas outgrow it.
    """
    arrays = base.manifest.arrays
    owners = {name: base.owners(name) for name in masks}
    live = {
        k: {name: (owners[name] == k) & ~mask for name, mask in masks.items()}
        for k in range(len(base.manifest.segments))
    }
    sizes = {k: _nbytes(arrays, live_masks) for k, live_masks in live.items()}
    stay = set(live)
    for k in sorted(live, key=sizes.__getitem__):
        # The smallest first: what is absorbed makes the save larger, so that the next one may be worth it too.
        if sizes[k] <= _nbytes(arrays, masks) or len(stay) >= MOST:
            stay.discard(k)
            for name in masks:
                masks[name] = masks[name] | live[k][name]
    return sorted(stay)


def _nbytes(arrays: dict[str, Stored], masks: Masks) -> int:
    return sum(int(mask.sum()) * arrays[name].rows_of_block * arrays[name].row_bytes for name, mask in masks.items())
