"""The same draws give the same everything, bit for bit, however the functions are carried out.

Four of them go through the same history side by side: XLA operations, the kernels under XLA, torch operations, and
the kernels under torch. Nothing is allowed a rounding: all are integers or sums in one fixed order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.buffer import functions
from functional_rb.buffer.functions import Arrays
from functional_rb.native import launches
from functional_rb.structures import ring
from jax_backend.compiling import compile
from jax_backend.engines import execute as jax_execute
from tests.support.effort import effort
from torch_backend.arrays import ops as torch_ops
from torch_backend.arrays import random as torch_random
from torch_backend.kernels import cpu_kernels

ITEM = {"image": frb.Unbounded((1024,), "uint8"), "n": frb.Unbounded((), "int32"), "x": frb.Unbounded((3,))}
SPECS = [
    *effort([], [frb.BufferSpec(ITEM, 17, frb.Prioritized(alpha=0.6))]),
    frb.BufferSpec(ITEM, 3, frb.Prioritized(alpha=1.0, new_priority="ever")),
    frb.BufferSpec(ITEM, 300, frb.Prioritized(alpha=0.45)),
    frb.BufferSpec(ITEM, 40),
]
BATCHES = (2, 19)
UPDATED, DRAWN = 7, 16
Leaves = dict[str, np.ndarray]


class Selection(NamedTuple):
    """What a draw gave, as NumPy arrays."""

    leaves: list[np.ndarray]
    handles: np.ndarray
    weights: np.ndarray
    probabilities: np.ndarray


class OnJax:
    """Compiled by XLA, from its operations or from the kernels."""

    def __init__(self, spec: frb.BufferSpec, cursor: int, use_kernels: bool) -> None:
        counters = jnp.asarray(np.array([cursor, 0, 0, 0, 0, 0], np.int32))
        empty = jax_backend.init(spec)
        self.state = dataclasses.replace(empty, counters=counters)
        self.kernels = use_kernels

    def add(self, leaves: Leaves, mask: np.ndarray | None, priorities: np.ndarray | None) -> None:
        batch = len(leaves["n"])
        arrays = [jnp.asarray(leaves[name]) for name in ITEM]
        self.state = jax_execute._add(self.state, arrays, batch, mask, priorities, None, kernels=self.kernels)

    def update(self, handles: np.ndarray, priorities: np.ndarray | None, replaced: Mapping[int, np.ndarray]) -> None:
        self.state = jax_execute._update(
            self.state, jnp.asarray(handles), priorities, dict(replaced), kernels=self.kernels
        )

    def draw(self, draws: np.ndarray, beta: np.ndarray) -> Selection:
        leaves, drawn = _jax_draw(self.state, draws, beta, kernels=self.kernels)
        return Selection([np.asarray(leaf) for leaf in leaves], *(np.asarray(x) for x in drawn[:3]))

    def arrays(self) -> list[np.ndarray]:
        state = self.state
        found = [state.rows, *state.wide, *([] if state.tree is None else [state.tree]), state.counters]
        return [np.asarray(x) for x in found]


@functools.partial(jax.jit, static_argnames="kernels")
@compile.program
def _jax_draw(state: Any, draws: jax.Array, beta: jax.Array) -> Any:
    return compile.draw(state, draws, None, beta, len(draws))[1:]


class OnTorchOperations:
    """The core on torch's operations, which write into arrays that are its own."""

    def __init__(self, spec: frb.BufferSpec, cursor: int) -> None:
        self.spec = spec
        counters = torch.tensor([cursor, 0, 0, 0, 0, 0], dtype=torch.int32)
        self.state = functions.init(torch_ops, spec)._replace(counters=counters)

    def add(self, leaves: Leaves, mask: np.ndarray | None, priorities: np.ndarray | None) -> None:
        tensors = [torch.from_numpy(leaves[name]) for name in ITEM]
        self.state = functions.add(
            torch_ops, self.state, self.spec, tensors, len(leaves["n"]), _tensor(mask), _tensor(priorities)
        )

    def update(self, handles: np.ndarray, priorities: np.ndarray | None, replaced: Mapping[int, np.ndarray]) -> None:
        new = {k: torch.from_numpy(v) for k, v in replaced.items()}
        self.state = functions.update(
            torch_ops, self.state, self.spec, torch.from_numpy(handles), _tensor(priorities), new
        )

    def draw(self, draws: np.ndarray, beta: np.ndarray) -> Selection:
        arrays, batch = (torch.from_numpy(draws), torch.tensor(beta)), len(draws)
        _, leaves, drawn = functions.draw(torch_ops, self.state, self.spec, *arrays, batch)
        return Selection([leaf.numpy() for leaf in leaves], *(x.numpy() for x in drawn[:3]))

    def arrays(self) -> list[np.ndarray]:
        return _numpy_arrays(self.state)


class OnTorchKernels:
    """The public functions of torch_backend, and the kernel that draws."""

    def __init__(self, spec: frb.BufferSpec, cursor: int) -> None:
        self.spec = spec
        empty = torch_backend.init(spec)
        counters = torch.tensor([cursor, 0, 0, 0, 0, 0], dtype=torch.int32)
        self.state = type(empty)(empty._version, counters, spec)

    def add(self, leaves: Leaves, mask: np.ndarray | None, priorities: np.ndarray | None) -> None:
        self.state = torch_backend.add(self.state, leaves, mask, priorities)

    def update(self, handles: np.ndarray, priorities: np.ndarray | None, replaced: Mapping[int, np.ndarray]) -> None:
        names = list(ITEM)
        items = {names[k]: v for k, v in replaced.items()}
        self.state = torch_backend.update(self.state, handles, priorities, items or None)

    def draw(self, draws: np.ndarray, beta: np.ndarray) -> Selection:
        spec, batch = self.spec, len(draws)
        state = torch.utils._pytree.tree_map(torch.Tensor.cpu, self.state)  # where a kernel may read it
        rows, wide, tree, counters = state.rows, state.wide, state.tree, state.counters
        given = torch.from_numpy(draws), None, torch.tensor(beta), batch
        kernel = launches.draw(Arrays(rows, wide, tree, counters, {}), spec, *given)
        _, leaves, drawn = cpu_kernels.call(kernel)
        return Selection([leaf.numpy() for leaf in leaves], *(x.numpy() for x in drawn[:3]))

    def arrays(self) -> list[np.ndarray]:
        state = self.state
        return _numpy_arrays(Arrays(state.rows, state.wide, state.tree, state.counters, {}))


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)


def _numpy_arrays(arrays: Arrays) -> list[np.ndarray]:
    tree = [] if arrays.tree is None else [arrays.tree]
    return [x.numpy() for x in (arrays.rows, *arrays.wide, *tree, arrays.counters)]


def same_bytes(first: np.ndarray, other: np.ndarray) -> None:
    assert first.dtype == other.dtype
    assert first.shape == other.shape
    np.testing.assert_array_equal(
        np.ascontiguousarray(first).view(np.uint8), np.ascontiguousarray(other).view(np.uint8)
    )


GOOD = np.array([0.0, 1e-45, 1e-38, 1.0, 3.4e38, 2.0**-100], np.float32)
BAD = np.array([np.nan, np.inf, -np.inf, -1.0, -1e-45], np.float32)
good_priorities = st.floats(0, 2.0**100, width=32) | st.sampled_from(GOOD.tolist())
priorities = good_priorities | st.sampled_from(BAD.tolist())
betas = st.floats(0, 1, width=32) | st.sampled_from([0.0, 1.0, 7.5, -1.0, float("nan"), float("inf")])
words = st.integers(0, 2**31 - 1) | st.sampled_from([0, 2**31 - 1])


@hypothesis.settings(max_examples=effort(16, 100))
@hypothesis.given(data=st.data())
def test_the_same_history_gives_the_same_bits(data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from(SPECS), "spec")
    prioritized = isinstance(spec.sampler, frb.Prioritized)
    limit = ring.modulus(spec.capacity)
    cursor = data.draw(st.sampled_from([0, 5, limit - 1, limit - 20]), "cursor") % limit
    ways = [OnJax(spec, cursor, False), OnJax(spec, cursor, True), OnTorchOperations(spec, cursor)]
    ways.append(OnTorchKernels(spec, cursor))
    added = 0
    for _ in range(data.draw(st.integers(2, 8), "steps")):
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
        mask = new = None
        if data.draw(st.booleans(), "add") or not added:
            n = data.draw(st.sampled_from(BATCHES), "batch")
            # Whatever is given beside them is another program for JAX to compile: each of these on some of the buffers.
            usual = st.just((n > BATCHES[0]) == (spec.capacity == 300))
            if data.draw(effort(usual, st.booleans()), "with companions"):
                mask = data.draw(hnp.arrays(bool, n), "mask")
                new = data.draw(hnp.arrays(np.float32, n, elements=priorities), "priorities") if prioritized else None
            leaves = _random_leaves(rng, n)
            added += n
            for way in ways:
                way.add(leaves, mask, new)
        else:
            near = st.integers(cursor - 3, cursor + added + 3).map(lambda serial: serial % limit)
            handles = data.draw(hnp.arrays(np.int32, UPDATED, elements=near | st.just(-1)), "handles")
            replaced = {}
            if data.draw(st.booleans(), "rewriting") or not prioritized:
                replaced = {k: v for k, v in enumerate(_random_leaves(rng, UPDATED).values()) if k != 1}
            if prioritized:
                new = data.draw(hnp.arrays(np.float32, UPDATED, elements=priorities), "priorities")
            for way in ways:
                way.update(handles, new, replaced)
        expected, *others = (way.arrays() for way in ways)
        for arrays in others:
            assert len(arrays) == len(expected)
            for first, other in zip(expected, arrays, strict=True):
                same_bytes(first, other)
        draws = data.draw(hnp.arrays(np.int32, spec.draw_shape(DRAWN), elements=words), "draws")
        beta = np.array(data.draw(betas, "beta"), np.float32)
        drawn, *rest = (way.draw(draws, beta) for way in ways)
        if drawn.handles[0] < 0:  # nothing could be drawn: what the leaves hold then is nobody's business
            assert all((other.handles == -1).all() for other in rest)
        for other in rest:
            for a, b in zip(drawn.leaves, other.leaves, strict=True):
                same_bytes(a, b)
            for a, b in zip(drawn[1:], other[1:], strict=True):
                same_bytes(a, b)


def _random_leaves(rng: np.random.Generator, n: int) -> Leaves:
    return {
        "image": rng.integers(0, 256, (n, 1024), dtype=np.uint8),
        "n": rng.integers(-(2**31), 2**31, n, dtype=np.int32),
        "x": rng.integers(0, 256, (n, 12), dtype=np.uint8).view(np.float32),
    }


@pytest.mark.usefixtures("tensors_of_the_cpu")
@hypothesis.settings(max_examples=60)
@hypothesis.given(key=st.integers(-(2**63), 2**63 - 1), batch=st.integers(0, 9), width=st.integers(1, 5))
def test_a_key_gives_the_same_draws(key: int, batch: int, width: int) -> None:
    by_torch = torch_random.draws(torch.tensor(key), batch, width).numpy()
    by_kernel = cpu_kernels.draws(torch.tensor(key), batch, width).numpy()
    np.testing.assert_array_equal(by_torch, by_kernel)
    assert ((by_kernel >= 0) & (by_kernel <= 2**31 - 1)).all()


def test_a_state_goes_on_from_one_backend_to_the_other() -> None:
    # Halfway over the bridge, with the same draws before and after: as if it had never left.
    spec = frb.BufferSpec(ITEM, 17, frb.Prioritized(alpha=0.6))
    rng = np.random.default_rng(0)
    stayed, gone = OnJax(spec, 0, True), OnJax(spec, 0, True)
    for way in (stayed, gone):
        way.add(_random_leaves(np.random.default_rng(1), 19), None, None)
    visitor = OnTorchKernels(spec, 0)
    visitor.state = torch_backend.from_dlpack(gone.state)
    leaves, handles = _random_leaves(rng, 2), np.arange(14, 21, dtype=np.int32)
    new = rng.lognormal(0, 3, UPDATED).astype(np.float32)
    for way in (stayed, visitor):
        way.add(leaves, None, None)
        way.update(handles, new, {})
    gone.state = jax_backend.from_dlpack(visitor.state)
    for first, other in zip(stayed.arrays(), gone.arrays(), strict=True):
        same_bytes(first, other)
    draws = rng.integers(0, 2**31, (DRAWN, 2), dtype=np.int32)
    beta = np.array(0.4, np.float32)
    for first, other in zip(stayed.draw(draws, beta)[1:], gone.draw(draws, beta)[1:], strict=True):
        same_bytes(first, other)
