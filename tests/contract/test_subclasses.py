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


def first(kind: type) -> Any:
    """A sampler that draws what another one draws, and gives the item in the first slot in place of each."""

    @dataclasses.dataclass(frozen=True)
    class First(kind):
        def draw(self, ops: Any, draft: Any, draws: Any, beta: Any, batch: int) -> Any:
            slots, selection = super().draw(ops, draft, draws, beta, batch)
            return ops.full_like(slots, 0), selection

    return First


@dataclasses.dataclass(frozen=True)
class Halves(frb.RoundRobin):
    """Writes no more than every other item of a batch."""

    def plan_write(self, ops: Any, draft: Any, leaves: Sequence[Any], batch: int, mask: Any, draws: Any) -> Any:
        even = ops.arange(batch, like=draft.counters.ends.sizes) % 2 == 0
        return super().plan_write(ops, draft, leaves, batch, even if mask is None else mask & even, draws)


def filled(backend: Backend, spec: frb.BufferSpec) -> Any:
    numbers = np.arange(N, dtype=np.int32)
    return backend.add(backend.init(spec), backend.tree({"x": numbers, "done": numbers % 4 == 3}))


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (frb.Uniform, {}),
        (frb.Prioritized, {}),
        (frb.WithoutReplacement, {}),
        (frb.Slices, {"length": 2, "end_keys": ("done",)}),
    ],
)
def test_a_sampler_that_draws_otherwise_is_asked(backend: Backend, kind: type, given: dict[str, Any]) -> None:
    state = filled(backend, frb.BufferSpec(ITEM, N, first(kind)(**given)))
    _, sample = backend.sample(state, backend.rb.key(0), 6)
    assert not backend.numpy(sample.items["x"]).any()


def test_a_writer_that_writes_otherwise_is_asked(backend: Backend) -> None:
    state = filled(backend, frb.BufferSpec(ITEM, N, writer=Halves()))
    assert int(backend.rb.size(state)) == N // 2


def test_kernels_know_the_librarys_own() -> None:
    known = {
        "buffer": (frb.Uniform(), frb.Prioritized()),
        "draws": (frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement(), frb.Slices(2), frb.PrioritizedSlices(2)),
        "updates": (frb.PrioritizedSlices(2), frb.Prioritized(), frb.Prioritized(replacement=False)),
        "appends": (
            frb.Uniform(),
            frb.Prioritized(),
            frb.WithoutReplacement(),
            frb.Slices(2),
            frb.PrioritizedSlices(2),
        ),
    }
    item = ITEM | {"done": frb.Binary()}
    for name, samplers in known.items():
        for sampler in samplers:
            assert getattr(frb.BufferSpec(item, N, sampler).known, name), name
            assert not any(frb.BufferSpec(item, N, subclass_of(sampler)).known[:4]), name
    for writer in frb.RoundRobin(), frb.Immutable():
        assert frb.BufferSpec(ITEM, N, writer=writer).known.buffer
        assert not any(
            getattr(frb.BufferSpec(ITEM, N, writer=subclass_of(writer)).known, x)
            for x in ("draws", "buffer", "appends")
        )


def subclass_of(strategy: Any) -> Any:
    """The same strategy, of a class that does nothing otherwise; kernels cannot see that."""
    fields = {field.name: getattr(strategy, field.name) for field in dataclasses.fields(strategy) if field.init}
    return type("Mine", (type(strategy),), {})(**fields)
