"""Arbitrary histories of every sampler and writer, in every storage, beside plain Python lists."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest

import functional_rb as frb
from functional_rb.testing import strategies
from tests.contract.random_slices import EPISODES, random_spec
from tests.support import backends, gpu
from tests.support.effort import effort
from tests.support.histories import STEP, Rng, Shapes, histories, pick, run
from tests.support.random_members import ON_JAX, ON_TORCH, ONE_LANE, SAMPLERS, SCORED, VARIANTS, WRITERS
from tests.support.spec_pool import OF_ALL_DTYPES, POOL, WIDE_DTYPES

WIDE = STEP | {"image": frb.Unbounded((33, 33), "bfloat16")}
EVERY_DTYPE = STEP | OF_ALL_DTYPES | WIDE_DTYPES
# Without bfloat16, whose NaNs XLA changes where it compiles quickly (see `conftest`).
BYTES = {name: OF_ALL_DTYPES[name] for name in ("bytes", "wide", "complex", "half")}
STORAGES = [*[frb.Device()] * 4, frb.Host(), frb.Memmap()]
ON_HOST = [frb.Host(), frb.Memmap()]


def of_a_sampler(rng: Rng, kind: str) -> frb.BufferSpec:
    """Few slots, so that histories go round many times."""
    lanes = None if kind in ONE_LANE else pick(rng, [None, 1, 2, 3])
    capacity = pick(rng, [4, 5, 7, 16, 17, 33] + [1] * (kind != "queue of windows")) * (lanes or 1)
    return frb.BufferSpec(pick(rng, [STEP, STEP, WIDE, EVERY_DTYPE]), capacity, SAMPLERS[kind](rng), lanes=lanes)


def of_a_writer(rng: Rng, kind: str) -> frb.BufferSpec:
    """Writers that choose take the items of all lanes together, in any number of slots."""
    lanes, capacity, writer = pick(rng, [None, 2, 3]), pick(rng, [4, 1, 7, 17]), WRITERS[kind](rng)
    names = ["uniform", "prioritized", "shuffled"] + ["in order", "recency"] * writer.in_order
    capacity = capacity * (lanes or 1) if writer.in_order else max(capacity, lanes or 1)
    return frb.BufferSpec(SCORED, capacity, SAMPLERS[pick(rng, names)](rng), writer, lanes=lanes)


KINDS: dict[str, Callable[[Rng], frb.BufferSpec]] = {
    **{kind: functools.partial(of_a_sampler, kind=kind) for kind in SAMPLERS},
    **{kind: functools.partial(of_a_writer, kind=kind) for kind in WRITERS},
    **{f"slices, {kind}": functools.partial(random_spec, kind=kind) for kind in ("with", "prioritized", "without")},
}


@pytest.mark.parametrize("kind", KINDS)
@histories(effort(8, 21))
def test_any_history(kind: str, rng: Rng) -> None:
    spec = KINDS[kind](rng)
    narrow = not any(leaf.dtype in ("int64", "float64") for leaf in spec.plan.leaves)  # as JAX needs them to be
    variant = pick(rng, [*VARIANTS, *(backends.HOST_VARIANTS if narrow else ())])
    spec = dataclasses.replace(spec, storage=pick(rng, ON_HOST if variant in backends.HOST_VARIANTS else STORAGES))
    run(rng, [variant], spec, 30, ON_TORCH)


@histories(effort(20, 40), item=strategies.item_specs(), capacity=st.integers(1, 40) | st.sampled_from([255, 256, 257]))
def test_any_item_and_any_capacity(rng: Rng, item: Any, capacity: int) -> None:
    spec = frb.BufferSpec(item, capacity, SAMPLERS[pick(rng, ["uniform", "prioritized"])](rng))
    sizes = (0, 1, 2, 3, capacity, capacity + 1, 2 * capacity + 1)
    run(rng, [pick(rng, VARIANTS)], spec, 20, Shapes(sizes, (1, 4), False))


ACROSS: dict[str, tuple[Sequence[str], frb.BufferSpec]] = {
    "a limit": (["jax", "torch"], frb.BufferSpec(STEP, 10, frb.Prioritized(max_times_sampled=3), lanes=2)),
    "shuffled": (["jax", "torch"], frb.BufferSpec(STEP, 7, frb.WithoutReplacement())),
    "in order": (["jax", "torch"], frb.BufferSpec(STEP, 10, frb.WithoutReplacement(True, shuffle=False), lanes=2)),
    "lifo": (["jax", "torch"], frb.BufferSpec(STEP, 7, frb.InOrder(newest_first=True, max_times_sampled=2))),
    "all dtypes": (["jax", "torch"], frb.BufferSpec(STEP | OF_ALL_DTYPES, 17, frb.Prioritized(alpha=0.6))),
    "best": (["jax", "torch"], frb.BufferSpec(SCORED, 7, frb.Prioritized(), frb.MaxValue("score", "mean"), lanes=2)),
    "reservoir": (["jax", "torch"], frb.BufferSpec(SCORED, 5, frb.WithoutReplacement(), frb.Reservoir())),
    "slices": (
        ["jax", "torch"],
        frb.BufferSpec(EPISODES, 14, frb.Slices(3, trajectory_key="episode", period=2), lanes=2),
    ),
    "prioritized slices": (
        ["jax", "torch"],
        frb.BufferSpec(STEP, 15, frb.PrioritizedSlices(2, strict_length=False, span=(False, True)), lanes=3),
    ),
    "slices without replacement": (
        ["jax", "torch"],
        frb.BufferSpec(STEP, 14, frb.SlicesWithoutReplacement(2), lanes=2),
    ),
    "array operations": (
        ["jax-core", "torch-core"],
        frb.BufferSpec(STEP | BYTES, 4, frb.Prioritized(alpha=1.0, new_priority="ever")),
    ),
    # While traced nobody is told that a buffer is full or empty: it is counted, and masked.
    "a queue, traced": (["jax-jit"], frb.BufferSpec(STEP, 18, frb.Queue(2), lanes=3)),
    "full, traced": (["jax-jit"], frb.BufferSpec(STEP, 12, writer=frb.StopWhenFull(), lanes=2)),
    "traced": (["jax-jit"], frb.BufferSpec(STEP | BYTES, 17, frb.Prioritized(alpha=1.0, beta=1.0))),
}
ACROSS |= {f"nest {k}": (["jax", "torch"], POOL[k]) for k in effort([2], range(len(POOL)))}
# What these keep, others in the table keep too, or the members that go from backend to backend in `test_members`.
ALIKE = ("lifo", "in order", "shuffled", "slices", "slices without replacement", "reservoir", "full, traced", "best")


@pytest.mark.parametrize("name", [name for name in ACROSS if name not in effort(ALIKE, ())])
@histories(effort(3, 6))
def test_compiled_and_from_one_backend_to_the_other(name: str, rng: Rng) -> None:
    variants, spec = ACROSS[name]
    run(rng, variants, spec, 20, ON_JAX)


@gpu.not_on_one("the buffers are in the host's memory")
@histories(6)
def test_from_the_host_to_torch_and_back(rng: Rng) -> None:
    samplers = [frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement(), frb.Prioritized(max_times_sampled=2)]
    spec = frb.BufferSpec(STEP, 7, pick(rng, samplers), storage=pick(rng, ON_HOST))
    run(rng, [pick(rng, backends.HOST_VARIANTS), "torch"], spec, 20, Shapes((1, 2, 5), (1, 4), False))
