"""The harness end to end at a tiny capacity. No time is asserted: it depends on the machine."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest

from benchmarks import (
    atari,
    datasets,
    floor,
    goals,
    group_report,
    items,
    mixture,
    n_step,
    ours,
    report,
    specs,
    storage,
    texts,
    trees,
)
from benchmarks import compare as comparing
from benchmarks.__main__ import main
from benchmarks.compare import Effort, compare
from benchmarks.contender import (
    Backend,
    Checking,
    Contender,
    Entry,
    Reading,
    Sampler,
    Sequencing,
    SliceContender,
    TurnContender,
    assemble,
)
from benchmarks.goals import Comparison
from benchmarks.groups import Group
from benchmarks.measure import Spread, alternate, interleave, ratios, spread
from benchmarks.memory import Footprint, memory
from benchmarks.scaling import growth, scaling
from benchmarks.shared import Partner
from benchmarks.slices import GROUPS, capacities_around, roster, slices
from benchmarks.workload import (
    ATARI,
    HUMANOID,
    ITEM,
    ITEM_BYTES,
    ROW_WORDS,
    NStepWorkload,
    ObservationWorkload,
    SliceWorkload,
    Workload,
)

TINY = Workload(capacity=100, add_size=8, sample_size=16, rotation=2, draws=4, scan_length=3)
BRIEF = Effort(rounds=2, burst=3)
STEPS = SliceWorkload(capacity=96, add_size=16, sample_size=8, length=4, longest=12, rotation=2, draws=4, additions=6)

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


def quiet(line: str) -> None:
    """Print nothing."""


def broken() -> Contender:
    raise RuntimeError("no compiled tree") from ImportError("undefined symbol")


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


def test_the_workload_is_the_one_of_the_goals() -> None:
    work = Workload()
    assert (work.capacity, work.add_size, work.sample_size) == (1_000_000, 64, 256)
    assert (ITEM_BYTES, ROW_WORDS) == (165, 42)
    leaves = ours.buffer_spec(TINY, "uniform").item
    batch = TINY.batches()[0]
    for name, (shape, dtype) in ITEM.items():
        assert (batch[name].shape, batch[name].dtype) == ((8, *shape), dtype)
        assert (leaves[name].shape, leaves[name].dtype) == (shape, batch[name].dtype.name)


@pytest.mark.parametrize("capacity", [1, 100, 65_536, 65_537])
def test_the_chunks_fill_the_buffer(capacity: int) -> None:
    work = Workload(capacity=capacity)
    filled = {int(slot) for slots in work.slots() for slot in slots}
    assert filled == set(range(capacity))


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_ours_and_the_floor_run(backend: Backend, sampler: Sampler) -> None:
    entries = [e for e in comparing.roster(TINY, backend, sampler) if e.name.startswith(("ours", "bare"))]
    assert len(entries) == (2 if backend == "jax" else 3)
    ready, failed = assemble(entries)
    assert failed == []
    timings = interleave(ready, rounds=1, burst=2, warmup=0)
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in timings.values())


@pytest.mark.parametrize(
    ("module", "backend", "sampler"),
    [
        ("flashbax", "jax", "uniform"),
        ("flashbax", "jax", "prioritized"),
        ("torchrl", "torch", "uniform"),
        ("torchrl", "torch", "prioritized"),
        ("cpprb", "torch", "uniform"),
        ("cpprb", "torch", "prioritized"),
    ],
)
def test_peers_run(module: str, backend: Backend, sampler: Sampler) -> None:
    pytest.importorskip(module, reason=f"the peer {module} is not installed")
    if (module, sampler) == ("torchrl", "prioritized"):
        pytest.importorskip(
            "torchrl._torchrl", reason="torchrl's compiled trees do not load here", exc_type=ImportError
        )
    entries = [entry for entry in comparing.roster(TINY, backend, sampler) if entry.name == module]
    ready, failed = assemble(entries)
    assert failed == []
    interleave(ready, rounds=1, burst=2, warmup=0)


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


@pytest.fixture
def no_flashbax(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed: what it compiles takes seconds, and `test_peers_run` runs it."""
    monkeypatch.setitem(sys.modules, "benchmarks.peers_flashbax", None)


@pytest.mark.usefixtures("no_flashbax")
def test_main_writes_tables_json_and_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the charts need matplotlib")
    assert main(["compare", "--rounds", "1", "--capacity", "300", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert {"cpu", "cores", "os"} <= set(found["machine"])
    assert {"python", "jax", "torch", "flashbax", "torchrl", "cpprb"} <= set(found["versions"])
    assert found["effort"]["rounds"] == 1
    assert found["workload"]["capacity"] == 300
    section = found["compare"]
    assert section["device"] == "cpu"
    for figure in section["figures"]:
        assert figure["rounds"] == 1
        assert figure["q1_us"] <= figure["median_us"] <= figure["q3_us"]
    measured = {(f["backend"], f["sampler"], f["operation"]) for f in section["figures"] if f["contender"] == "ours"}
    assert {("jax", "prioritized", "step"), ("torch", "prioritized", "update")} <= measured
    in_place = [row for row in section["ratios"] if row["bottom"] == ours.IN_PLACE and row["goal"]]
    assert [(row["operation"], row["goal"]) for row in in_place] == [("add", "<= 1.5")] * 2
    assert all(row["ratio"]["median"] > 0 for row in in_place)
    ran = {figure["contender"] for figure in section["figures"]}
    assert {("flashbax", name) for name in ("uniform", "prioritized")} <= {
        (missing["name"], missing["sampler"]) for missing in section["unavailable"]
    }
    for missing in section["unavailable"]:
        assert missing["reason"]
        assert missing["name"] not in ran or missing["sampler"] == "prioritized"
    assert (tmp_path / "ratios.png").stat().st_size > 10_000
    assert "MISSED" in (printed := capsys.readouterr().out) or "pass" in printed


def test_the_gpu_part_says_that_it_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if comparing.accelerated_backends():
        pytest.skip("there is a GPU here")
    main(["gpu", "--out", str(tmp_path)])
    assert "GPU: skipped" in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["gpu"] is None


class Turning(SliceContender):
    """Writes down its calls, and fails at the sample with the given number."""

    def __init__(self, name: str, calls: list[tuple[str, str]], *, fails_at: int = 1_000, pause: float = 0.0) -> None:
        super().__init__(name, "torch", "prioritized slices")
        self._calls, self._fails_at, self._pause = calls, fails_at, pause
        self.steps = 0

    def add(self) -> None:
        self._calls.append((self.name, "add"))
        time.sleep(self._pause)

    def sample(self) -> None:
        self._calls.append((self.name, "sample"))
        self.steps += 1
        if self.steps == self._fails_at:
            raise LookupError("no trajectory is long enough")

    def update(self) -> None:
        self._calls.append((self.name, "update"))


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


def turning(work: SliceWorkload, group: Group) -> list[Entry]:
    def build(name: str, fails_at: int) -> Entry:
        return Entry(name, group.backend, group.sampler, lambda: Turning(name, [], fails_at=fails_at))

    return [
        build(ours.NAME, 1_000),
        build("torchrl", 1_000 if work.capacity < 960 else 2),
        Entry(floor.NAME, group.backend, group.sampler, broken),
    ]


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


def test_the_slices_are_those_of_the_goals() -> None:
    work = SliceWorkload()
    assert (work.capacity, work.sample_size, work.length, work.longest) == (1_000_000, 256, 16, 1000)
    assert capacities_around(work) == (100_000, 1_000_000, 10_000_000)
    assert capacities_around(work, quick=True) == (100_000, 1_000_000)


@pytest.mark.parametrize("lanes", [1, 4])
def test_episodes_go_on_from_batch_to_batch_in_every_lane(lanes: int) -> None:
    work = SliceWorkload(capacity=70_000, add_size=8, lanes=lanes, longest=30, rotation=2, additions=5_000)
    fills, adds = list(work.fills()), work.adds()
    assert sum(batch["done"].size for batch in fills) == work.chunks * work.chunk_size >= work.capacity
    assert len(adds) == work.additions
    for name, (shape, dtype) in ITEM.items():
        assert (adds[0][name].shape, adds[0][name].dtype) == ((lanes, 8 // lanes, *shape), dtype)
        assert fills[-1][name].shape == (lanes, work.chunk_size // lanes, *shape)
    stream = np.concatenate([batch["done"] for batch in (*fills, *adds)], axis=1)
    for lane in stream:
        lengths = np.diff(np.flatnonzero(lane), prepend=-1)
        assert set(lengths.tolist()) == set(range(1, 31))
        assert lengths.mean() == pytest.approx(15.5, rel=0.05)
        assert len(lane) - np.flatnonzero(lane)[-1] <= 30
    assert lanes == 1 or (stream[0] != stream[1]).any()


def test_lanes_divide_what_is_stored_and_added() -> None:
    with pytest.raises(ValueError, match="lanes"):
        SliceWorkload(capacity=100, lanes=16)
    with pytest.raises(ValueError, match="lanes"):
        SliceWorkload(capacity=160, add_size=8, lanes=16)


@pytest.mark.parametrize("length", [1, 4])
def test_the_floor_gathers_runs_of_rows_within_the_table(length: int) -> None:
    work = Workload(capacity=9, sample_size=8, draws=200)
    drawn = np.stack(floor._rows(work, length))
    assert drawn.size == 200 * 8
    runs = drawn.reshape(-1, length)
    np.testing.assert_array_equal(runs, runs[:, :1] + np.arange(length))
    assert set(runs.ravel().tolist()) == set(range(9))


def entries_of(group: Group, name: str) -> list[Entry]:
    work = SliceWorkload(**{**vars(STEPS), "lanes": group.lanes})
    return [entry for entry in roster(work, group) if entry.name == name]


@pytest.mark.parametrize("group", [group for group in GROUPS if group.sampler != "queue"], ids=str)
def test_the_floor_of_slices_runs_and_ours_is_entered(group: Group) -> None:
    (gather,) = entries_of(group, floor.NAME)
    _, failed = assemble([gather])
    assert failed == []
    assert len(entries_of(group, ours.NAME)) == 1


@pytest.mark.parametrize(
    ("module", "backend", "sampler", "lanes", "steps"),
    [
        ("torchrl", "torch", "slices", 1, 32),
        ("torchrl", "torch", "prioritized slices", 1, 32),
        ("torchrl", "torch", "slices without replacement", 1, None),  # at most one slice of each stored episode
        ("torchrl", "torch", "without replacement", 1, 8),
        ("flashbax", "jax", "window slices", 1, 32),
        ("flashbax", "jax", "window slices", 16, 32),
        ("flashbax", "jax", "prioritized slices", 1, 32),
        ("flashbax", "jax", "prioritized slices", 16, 32),
        ("flashbax", "jax", "queue", 1, 16),
    ],
)
def test_peers_draw_slices(module: str, backend: Backend, sampler: Sequencing, lanes: int, steps: int | None) -> None:
    pytest.importorskip(module, reason=f"the peer {module} is not installed")
    if (module, sampler) == ("torchrl", "prioritized slices"):
        pytest.importorskip(
            "torchrl._torchrl", reason="torchrl's compiled trees do not load here", exc_type=ImportError
        )
    ready, failed = assemble(entries_of(Group(backend, sampler, lanes), module))
    assert failed == []
    _, errors = alternate(ready, rounds=2, turns=2)
    assert errors == {}
    (peer,) = ready
    assert isinstance(peer, SliceContender)
    assert peer.steps == steps or (steps is None and 0 < peer.steps < 32)


@pytest.mark.usefixtures("no_flashbax")
def test_main_writes_the_slices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="the charts need matplotlib")
    few = (Group("torch", "slices"), Group("torch", "prioritized slices"), Group("jax", "window slices"))
    monkeypatch.setattr("benchmarks.__main__.GROUPS", few)
    assert main(["slices", "--quick", "--rounds", "1", "--capacity", "1600", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results.json").read_text())["slices"]
    assert found["workload"]["length"] == 16
    measured = {(curve["backend"], curve["contender"], curve["sampler"]) for curve in found["curves"]}
    assert {("torch", "bare gather", "slices"), ("jax", "bare gather", "window slices")} <= measured
    for curve in found["curves"]:
        assert [point["capacity"] for point in curve["points"]] == [160, 1600]
        assert all(point["q1_us"] <= point["median_us"] <= point["q3_us"] for point in curve["points"])
    goals = {(row["sampler"], row["capacity"], row["goal"]) for row in found["ratios"] if row["goal"]}
    assert goals == {("slices", 1600, ">= 5"), ("prioritized slices", 1600, ">= 10")}
    text = (tmp_path / "slices.md").read_text()
    assert text.startswith("# ")
    assert text.split("\n", 2)[2].strip() in capsys.readouterr().out
    assert (tmp_path / "slices.png").stat().st_size > 10_000


PIXELS = ObservationWorkload(
    capacity=90, sample_size=4, shape=(3, 2), stack=3, longest=9, frames=101, additions=12, draws=8
)
VECTORS = ObservationWorkload(
    capacity=90, sample_size=4, shape=(5,), dtype="float32", stack=1, action_size=2, longest=9, frames=101, draws=8
)
RETURNS = NStepWorkload(capacity=96, sample_size=8, n=3, longest=12, rotation=2, draws=4, additions=6)


@pytest.mark.parametrize("work", [PIXELS, VECTORS], ids=["stacks", "vectors"])
def test_observations_follow_one_another_within_an_episode(work: ObservationWorkload) -> None:
    fills, adds = list(work.fills()), work.adds()
    stored = {name: np.concatenate([batch[name] for batch in fills]) for name in fills[0]}
    added = {name: np.concatenate([batch[name] for batch in adds]) for name in adds[0]}
    assert len(stored["done"]) == work.capacity
    assert len(added["done"]) == len(adds) == work.additions
    assert sum(leaf.nbytes for leaf in added.values()) == work.additions * work.item_bytes
    for steps in (stored, added):
        obs, after, done = steps["obs"], steps["next_obs"], steps["done"]
        assert obs.shape[1:] == work.observation_shape
        assert obs.dtype == after.dtype == work.dtype
        assert done[-1]
        begins = np.append(True, done[:-1])
        np.testing.assert_array_equal(obs[1:][~begins[1:]], after[:-1][~begins[1:]])
        assert (obs[1:][begins[1:]] != after[:-1][begins[1:]]).any(axis=tuple(range(1, obs.ndim))).all()
        if work.stack > 1:
            np.testing.assert_array_equal(after[:, :-1], obs[:, 1:])
            np.testing.assert_array_equal(obs[begins], np.repeat(obs[begins][:, :1], work.stack, axis=1))
        lengths = np.diff(np.flatnonzero(done), prepend=-1)
        assert 1 <= lengths.min() < lengths.max() <= 9


def test_the_workloads_of_atari_and_n_step_are_those_of_the_goals() -> None:
    assert (ATARI.capacity, ATARI.sample_size, ATARI.observation_shape) == (100_000, 32, (4, 84, 84))
    assert (ATARI.frame_bytes, ATARI.item_bytes) == (7056, 8 * 7056 + 9)
    assert (HUMANOID.capacity, HUMANOID.observation_shape, HUMANOID.item_bytes) == (100_000, (376,), 4 * 770 + 1)
    assert (NStepWorkload().n, NStepWorkload().sample_size) == (3, 256)
    assert goals.held_at_most("frames", ours.NAME) == pytest.approx(1 / 7)
    assert goals.held_at_most("observations", ours.NAME) == 0.5
    assert goals.held_at_most("frames", "cpprb") is None
    for backend in get_args(Backend):
        bound = {row.at_most for row in goals.observation_comparisons(backend, "frames") if row.bottom == floor.NAME}
        assert bound == {2.0}


@pytest.mark.parametrize(("distinct", "frames"), [(False, 6), (True, 4)])
def test_the_floor_gathers_the_frames_of_transitions(distinct: bool, frames: int) -> None:
    work = replace(PIXELS, draws=200)
    rows = np.stack(work.rows(distinct=distinct)).reshape(-1, frames)
    assert len(rows) == 200 * work.sample_size
    expected = [0, 1, 2, 3] if distinct else [0, 1, 2, 1, 2, 3]
    np.testing.assert_array_equal(rows - rows[:, :1], np.tile(expected, (len(rows), 1)))
    assert (rows.min(), rows.max()) == (0, len(work.table()) - 1)
    ready, failed = assemble([e for e in atari.roster(work, Group("torch", "frames")) if e.name.startswith(floor.NAME)])
    assert [gather.name for gather in ready] == [floor.NAME, floor.DISTINCT, floor.NUMPY]
    assert failed == []


@pytest.mark.parametrize("lanes", [1, 4])
def test_torchrl_makes_n_step_returns(lanes: int) -> None:
    pytest.importorskip("torchrl", reason="the peer torchrl is not installed")
    from benchmarks.peers_torchrl import TorchrlNStep

    peer = TorchrlNStep(replace(RETURNS, lanes=lanes, add_size=lanes))
    peer.add()
    drawn = peer._buffer.sample()
    assert drawn["obs"].shape == (8, 17)
    assert set(drawn["steps_to_next_obs"].tolist()) <= {1, 2, 3}
    one = drawn["steps_to_next_obs"] == 1
    np.testing.assert_array_equal(drawn["next", "reward"][one].numpy(), drawn["next", "original_reward"][one].numpy())


def test_cpprb_makes_n_step_returns() -> None:
    pytest.importorskip("cpprb", reason="the peer cpprb is not installed")
    from benchmarks.peers_cpprb import CpprbNStep

    work = replace(RETURNS, add_size=1)
    steps = work.in_time(next(iter(work.fills())))
    stored = CpprbNStep(work)._buffer.get_all_transitions()
    last = np.flatnonzero(steps["done"])
    whole = np.arange(last[-1] + 1)  # of the last episode some steps are held back
    reach = np.minimum(whole + work.n - 1, last[np.searchsorted(last, whole)])
    returns = [sum(work.gamma**k * steps["reward"][t + k] for k in range(end - t + 1)) for t, end in enumerate(reach)]
    np.testing.assert_allclose(stored["reward"][: len(whole), 0], returns, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        ("frames", "cpprb"),
        ("frames", goals.CAT_FRAMES),
        ("frames", goals.TORCHRL_PLAIN),
        ("observations", "cpprb"),
        ("observations", goals.TORCHRL_PLAIN),
    ],
)
def test_peers_return_the_observations_that_were_added(sampler: Reading, name: str) -> None:
    work = PIXELS if sampler == "frames" else VECTORS
    pytest.importorskip(name.split()[0], reason=f"the peer {name} is not installed")
    entries = atari.roster(work, Group("torch", sampler))
    ready, failed = assemble([entry for entry in entries if entry.name == name])
    assert failed == []
    (peer,) = ready
    known = {
        (obs.tobytes(), after.tobytes())
        for batch in (*work.fills(), work.adds()[0])
        for obs, after in zip(batch["obs"], batch["next_obs"], strict=True)
    }
    after_key = "next_obs" if name == "cpprb" else ("next", "obs")
    for _ in range(8):
        drawn = peer._buffer.sample(work.sample_size)  # type: ignore[attr-defined]  # of every peer here
        pair = [np.asarray(drawn[key]) for key in ("obs", after_key)]
        if name == "cpprb" and work.stack > 1:
            pair = [np.moveaxis(leaf, -1, 1) for leaf in pair]
        assert {(obs.tobytes(), after.tobytes()) for obs, after in zip(*pair, strict=True)} <= known
    assert isinstance(peer, TurnContender)
    held = peer.held_bytes()
    assert held is not None
    assert held >= work.capacity * (work.frame_bytes + work.other_bytes)
    assert name != goals.TORCHRL_PLAIN or held == work.capacity * work.item_bytes


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


@pytest.mark.parametrize(
    ("work", "group"),
    [
        *((RETURNS, group) for group in n_step.GROUPS),
        *((PIXELS if group.sampler == "frames" else VECTORS, group) for _, groups in atari.GROUPS for group in groups),
    ],
    ids=str,
)
def test_the_floors_of_n_step_and_atari_run_and_ours_are_entered(
    work: NStepWorkload | ObservationWorkload, group: Group
) -> None:
    if isinstance(work, NStepWorkload):
        entries = n_step.roster(replace(work, lanes=group.lanes), group)
        names = [ours.NAME, ours.AT_ADD, ours.ONE_STEP]
    else:
        entries = atari.roster(work, group)
        names = [ours.NAME, ours.PLAIN]
    assert [entry.name for entry in entries if entry.name.startswith("ours")] == names
    ready, failed = assemble([entry for entry in entries if entry.name.startswith(floor.NAME)])
    assert failed == []
    assert ready[0].name == floor.NAME


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


def main_of(part: str, folder: Path) -> dict[str, Any]:
    """What a brief run of one part of its own writes."""
    pytest.importorskip("matplotlib", reason="the charts need matplotlib")
    assert main([part, "--quick", "--rounds", "1", "--capacity", "1600", "--out", str(folder)]) == 0
    assert not (folder / "results.json").exists()
    found = json.loads((folder / f"{part}.json").read_text())
    assert {"cpu", "cores", "os"} <= set(found["machine"])
    assert found["effort"]["quick"] is True
    assert (folder / f"{part}.md").read_text().startswith("# ")
    assert (folder / f"{part}.png").stat().st_size > 10_000
    return found


def test_main_writes_n_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.n_step.GROUPS", (Group("torch", "n-step", 4),))
    found = main_of("n_step", tmp_path)
    assert found["workload"]["n"] == 3
    ran = {(curve["contender"], curve["operation"]) for curve in found["curves"]}
    expected = {(name, "step") for name in (ours.NAME, ours.AT_ADD, ours.ONE_STEP)} | {(floor.NAME, "sample")}
    assert expected <= ran
    assert all([point["capacity"] for point in curve["points"]] == [160, 1600] for curve in found["curves"])


def test_main_writes_atari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(PIXELS, draws=4), (Group("torch", "frames"),)
    monkeypatch.setattr("benchmarks.atari.GROUPS", (small,))
    (section,) = main_of("atari", tmp_path)["sections"]
    assert section["workload"]["capacity"] == 16
    ran = {(curve["contender"], curve["operation"]) for curve in section["curves"]}
    assert {(ours.NAME, "add"), (ours.NAME, "sample"), (ours.PLAIN, "sample"), (floor.NAME, "sample")} <= ran
    assert {ours.NAME, ours.PLAIN} <= {holding["contender"] for holding in section["holdings"]}


def test_the_values_to_project_lie_half_outside() -> None:
    import torch_backend as rb

    spec = specs.item_spec(specs.WORK)
    inside, outside = specs.given(specs.WORK, 256)
    assert rb.contains(spec, inside).all()
    assert rb.contains(spec, outside).float().mean() < 0.1
    assert (np.abs(outside["action"]) > 1).mean() == pytest.approx(0.5, abs=0.05)
    held = sum(leaf.nbytes for leaf in inside.values())
    assert 0 <= 4 * specs.WORDS * 256 - held < 4 * 256


@pytest.mark.parametrize("group", get_args(Checking))
def test_ours_and_the_floor_of_specs_are_entered_on_jax(group: Checking) -> None:
    names = [entry.name for entry in specs.roster(TINY, "jax", group)]
    assert names == (
        [ours.NAME, floor.RANDOM, ours.EAGER]
        if group == "specs"
        else [ours.NAME, ours.VALIDATED, ours.EAGER, ours.EAGER_VALIDATED]
    )


def test_main_writes_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_torch = partial(specs.specs, groups=tuple(("torch", group) for group in get_args(Checking)))
    monkeypatch.setattr("benchmarks.specs.specs", on_torch)
    monkeypatch.setattr("benchmarks.specs.WORK", TINY)
    found = main_of("specs", tmp_path)
    measured = {(figure["contender"], figure["operation"]) for figure in found["figures"]}
    values = {(ours.NAME, operation) for operation in ("rand", "contains", "project")}
    assert values | {(floor.RANDOM, "rand"), (ours.NAME, "add"), (ours.VALIDATED, "add")} <= measured
    judged = {(row["top"], row["operation"]) for row in found["ratios"] if row["goal"]}
    assert judged == {("torchrl", operation) for operation in ("rand", "contains", "project")}
    told = {missing["name"] for missing in found["unavailable"]}
    for peer in ("torchrl", "gymnasium"):
        assert (peer in told) != ((peer, "contains") in measured)


def test_main_writes_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.trees.QUICK", [group for group in trees.QUICK if group[0] == "torch"])
    monkeypatch.setattr("benchmarks.trees.WORK", trees.TreeWorkload(keys=100, steps=10, nodes=20))
    found = main_of("trees", tmp_path)
    measured = {(figure["contender"], figure["operation"]) for figure in found["figures"]}
    reading = {(ours.NAME, operation) for operation in ("tree", "paths", "vertices", "edges")}
    assert reading | {(ours.NAME, "insert"), (goals.DICT, "insert"), (ours.NAME, "extend")} <= measured
    assert {row["goal"] for row in found["ratios"]} == {">= 1", ">= 20", ">= 50"}


def test_main_writes_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_torch = partial(items.items, groups=[group for group in items.GROUPS if group[0] == "torch"])
    monkeypatch.setattr("benchmarks.items.items", on_torch)
    monkeypatch.setattr("benchmarks.items.WORK", items.ImageWorkload(3, (9, 8, 3), 2, (9, 8), (6, 7), 20))
    found = main_of("items", tmp_path)
    measured = {(figure["contender"], figure["sampler"]) for figure in found["figures"]}
    names = (ours.NAME, goals.COPY)
    peers = {"shift": goals.SHIFTS, "shift_front": goals.SHIFTS, "resize": goals.RESIZES}
    expected = {(name, group) for group, of in peers.items() for name in (*names, of["torch"])}
    told = {missing["name"] for missing in found["unavailable"]}
    assert told <= {goals.KORNIA}
    if not told:
        expected |= {(goals.KORNIA, group) for group in ("shift", "shift_front")}
    assert expected | {(ours.NAME, "nothing"), (ours.PLAIN, "nothing")} == measured
    assert {row["sampler"] for row in found["ratios"] if row["goal"]} == {"shift", "shift_front"}


def test_main_writes_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchrl", reason="the peer torchrl is not installed")
    on_torch = partial(mixture.mixture, groups=[("torch", "uniform 2")])
    monkeypatch.setattr("benchmarks.mixture.mixture", on_torch)
    monkeypatch.setattr("benchmarks.mixture.WORK", mixture.MixtureWorkload(32, 3, 4, 8))
    found = main_of("mixture", tmp_path)
    assert {figure["contender"] for figure in found["figures"]} == {ours.NAME, goals.MIXERS["torch"]}
    assert {row["goal"] for row in found["ratios"]} == {">= 4"}


def test_main_writes_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_torch = partial(datasets.datasets, groups=[("torch", "minari"), ("torch", "d4rl gzip")])
    monkeypatch.setattr("benchmarks.datasets.datasets", on_torch)
    monkeypatch.setattr("benchmarks.datasets.WORK", datasets.DatasetWorkload(4, 5, 3, 2, 2, 8))
    found = main_of("datasets", tmp_path)
    assert {figure["contender"] for figure in found["figures"]} == {ours.NAME, goals.BYTES, goals.MINARI}
    assert [row["goal"] for row in found["ratios"] if row["goal"]].count(">= 3") == 1


def test_main_writes_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.texts.WORK", texts.TextWorkload(12, 20, 10, 60, 300, 4, 16))
    found = main_of("text", tmp_path)
    assert {figure["operation"] for figure in found["figures"]} == {"tokenize", "sample"}
    assert {row["goal"] for row in found["ratios"]} == {">= 1", ">= 5", ""}
    assert found["bytes"][ours.NAME] < found["bytes"][goals.LOADER] * goals.LEAST_SHARE


def test_the_usual_shifts_are_shifts() -> None:
    import jax
    import torch

    torch.manual_seed(0)
    x = items.images(items.ImageWorkload(40, (6, 6, 3)), "shift").astype(np.float32)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), "edge")
    by_torch = items.grid_sampled(torch.from_numpy(x).permute(0, 3, 1, 2), 1).permute(0, 2, 3, 1).numpy()
    for made in (by_torch, np.asarray(items.sliced(x, jax.random.key(0), 1, (1, 2)))):
        pieces = np.stack([padded[:, a : a + 6, b : b + 6] for a in range(3) for b in range(3)])
        apart = np.abs(pieces - made).max((2, 3, 4))
        assert (apart.min(0) < 0.01).all()
        assert len(set(apart.argmin(0))) > 5


def test_the_tree_that_is_read_is_that_of_its_workload() -> None:
    import torch_backend as rb

    work = trees.TreeWorkload(nodes=200)
    forest = rb.forests.extend(rb.forests.init(trees._spec(200)), trees._tensors(trees.branches(work)))
    tree = rb.forests.tree(forest, np.zeros(2, np.int64))
    assert len(tree) == int(rb.forests.size(forest)) == 200


def test_main_writes_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = (("torch", "memmap"), ("torch", "checkpoint"), ("torch", "prefetch"))
    monkeypatch.setattr("benchmarks.storage.storage", partial(storage.storage, groups=groups))
    found = main_of("storage", tmp_path)
    measured = {(figure["contender"], figure["sampler"], figure["operation"]) for figure in found["figures"]}
    wanted = {(name, "memmap", operation) for name in (ours.NAME, ours.IN_MEMORY) for operation in ("add", "sample")}
    wanted |= {(ours.NAME, "prefetch", "step"), (ours.AHEAD, "prefetch", "step")}
    wanted |= {
        (name, "checkpoint", operation)
        for name in (ours.NAME, ours.INCREMENTAL, floor.FILE)
        for operation in ("save", "load")
    }
    assert wanted <= measured
    goals = {(row["sampler"], row["operation"], row["goal"]) for row in found["ratios"] if row["goal"]}
    assert goals == {
        ("memmap", "sample", ">= 2"),
        ("checkpoint", "save", ">= 0.8"),
        ("checkpoint", "load", ">= 0.8"),
        ("checkpoint", "save", ">= 20"),
    }
    told = {missing["name"] for missing in found["unavailable"]}
    assert ("torchrl" in told) != (("torchrl", "memmap", "sample") in measured)


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
