"""The items that `add` and `update` are given, checked before any array work, as leaves in the buffer's order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from functional_rb.base import nest, object_arrays
from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.buffer.checks import check_dtype, check_prioritized, check_unpacked, check_writable, known_size
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Host
from functional_rb.specs import ArraySpec
from functional_rb.structures.ring import modulus

# Makes an array of the backend, of the spec's dtype or an error: (leaf, its spec, its path as shown) -> array.
Convert = Callable[[object, ArraySpec, str], BackendArray]


class Batch(NamedTuple):
    """Checked input of `add`: leaves [size, *shape], mask and priorities [size]."""

    leaves: list[BackendArray]
    size: int
    mask: BackendArray | None
    priorities: BackendArray | None


def batch(
    spec: BufferSpec,
    items: Nest,
    convert: Convert,
    mask: BackendArray | None,
    priorities: BackendArray | None,
    time_major: bool = True,
) -> Batch:
    """Check what `add` is given: one item, or a batch; of lanes [T, E, *shape], else [E, T, *shape]."""
    check_unpacked(items, "add")
    leaves = nest.flatten_as(spec.added.structure, items)
    if not time_major and spec.lanes is None:
        raise ValueError(
            "add: time_major=False is for the batches [E, T, *shape] of a buffer with lanes; leave it out, or give "
            "BufferSpec(lanes=E)"
        )
    if spec.added.objects:
        leaves, convert = _with_objects(spec, leaves, convert, time_major)
    arrays = []
    size: tuple[int, ...] | None = None
    for leaf, expected, name in zip(leaves, spec.added.leaves, spec.added.names, strict=True):
        array = convert(leaf, expected, name)
        arrays.append(array)
        shape = array.shape
        if size is not None and shape == (*size, *expected.shape):
            continue  # the usual case first: this runs at every call of eager backends
        lead = _leading(spec, tuple(shape), expected.shape, name, time_major)
        if size is not None and lead != size:
            raise ValueError(
                f"leaf {name!r}: expected {_count(size)} as leaf {spec.added.names[0]!r} has, got {_count(lead)}; "
                f"give every leaf the same batch axis"
            )
        size = lead
    size = _with_companions(spec, size, mask, priorities, time_major)
    if priorities is not None:
        check_prioritized(spec, "add")
    rows, most = math.prod(size), modulus(spec.capacity)
    if spec.rows(rows) > most:  # the serial numbers of items go on by as many
        raise ValueError(f"add: expected up to {most} rows in one batch, got {rows}; add them in parts")
    if len(size) == 2 and not time_major:
        arrays = [leaf.swapaxes(0, 1) for leaf in arrays]
        mask, priorities = (None if x is None else x.swapaxes(0, 1) for x in (mask, priorities))
    if len(size) != 1:
        arrays = [leaf.reshape(rows, *expected.shape) for leaf, expected in zip(arrays, spec.added.leaves, strict=True)]
    flat = [None if x is None else x.reshape(rows) for x in (mask, priorities)]
    return Batch(arrays, rows, *flat)


# Leaves of which objects are object arrays with the batch axes of the others, and how only these are converted.
#
# Where all leaves are objects, an object array is a batch (and in `Host` a list), and anything else one item.
def _with_objects(
    spec: BufferSpec, leaves: list[BackendArray], convert: Convert, time_major: bool
) -> tuple[list[BackendArray], Convert]:
    lead: tuple[int, ...] | None = None
    for k, (leaf, expected, name) in enumerate(zip(leaves, spec.added.leaves, spec.added.names, strict=True)):
        if lead is None and k not in spec.added.objects:
            lead = _leading(spec, tuple(convert(leaf, expected, name).shape), expected.shape, name, time_major)
    if lead is None:
        pairs = zip(leaves, spec.added.leaves, strict=True)
        batches = [
            leaf.shape[: max(leaf.ndim - len(leaf_spec.shape), 0)]
            for leaf, leaf_spec in pairs
            if object_arrays.is_object_array(leaf)
        ]
        if not batches and isinstance(spec.storage, Host):
            batches = _listed(spec, leaves, time_major)
        lead = batches[0] if batches else ()
    gathered = list(leaves)
    for k in spec.added.objects:
        gathered[k] = object_arrays.gather(leaves[k], lead, spec.added.leaves[k].shape, spec.added.names[k])

    def convert_arrays(leaf: object, expected: ArraySpec, name: str) -> object:
        return leaf if expected.dtype == "object" else convert(leaf, expected, name)

    return gathered, convert_arrays


# The batch axes that lists have, where every leaf is a single object: [B], with lanes [E], [T, E] or [E, T].
def _listed(spec: BufferSpec, leaves: Sequence[object], time_major: bool) -> list[tuple[int, ...]]:
    if any(leaf.shape for leaf in spec.added.leaves) or not isinstance(leaves[0], list):
        return []
    first = leaves[0]
    steps = spec.lanes is not None and bool(first) and all(isinstance(x, list) for x in first)
    if steps:
        steps = all(len(x) == (spec.lanes if time_major else len(first[0])) for x in first)
    return [(len(first), len(first[0])) if steps else (len(first),)]


# The axes of a leaf before those of an item: none or (B,), and with lanes (E,) or (T, E), or (E, T).
def _leading(
    spec: BufferSpec, shape: tuple[int, ...], item: tuple[int, ...], name: str, time_major: bool = True
) -> tuple[int, ...]:
    extra = len(shape) - len(item)
    lead = shape[: max(extra, 0)]
    fits = extra >= 0 and shape[extra:] == item
    if spec.lanes is None:
        if not (fits and extra <= 1):
            raise ValueError(
                f"leaf {name!r}: expected shape {item} for one item or {('B', *item)} for a batch, "
                f"got {shape}; reshape it, or change BufferSpec.item"
            )
    elif not (fits and 1 <= extra <= 2 and lead[-1 if time_major else 0] == spec.lanes):
        several = ("T", spec.lanes, *item) if time_major else (spec.lanes, "T", *item)
        other = f"time_major={not time_major}" if fits and extra == 2 and spec.lanes in lead else "BufferSpec.lanes"
        raise ValueError(
            f"leaf {name!r}: expected shape {(spec.lanes, *item)} for a step of all lanes or "
            f"{several} for several, got {shape}; reshape it, or {'give' if '=' in other else 'change'} {other}"
        )
    return tuple([known_size(f"leaf {name!r}", n) for n in lead])


# Check mask and priorities against the batch; where the item has no leaves, they give its size.
def _with_companions(
    spec: BufferSpec,
    size: tuple[int, ...] | None,
    mask: BackendArray | None,
    priorities: BackendArray | None,
    time_major: bool,
) -> tuple[int, ...]:
    for name, array, dtype in (("mask", mask, "bool"), ("priorities", priorities, "float32")):
        if array is None:
            continue
        check_dtype(name, array, dtype)
        shape = tuple(array.shape)
        if name == "priorities" and size is not None and shape == (*size, 1):
            shape = size  # as critics give them
        if spec.lanes is None and len(shape) != 1 and not (size in (None, ()) and shape == ()):
            raise ValueError(f"{name}: expected shape (B,), one for each item, got {shape}; reshape it")
        if spec.lanes is not None and size is None:
            _leading(spec, shape, (), name, time_major)
        if size is None:
            size = shape
        # One item may come with one mark or priority, with or without an axis.
        if shape != size and not (size == () and shape == (1,)):
            raise ValueError(
                f"{name}: expected {_count(size)} as the items have, got {_count(shape)}; give one for each item"
            )
    if size is not None:
        return size
    return () if spec.lanes is None else (spec.lanes,)


def _count(lead: tuple[int, ...]) -> str:
    return {0: "no batch axis", 1: f"{lead[0] if lead else 0} rows"}.get(len(lead), f"leading axes {lead}")


def replacements(spec: BufferSpec, items: Nest, convert: Convert, size: int) -> dict[int, BackendArray]:
    """Check the leaves that `update` rewrites: some of the item's, each [B, *shape]; by position."""
    if items is None:
        return {}
    check_writable(spec)
    leaves = nest.flatten_some(spec.plan.structure, items)
    arrays: dict[int, BackendArray] = {}
    for position, leaf in leaves.items():
        expected, name = spec.plan.leaves[position], spec.plan.names[position]
        if spec.plan.boundaries is not None:
            who = "a transform" if spec.sampler.boundaries is None else type(spec.sampler).__name__
            spec.plan.boundaries.check_rewritten(who, name)
        if position in spec.sampler.known_leaves(spec.plan):
            raise ValueError(
                f"update: leaf {name!r} tells {type(spec.sampler).__name__} how likely an item is, and cannot be "
                f"rewritten; leave it out"
            )
        if position not in spec.plan.stored:
            raise ValueError(
                f"update: leaf {name!r} is stored as frames that other items share (BufferSpec.compact), and cannot be "
                f"rewritten; leave it out, or leave it out of compact"
            )
        if position in spec.plan.objects:
            arrays[position] = object_arrays.gather(leaf, (size,), expected.shape, name)
            continue
        assert isinstance(expected, ArraySpec)
        arrays[position] = convert(leaf, expected, name)
        if tuple(arrays[position].shape) != (size, *expected.shape):
            raise ValueError(
                f"leaf {name!r}: expected shape {(size, *expected.shape)}, one row for each index, "
                f"got {tuple(arrays[position].shape)}"
            )
    return arrays
