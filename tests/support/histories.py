"""Arbitrary histories of a buffer beside its model, on any variant of the backends and from one to the other.

All states that were ever returned are kept: older ones are used again, and in the end each must read as it did when it
was new. Every step has an id of its own in each of its leaves, so that a wrong row is seen wherever it comes from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import hypothesis
import jax
import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from functional_rb.base import nest
from functional_rb.buffer import soundness
from functional_rb.core.counters import BASE
from functional_rb.structures import frame_ring
from functional_rb.testing import strategies
from functional_rb.testing.laws import TINY, Leaves, SampleArrays, assert_same_bytes
from jax_backend.compiling import compile
from jax_backend.engines import hosted
from tests.support import backends, gpu
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.models import Model, Windows
from tests.support.spec_pool import OF_ALL_DTYPES, WIDE_DTYPES, random_leaf

STEP = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,)), "done": frb.Binary()}
WORD = 2**31
PRIORITIES = [0.0, 1.0, 1.0, 2.0, 0.5, 3.0, 1e-3, 10.0, 1e-40, 1e30, math.nan, math.inf, -1.0]
SCORES = [0, 0, 1, 1, 2, 3, -1, -4, 0.5, math.inf, -math.inf, math.nan]


# Leaves that updates rewrite.
UPDATED = ("x", "image", "score", *OF_ALL_DTYPES, *WIDE_DTYPES)
Rng = strategies.Decisions


def histories(examples: int, **more: Any) -> Any:
    """About so many of them, for a test of `rng`; it may take arguments from other strategies too.

    What happens is decided one by one, so that a history that fails gets shorter; numbers in bulk come from seeds.
    """
    settings = hypothesis.settings(max_examples=effort(max(2, examples // 3), 2 * examples))
    return lambda test: settings(hypothesis.given(rng=strategies.decisions(), **more)(test))


def pick(rng: Rng, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


class Kept(NamedTuple):
    """A state that was returned, who returned it, and what it must read as for ever."""

    state: Any
    backend: Backend
    model: Model


class Shapes(NamedTuple):
    """What XLA compiles anew if it changes.

    Attributes:
        steps: how many steps a batch may have.
        draws: batch sizes.
        fixed: whether mask and priorities always come, and updates are all of one kind.
    """

    steps: tuple[int, ...]
    draws: tuple[int, ...]
    fixed: bool


class History:
    """What happens to a buffer."""

    def __init__(self, rng: Rng, made: Sequence[Backend], spec: frb.BufferSpec, shapes: Shapes) -> None:
        """Begin with an empty buffer, or a dataset."""
        self.rng, self.backends, self.spec, self.shapes = rng, made, spec, shapes
        self.lanes = spec.lanes or 1
        self.ends = pick(rng, [0.0, 0.05, 0.2, 0.5, 1.0])
        self.made = 0
        self.kept: list[Kept] = []
        backend = pick(rng, made)
        if isinstance(spec.writer, frb.Immutable):
            steps = int(self.rng.integers(0, spec.plan.ring.length + 1))
            model, batch = Model(spec), self.batch(steps)
            state = backend.rb.init(spec, items=backend.tree(self.nested(self.shaped(batch, steps)[1])))
            model.add(rows_of(batch, steps * self.lanes), [True] * steps * self.lanes, None, None)
        else:
            length = spec.plan.ring.length
            first = pick(rng, [0, spec.plan.ring.limit - 1, spec.plan.ring.limit - length - 2])
            first = first if spec.writer.in_order else 0
            model, state = Model(spec, first), beginning_at(backend, backend.init(spec), first)
        self.keep(state, backend, model)

    def choose(self) -> Kept:
        """Mostly the newest state, now and then an older one."""
        back = 0
        if not self.backends[0].consumes and self.rng.random() < 0.15:
            back = int(self.rng.integers(len(self.kept)))
        return self.kept[-1 - back]

    def keep(self, state: Any, backend: Backend, model: Model) -> None:
        if backend.consumes:
            self.kept.clear()
        self.kept.append(Kept(state, backend, model))
        assert int(backend.rb.size(state)) == len(model.steps())
        assert int(backend.rb.counts(state).epochs_done) == model.law.epochs_done

    def run(self, steps: int) -> None:
        """Do this and that, then look at everything."""
        for step in range(steps):
            do = pick(self.rng, self.actions())
            hypothesis.note(f"{step}: {do.__name__}, {self.spec}")
            do(*self.choose())
        # From the oldest or from the newest: torch rebuilds older states from the newer ones.
        some = np.sort(self.rng.permutation(len(self.kept))[:6])
        for k in some if len(self.kept) % 2 else reversed(some):
            self.check(*self.kept[k], arrays=True)

    def actions(self) -> list[Any]:
        """What may be done, as often as it should be."""
        return [self.add] * 8 + [self.sample] * 8 + [self.update, self.read] * 2 + [self.clear]

    @property
    def leaves(self) -> dict[str, Any]:
        """The specs of the leaves, by path."""
        return dict(zip(self.spec.plan.names, self.spec.plan.leaves, strict=True))

    @property
    def free(self) -> bool:
        """Whether the item is any nest, of which nothing is known."""
        return "id" not in self.leaves

    def nested(self, leaves: Leaves) -> Any:
        """The nest of all leaves."""
        some = [leaves[name] for name in self.spec.plan.names]
        return nest.unflatten(self.spec.plan.structure, some, lambda _, parts, __: parts)

    def flat(self, backend: Backend, items: Any) -> Leaves:
        """The leaves of a nest that came, in NumPy's arrays."""
        leaves = nest.flatten_as(self.spec.plan.structure, items)
        return {name: backend.numpy(leaf) for name, leaf in zip(self.spec.plan.names, leaves, strict=True)}

    def batch(self, steps: int) -> Leaves:
        """New items, leaves [steps * lanes, *shape]."""
        ids = self.made + np.arange(steps * self.lanes, dtype=np.int32)
        self.made += ids.size
        return {name: self.leaf(name, ids) for name in self.leaves}

    def leaf(self, name: str, ids: np.ndarray) -> np.ndarray:
        """A leaf of some items."""
        spec = self.leaves[name]
        if self.free or name in OF_ALL_DTYPES or name in WIDE_DTYPES:
            return random_leaf(spec, ids.size, self.rng.numbers())
        if spec.dtype == "bool":
            return self.rng.random((ids.size, *spec.shape)) < self.ends
        if name == "episode":  # it stays for a while, and may come again
            episodes = np.cumsum(self.rng.random(ids.size) < self.ends) // self.lanes % 3
            return episodes.reshape(-1, *spec.shape).astype(spec.dtype)
        if name == "score":
            return self.rng.choice(np.array(SCORES, np.float32), (ids.size, *spec.shape))
        numbers = np.broadcast_to(ids.reshape(-1, *(1 for _ in spec.shape)), (ids.size, *spec.shape))
        return (numbers * (1 if name == "id" else 7)).astype(spec.dtype)

    def shaped(self, batch: Leaves, steps: int) -> tuple[tuple[int, ...], Leaves]:
        """As `add` takes it: [B], or with lanes [T, E]; one of either may come without that axis, which is told too."""
        lead = (steps,) if self.spec.lanes is None else (steps, self.lanes)
        lead = lead[1:] if lead[0] == 1 and self.rng.random() < 0.5 else lead
        return lead, {name: leaf.reshape((*lead, *leaf.shape[1:])) for name, leaf in batch.items()}

    def add(self, state: Any, backend: Backend, model: Model) -> None:
        """A batch, with or without mask and priorities."""
        few = [steps for steps in self.shapes.steps if 2 <= steps <= 5]
        fit = few and not self.spec.writer.overwrites and self.rng.random() < 0.7
        steps, fixed = pick(self.rng, few if fit else self.shapes.steps), self.shapes.fixed
        batch, count = self.batch(steps), steps * self.lanes
        mask = new = key = words = None
        if fixed or not batch or self.rng.random() < 0.4:  # an item without leaves is counted by its mask
            probabilities = self.rng.choice([0.0, 0.2, 0.5, 0.8, 1.0], self.lanes)  # of each lane its own
            mask = (self.rng.random((count // self.lanes, self.lanes)) < probabilities).reshape(count)
        if self.spec.sampler.has_priorities and (fixed or self.rng.random() < 0.5):
            new = self.rng.choice(np.array(PRIORITIES, np.float32), count)
        if self.spec.writer.words:
            key = backend.rb.key(int(self.rng.integers(2**32)))
            words = words_of(backend, key, count)
        # One item has no axis: then mask and priorities may keep theirs.
        lead, shaped = self.shaped(batch, steps)
        companions = [None if x is None else backend.array(x.reshape(lead or (1,))) for x in (mask, new)]
        arrays = {name: leaf.copy() for name, leaf in shaped.items()}
        given = self.nested(arrays)
        converted = self.rng.random() < 0.5
        given = backend.tree(given) if converted else given
        marks = [True] * count if mask is None else mask.tolist()
        call = backend._function("add")
        eager = backend.name != "jax-jit"
        if isinstance(self.spec.writer, frb.Immutable):
            with pytest.raises(ValueError, match="Immutable"):
                call(state, given, *companions, key)
            return
        if eager and not model.store.fits(marks):
            with pytest.raises(ValueError, match="full"):
                call(state, given, *companions, key)
            self.check(state, backend, model)
            return
        after = call(state, given, *companions, key)
        # The caller's own: what is written there afterwards is not seen in the buffer. (JAX may go on reading what
        # `jnp.asarray` was given, or a function that the user has jitted.)
        for leaf in arrays.values() if backend.library != "jax" or (eager and not converted) else ():
            leaf[...] = np.zeros((), leaf.dtype)
        model = model.clone()
        self.told(after, backend, model)
        model.add(rows_of(batch, count), marks, None if new is None else new.tolist(), words)
        self.keep(after, backend, model)

    def told(self, state: Any, backend: Backend, model: Model) -> None:
        """What a model has to be told before steps are added to it, of the state afterwards: here nothing."""

    def sample(self, state: Any, backend: Backend, model: Model) -> None:
        count = pick(self.rng, self.shapes.draws)
        sampler: Any = self.spec.sampler
        if getattr(sampler, "batch", "slices") == "steps":
            count *= sampler.length
        if isinstance(sampler, frb.Queue):  # little at a time, so that it is not always empty
            count = (count if self.shapes.fixed else 1) * self.lanes
        beta = None
        if sampler.has_priorities:
            beta = pick(self.rng, [None, 0.0, 1.0])
        key = backend.rb.key(int(self.rng.integers(2**32)))
        slices = count // sampler.length if getattr(sampler, "batch", "slices") == "steps" else count
        for n in [count] if self.shapes.fixed else range(1, 2 * count + 1):
            assert bool(backend.rb.can_sample(state, n)) == model.law.can(model, n), n
        if model.law.refuses(model, slices):
            if backend.name != "jax-jit" and gpu.sees_values(backend.library, state):
                with pytest.raises(ValueError, match=r"empty|none of"):
                    backend.sample(state, key, count, beta)
                self.check(state, backend, model)
                return
            after, sample = backend.sample(state, key, count, beta)
            told = self.told_of(backend, sample)
            assert (told.indices == -1).all()
            assert not told.weights.any()
            assert not told.probabilities.any()
            assert told.mask is None or not told.mask.any()
            self.keep(after, backend, model)
            return
        after, sample = backend.sample(state, key, count, beta)
        model = model.clone()
        model.law.check(model, self.told_of(backend, sample), beta)
        self.keep(after, backend, model)

    def update(self, state: Any, backend: Backend, model: Model) -> None:
        """Priorities, leaves, or both, of handles old and new and made up."""
        count = 5 if self.shapes.fixed else int(self.rng.integers(0, 8))
        handles = self.candidates(model)
        # Mostly those that are there.
        probabilities = np.where(np.arange(handles.size) < self.spec.capacity, 4.0, 1.0)
        handles = self.rng.choice(handles, count, p=probabilities / probabilities.sum())
        new = items = None
        if self.spec.sampler.has_priorities and (self.shapes.fixed or self.rng.random() < 0.8):
            new = self.rng.choice(np.array(PRIORITIES, np.float32), count)
        if self.shapes.fixed or self.rng.random() < 0.5:
            names = [name for name in self.leaves if self.free or name in UPDATED]
            if not self.shapes.fixed and not self.free:
                names = [name for name in names if self.rng.random() < 0.7]
            ids = self.made + np.arange(count, dtype=np.int32)
            self.made += count
            items = {name: self.leaf(name, ids) for name in names}
        if items is not None and isinstance(self.spec.writer, frb.Immutable):
            with pytest.raises(ValueError, match="Immutable"):
                backend.update(state, backend.array(handles), new, self.nested(items) if self.free else items)
            items = None
        companion = None if new is None else backend.array(new)
        given = items and backend.tree(self.nested(items) if self.free else items)
        after = backend.update(state, backend.array(handles), companion, given)
        model = model.clone()
        model.update(handles.tolist(), None if new is None else new.tolist(), items)
        self.keep(after, backend, model)

    def clear(self, state: Any, backend: Backend, model: Model) -> None:
        if isinstance(self.spec.writer, frb.Immutable):
            with pytest.raises(ValueError, match="Immutable"):
                backend.clear(state)
            return
        after = backend.clear(state)
        model = model.clone()
        model.clear()
        self.keep(after, backend, model)

    def read(self, state: Any, backend: Backend, model: Model) -> None:
        """Look, go over to the other backend, or through a pickle."""
        what = self.rng.random()
        if what < 0.5:
            self.check(state, backend, model, arrays=what < 0.2)
        elif what < 0.75 and len(self.backends) > 1:
            other = next(x for x in self.backends if x is not backend)
            self.keep(other.rb.from_dlpack(state), other, model)
        elif what < 0.8:
            self.keep(pickle.loads(pickle.dumps(state)), backend, model)
        elif isinstance(model.law, Windows) and hasattr(model.law, "least_chance") and not self.shapes.fixed:
            self.draw_all(state, backend, model)

    def draw_all(self, state: Any, backend: Backend, model: Model) -> None:
        """Over enough draws, every window occurs."""
        sampler: Any = self.spec.sampler
        if model.law.refuses(model, 1) or self.spec.sampler.remembers or backend.consumes:
            return
        count = math.ceil(30 / model.law.least_chance(model))
        if count <= 1000:
            key = backend.rb.key(int(self.rng.integers(2**32)))
            _, sample = backend.sample(state, key, count * (sampler.length if sampler.batch == "steps" else 1))
            drawn = {window.ids for window in model.law.found(model, self.told_of(backend, sample))}
            expected = model.law.windows(model)
            if sampler.has_priorities:
                expected = [window for window in expected if window.steps[0].value > 0]
            assert drawn == {window.ids for window in expected}

    def told_of(self, backend: Backend, sample: Any) -> SampleArrays:
        """A sample in NumPy's arrays."""
        told = [getattr(sample, name) for name in SampleArrays._fields[1:]]
        return SampleArrays(self.flat(backend, sample.items), *(None if x is None else backend.numpy(x) for x in told))

    def candidates(self, model: Model) -> np.ndarray:
        """Of each slot the handle of what lies there, or the first, and that of a turn before and after; and worse."""
        capacity = self.spec.capacity
        there = {step.slot: step.handle for step in model.steps()}
        current = np.array([there.get(slot, slot) for slot in range(capacity)])
        # What was there before it was emptied: the last that a turn has had, and the first of these.
        gone = np.array(model.gone[-3:] + model.gone[:3], np.int64)
        found = np.concatenate([current, current - capacity, current + capacity, [-1, WORD - 1], gone])
        return np.where((found < 0) | (found >= WORD), -1, found).astype(np.int32)

    def check(self, state: Any, backend: Backend, model: Model, arrays: bool = False) -> None:
        """All that can be seen; the arrays themselves if asked, as torch must not write to them afterwards."""
        rb = backend.rb
        counts = {name: int(count) for name, count in rb.counts(state)._asdict().items() if name != "cursor"}
        assert counts["rejected"] == model.rejected
        assert counts["stale"] == model.stale
        assert counts["refused"] == model.store.refused
        assert int(rb.size(state)) == len(model.steps())
        assert counts["epochs_done"] == model.law.epochs_done
        named = {step.handle: step for step in model.steps()}
        handles = self.candidates(model)
        live = np.array([handle in named for handle in handles.tolist()])
        np.testing.assert_array_equal(backend.numpy(rb.is_live(state, backend.array(handles))), live)
        got = self.flat(backend, rb.get(state, backend.array(handles)))
        steps = [named[handle] for handle in handles[live].tolist()]
        for name, leaf in got.items():
            assert not leaf[~live].any()
            if steps:
                assert_same_bytes(leaf[live], model.expected(name, steps), name)
        if backend.library == "torch" or backend.name in backends.HOST_VARIANTS:  # XLA would compile each
            self.check_told(state, backend, model, handles, live)
        if arrays:
            self.check_arrays(state, backend, model)

    def check_told(self, state: Any, backend: Backend, model: Model, handles: np.ndarray, live: np.ndarray) -> None:
        """Probabilities and priorities by handle, and which handles there are."""
        rb, sampler = backend.rb, self.spec.sampler
        named = {step.handle: step for step in model.steps()}
        steps = [named[handle] for handle in handles[live].tolist()]
        found = backend.numpy(rb.probabilities(state, backend.array(handles)))
        probabilities = model.law.probabilities(model)
        assert not found[~live].any()
        np.testing.assert_allclose(
            found[live], [probabilities.get(step.id, 0.0) for step in steps], rtol=1e-5, atol=TINY
        )
        if sampler.has_priorities:
            priorities = rb.priorities(state, backend.array(handles))
            got, alpha = backend.numpy(priorities), sampler.alpha
            limit = getattr(sampler, "max_times_sampled", None) or math.inf
            expected = [0.0 if step.times >= limit else step.value ** (1 / alpha if alpha else 1) for step in steps]
            assert not got[~live].any()
            np.testing.assert_allclose(got[live], expected, rtol=1e-6)
            if not backend.consumes and not self.shapes.fixed:
                again = rb.update(state, backend.array(handles[live]), priorities[backend.array(live)])
                assert backend.numpy(again.tree).tobytes() == backend.numpy(state.tree).tobytes()
        if self.spec.writer.in_order:
            newest = [([-1] * 3 + [step.handle for step in lane])[-3:] for lane in model.store.lanes]
            got = backend.numpy(rb.newest(state, 3)).reshape(3, -1)
            np.testing.assert_array_equal(got.T, newest)

    def check_arrays(self, state: Any, backend: Backend, model: Model) -> None:
        """The storage, and the leaves of the tree."""
        steps = model.steps()
        slots = [step.slot for step in steps]
        for name, leaf in self.flat(backend, backend.rb.items(state)).items():
            assert leaf.shape == (self.spec.capacity, *self.leaves[name].shape)
            if steps:
                assert_same_bytes(leaf[slots], model.expected(name, steps), name)
        leaves = model.law.leaves(model)
        if leaves is not None:
            expected = np.zeros(self.spec.capacity)
            expected[list(leaves)] = list(leaves.values())
            stored = backend.numpy(state.tree).reshape(-1)[: self.spec.capacity]
            np.testing.assert_allclose(stored, expected, rtol=3e-7)
        assert problem_of(backend, state) is None


def problem_of(backend: Backend, state: Any) -> str | None:
    """Why a checkpoint of a state would be refused: never."""
    vector, kept = backend.numpy(state.counters), {name: backend.numpy(x) for name, x in state.auxiliary.items()}
    tree = None if state.tree is None else backend.numpy(state.tree)
    problem = soundness.problem_of_counters(state.spec.plan, vector)
    problem = problem or soundness.problem_of_arrays(state.spec, vector, kept, tree)
    return problem if problem or tree is None else soundness.problem_of_nodes(tree, state.spec.capacity)


def rows_of(batch: Leaves, count: int) -> list[Leaves]:
    """The items of a batch."""
    return [{name: leaf[row] for name, leaf in batch.items()} for row in range(count)]


def words_of(backend: Backend, key: Any, batch: int) -> np.ndarray:
    """What a writer draws with a key."""
    if backend.name in backends.HOST_VARIANTS:
        return hosted.draws(key, (batch, 2))[0]
    if backend.library == "torch":
        return torch_backend.arrays.random.draws(key, batch, 2).numpy()
    return np.asarray(jax.jit(compile.draws, static_argnums=(1, 2))(key, batch, 2))


def beginning_at(backend: Backend, state: Any, first: int) -> Any:
    """As after so many items in each lane, because numbers start again from 0 below 2^31."""
    if not first:
        return state
    spec, lanes = state.spec, state.spec.plan.ring.lanes
    vector = backend.numpy(state.counters).copy()
    vector[0 if lanes == 1 else slice(BASE, BASE + lanes)] = first
    place = BASE + (2 * lanes if lanes > 1 else 0)
    for name, count in spec.plan.counter_names:
        if name in ("next", "end"):  # an epoch that is done
            vector[place : place + count] = first
        if name == frame_ring.CURSOR:  # frames have numbers of their own
            vector[place : place + count] = spec.plan.frames.limit - 3
        place += count
    counters = backend.array(vector)
    if backend.name in backends.HOST_VARIANTS:
        return type(state)(state._version, vector, spec)
    if backend.library == "jax":
        return dataclasses.replace(state, counters=counters)
    # A clone, as NumPy's memory is not aligned as JAX wants it to be; samples go where they went.
    return type(state)(state._version, counters.to(state._counters.device, copy=True), spec, None, state._target)


def run(rng: Rng, variants: Sequence[str], spec: frb.BufferSpec, steps: int, shapes: Shapes) -> None:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(backends.make(name)) for name in variants]
        History(rng, made, spec, shapes).run(steps)
