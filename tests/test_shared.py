"""Buffers that processes share: one process alone sees what it would see of any buffer; who shares, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from functional_rb.errors import StorageFullError, StorageLayoutError
from functional_rb.shared import control, files
from functional_rb.shared.buffer import SharedBuffer
from tests import backends
from tests.backends import Backend
from tests.histories import PRIORITIES, histories, seeds

ITEM = {
    "id": frb.Unbounded((), "int32"),
    "image": frb.Unbounded((1100,), "uint8"),
    "half": frb.Unbounded((600,), "bfloat16"),
    "done": frb.Binary(),
    "small": frb.Unbounded((3,), "float16"),
}
NAMES = frb.BufferSpec(ITEM, 1).names
SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.Prioritized(alpha=1.0, new_priority="ever")]


def spec_at(path: Any, **fields: Any) -> frb.BufferSpec:
    """A small shared buffer."""
    path = None if path is None else str(path)
    return frb.BufferSpec(**{"item": ITEM, "capacity": 6, "storage": frb.Memmap(path, shared=True), **fields})


def batch_of(first: int, count: int) -> dict[str, np.ndarray]:
    """Items that differ from each other in all leaves."""
    import ml_dtypes

    ids = np.arange(first, first + count, dtype=np.int32)
    return {
        "id": ids,
        "image": np.broadcast_to((ids % 251)[:, None], (count, 1100)).astype(np.uint8),
        "half": np.broadcast_to((ids % 17)[:, None], (count, 600)).astype(ml_dtypes.bfloat16),
        "done": ids % 2 == 1,
        "small": np.broadcast_to((ids % 7)[:, None], (count, 3)).astype(np.float16),
    }


def same(backend: Backend, one: Any, other: Any) -> None:
    """Bit for bit."""
    one, other = backend.numpy(one), backend.numpy(other)
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert one.tobytes() == other.tobytes()


class Both:
    """The same history on a shared buffer and on one in memory, which must not be told apart."""

    def __init__(self, rng: np.random.Generator, backend: Backend, path: str, fixed: bool) -> None:
        self.rng, self.backend, self.fixed, self.made = rng, backend, fixed, 0
        sampler = SAMPLERS[int(rng.integers(len(SAMPLERS)))]
        self.prioritized = isinstance(sampler, frb.Prioritized)
        capacity = 20 if fixed else int(rng.integers(1, 40))
        spec = frb.BufferSpec(ITEM, capacity, sampler)
        self.states = [backend.rb.init(spec), backend.rb.init(spec_at(path, capacity=capacity, sampler=sampler))]

    def do(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [getattr(self.backend.rb, name)(state, *args, **kwargs) for state in self.states]

    def step(self) -> None:
        getattr(self, ["add", "add", "sample", "update"][int(self.rng.integers(4))])()
        for name in ("size", "stale", "rejected", "lost", "can_sample"):
            one, other = self.do(name)
            assert one.dtype == other.dtype
            assert one.shape == other.shape == ()
            assert int(one) == int(other), name

    def some(self, *counts: int) -> int:
        return counts[0] if self.fixed else counts[int(self.rng.integers(len(counts)))]

    def add(self) -> None:
        count = self.some(7, 0, 1, 3, 20, 90)
        batch, arguments = self.backend.tree(batch_of(self.made, count)), {}
        self.made += count
        if self.rng.random() < 0.5:
            arguments["mask"] = self.backend.array(self.rng.random(count) < 0.7)
        if self.prioritized and self.rng.random() < 0.5:
            arguments["priorities"] = self.backend.array(self.rng.choice(np.array(PRIORITIES, np.float32), count))
        before = self.states[1]
        self.states = self.do("add", batch, **arguments)
        assert self.states[1] is before

    def sample(self) -> None:
        key, count = self.backend.rb.key(int(self.rng.integers(2**32))), self.some(5, 1, 64)
        beta = 0.7 if self.prioritized and self.rng.random() < 0.5 else None
        if not bool(self.do("can_sample")[0]):
            for state in self.states:
                with pytest.raises(ValueError, match=r"empty|none of"):
                    self.backend.rb.sample(state, key, count, beta)
            return
        (_, one), (_, other) = self.do("sample", key, count, beta)
        for name in NAMES:
            same(self.backend, one.items[name], other.items[name])
        for name in ("indices", "weights", "probabilities"):
            same(self.backend, getattr(one, name), getattr(other, name))

    def handles(self, count: int) -> np.ndarray:
        around = self.made - self.rng.integers(-2, 60, count)
        return np.where(self.rng.random(count) < 0.1, -1, around).clip(-1).astype(np.int32)

    def update(self) -> None:
        count = self.some(6, 0, 1, 50)
        handles, arguments = self.backend.array(self.handles(count)), {}
        if self.prioritized and self.rng.random() < 0.7:
            arguments["priorities"] = self.backend.array(self.rng.choice(np.array(PRIORITIES, np.float32), count))
        if self.rng.random() < 0.5:
            batch = batch_of(1000 + self.made, count)
            arguments["items"] = self.backend.tree({name: batch[name] for name in ("half", "small", "image")})
        self.states = self.do("update", handles, **arguments)

    def look(self) -> None:
        handles = self.backend.array(self.handles(40))
        one, other = self.do("get", handles)
        copies = self.do("items")
        for name in NAMES:
            same(self.backend, one[name], other[name])
            same(self.backend, copies[0][name], copies[1][name])
        same(self.backend, *self.do("is_live", handles))
        for name in ("counters", "rows"):
            same(self.backend, getattr(self.states[0], name), getattr(self.states[1], name))
        if self.prioritized:
            same(self.backend, self.states[0].tree, self.states[1].tree)


@histories(60)
@hypothesis.given(seeds)
def test_alone_it_is_as_any_buffer(rng: np.random.Generator) -> None:
    with backends.make("torch") as backend:
        run(rng, backend, fixed=False)


@histories(4)
@hypothesis.given(seeds)
def test_alone_it_is_as_any_buffer_on_jax(rng: np.random.Generator) -> None:
    with backends.make("jax") as backend:
        run(rng, backend, fixed=True)


def run(rng: np.random.Generator, backend: Backend, fixed: bool) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.5:  # updates in several pieces
            patch.setattr(files, "JOURNAL_BYTES", 3 * 2400)
        both = Both(rng, backend, directory, fixed)
        for _ in range(12):
            both.step()
        both.look()
