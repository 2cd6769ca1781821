"""Of what spec a shard is, and what shards cannot do."""

from __future__ import annotations

import dataclasses

from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap


def shard_spec(spec: BufferSpec, shards: int) -> BufferSpec:
    """The spec of one shard's part.

    Raises:
        TypeError: for what is no spec.
        ValueError: for what shards cannot do, naming the field, and why they cannot.
    """
    if not isinstance(spec, BufferSpec):
        raise TypeError(f"start: expected a BufferSpec, got {type(spec).__name__}")
    parts = shards * (spec.lanes or 1)
    if spec.capacity % parts:
        named = f"shards={shards}" + (f" times lanes={spec.lanes}" if spec.lanes else "")
        raise ValueError(
            f"BufferSpec.capacity: expected a multiple of {named}, got {spec.capacity}; "
            f"{max(spec.capacity - spec.capacity % parts, parts)} would do"
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


def _check_sampler(spec: BufferSpec) -> None:
    """Refuse laws that are not those of one draw after the other."""
    sampler = spec.sampler
    if sampler.takes_out:
        raise ValueError(
            f"BufferSpec.sampler: {sampler} takes out what it gives, and an answer that is lost on its way would lose "
            f"that; items of several shards have no single order either. Use ray.util.queue.Queue, or "
            f"frb.ray.RateLimit(samples_per_insert=1) with frb.Uniform()"
        )
    if not sampler.single_law or sampler.remembers or sampler.steps_in_a_row is not None:
        raise ValueError(
            f"BufferSpec.sampler: expected one whose draws do not depend on each other nor on the order over all "
            f"shards, got {sampler}; use frb.Uniform(), frb.Prioritized(), frb.Recency() or slices with an axis of "
            f"their own"
        )


def _check_writer(spec: BufferSpec) -> None:
    """Refuse writers for which the whole buffer is more than its parts."""
    writer = spec.writer
    if not writer.in_order or not writer.overwrites:
        raise ValueError(
            f"BufferSpec.writer: {writer} decides by all items of the buffer which it keeps, and a shard knows its own "
            f"alone: expected frb.RoundRobin(); leave the writer out"
        )
