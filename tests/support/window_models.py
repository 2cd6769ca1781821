"""The laws of the library's samplers of slices; see `models`, which has the others."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import functional_rb as frb
from functional_rb.testing.laws import ROUNDING, TINY, Law, SampleArrays, Step, shares

if TYPE_CHECKING:
    from tests.support.models import Model


class Window(NamedTuple):
    """A window: its steps, its trajectory, and the age at which it begins, which may be before its first step's."""

    steps: tuple[Step, ...]
    trajectory: tuple[int, int]
    begins: int

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(step.id for step in self.steps)


class Windows(Law):
    """What all samplers of slices share."""

    def follow(self, before: Step | None, step: Step) -> None:
        """Number the trajectories and the steps in them."""
        sampler, key = self.sampler, self.sampler.trajectory_key
        another = key is not None and before is not None and before.leaves[key] != step.leaves[key]
        if before is not None:
            before.ended = before.ended or another
            goes_on = not before.ended
            step.episode, step.step_in_episode = (
                (before.episode, before.step_in_episode + 1) if goes_on else (before.episode + 1, 0)
            )
        step.ended = any(bool(step.leaves[name]) for name in sampler.end_keys or ())

    def windows(self, model: Model) -> list[Window]:
        return [window for lane in model.store.lanes for window in self.windows_of(lane)]

    def windows_of(self, lane: Sequence[Step]) -> Iterator[Window]:
        """Those of a lane, by the definition."""
        length, (left, right) = self.sampler.length, self.sampler.reaches
        for episode in sorted({step.episode for step in lane}):
            steps = [step for step in lane if step.episode == episode]
            first, last = steps[0].step_in_episode, steps[-1].step_in_episode
            for begins in range(first - length + 1, last + 1):
                inside = tuple(step for step in steps if begins <= step.step_in_episode < begins + length)
                whole = len(inside) == length
                early, late = begins < first, begins + length - 1 > last
                cut = begins == first or begins + length - 1 <= last + right
                allowed = whole or (
                    not self.sampler.strict_length and (begins >= first - left if early else cut if late else True)
                )
                if allowed and begins % self.sampler.period == 0:
                    yield Window(inside, (steps[0].lane, episode), begins)

    def drawable(self, model: Model) -> list[Any]:
        return self.windows(model)

    def probabilities(self, model: Model) -> dict[int, float]:
        """Of what is drawn, and then of its windows."""
        windows = self.windows(model)
        named = self.named_chances(model, windows)
        counts = collections.Counter(self.name(window) for window in windows)
        found: collections.Counter[int] = collections.Counter()
        for window in windows:
            found[window.steps[0].id] += named.get(self.name(window), 0.0) / counts[self.name(window)]  # type: ignore[assignment]  # floats are counted
        return dict(found)

    def name(self, window: Window) -> Any:
        """What is drawn before a window of it is."""
        return window.trajectory if self.sampler.weighting == "trajectory" else (window.ids, window.begins)

    def named_chances(self, model: Model, windows: Sequence[Window]) -> dict[Any, float]:
        """With replacement all are alike."""
        return shares(dict.fromkeys(map(self.name, windows), 1.0))

    def can(self, model: Model, n: int) -> bool:
        return bool(self.drawable(model))

    def found(self, model: Model, told: SampleArrays) -> list[Window]:
        """The windows that were drawn, one for each row that is not all padding; what is told of them is right."""
        length = self.sampler.length
        rows = len(told.weights)
        assert all(x is not None for x in told[4:])
        shape = (rows * length,) if self.sampler.flat else (rows, length)
        assert all(x.shape == shape for x in (told.indices, *told[4:]))
        mask, is_first, is_last, truncated = (x.reshape(rows, length) for x in told[4:])
        steps = iter(model.real(told))
        known = {window.ids: window for window in self.windows(model)}
        found = []
        for row in range(rows):
            count = int(mask[row].sum())
            assert mask[row, :count].all()
            ids = tuple(next(steps).id for _ in range(count))
            if not count:
                assert not (is_first[row] | is_last[row] | truncated[row]).any()
                continue
            assert len(found) == row, "padding comes last"
            window = known[ids]
            found.append(window)
            ended = window.steps[-1].ended
            assert is_first[row].tolist() == [step.step_in_episode == 0 for step in window.steps] + [False] * (
                length - count
            )
            for marks, there in ((is_last[row], ended), (truncated[row], not ended)):
                assert marks.tolist() == [there and k == count - 1 for k in range(length)]
        return found

    def check(self, model: Model, told: SampleArrays, beta: float | None) -> None:
        found = self.found(model, told)
        assert len(found) == len(told.weights)
        windows = self.windows(model)
        count = len(windows)
        if self.sampler.weighting == "trajectory":
            count = len({window.trajectory for window in windows})
        assert (told.weights == 1).all()
        np.testing.assert_allclose(told.probabilities, np.full(len(found), 1 / count), rtol=ROUNDING)

    def least_chance(self, model: Model) -> float:
        windows = self.windows(model)
        if getattr(self.sampler, "weighting", "window") == "window":
            return 1 / len(windows)
        counts = collections.Counter(window.trajectory for window in windows)
        return 1 / len(counts) / max(counts.values())


class FreshWindows(Windows):
    """`Slices(fresh_first=True)`: pieces of trajectories come once, and then windows as ever.

    It remembers steps: those at or before the end of a piece that was given are told.
    """

    def __init__(self, spec: frb.BufferSpec) -> None:
        """Nothing was given."""
        super().__init__(spec)
        self.told: set[int] = set()

    def pieces(self, model: Model) -> list[tuple[Step, ...]]:
        """What is still to be given, in its order: that which was complete the most steps of its lane ago first."""
        length, found = self.sampler.length, []
        for e, lane in enumerate(model.store.lanes):
            for k in range(len(lane) - length + 1):
                steps = tuple(lane[k : k + length])
                whole = all(step.episode == steps[0].episode for step in steps)
                if whole and steps[0].step_in_episode % length == 0 and steps[-1].id not in self.told:
                    found.append((k - len(lane), e, steps))
        return [steps for *_, steps in sorted(found, key=lambda one: one[:2])]

    def probabilities(self, model: Model) -> dict[int, float]:
        """The first piece comes, if there is one."""
        pieces = self.pieces(model)
        return {pieces[0][0].id: 1.0} if pieces else super().probabilities(model)

    def check(self, model: Model, told: SampleArrays, beta: float | None) -> None:
        pieces, length = self.pieces(model)[: len(told.weights)], self.sampler.length
        count = len(pieces)
        indices = told.indices.reshape(-1, length)[:count]
        assert indices.tolist() == [[step.handle for step in steps] for steps in pieces]
        assert told.probabilities[:count].tolist() == [1.0] * count
        self.found(model, told)
        assert (told.weights == 1).all()
        windows = self.windows(model)
        of = windows if self.sampler.weighting == "window" else {window.trajectory for window in windows}
        np.testing.assert_allclose(told.probabilities[count:], 1 / len(of), rtol=ROUNDING)
        self.told |= {steps[-1].id for steps in pieces}

    def passed(self, model: Model) -> set[int]:
        """The steps at or before the end of a piece that was given, or lost."""
        left, found = {steps[-1].id for steps in self.pieces(model)}, set[int]()
        for lane in model.store.lanes:
            ends = [k for k, step in enumerate(lane) if (step.step_in_episode + 1) % self.sampler.length == 0]
            last = max((k for k in ends if lane[k].id not in left), default=-1)
            found |= {step.id for step in lane[: last + 1]}
        return found


class PrioritizedWindows(Windows):
    """`PrioritizedSlices`: the first step's priority."""

    def starts(self, model: Model) -> dict[int, Step]:
        """The steps where a window begins, by id."""
        return {window.steps[0].id: window.steps[0] for window in self.windows(model)}

    def drawable(self, model: Model) -> list[Step]:
        return [step for step in self.starts(model).values() if step.value > 0]

    def probabilities(self, model: Model) -> dict[int, float]:
        return shares({step.id: step.value for step in self.drawable(model)})

    def leaves(self, model: Model) -> dict[int, float]:
        return {step.slot: step.value for step in self.starts(model).values()}

    def check(self, model: Model, told: SampleArrays, beta: float | None) -> None:
        found = self.found(model, told)
        assert len(found) == len(told.weights)
        values = {step.id: step.value for step in self.drawable(model)}
        total, least = math.fsum(values.values()), min(values.values())
        beta = self.sampler.beta if beta is None else beta
        for row, window in enumerate(found):
            value = values[window.steps[0].id]
            np.testing.assert_allclose(told.probabilities[row], value / total, rtol=ROUNDING)
            np.testing.assert_allclose(told.weights[row], (value / least) ** -beta, rtol=1e-5, atol=TINY)

    def least_chance(self, model: Model) -> float:
        """Of any start with some."""
        values = [step.value for step in self.drawable(model)]
        return min(values) / math.fsum(values)
