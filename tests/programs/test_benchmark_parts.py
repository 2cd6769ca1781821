"""The parts of `python -m benchmarks`, each end to end at a tiny size. No time is asserted."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks import (
    datasets,
    floor,
    goals,
    items,
    mixture,
    on_gpu,
    ours,
    specs,
    storage,
    texts,
    trees,
)
from benchmarks.__main__ import main
from benchmarks.contender import (
    Checking,
)
from benchmarks.groups import Group
from tests.support.benchmarking import PIXELS, TINY

# Peers warn about their own dependencies.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


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
    if on_gpu.seen():
        pytest.skip("there is a GPU here")
    main(["gpu", "--out", str(tmp_path)])
    assert "GPU: skipped" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


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
    assert {figure["contender"] for figure in found["figures"]} == {*goals.OURS_MIXED, goals.MIXERS["torch"]}
    assert {row["goal"] for row in found["ratios"]} == {">= 4"}


def test_main_writes_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_torch = partial(datasets.datasets, groups=[("torch", "minari"), ("torch", "d4rl")])
    monkeypatch.setattr("benchmarks.datasets.datasets", on_torch)
    monkeypatch.setattr("benchmarks.datasets.WORK", datasets.DatasetWorkload(4, 5, 3, 2, 2, 8))
    found = main_of("datasets", tmp_path)
    assert {goals.COLD_BYTES, goals.WRITTEN} < {figure["contender"] for figure in found["figures"]}
    assert {row["goal"] for row in found["ratios"]} == {">= 0.5", ">= 3", ""}
    assert [row["contender"] for row in found["memory"]] == [ours.NAME, "torchrl"] * 4
    assert int(found["memory"][0]["MB"]) < 50
    pytest.importorskip("torchrl", reason="the peer torchrl is not installed")
    assert {figure["contender"] for figure in found["figures"]} >= {ours.NAME, goals.BYTES, goals.MINARI, "torchrl"}


def test_main_writes_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.texts.WORK", texts.TextWorkload(12, 20, 10, 60, 300, 4, 16))
    found = main_of("text", tmp_path)
    assert {figure["operation"] for figure in found["figures"]} == {"tokenize", "sample"}
    assert {row["goal"] for row in found["ratios"]} == {">= 1", ">= 5", ""}
    assert found["bytes"][ours.NAME] < found["bytes"][goals.LOADER] * goals.LEAST_SHARE


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
