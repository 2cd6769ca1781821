"""Random calls on states that live, by numbers of a seed: the same calls, whoever carries them out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import functional_rb as frb
from functional_rb.core import counters
from functional_rb.core.episodes import NEXT_STEP_IN_EPISODE
from functional_rb.core.handles import CURRENT
from functional_rb.samplers.fresh import COMPLETED, GIVEN, WINDOWS
from functional_rb.structures.episode_windows import LONGEST
from functional_rb.structures.fresh_windows import MOST
from tests.agreement import added_steps
from tests.agreement.carriers import noting
from tests.support import chain_programs as programs
from tests.support.backends import Backend
from tests.support.histories import beginning_at

# Leaves that may say where trajectories end: they stay as they were added where they do.
MARKS = {"done", "cut", "n", "id", "run", "truncated"}
TELL_VERSIONS = {"n", "id", "run"}


class Program:
    """Calls of `add`, `update` and `sample` on one of the states that live, in place or not.

    Args:
        backend: what carries them out.
        spec: of the buffer.
        seed: of all choices.
        behind: so many items before handles begin anew; None for a buffer that is new.
        native: whether the version chain has to do all calls itself.

    Attributes:
        told: the bits of all that came of the calls, and of all states that lived after each.
        refused: the words of the errors.
    """

    def __init__(
        self, backend: Backend, spec: frb.BufferSpec, seed: int, behind: int | None = None, native: bool = False
    ) -> None:
        self.backend, self.spec, self.native, self.rng = backend, spec, native, np.random.default_rng(seed)
        self.states = list[Any]([backend.init(spec) if behind is None else near_the_end(backend, spec, behind)])
        self.told, self.refused, self.keys = list[Any](), list[str](), 0

    def carry_out(self, calls: int) -> Program:
        for _ in range(calls):
            name = str(self.rng.choice(["add", "add", "update", "sample", "sample"]))
            in_place = bool(self.rng.random() < 0.3) and name != "sample"
            at = -1 if in_place or self.rng.random() < 0.8 else int(self.rng.integers(len(self.states)))
            if in_place and self.rng.random() < 0.7:  # else it is a copy that is written to
                del self.states[:-1]
            before = self.states[at]
            after = getattr(self, name)(before, in_place)
            if after is not before:
                if in_place:
                    del self.states[at]
                self.states = [*self.states, after][-4:]
            self.told += [programs.peek(state) for state in self.states]
            programs.check_books(self.states[-1])
        return self

    def call(self, name: str, *given: Any, natively: bool = True) -> Any:
        """What a function returns; None where it refuses what values alone can tell."""
        with noting(self.backend.library) as chain:
            try:
                made = getattr(self.backend.rb, name)(*given)
            except ValueError as error:
                self.refused.append(str(error))
                return None
        assert not (self.native and natively) or chain.done == 1, (name, chain.calls)
        return made

    def add(self, state: Any, in_place: bool) -> Any:
        lanes = self.spec.lanes
        n = int(self.rng.choice([1, 1, 2, 3, 7, self.spec.capacity // (lanes or 1) + 3]))
        lead = (n,) if lanes is None else (n, lanes)
        items = {name: self.backend.array(x) for name, x in self.items(lead).items()}
        mask = self.rng.random(lead) < self.rng.choice([0.1, 0.6])
        given = self.backend.array(mask) if self.rng.random() < 0.4 else None, None
        if not any(transform.delays for transform in self.spec.transforms):
            given = given[0], self.priorities(lead)
        after = self.call("add" + "_" * in_place, state, items, *given, self.key() if self.spec.writer.words else None)
        return state if after is None else after

    def key(self) -> Any:
        """Another key each time, by which torch draws what `backends` has JAX draw on hosts."""
        self.keys += 1
        return torch.tensor(self.keys) if self.backend.library == "torch" else self.backend.rb.key(self.keys)

    def items(self, lead: tuple[int, ...]) -> dict[str, Any]:
        """Of any bits, but for what says where trajectories end, ranks of which many are alike, frames, and rewards."""
        spec, rng, rows = self.spec, self.rng, int(np.prod(lead))
        if "gain" in spec.item:
            return added_steps.items(rng, int(rng.integers(1000)), rows, spec)
        made = {name: programs.random_array(rng, leaf, lead) for name, leaf in spec.item.items()}
        made |= {"done": rng.random(lead) < 0.2, "n": np.sort(rng.integers(0, 4, lead), 0).astype(np.int32)}
        if spec.transforms:  # sums of what is no number may have several bits
            made["x"] = (rng.integers(-9, 9, made["x"].shape) / 4).astype(np.float32)
        if "rank" in made:
            alike, chosen = rng.integers(-9, 9, made["rank"].shape), rng.choice(programs.PRIORITIES, made["rank"].shape)
            made["rank"] = np.where(rng.random(alike.shape) < 0.2, chosen, alike).astype(np.float32)
        if spec.plan.frames is not None:
            seen = added_steps.observations(rng, rows, spec.plan.frames, spec.plan.names)
            made |= {name: array.reshape(*lead, *array.shape[1:]) for name, array in seen.items()}
        return made

    def priorities(self, lead: tuple[int, ...]) -> Any:
        if not self.spec.sampler.has_priorities or self.rng.random() < 0.3:
            return None
        unusual = self.rng.choice(programs.PRIORITIES, lead)
        numbers = np.where(self.rng.random(lead) < 0.3, unusual, self.rng.random(lead))
        return self.backend.array(numbers.astype(np.float32))

    def update(self, state: Any, in_place: bool) -> Any:
        """By handles of a draw, some twice, and others."""
        _, sample = self.drawn(state)
        known = np.full(1, -1) if sample is None else self.backend.numpy(sample.indices).reshape(-1)
        modulus = self.spec.plan.ring.limit * (self.spec.lanes or 1)
        others = self.rng.integers(-3, min(2 * self.spec.capacity, modulus), 6)
        chosen = self.rng.choice(np.concatenate([known, others]), int(self.rng.choice([1, 2, 5, 40])))
        handles = self.backend.array(chosen.astype(np.int32))
        priorities = self.priorities(chosen.shape)
        plan, fixed = self.spec.plan, set[str]() if self.spec.plan.boundaries is None else MARKS
        fixed = fixed | (TELL_VERSIONS if self.spec.sampler.compares_versions else set())
        if plan.frames is not None:
            fixed = fixed | {plan.names[k] for x in plan.frames.stacks for k in (x.leaf, x.following) if k is not None}
        names = [name for name in self.spec.item if name not in fixed and self.rng.random() < 0.5]
        leaves = {name: programs.random_array(self.rng, self.spec.item[name], chosen.shape) for name in names}
        items = {name: self.backend.array(leaf) for name, leaf in leaves.items()} or None
        if priorities is None and items is None:
            if not self.spec.sampler.compares_versions:
                return state
            version = int(self.rng.choice([*range(5), 2**32 + 2, -3]))
            return self.call("update" + "_" * in_place, state, None, None, None, version, natively=False)
        ranked_anew = items is not None and isinstance(self.spec.writer, frb.MaxValue)
        return self.call("update" + "_" * in_place, state, handles, priorities, items, natively=not ranked_anew)

    def drawn(self, state: Any) -> tuple[Any, Any]:
        """The state after a draw and a sample; None if there is nothing, of which a GPU tells by handles alone."""
        sampler: Any = self.spec.sampler
        unit = self.spec.plan.ring.lanes if isinstance(sampler, frb.Queue) else 1  # it gives windows of all lanes
        unit = sampler.length if getattr(sampler, "batch", "") == "steps" else unit
        given = self.key(), int(self.rng.choice([1, 4, 33])) * unit
        natively = bool(self.spec.known.draws)
        after, sample = self.call("sample", state, *given, natively=natively) or (state, None)
        if sample is None or not (self.backend.numpy(sample.indices) >= 0).any():
            return state, None
        return after, sample

    def sample(self, state: Any, in_place: bool) -> Any:
        after, sample = self.drawn(state)
        if sample is None:
            self.told.append("nothing")
            return state
        beside = [*sample[1:], *(sample.extras[name] for name in sorted(sample.extras))]
        arrays = [self.backend.numpy(x) for x in (*sample.items.values(), *beside) if hasattr(x, "shape")]
        self.told += [(x.dtype, x.shape, x.tobytes()) for x in arrays]
        return after if self.spec.sampler.remembers else state


def near_the_end(backend: Backend, spec: frb.BufferSpec, behind: int) -> Any:
    """An empty buffer: so many items on, handles begin anew, numbers of frames soon, and an episode gets too long."""
    limit, state = spec.plan.ring.limit, backend.init(spec)
    if spec.writer.in_order:
        state = beginning_at(backend, state, (limit - behind) % limit)
    else:  # with the next item of each slot
        last = limit - spec.capacity + np.arange(spec.capacity)
        np.asarray(state._version.own().auxiliary[CURRENT])[:] = -2 - last
    following = counters.place(spec.plan, NEXT_STEP_IN_EPISODE)
    if following is not None:
        state._counters[following] = LONGEST - 3
    completed, given = (counters.place(spec.plan, name) for name in (COMPLETED, GIVEN))
    if completed is not None and given is not None:
        state._counters[completed], state._counters[given] = MOST - 2, MOST - 2
        np.asarray(state._version.own().auxiliary[WINDOWS])[:] = MOST - 2
    return state
