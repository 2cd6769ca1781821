"""Groups of contenders, measured at growing capacities, adding between samples, beside peers and the floor."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from benchmarks.compare import Effort, placed
from benchmarks.contender import (
    AnySampler,
    Backend,
    Contender,
    Entry,
    Operation,
    SliceContender,
    TurnContender,
    Unavailable,
    assemble,
    describe,
)
from benchmarks.goals import Comparison, Verdict, held_at_most, ratio_of
from benchmarks.measure import Spread, Timings, TurnTimings, alternate, spread
from benchmarks.workload import ObservationWorkload, SliceWorkload

Work = TypeVar("Work", bound=SliceWorkload | ObservationWorkload)


@dataclass(frozen=True)
class Group:
    """Who is measured together: at all capacities, in the same rounds."""

    backend: Backend
    sampler: AnySampler
    lanes: int = 1


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
class GroupResult:
    """A comparison as measured at one capacity."""

    group: Group
    capacity: int
    comparison: Comparison
    ratio: Spread | None
    verdict: Verdict


@dataclass(frozen=True)
class Holding:
    """Bytes that one contender held after it was measured: what older states left behind counts."""

    group: Group
    contender: str
    capacity: int
    held: int
    items: int  # bytes of the items it was given, as they were added

    @property
    def share(self) -> float:
        """Bytes held over those of the items."""
        return self.held / self.items

    @property
    def at_most(self) -> float | None:
        """The bound of `share`; none is a figure for information."""
        return held_at_most(self.group.sampler, self.contender)

    @property
    def verdict(self) -> Verdict:
        """Whether the share keeps within the bound."""
        return "" if self.at_most is None else "pass" if self.share <= self.at_most else "MISSED"


@dataclass(frozen=True)
class GroupSection:
    """Everything measured in the section."""

    work: SliceWorkload | ObservationWorkload
    capacities: tuple[int, ...]
    curves: list[Curve]
    results: list[GroupResult]
    holdings: list[Holding]
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
            "holdings": [
                {
                    **asdict(holding.group),
                    "contender": holding.contender,
                    "capacity": holding.capacity,
                    "bytes": holding.held,
                    "share": holding.share,
                    "at_most": holding.at_most,
                    "verdict": holding.verdict,
                }
                for holding in self.holdings
            ],
            "unavailable": [asdict(missing) for missing in self.unavailable],
        }


def measure_groups(
    work: Work,
    effort: Effort,
    capacities: tuple[int, ...],
    *,
    groups: tuple[Group, ...],
    entries: Callable[[Work, Group], list[Entry]],
    wanted: Callable[[Group], list[Comparison]],
    say: Callable[[str], None],
) -> GroupSection:
    """Measure one group after the other, each at all capacities; who cannot run is named with the reason."""
    section = GroupSection(work, capacities, [], [], [], [])
    for group in groups:
        say(f"measuring {group.backend} {group.sampler}, lanes: {group.lanes} ...")
        with placed(group.backend, "cpu"):
            _measure(section, work, group, effort, entries, wanted(group))
        # Some contenders hold gigabytes: let this group's go before the next is built.
        gc.collect()
    return section


def _measure(
    section: GroupSection,
    work: Work,
    group: Group,
    effort: Effort,
    entries: Callable[[Work, Group], list[Entry]],
    comparisons: list[Comparison],
) -> None:
    """Add one group's figures to the section; its contenders go when this returns."""
    seated: list[tuple[int, Contender]] = []
    missing: list[Unavailable] = []
    for capacity in section.capacities:
        ready, failed = assemble(entries(replace(work, capacity=capacity, lanes=group.lanes), group))
        seated += [(capacity, contender) for contender in ready]
        missing += failed
    contenders = [contender for _, contender in seated]
    timings, errors = alternate(contenders, rounds=effort.rounds, turns=effort.burst)
    if any(wanted.operation == "step" for wanted in comparisons):
        for turns in timings:
            if len(turns) > 1:
                turns["step"] = [sum(seconds) for seconds in zip(*turns.values(), strict=True)]
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
    for capacity, contender, _ in measured:
        held = contender.held_bytes() if isinstance(contender, TurnContender) else None
        if held is not None:
            section.holdings.append(Holding(group, contender.name, capacity, held, capacity * work.item_bytes))
    for capacity in section.capacities:
        of_capacity: Timings = {
            (contender.name, operation): seconds
            for size, contender, turns in measured
            if size == capacity
            for operation, seconds in turns.items()
        }
        for wanted in comparisons:
            # A bound is for one capacity; at the others the ratio is for information.
            judged = wanted if capacity == work.capacity else replace(wanted, at_least=None, at_most=None)
            ratio = ratio_of(judged, of_capacity)
            section.results.append(GroupResult(group, capacity, judged, ratio, judged.verdict(ratio)))


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
