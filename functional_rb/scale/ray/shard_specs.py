"""The spec of one shard, made of that of the whole buffer, and what shards cannot do."""

from __future__ import annotations

import dataclasses

from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.samplers import Queue
from functional_rb.writers import StopWhenFull


def shard_spec(spec: BufferSpec, shards: int) -> BufferSpec:
    """The spec of one shard's part."""
    if not isinstance(spec, BufferSpec):
        raise TypeError(f"start: expected a BufferSpec, got {type(spec).__name__}")
    rings = shards * (spec.lanes or 1)
    if spec.capacity % rings:
        factors = f"shards={shards}" + (f" times lanes={spec.lanes}" if spec.lanes else "")
        raise ValueError(
            f"BufferSpec.capacity: expected a multiple of {factors}, got {spec.capacity}; "
            f"{max(spec.capacity - spec.capacity % rings, rings)} would do"
        )
    _check_sampler(spec)
    _check_writer(spec)
    if isinstance(spec.storage, Memmap) and (spec.storage.path is not None or spec.storage.shared):
        raise ValueError(
            f"BufferSpec.storage: {spec.storage} names files that all shards would write to; give frb.Memmap() without "
            f"a path, and start(checkpoint=...) for what is to last"
        )
    odd = [name for name, leaf in zip(spec.added.names, spec.added.leaves, strict=True) if leaf.dtype == "bfloat16"]
    if odd:
        raise ValueError(
            f"leaf {odd[0]!r}: expected a dtype of NumPy in shards, got bfloat16; store its bits as uint16"
        )
    return dataclasses.replace(spec, capacity=spec.capacity // shards)


# Refuse laws over all items that do not follow from the shards' own.
def _check_sampler(spec: BufferSpec) -> None:
    sampler = spec.sampler
    if isinstance(sampler, Queue):
        return
    if sampler.compares_versions:
        raise ValueError(
            f"BufferSpec.sampler: got {sampler}, but shards hear no versions of a policy; use frb.Uniform() with "
            f"client.add(version=...) and client.sample(oldest=...), which masks what is too old"
        )
    if not sampler.single_law or sampler.remembers or sampler.takes_out or sampler.steps_in_a_row is not None:
        raise ValueError(
            f"BufferSpec.sampler: expected one whose draws do not depend on each other nor on the order over all "
            f"shards, got {sampler}: what it has drawn, and in which order items were added, each shard knows of its "
            f"own items alone, and after a crash as of its last checkpoint; use frb.Uniform(), frb.Prioritized(), "
            f"frb.Recency(), slices with an axis of their own, or frb.Queue(), which gives each item once"
        )


def _check_writer(spec: BufferSpec) -> None:
    writer = spec.writer
    if not (writer.in_order and writer.overwrites) and not isinstance(writer, StopWhenFull):
        raise ValueError(
            f"BufferSpec.writer: {writer} decides by all items of the buffer which it keeps, and a shard knows its own "
            f"alone: expected frb.RoundRobin() or frb.StopWhenFull(); leave the writer out"
        )
