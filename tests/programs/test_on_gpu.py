"""What is done on a machine with a GPU, rehearsed on the CPU: parts of the benchmark, and the sanitizers' program."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as program
from benchmarks import floor, gpu_counts, gpu_kinds, gpu_shapes, on_gpu, ours
from benchmarks.compare import Effort, Section
from benchmarks.contender import Unavailable
from benchmarks.machine import OtherWork
from benchmarks.torch_loop import synchronizer
from tests.support.benchmarking import BRIEF, TINY, broken, quiet
from tools.gpu import sanitizers

MOTIONS = replace(gpu_shapes.MOTIONS, capacity=50, add_size=16, sample_size=8, adds=4, samples=2)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    images = gpu_shapes.images
    monkeypatch.setattr(gpu_shapes, "MOTIONS", MOTIONS)
    monkeypatch.setattr(gpu_shapes, "images", lambda n: replace(images(n // 16), capacity=80, sample_size=4))
    monkeypatch.setitem(sys.modules, "benchmarks.peers_flashbax", None)  # what it compiles takes seconds


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore")
def test_each_part_is_written_as_soon_as_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the chart needs matplotlib")
    written = list[list[str]]()

    def crossing(*given: Any) -> gpu_counts.Crossing:
        written.append([part["title"] for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]])
        raise RuntimeError("no peer access")

    monkeypatch.setattr(gpu_counts, "crossing", crossing)
    few = {name: gpu_kinds.KINDS[name] for name in ("prioritized", "slices of 8", "reservoir")}
    monkeypatch.setattr(gpu_kinds, "KINDS", few)
    monkeypatch.setattr(gpu_kinds, "CALLS", 1)
    run = program.Run(tmp_path, BRIEF, {}, {}, OtherWork())
    program._on_gpu(run, TINY, {"torch": "H100", "jax": "H100"}, "", "cpu")
    before = "uniform", "prioritized", "launches and waits", "launches of every kind", "images", "motions"
    assert written == [[f"torch, {x}" for x in before]]
    parts = {part["title"]: part for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]}
    assert parts["torch, uniform, 1,000 items"]["capacity"] == 1000
    assert parts["JAX, prioritized"]["capacity"] == 100
    assert {row["items"] for row in parts["torch, images"]["calls"]} == {4, 64}
    text = (tmp_path / "gpu.md").read_text()
    assert "on the GPU (torch: H100; jax: H100)" in text
    assert "## Torch to JAX and back\n\nIt was not measured: RuntimeError: no peer access" in text
    assert "| ours in place | sample 4 |" in text
    assert "flashbax (jax, uniform) did not run" in text
    assert "## JAX, uniform\n\n100 items of 165 bytes; 8 are added, 16 drawn at a time; a `step` is one of 100" in text
    assert text.count("torch, motions") == capsys.readouterr().out.count("torch, motions") - 1
    assert (tmp_path / "gpu.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore")
def test_only_some_parts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_shapes, "MOTIONS", MOTIONS)
    (found,) = on_gpu.parts(TINY, BRIEF, {"torch": "H100"}, device="cpu", only="motions", say=quiet)
    assert [(row["contender"], row["operation"]) for row in found.told["rates"]] == [
        (name, operation) for name in ("ours", "ours in place", "plain tensors") for operation in ("add", "sample")
    ]
    seconds = {(f["contender"], f["operation"]): f["median_us"] / 1e6 for f in found.told["figures"]}
    for row in found.told["rates"]:
        items = 64 if row["operation"] == "add" else 16
        assert row["items_per_s"] == pytest.approx(items / seconds[row["contender"], row["operation"]])


def test_plain_tensors_are_a_ring() -> None:
    plain = gpu_shapes.PlainTensors(replace(MOTIONS, adds=1), "cpu")
    given = [next(plain._batches)["states"] for _ in range(4)]  # they come round again
    for _ in range(4):
        plain.add()
    whole = torch.cat(given)
    assert torch.equal(plain._held["states"], torch.cat([whole[50:], whole[14:50]]))


def test_a_state_crosses_in_the_same_memory() -> None:
    found = gpu_counts.crossing(TINY, "cpu", times=1)
    assert found.arrays == found.there == found.back == 3


def test_what_is_counted_is_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def seen(call: Callable[[], object], count: int, device: str) -> gpu_counts._Seen:
        for _ in range(count):
            call()
        kernels = gpu_counts.Counter({"add": 2 * count})
        host = gpu_counts.Counter({"cudaDeviceSynchronize": 1 + count // 2})
        return gpu_counts._Seen(kernels, gpu_counts.Counter(), host, 0.5 * count)

    monkeypatch.setattr(gpu_counts, "_seen", seen)
    found = gpu_counts.counted(lambda: calls.append(1), "cpu", calls=20)
    assert found == (2.0, 0.0, 0.5, 0.5, ["add"])
    assert len(calls) == 22


def test_contenders_that_are_not_waited_for() -> None:
    contender = ours.OursTorch(TINY, "prioritized", waits=False)
    assert contender._synchronize is synchronizer("cpu")
    calls = floor.torch_nothing("prioritized", "cpu")
    assert calls.operations == ("add", "sample", "update")
    calls.add()


def test_a_chart_is_of_buffers_of_one_size() -> None:
    sections = [Section("cuda", [], [], [Unavailable(name, "jax", "uniform", "")]) for name in ("a", "b")]
    found = [on_gpu.Part("", [], {"capacity": n}, section) for n, section in zip((5, 50), sections, strict=True)]
    assert on_gpu.charted([*found, on_gpu.Part("", [])], 5) == sections[0]


def test_a_part_that_breaks_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_shapes, "group", lambda *_: broken())
    (found,) = on_gpu.parts(TINY, Effort(1, 1), {"torch": "H100"}, device="cpu", only="motions", say=quiet)
    assert found.lines == [
        "It was not measured: RuntimeError: no compiled tree (because ImportError: undefined symbol)"
    ]


@pytest.mark.parametrize(
    ("script", "end", "status"),
    [
        ("echo '==== ERROR SUMMARY: 0 errors'", "clean | ERROR SUMMARY: 0 errors", 0),
        ("echo $1 $2; exit 9", "errors | ", 1),
        ("exit 3", "status 3 | ", 1),
        ("sleep 60", "cut | ", 1),
    ],
)
def test_how_a_sanitizer_ends(
    script: str, end: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "sanitizer"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    options = ["--tools", "racecheck", "--limit", "1", "--sanitizer", str(tool), "--out", str(tmp_path / "out")]
    assert sanitizers.main(options) == status
    assert f" | {end}" in capsys.readouterr().out
    assert (tmp_path / "out" / "racecheck.txt").exists()
    assert os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") is None
