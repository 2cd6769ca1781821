"""Sampling of slices of episodes from buffers of growing size, adding between samples, beside peers and the floor."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks import floor, ours
from benchmarks.compare import Effort, placed
from benchmarks.contender import (
    Backend,
    Contender,
    Entry,
    Operation,
    Sequencing,
    SliceContender,
    Unavailable,
    assemble,
    describe,
)
from benchmarks.goals import Comparison, Verdict, ratio_of, slice_comparisons
from benchmarks.measure import Spread, Timings, TurnTimings, alternate, spread
from benchmarks.workload import SliceWorkload


@dataclass(frozen=True)
class Group:
    """Who is measured together: at all capacities, in the same rounds."""

    backend: Backend
    sampler: Sequencing
    lanes: int = 1


LANES = 16  # what flashbax calls its add_batch_size

GROUPS = (
    Group("torch", "slices"),
    Group("torch", "window slices"),
    Group("torch", "prioritized slices"),
    Group("torch", "slices without replacement"),
    Group("torch", "without replacement"),
    Group("jax", "slices"),
    Group("jax", "window slices"),
    Group("jax", "window slices", LANES),
    Group("jax", "prioritized slices"),
    Group("jax", "prioritized slices", LANES),
    Group("jax", "slices without replacement"),
    Group("jax", "without replacement"),
    Group("jax", "queue"),
)


@dataclass(frozen=True)
class Curve:
    """Seconds of one operation of one contender at each capacity."""

    group: Group
    contender: str
    operation: Operation
    points: dict[int, Spread]
    steps: dict[int, int]  # that the last sample held, by capacity; none for other operations

    @property
    def growth(self) -> float:
        """How much dearer it is at the largest capacity than at the smallest."""
        return self.points[max(self.points)].median / self.points[min(self.points)].median

    def as_json(self) -> dict[str, Any]:
        """The curve as the JSON report holds it; times in microseconds."""
        return {
            **asdict(self.group),
            "contender": self.contender,
            "operation": self.operation,
            "growth": self.growth,
            "points": [
                {
                    "capacity": capacity,
                    "median_us": seconds.median * 1e6,
                    "q1_us": seconds.q1 * 1e6,
                    "q3_us": seconds.q3 * 1e6,
                    "rounds": seconds.rounds,
                    "steps": self.steps.get(capacity),
                }
                for capacity, seconds in sorted(self.points.items())
            ],
        }


@dataclass(frozen=True)
class SliceResult:
    """A comparison as measured at one capacity."""

    group: Group
    capacity: int
    comparison: Comparison
    ratio: Spread | None
    verdict: Verdict


@dataclass(frozen=True)
class SliceSection:
    """Everything measured in the section."""

    work: SliceWorkload
    capacities: tuple[int, ...]
    curves: list[Curve]
    results: list[SliceResult]
    unavailable: list[Unavailable]

    def as_json(self) -> dict[str, Any]:
        """The section as the JSON report holds it."""
        return {
            "workload": asdict(self.work),
            "curves": [curve.as_json() for curve in self.curves],
            "ratios": [
                {
                    **asdict(result.comparison),
                    "lanes": result.group.lanes,
                    "capacity": result.capacity,
                    "goal": result.comparison.goal,
                    "verdict": result.verdict,
                    "ratio": None if result.ratio is None else asdict(result.ratio),
                }
                for result in self.results
            ],
            "unavailable": [asdict(missing) for missing in self.unavailable],
        }


def capacities_around(work: SliceWorkload, *, quick: bool = False) -> tuple[int, ...]:
    """A tenth of the workload's capacity, where the goals are judged, and ten times as much."""
    return (work.capacity // 10, work.capacity) if quick else (work.capacity // 10, work.capacity, work.capacity * 10)


def roster(work: SliceWorkload, group: Group) -> list[Entry]:
    """Everyone who takes part in one group at the workload's capacity."""
    sampler = group.sampler
    run = 1 if sampler == "without replacement" else work.length

    def torchrl() -> Contender:
        from benchmarks.peers_torchrl import TorchrlSlices

        return TorchrlSlices(work, sampler)

    def flashbax() -> Contender:
        from benchmarks.peers_flashbax import FlashbaxQueue, FlashbaxSlices

        return FlashbaxQueue(work, sampler) if sampler == "queue" else FlashbaxSlices(work, sampler)

    def of_ours() -> Contender:
        from benchmarks.slice_ours import OursJaxQueue, OursJaxSlices, OursTorchSlices

        if sampler == "queue":
            return OursJaxQueue(work, sampler)
        return OursJaxSlices(work, sampler) if group.backend == "jax" else OursTorchSlices(work, sampler)

    def gather() -> Contender:
        return floor.jax_floor(work, run) if group.backend == "jax" else floor.torch_floor(work, length=run)

    builders: dict[str, Callable[[], Contender]] = {ours.NAME: of_ours, floor.NAME: gather}
    if sampler == "queue":
        builders = {ours.NAME: of_ours, "flashbax": flashbax}  # both return one window of each lane
    elif group.backend == "torch" and sampler != "window slices":
        builders["torchrl"] = torchrl
    elif group.backend == "jax" and sampler in ("window slices", "prioritized slices"):
        builders["flashbax"] = flashbax
    return [Entry(name, group.backend, sampler, build) for name, build in builders.items()]


def slices(
    work: SliceWorkload,
    effort: Effort,
    capacities: tuple[int, ...],
    *,
    groups: tuple[Group, ...],
    entries: Callable[[SliceWorkload, Group], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> SliceSection:
    """Measure one group after the other, each at all capacities; who cannot run is named with the reason."""
    section = SliceSection(work, capacities, [], [], [])
    for group in groups:
        say(f"measuring {group.backend} {group.sampler}, lanes: {group.lanes} ...")
        with placed(group.backend, "cpu"):
            _measure(section, group, effort, entries)
        # At the largest capacity each contender holds some two gigabytes.
        gc.collect()
    return section


def _measure(
    section: SliceSection, group: Group, effort: Effort, entries: Callable[[SliceWorkload, Group], list[Entry]]
) -> None:
    """Add one group's figures to the section; its contenders go when this returns."""
    seated: list[tuple[int, Contender]] = []
    missing: list[Unavailable] = []
    for capacity in section.capacities:
        ready, failed = assemble(entries(replace(section.work, capacity=capacity, lanes=group.lanes), group))
        seated += [(capacity, contender) for contender in ready]
        missing += failed
    contenders = [contender for _, contender in seated]
    timings, errors = alternate(contenders, rounds=effort.rounds, turns=effort.burst)
    for place, error in errors.items():
        capacity, contender = seated[place]
        reason = f"with {capacity:,} steps, while measured: {describe(error)}"
        missing.append(Unavailable(contender.name, group.backend, group.sampler, reason))
    section.unavailable.extend(dict.fromkeys(missing))  # who fails at every capacity alike is named once

    measured = [
        (capacity, contender, timings[place])
        for place, (capacity, contender) in enumerate(seated)
        if place not in errors
    ]
    section.curves.extend(_curves(group, measured))
    for capacity in section.capacities:
        of_capacity: Timings = {
            (contender.name, operation): seconds
            for size, contender, turns in measured
            if size == capacity
            for operation, seconds in turns.items()
        }
        for wanted in slice_comparisons():
            if _belongs(wanted, group):
                # A bound is for one capacity; at the others the ratio is for information.
                judged = wanted if capacity == section.work.capacity else replace(wanted, at_least=None, at_most=None)
                ratio = ratio_of(judged, of_capacity)
                section.results.append(SliceResult(group, capacity, judged, ratio, judged.verdict(ratio)))


def _curves(group: Group, measured: list[tuple[int, Contender, TurnTimings]]) -> list[Curve]:
    curves: dict[tuple[str, Operation], Curve] = {}
    for capacity, contender, turns in measured:
        for operation, seconds in turns.items():
            empty = Curve(group, contender.name, operation, {}, {})
            curve = curves.setdefault((contender.name, operation), empty)
            curve.points[capacity] = spread(seconds)
            if operation == "sample" and isinstance(contender, SliceContender):
                curve.steps[capacity] = contender.steps
    return list(curves.values())


def _belongs(wanted: Comparison, group: Group) -> bool:
    return (wanted.backend, wanted.sampler) == (group.backend, group.sampler)
