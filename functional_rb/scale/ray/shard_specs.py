"""Of what spec a shard is, and what shards cannot do."""

from __future__ import annotations

import dataclasses

from functional_rb.buffer.spec import BufferSpec


def shard_spec(spec: BufferSpec, shards: int) -> BufferSpec:
    """The spec of one shard's part.

    Raises:
        TypeError: for what is no spec.
        ValueError: for what shards cannot do, naming the field.
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
    sampler, writer = spec.sampler, spec.writer
    if not sampler.single_law or sampler.remembers or sampler.steps_in_a_row is not None:
        raise ValueError(
            f"BufferSpec.sampler: expected one that draws with replacement and remembers nothing, in shards, got "
            f"{sampler}; use frb.Uniform(), frb.Prioritized(), frb.Recency() or slices with an axis of their own"
        )
    if not writer.in_order or not writer.overwrites:
        raise ValueError(f"BufferSpec.writer: expected frb.RoundRobin() in shards, got {writer}; leave it out")
    if spec.plan.objects:
        raise ValueError(
            "BufferSpec.item: expected arrays alone in shards, got frb.specs.NonTensor; leave such leaves out"
        )
    odd = [name for name, leaf in zip(spec.added.names, spec.added.leaves, strict=True) if leaf.dtype == "bfloat16"]
    if odd:
        raise ValueError(
            f"leaf {odd[0]!r}: expected a dtype of NumPy in shards, got bfloat16; store its bits as uint16"
        )
    return dataclasses.replace(spec, capacity=spec.capacity // shards)
