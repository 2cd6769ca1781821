"""How the benchmarks measure: rounds, turns, ratios, verdicts, and who cannot take part. No time is asserted."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from benchmarks import (
    atari,
    before_after,
    floor,
    goals,
    group_report,
    n_step,
    ours,
    report,
    storage,
)
from benchmarks.compare import compare
from benchmarks.contender import (
    Backend,
    Contender,
    Entry,
    Reading,
    Sampler,
    assemble,
)
from benchmarks.goals import Comparison
from benchmarks.groups import Group
from benchmarks.measure import Spread, alternate, interleave, ratios, spread
from benchmarks.memory import Footprint, memory
from benchmarks.scaling import growth, scaling
from benchmarks.shared import Partner
from benchmarks.slices import slices
from benchmarks.workload import (
    NStepWorkload,
    ObservationWorkload,
    Workload,
)
from tests.support.benchmarking import BRIEF, PIXELS, RETURNS, STEPS, TINY, Turning, broken, quiet, turning

# Peers warn about their own dependencies.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


class Counting(Contender):
    """Does nothing, and writes down the order of its calls."""

    def __init__(self, name: str, calls: list[tuple[str, str]]) -> None:
        super().__init__(name, "jax", "prioritized")
        self._calls = calls

    def add(self) -> None:
        self._calls.append((self.name, "add"))

    def sample(self) -> None:
        self._calls.append((self.name, "sample"))
        self.drawn.append(len(self._calls))

    def update(self) -> None:
        self._calls.append((self.name, "update"))


def test_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The ratio of the medians would be 3 / 2.
    assert ratios([2.0, 3.0, 40.0], [1.0, 2.0, 10.0]) == Spread(median=2.0, q1=1.75, q3=3.0, rounds=3)


def test_spread_has_median_and_quartiles() -> None:
    assert spread([5.0, 1.0, 2.0, 3.0, 4.0]) == Spread(median=3.0, q1=2.0, q3=4.0, rounds=5)


@pytest.mark.parametrize(
    ("median", "at_least", "at_most", "verdict"),
    [
        (3.0, 3.0, None, "pass"),
        (2.9, 3.0, None, "MISSED"),
        (1.5, None, 1.5, "pass"),
        (1.6, None, 1.5, "MISSED"),
        (0.1, None, None, ""),
    ],
)
def test_verdict(median: float, at_least: float | None, at_most: float | None, verdict: str) -> None:
    wanted = Comparison("jax", "uniform", "add", "peer", at_least=at_least, at_most=at_most)
    assert wanted.verdict(Spread(median, median, median, 1)) == verdict
    assert wanted.verdict(None) == "not run"


def test_a_round_gives_each_contender_one_burst_of_each_operation() -> None:
    calls: list[tuple[str, str]] = []
    timings = interleave([Counting("a", calls), Counting("b", calls)], rounds=3, burst=4, warmup=1)
    assert {key: len(values) for key, values in timings.items()} == {
        (name, operation): 3 for name in "ab" for operation in ("add", "sample", "update", "step")
    }
    bursts = [calls[i : i + 4] for i in range(0, 24, 4)]
    assert all(len(set(burst)) == 1 for burst in bursts)
    assert sorted(burst[0] for burst in bursts) == [
        (name, operation) for name in "ab" for operation in ("add", "sample", "update")
    ]


def test_update_goes_through_the_remembered_draws_in_turn_and_a_step_takes_the_newest() -> None:
    contender = Counting("a", [])
    contender.drawn.extend(["old", "new"])
    assert [contender.next_drawn() for _ in range(3)] == ["old", "new", "old"]
    taken: list[object] = []
    contender.update = lambda: taken.append(contender.next_drawn())  # type: ignore[method-assign]  # a stub
    contender.sample = lambda: contender.drawn.append("drawn")  # type: ignore[method-assign]  # a stub
    contender.step()
    assert taken == ["drawn"]


def test_who_cannot_be_built_is_reported_with_the_reason_and_the_rest_goes_on() -> None:
    entries = [
        Entry("broken", "torch", "uniform", broken),
        Entry("fine", "jax", "prioritized", lambda: Counting("fine", [])),
    ]
    ready, failed = assemble(entries)
    assert [contender.name for contender in ready] == ["fine"]
    assert [(missing.name, missing.reason) for missing in failed] == [
        ("broken", "RuntimeError: no compiled tree (because ImportError: undefined symbol)")
    ]


class Failing(Counting):
    """Builds, and then cannot draw."""

    def sample(self) -> None:
        raise OSError("no such buffer")


def test_who_fails_at_the_first_call_is_reported() -> None:
    ready, failed = assemble([Entry("fails", "jax", "prioritized", lambda: Failing("fails", []))])
    assert ready == []
    assert failed[0].reason == "OSError: no such buffer"


def test_a_missing_peer_leaves_its_rows_not_run() -> None:
    def entries(work: Workload, backend: Backend, sampler: Sampler, device: str) -> list[Entry]:
        return [
            Entry(ours.NAME, backend, sampler, lambda: Counting(ours.NAME, [])),
            Entry("flashbax", backend, sampler, broken),
        ]

    section = compare(TINY, BRIEF, backends=("jax",), entries=entries, say=quiet)
    peer = [result for result in section.results if result.comparison.top == "flashbax"]
    assert len(peer) == 7
    assert {result.verdict for result in peer} == {"not run"}
    text = report.table(section)
    assert "flashbax (jax, uniform) did not run: RuntimeError: no compiled tree" in text


def test_memory_is_within_the_limit_for_a_buffer_that_is_not_tiny() -> None:
    footprints = memory(Workload(capacity=10_000, rotation=2, draws=4, scan_length=3))
    assert [(held.backend, held.sampler) for held in footprints] == [
        (backend, sampler) for backend in ("jax", "torch") for sampler in ("uniform", "prioritized")
    ]
    for held in footprints:
        assert held.items == 1_650_000
        assert held.items < held.state
        assert held.verdict == "pass", held


def test_memory_limit() -> None:
    assert Footprint("jax", "uniform", capacity=10, items=1000, state=1230).verdict == "pass"
    assert Footprint("jax", "uniform", capacity=10, items=1000, state=1231).verdict == "MISSED"


def test_scaling_has_a_point_for_each_capacity_and_operation() -> None:
    points = scaling(TINY, BRIEF, (32, 64), backends=("torch",), say=quiet)
    curves = {(point.sampler, point.operation, point.capacity) for point in points}
    assert curves == {
        (sampler, operation, capacity)
        for sampler, operations in (
            ("uniform", ("add", "sample")),
            ("prioritized", ("add", "sample", "update")),
            (None, ("sample",)),
        )
        for operation in operations
        for capacity in (32, 64)
    }
    assert {(row["from_capacity"], row["to_capacity"]) for row in growth(points)} == {(32, 64)}


def test_in_a_turn_each_sample_follows_an_add_and_each_update_a_sample() -> None:
    calls: list[tuple[str, str]] = []
    timings, errors = alternate([Turning("a", calls), Turning("b", calls)], rounds=3, turns=2, warmup=1)
    assert errors == {}
    assert [{operation: len(values) for operation, values in times.items()} for times in timings] == [
        {"add": 3, "sample": 3, "update": 3}
    ] * 2
    bursts = [calls[i : i + 6] for i in range(0, len(calls), 6)]
    assert len(bursts) == 2 * (1 + 3)
    for burst in bursts:
        assert burst == [(burst[0][0], operation) for operation in ("add", "sample", "update")] * 2
    assert all({bursts[i][0][0], bursts[i + 1][0][0]} == {"a", "b"} for i in range(0, 8, 2))


def test_the_clock_of_an_operation_runs_during_that_operation_only() -> None:
    timings, _ = alternate([Turning("a", [], pause=0.01)], rounds=1, turns=2, warmup=0)
    assert timings[0]["add"][0] >= 0.01
    assert timings[0]["sample"][0] < 0.005 > timings[0]["update"][0]


def test_a_slow_burst_ends_early() -> None:
    calls: list[tuple[str, str]] = []
    alternate([Turning("a", calls, pause=0.01)], rounds=2, turns=50, patience=0.0, warmup=0)
    assert calls.count(("a", "sample")) == 2


def test_who_raises_while_measured_has_no_further_turn_and_the_rest_goes_on() -> None:
    calls: list[tuple[str, str]] = []
    contenders = [Turning("breaks", calls, fails_at=3), Turning("lasts", calls)]
    timings, errors = alternate(contenders, rounds=5, turns=1, warmup=0)
    assert {place: str(error) for place, error in errors.items()} == {0: "no trajectory is long enough"}
    assert calls.count(("breaks", "sample")) == 3
    assert len(timings[1]["sample"]) == 5


def test_the_section_has_a_point_for_each_capacity_and_judges_at_the_workloads_own() -> None:
    section = slices(
        STEPS, BRIEF, (48, 96, 960), groups=(Group("torch", "prioritized slices"),), entries=turning, say=quiet
    )
    curves = {(curve.contender, curve.operation): curve for curve in section.curves}
    assert set(curves) == {(name, op) for name in ("ours", "torchrl") for op in ("add", "sample", "update")}
    assert sorted(curves["ours", "sample"].points) == [48, 96, 960]
    assert sorted(curves["torchrl", "sample"].points) == [48, 96]
    ends = curves["ours", "add"].points
    assert curves["ours", "add"].growth == ends[960].median / ends[48].median

    verdicts = {(r.capacity, r.comparison.operation, r.comparison.top): r.verdict for r in section.results}
    assert verdicts[96, "sample", "torchrl"] in ("pass", "MISSED")
    assert verdicts[48, "sample", "torchrl"] == verdicts[96, "add", "torchrl"] == ""
    assert verdicts[960, "sample", "torchrl"] == verdicts[96, "sample", "ours"] == "not run"
    goals = {(r.capacity, r.comparison.operation): r.comparison.goal for r in section.results if r.comparison.goal}
    assert goals == {(96, "sample"): ">= 10"}

    assert [(missing.name, missing.reason) for missing in section.unavailable] == [
        ("bare gather", "RuntimeError: no compiled tree (because ImportError: undefined symbol)"),
        ("torchrl", "with 960 steps, while measured: LookupError: no trajectory is long enough"),
    ]
    text = group_report.slices_text(section)
    assert "| torch prioritized slices | torchrl | sample |" in text
    assert ">= 10 at 96" in text
    assert "- torchrl (torch prioritized slices) drew 10 steps where 32 were asked for, with 48 stored" in text
    assert "- torchrl (torch, prioritized slices) did not run: with 960 steps" in text


class Holds(Turning):
    """Holds a given share of the items."""

    def __init__(self, name: str, sampler: Reading, held: int) -> None:
        super().__init__(name, [])
        self.sampler, self.operations, self._held = sampler, ("add", "sample"), held

    def held_bytes(self) -> int:
        return self._held


def test_the_section_of_observations_judges_bytes_and_the_floor() -> None:
    def entries(work: ObservationWorkload, group: Group) -> list[Entry]:
        held = {ours.NAME: work.capacity * work.item_bytes // 7, ours.PLAIN: work.capacity * work.item_bytes}
        builders = {
            name: Entry(name, group.backend, group.sampler, partial(Holds, name, cast(Reading, group.sampler), size))
            for name, size in held.items()
        }
        builders["cpprb"] = Entry("cpprb", group.backend, group.sampler, broken)
        builders[floor.NAME] = Entry(floor.NAME, group.backend, group.sampler, lambda: Turning(floor.NAME, []))
        return list(builders.values())

    section = atari.atari(PIXELS, BRIEF, groups=(Group("torch", "frames"),), entries=entries, say=quiet)
    assert [(held.contender, held.verdict) for held in section.holdings] == [(ours.NAME, "pass"), (ours.PLAIN, "")]
    assert replace(section.holdings[0], held=section.holdings[0].held + PIXELS.capacity).verdict == "MISSED"
    judged = [row for row in section.results if row.comparison.goal]
    assert [(row.comparison.top, row.comparison.bottom, row.comparison.goal) for row in judged] == [
        (ours.NAME, floor.NAME, "<= 2")
    ]
    assert judged[0].verdict in ("pass", "MISSED")
    told = section.as_json()
    assert told["holdings"][0]["at_most"] == pytest.approx(1 / 7)
    text = group_report.observations_text([section])
    assert "| torch frames | ours |" in text
    assert "| <= 0.1429 | pass |" in text
    assert "- cpprb (torch, frames) did not run: RuntimeError: no compiled tree" in text


def test_who_does_not_fit_into_memory_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.machine.available_bytes", lambda: 2**30 + PIXELS.capacity * PIXELS.item_bytes - 1)
    ready, failed = assemble(atari.roster(PIXELS, Group("torch", "frames")))
    assert {missing.name for missing in failed} >= {ours.PLAIN, goals.TORCHRL_PLAIN}
    assert floor.NAME in {contender.name for contender in ready}
    assert any("available" in missing.reason for missing in failed)


def test_in_n_step_a_step_is_an_add_and_a_sample() -> None:
    def entries(work: NStepWorkload, group: Group) -> list[Entry]:
        return [
            Entry(name, group.backend, group.sampler, partial(Holds, name, "n-step", 0))
            for name in (ours.NAME, "torchrl")
        ]

    section = n_step.n_step(RETURNS, BRIEF, (96,), groups=(Group("torch", "n-step"),), entries=entries, say=quiet)
    seconds = {curve.operation: curve.points[96] for curve in section.curves if curve.contender == "torchrl"}
    assert set(seconds) == {"add", "sample", "step"}
    assert seconds["step"].median == pytest.approx(seconds["add"].median + seconds["sample"].median)
    ran = {row.comparison.operation for row in section.results if row.ratio and row.comparison.top == "torchrl"}
    assert ran == {"add", "sample", "step"}
    assert "| torch n-step | torchrl | step |" in group_report.n_step_text(section)


def test_everyone_who_shares_is_entered(tmp_path: Path) -> None:
    with contextlib.ExitStack() as ends:
        for backend, group in storage.GROUPS:
            entries = storage.roster(TINY, backend, group, storage.Place(tmp_path, ends))
            of_group = [c for c in goals.storage_comparisons(backend) if c.sampler == group]
            assert {c.top for c in of_group} | {c.bottom for c in of_group} == {entry.name for entry in entries}


def test_a_partner_works_when_it_is_told_to_and_no_longer() -> None:
    partner = Partner(partial(partial, time.sleep), 0.001)
    try:
        with partner:
            begun = partner.done
            until = time.monotonic() + 30
            while partner.done < begun + 3 and time.monotonic() < until:
                time.sleep(0.001)
            assert partner.done >= begun + 3
        time.sleep(0.2)
        rests = partner.done
        time.sleep(0.1)
        assert partner.done == rests
    finally:
        partner.end()
    assert not partner.is_alive()
    with pytest.raises(RuntimeError, match="the other process does not work"), partner:
        pass


def test_figures_of_two_checkouts_are_those_of_the_same_rows() -> None:
    of_peer = {"contender": "flashbax", "operation": "add", "median_us": 9.0, "rounds": 5}
    in_place = {**of_peer, "contender": "ours in place", "median_us": 4.0}
    points = [{"capacity": 100, "median_us": 3.0, "steps": None}, {"capacity": 1000, "median_us": 5.0, "steps": 8}]
    curve = {"backend": "jax", "contender": "ours", "operation": "sample", "growth": 1.5, "points": points}
    told = {"compare": {"figures": [of_peer, in_place]}, "curves": [curve, {**curve, "contender": "cpprb"}]}
    before = dict(before_after.figures(told))
    assert before == {
        ("ours in place", "add"): 4.0,
        ("jax", "sample", "capacity 100"): 3.0,
        ("jax", "sample", "capacity 1000", "steps 8"): 5.0,
    }
    text = before_after.table(before, {("ours in place", "add"): 2.0, ("another", "row"): 1.0})
    assert text.splitlines()[2:] == ["| ours in place, add | 4.0 | 2.0 | 2.00 |"]
