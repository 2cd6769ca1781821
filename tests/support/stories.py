"""Histories of a buffer beside its record: what a walk over that says is what must be read."""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends, gpu
from tests.support.backends import Backend
from tests.support.histories import Rng, Shapes, beginning_at, pick
from tests.support.walks import Pending
from tests.support.worlds import (
    Leaves,
    Record,
    World,
    assert_same,
    by_path,
    nested,
)

# The items and extras to be drawn by a handle, from a record.
Expect = Callable[[Any, int], tuple[Leaves, Leaves]]


class Kept(NamedTuple):
    """A state, the state of a plain buffer with which the same was done (if there is one), and what was written."""

    backend: Backend
    state: Any
    plain: Any
    record: Any


class Story:
    """What happens to a buffer: its draws are those of a plain one, and its items are those of a walk.

    All states are kept: older ones are used again, and in the end each must read as it did when it was new.
    """

    def __init__(
        self,
        rng: Rng,
        made: Sequence[Backend],
        spec: frb.BufferSpec,
        plain: frb.BufferSpec | None,
        record: Record | Pending,
        expect: Expect,
        shapes: Shapes,
        bits: bool = False,
    ) -> None:
        self.rng, self.backends, self.spec, self.shapes, self.expect = rng, made, spec, shapes, expect
        steps = record.steps if isinstance(record, Pending) else record
        self.kind, self.lanes = steps.kind, spec.lanes or 1
        self.world = World(rng.numbers(), self.kind, self.lanes, bits)
        self.handles = np.zeros(0, np.int32)
        backend = pick(rng, made)
        states = [each and beginning_at(backend, backend.init(each), steps.first) for each in (spec, plain)]
        self.kept = [Kept(backend, *states, record)]

    def keep(self, backend: Backend, state: Any, plain: Any, record: Any) -> None:
        if backend.consumes:
            self.kept.clear()
        self.kept.append(Kept(backend, state, plain, record))
        stored = record.items if isinstance(record, Pending) else record
        assert int(backend.rb.size(state)) == stored.size

    def run(self, steps: int) -> None:
        """Do this and that, then look at everything."""
        hypothesis.note(f"{self.backends[0].name}: {self.spec}")
        for step in range(steps):
            do = pick(self.rng, [self.add] * 4 + [self.sample] * 3 + [self.update, self.read])
            hypothesis.note(f"{step}: {do.__name__}")
            back = 0
            if not self.backends[0].consumes and self.rng.random() < 0.15:
                back = int(self.rng.integers(len(self.kept)))
            do(*self.kept[-1 - back])
        some = np.sort(self.rng.permutation(len(self.kept))[:6])
        for k in some if len(self.kept) % 2 else reversed(some):
            self.check(*self.kept[k])

    def each(self, function: Callable[[Any], Any], *states: Any) -> list[Any]:
        return [state and function(state) for state in states]

    def add(self, backend: Backend, state: Any, plain: Any, record: Any) -> None:
        """Some steps of each lane."""
        fixed = self.shapes.fixed
        steps = pick(self.rng, self.shapes.steps)
        leaves, mask = self.world.batch(steps, fixed or bool(self.rng.random() < 0.4))
        priorities = None
        may = self.spec.sampler.has_priorities and not isinstance(record, Pending)
        if may and (fixed or self.rng.random() < 0.5):
            priorities = self.rng.integers(0, 5, (steps, self.lanes)).astype(np.float32)
        lead = (steps,) if self.spec.lanes is None else (steps, self.lanes)
        lead = lead[1:] if steps == 1 and not fixed and self.rng.random() < 0.5 else lead
        items = nested({path: leaf.reshape((*lead, *leaf.shape[2:])) for path, leaf in leaves.items()})
        given = items if self.rng.random() < 0.5 else backend.tree(items)
        rows = lead or (1,)
        companions = [None if x is None else backend.array(x.reshape(rows)) for x in (mask, priorities)]
        state, plain = self.each(lambda x: backend.add(x, given, *companions), state, plain)
        record = record.written(leaves, mask)
        if plain is not None and int(backend.rb.size(plain)) != record.size:
            plain = None  # what is compact may hold less
        self.keep(backend, state, plain, record)

    def sample(self, backend: Backend, state: Any, plain: Any, record: Any) -> None:
        """By one key from both buffers."""
        sampler: Any = self.spec.sampler
        count = pick(self.rng, self.shapes.draws)
        count *= sampler.length if getattr(sampler, "batch", "slices") == "steps" else 1
        key = backend.rb.key(int(self.rng.integers(2**32)))
        beta = pick(self.rng, [None, 0.0, 1.0]) if sampler.has_priorities and not self.shapes.fixed else None
        if plain is not None:
            try:
                plain, alike = backend.sample(plain, key, count, beta)
            except ValueError as error:  # there is nothing to draw
                with pytest.raises(ValueError, match=re.escape(str(error))):
                    backend.sample(state, key, count, beta)
                return
        elif not bool(backend.rb.can_sample(state)):
            if gpu.sees_values(backend.library, state):
                with pytest.raises(ValueError, match=r"empty|none of"):
                    backend.sample(state, key, count, beta)
            return
        after, sample = backend.sample(state, key, count, beta)
        if plain is not None:
            assert alike.extras == {}
            for name in ("indices", "weights", "probabilities", "mask", "is_first", "is_last", "truncated"):
                one, other = getattr(sample, name), getattr(alike, name)
                assert (one is None) == (other is None)
                if one is not None:
                    assert_same(backend.numpy(one), backend.numpy(other), name)
        self.check_sample(backend, record, sample)
        self.handles = backend.numpy(sample.indices).reshape(-1)
        self.keep(backend, after, plain, record)

    def check_sample(self, backend: Backend, record: Any, sample: Any) -> None:
        """What is drawn is what the walk finds."""
        indices = backend.numpy(sample.indices)
        mask = indices >= 0 if sample.mask is None else backend.numpy(sample.mask)
        assert ((indices >= 0) == mask).all()
        items = by_path(backend, sample.items)
        extras = {name: backend.numpy(x) for name, x in sample.extras.items()}
        expected = [self.expect(record, handle) for handle in indices[mask].tolist()]
        assert items.keys() == self.kind.item.keys()
        for got, rows in ((items, [row for row, _ in expected]), (extras, [row for _, row in expected])):
            assert all(x.shape[: indices.ndim] == indices.shape for x in got.values())
            for name in rows[0] if rows else ():
                assert_same(got[name][mask], np.stack([row[name] for row in rows]), name)
            assert not rows or got.keys() == rows[0].keys()

    def update(self, backend: Backend, state: Any, plain: Any, record: Any) -> None:
        """Priorities of what was drawn last, from whichever state that was."""
        if not self.spec.sampler.has_priorities or not self.handles.size:
            return
        handles = backend.array(self.handles)
        priorities = backend.array(self.rng.integers(0, 5, self.handles.size).astype(np.float32))
        self.keep(backend, *self.each(lambda x: backend.update(x, handles, priorities), state, plain), record)

    def read(self, backend: Backend, state: Any, plain: Any, record: Any) -> None:
        """Look, go over to the other backend, or through a pickle."""
        what = self.rng.random()
        if what < 0.4:
            self.check(backend, state, plain, record)
        elif what < 0.8 and len(self.backends) > 1:
            other = next(x for x in self.backends if x is not backend)
            self.keep(other, *self.each(other.rb.from_dlpack, state, plain), record)
        else:
            self.keep(backend, *self.each(lambda x: pickle.loads(pickle.dumps(x)), state, plain), record)

    def check(self, backend: Backend, state: Any, plain: Any, record: Any) -> None:
        """All that is stored, by handle and as arrays."""
        rb, stored = backend.rb, record.items if isinstance(record, Pending) else record
        handles = np.array(list(stored.places), np.int32)
        assert int(rb.size(state)) == handles.size
        assert int(rb.counts(state).rejected) == 0
        if plain is not None:
            assert int(rb.counts(state).stale) == int(rb.counts(plain).stale)
        gone = [handle for handle in range(self.spec.capacity) if handle not in handles]
        asked = np.full(2 * self.spec.capacity, -1, np.int32)  # at one shape, which is compiled once
        asked[: handles.size + len(gone)] = [*handles, *gone]
        asked = backend.array(asked)
        live = backend.numpy(rb.is_live(state, asked))
        assert live[: handles.size].all()
        assert not live[handles.size :].any()
        got, everything = by_path(backend, rb.get(state, asked)), by_path(backend, rb.items(state))
        steps = [stored.stored(handle) for handle in handles.tolist()]
        for name in self.kind.item if steps else ():
            expected = np.stack([step.leaves[name] for step in steps])
            assert_same(got[name][: handles.size], expected, name)
            assert not got[name][handles.size :].any()
            assert_same(everything[name][handles % self.spec.capacity], expected, name)


def tell(
    rng: Rng,
    variants: Sequence[str],
    spec: frb.BufferSpec,
    plain: frb.BufferSpec | None,
    record: Record | Pending,
    expect: Expect,
    shapes: Shapes,
    steps: int,
    bits: bool = False,
    story: type[Story] = Story,
) -> None:
    """One history."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(backends.make(name)) for name in variants]
        story(rng, made, spec, plain, record, expect, shapes, bits).run(steps)
