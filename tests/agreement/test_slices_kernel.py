"""The fused kernel of slices: the core's bits, of all rings, rules and items."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from functional_rb.buffer.known import Draws
from functional_rb.core import counters
from tests.agreement.carriers import LIBRARIES, OnTorch, told
from tests.support.backends import needs_native
from tests.support.chain_programs import Noting
from tests.support.effort import effort
from torch_backend.memory.library import TORCH

ITEM = {"done": frb.Binary(), "id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1030,), "uint8")}
ITEM |= {"reward": frb.Unbounded(), "x": frb.Unbounded((3,))}
RETURNS = frb.n_step(2, 0.9, reward_key="reward", terminated_key="done", end_keys=("done",))
PIXELS = {"pixels": frb.Unbounded((3, 3, 1), "uint8"), "next": {"pixels": frb.Unbounded((3, 3, 1), "uint8")}}


def items(rng: np.random.Generator, first: int, n: int, spec: frb.BufferSpec) -> dict[str, Any]:
    """Steps that are told apart, [n] or [n // lanes, lanes], a trajectory ending at three of ten."""
    ids = np.arange(first, first + n, dtype=np.int32)
    made = {"done": rng.random(n) < 0.3, "id": ids}
    made |= {"image": np.repeat(ids[:, None] % 251, 1030, 1).astype(np.uint8), "reward": ids.astype(np.float32)}
    made["x"] = np.stack([ids, -ids, ids / 2], 1).astype(np.float32)
    return {name: x if spec.lanes is None else x.reshape(-1, spec.lanes, *x.shape[1:]) for name, x in made.items()}


@st.composite
def specs(draw: st.DrawFn) -> frb.BufferSpec:
    length, strict = draw(st.integers(1, 5), "length"), draw(st.booleans(), "strict")
    lanes, steps = draw(st.sampled_from([None, 2, 3])), draw(st.sampled_from([5, 6, 17]))
    span = False if strict else draw(st.sampled_from([False, True, (0, length - 1)]))
    settings: dict[str, Any] = {
        "strict_length": strict,
        "period": draw(st.integers(1, 3)),
        "batch": draw(st.sampled_from(["slices", "steps"])),
        "flat": draw(st.booleans()),
        "end_keys": ("done",),
    }
    if draw(st.booleans(), "by priority"):
        sampler: Any = frb.PrioritizedSlices(length, span=(False, span is True), **settings)
    else:
        sampler = frb.Slices(length, span=span, weighting=draw(st.sampled_from(["trajectory", "window"])), **settings)
    transforms = draw(st.sampled_from([(), RETURNS]))
    return frb.BufferSpec(ITEM, steps * (lanes or 1), sampler, lanes=lanes, transforms=transforms)


@hypothesis.settings(max_examples=effort(60, 1000))
@hypothesis.given(data=st.data())
def test_the_kernel_gives_the_cores_bits(data: st.DataObject) -> None:
    """Whole histories, of lanes that go on by different numbers of steps and whose handles begin anew."""
    on, spec = data.draw(st.sampled_from(LIBRARIES), "library"), data.draw(specs(), "spec")
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    assert spec.known.draws is Draws.SLICES
    state, lanes, stored = on.init(spec), spec.lanes or 1, 0
    first = counters.CURSOR if spec.lanes is None else counters.BASE
    behind = data.draw(st.sampled_from([0, 1, 4]), "behind")
    state._counters[first : first + lanes] = (spec.plan.ring.limit - behind) % spec.plan.ring.limit
    for _ in range(data.draw(st.integers(1, 4), "steps")):
        n = lanes * data.draw(st.integers(1, 9), "rows")
        mask = rng.random(n) < 0.7 if data.draw(st.booleans(), "masked") else None
        mask = mask if mask is None or spec.lanes is None else mask.reshape(-1, lanes)
        state, stored = on.add(state, items(rng, stored, n, spec), mask), stored + n
        if spec.sampler.has_priorities:
            some = rng.integers(0, max(stored, 1), 9).astype(np.int32)
            state = on.update(state, some, rng.choice([0.0, 1e-40, 0.3, 7.0, 1e30], 9).astype(np.float32))
        slices, seed = data.draw(st.sampled_from([1, 2, 8, 40]), "batch"), data.draw(st.integers(0, 9), "key")
        batch = slices * (spec.sampler.length if spec.sampler.batch == "steps" else 1)
        drawn = []
        for use in (True, False):
            with frb.kernels(use):
                try:
                    drawn.append(told(on.sample(state, seed, batch)[1:]))
                except ValueError as error:
                    drawn.append([str(error)])
        assert drawn[0] == drawn[1]


def test_where_no_slice_is_the_core_says_why() -> None:
    spec = frb.BufferSpec(ITEM, 8, frb.Slices(5, end_keys=("done",)))
    state = OnTorch.add(OnTorch.init(spec), items(np.random.default_rng(0), 0, 2, spec))
    assert TORCH.chain.draw(state, torch_backend.key(0), 3, 0.0, None) is NotImplemented
    with pytest.raises(ValueError, match="stored items"):
        OnTorch.sample(state, 0, 3)


def test_steps_without_a_priority_are_not_drawn() -> None:
    """Not even where no step has one: a window begins at each."""
    rb, sampler = torch_backend, frb.PrioritizedSlices(1, end_keys=("done",))
    spec = frb.BufferSpec(ITEM, 8, sampler)
    state = rb.add(rb.init(spec), items(np.random.default_rng(0), 0, 8, spec))
    one = rb.update(state, np.arange(8), np.array([0, 0, 0, 2, 0, 0, 0, 0], np.float32))
    assert set(rb.sample(one, rb.key(0), 20)[1].indices[:, 0].tolist()) == {3}
    none = rb.update(state, np.arange(8), np.zeros(8, np.float32))
    assert TORCH.chain.draw(none, rb.key(0), 3, 0.4, None) is NotImplemented
    with pytest.raises(ValueError, match="with a positive priority"):
        rb.sample(none, rb.key(0), 3)


@pytest.mark.parametrize("kind", ["frames", "objects"])
def test_items_that_are_not_plain_are_read(kind: str) -> None:
    """Frames that are shared, and Python objects."""
    n, rb = 12, torch_backend
    item, batch = {"done": frb.Binary()}, {"done": np.arange(n) % 5 == 4}
    if kind == "objects":
        item, batch = item | {"text": frb.specs.NonTensor()}, batch | {"text": [str(k) for k in range(n)]}
    else:
        pixels = np.arange(9 * (n + 1), dtype=np.uint8).reshape(n + 1, 3, 3, 1)
        item, batch = item | PIXELS, batch | {"pixels": pixels[:-1], "next": {"pixels": pixels[1:]}}
    spec = frb.BufferSpec(item, 16, frb.Slices(3, strict_length=False, end_keys=("done",)))
    storage: Any = {"compact": frb.Compact()} if kind == "frames" else {"storage": frb.Objects()}
    state, found = rb.add(rb.init(dataclasses.replace(spec, **storage)), batch), []
    for use in (True, False):
        with frb.kernels(use):
            found.append(told(OnTorch.sample(state, 4, 6)[1:]))
    assert found[0] == found[1]


@needs_native
def test_which_buffers_the_kernel_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Noting(TORCH.chain)
    monkeypatch.setattr(TORCH, "chain", chain)
    spec = frb.BufferSpec({"x": frb.Unbounded(()), "done": frb.Binary()}, 6, frb.Slices(2, end_keys=("done",)))
    by_priority, once = (kind(2, end_keys=("done",)) for kind in (frb.PrioritizedSlices, frb.SlicesWithoutReplacement))
    batch = {"x": np.arange(6, dtype=np.float32), "done": np.zeros(6, bool)}
    ranked = {"sampler": frb.Uniform(), "writer": frb.MaxValue("x")}
    for changed, expected in (({}, 3), ({"sampler": by_priority}, 3), ({"sampler": once}, 3), (ranked, 3)):
        chain.calls.clear()
        state = torch_backend.init(dataclasses.replace(spec, **changed))
        state = torch_backend.add(state, batch)
        state, _ = torch_backend.sample(state, torch_backend.key(0), 2)
        state, _ = torch_backend.sample_(state, torch_backend.key(0), 2)
        with frb.kernels(False):
            state, _ = torch_backend.sample(state, torch_backend.key(0), 2)
        torch_backend.sample(state, torch_backend.key(0), 2)
        assert chain.calls["sample"] + chain.calls["sample_"] == expected, changed
