"""Strategies that go back to the library's: what they do otherwise counts, though kernels know what they come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend

ITEM = {"x": frb.Unbounded((), "int32"), "done": frb.Binary()}
N = 12


def first_of_all(ops: Any, slots: Any, selection: Any) -> tuple[Any, Any]:
    return ops.full_like(slots, 0), selection


@dataclasses.dataclass(frozen=True)
class FirstUniform(frb.Uniform):
    """Draws what Uniform draws, and gives the item in the first slot in place of each."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        return first_of_all(ops, *super().draw(ops, draft, draws, beta, batch))


@dataclasses.dataclass(frozen=True)
class FirstPrioritized(frb.Prioritized):
    """Draws what Prioritized draws, and gives the item in the first slot in place of each."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        return first_of_all(ops, *super().draw(ops, draft, draws, beta, batch))


@dataclasses.dataclass(frozen=True)
class FirstWithoutReplacement(frb.WithoutReplacement):
    """Draws what WithoutReplacement draws, and gives the item in the first slot in place of each."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        return first_of_all(ops, *super().draw(ops, draft, draws, beta, batch))


@dataclasses.dataclass(frozen=True)
class FirstSlices(frb.Slices):
    """Draws what Slices draws, and gives the item in the first slot in place of each."""

    def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
        return first_of_all(ops, *super().draw(ops, draft, draws, beta, batch))


@dataclasses.dataclass(frozen=True)
class Halves(frb.RoundRobin):
    """Writes no more than every other item of a batch."""

    def plan_write(self, ops: Any, draft: Any, leaves: Sequence[Any], batch: int, mask: Any, draws: Any) -> Any:
        even = ops.arange(batch, like=draft.counters.ends.sizes) % 2 == 0
        return super().plan_write(ops, draft, leaves, batch, even if mask is None else mask & even, draws)


def filled(backend: Backend, spec: frb.BufferSpec) -> Any:
    numbers = np.arange(N, dtype=np.int32)
    return backend.add(backend.init(spec), backend.tree({"x": numbers, "done": numbers % 4 == 3}))


@pytest.mark.parametrize(
    "sampler",
    [FirstUniform(), FirstPrioritized(), FirstWithoutReplacement(), FirstSlices(2, end_keys=("done",))],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_sampler_that_draws_otherwise_is_asked(backend: Backend, sampler: Any) -> None:
    state = filled(backend, frb.BufferSpec(ITEM, N, sampler))
    _, sample = backend.sample(state, backend.rb.key(0), 6)
    assert not backend.numpy(sample.items["x"]).any()


def test_a_writer_that_writes_otherwise_is_asked(backend: Backend) -> None:
    state = filled(backend, frb.BufferSpec(ITEM, N, writer=Halves()))
    assert int(backend.rb.size(state)) == N // 2


def test_kernels_know_the_librarys_own() -> None:
    known = {
        "fused": (frb.Uniform(), frb.Prioritized(), frb.RoundRobin(), frb.Immutable()),
        "fused_epochs": (frb.WithoutReplacement(),),
        "fused_slices": (frb.Slices(2),),
    }
    for name, strategies in known.items():
        assert all(getattr(strategy, name) for strategy in strategies), name
