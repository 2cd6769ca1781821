"""Run the measurements, all or one part of them: `python -m benchmarks [PART] [--quick] [--out DIR]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import atari, group_report, items, mixture, n_step, report, specs, storage, trees
from benchmarks.compare import Effort, accelerated_backends, compare
from benchmarks.machine import OtherWork, machine, versions
from benchmarks.memory import memory
from benchmarks.scaling import CAPACITIES, as_json, scaling
from benchmarks.slices import GROUPS, capacities_around, slices
from benchmarks.workload import NStepWorkload, SliceWorkload, Workload

PARTS = (
    *("compare", "memory", "scaling", "slices", "n_step", "atari", "specs", "storage", "trees", "items", "mixture"),
    "gpu",
)
# Written to files of their own, so that measuring them anew leaves the other figures as they are.
APART = ("n_step", "atari", "specs", "storage", "trees", "items", "mixture")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for, print it, and write it under the output folder."""
    options = _parse(arguments)
    parts = PARTS if options.part == "all" else (options.part,)
    work = Workload(capacity=options.capacity)
    if options.torch_threads:
        import torch

        torch.set_num_threads(options.torch_threads)
    effort = Effort(rounds=options.rounds or (20 if options.quick else 300), burst=25)
    options.out.mkdir(parents=True, exist_ok=True)
    started, others = time.perf_counter(), OtherWork()
    here: dict[str, Any] = {"machine": machine(), "versions": versions()}
    asked = {"quick": options.quick, "torch_threads": options.torch_threads}
    found: dict[str, Any] = {**here, "workload": asdict(work), "effort": {**asdict(effort), **asked}}
    print(", ".join(f"{name} {value}" for name, value in (here["machine"] | here["versions"]).items()))
    print(f"{effort.rounds} rounds of bursts of {effort.burst}, {work.capacity:,} items")

    if "compare" in parts:
        section = compare(work, effort, say=_say)
        found["compare"] = section.as_json()
        report.draw_ratios(section, report.sizes_of(work), options.out / "ratios.png")
        print(f"\n{report.table(section)}")
    if "memory" in parts:
        footprints = memory(work)
        found["memory"] = [held.as_json() for held in footprints]
        print(f"\nMemory of a full buffer, in bytes\n\n{report.memory_table(footprints)}")
    if "scaling" in parts:
        capacities = tuple(size for size in CAPACITIES if not options.quick or size <= 1_000_000)
        points = scaling(work, Effort(max(5, effort.rounds // 4), effort.burst), capacities, say=_say)
        found["scaling"] = as_json(points)
        report.draw_scaling(points, options.out / "scaling.png")
        print(f"\nMedians in microseconds by capacity\n\n{report.scaling_table(points)}")
    if "slices" in parts:
        slice_work = SliceWorkload(capacity=options.capacity)
        turns = Effort(max(5, effort.rounds // 4), burst=10)
        capacities = capacities_around(slice_work, quick=options.quick)
        sequences = slices(slice_work, turns, capacities, groups=GROUPS, say=_say)
        found["slices"] = {"effort": asdict(turns), **sequences.as_json()}
        group_report.draw_groups(sequences, options.out / "slices.png")
        text = group_report.slices_text(sequences)
        (options.out / "slices.md").write_text(f"# Sampling slices of episodes\n\n{text}\n")
        print(f"\n{text}")
    if "n_step" in parts:
        turns = Effort(max(5, effort.rounds // 4), burst=10)
        n_step_work = NStepWorkload(capacity=options.capacity)
        capacities = capacities_around(n_step_work, quick=True)
        returns = n_step.n_step(n_step_work, turns, capacities, groups=n_step.GROUPS, say=_say)
        group_report.draw_groups(returns, options.out / "n_step.png", ("add", "sample", "step"))
        text = group_report.n_step_text(returns)
        (options.out / "n_step.md").write_text(f"# Sampling n-step transitions\n\n{text}\n")
        print(f"\n{text}")
        path = options.out / "n_step.json"
        _write(path, {**here, "effort": {**asdict(turns), **asked}, **returns.as_json(), "other_work": others.share()})
    if "atari" in parts:
        turns = Effort(max(5, effort.rounds // 4), burst=10)
        sections = [
            atari.atari(observations, turns, groups=groups, say=_say)
            for observations, groups in atari.sized(options.capacity // (100 if options.quick else 10))
        ]
        group_report.draw_observations(sections, options.out / "atari.png")
        text = group_report.observations_text(sections)
        (options.out / "atari.md").write_text(f"# Storing no observation twice\n\n{text}\n")
        print(f"\n{text}")
        told = [section.as_json() for section in sections]
        path = options.out / "atari.json"
        _write(path, {**here, "effort": {**asdict(turns), **asked}, "sections": told, "other_work": others.share()})
    if "specs" in parts:
        turns = Effort(max(5, effort.rounds // 4), effort.burst)
        checked = specs.specs(specs.WORK, turns, say=_say)
        report.draw_ratios(checked, f"{specs.WORK.sample_size} values at a time", options.out / "specs.png")
        text = specs.text(checked, specs.WORK)
        (options.out / "specs.md").write_text(f"# Values of specs\n\n{text}\n")
        print(f"\n{text}")
        path = options.out / "specs.json"
        _write(path, {**here, "effort": {**asdict(turns), **asked}, **checked.as_json(), "other_work": others.share()})
    if "storage" in parts:
        kept = replace(work, capacity=options.capacity // (10 if options.quick else 1))
        turns = Effort(max(5, effort.rounds // 4), effort.burst)
        section = storage.storage(kept, turns, say=_say)
        report.draw_ratios(section, report.sizes_of(kept), options.out / "storage.png")
        text = storage.text(section, kept)
        (options.out / "storage.md").write_text(f"# Buffers that last\n\n{text}\n")
        print(f"\n{text}")
        path = options.out / "storage.json"
        _write(path, {**here, "effort": {**asdict(turns), **asked}, **section.as_json(), "other_work": others.share()})
    if "trees" in parts:
        turns = Effort(max(5, effort.rounds // 30), burst=1)
        groups = trees.QUICK if options.quick else trees.GROUPS
        grown = trees.trees(trees.WORK, turns, groups=groups, say=_say)
        report.draw_ratios(grown, f"{trees.WORK.keys:,} keys", options.out / "trees.png")
        text = trees.text(grown, trees.WORK)
        (options.out / "trees.md").write_text(f"# Maps, forests and trees\n\n{text}\n")
        print(f"\n{text}")
        path = options.out / "trees.json"
        _write(path, {**here, "effort": {**asdict(turns), **asked}, **grown.as_json(), "other_work": others.share()})
    if "items" in parts:
        turns = Effort(max(5, effort.rounds // 10), burst=1)
        moved = items.items(items.WORK, turns, say=_say)
        report.draw_ratios(moved, f"{items.WORK.batch} images", options.out / "items.png")
        text = items.text(moved, items.WORK)
        (options.out / "items.md").write_text(f"# Functions of images\n\n{text}\n")
        print(f"\n{text}")
        path = options.out / "items.json"
        _write(path, {**here, "effort": {**asdict(turns), **asked}, **moved.as_json(), "other_work": others.share()})
    if "mixture" in parts:
        turns = Effort(max(5, effort.rounds // 4), burst=10)
        drawn = mixture.mixture(mixture.WORK, turns, say=_say)
        report.draw_ratios(drawn, f"batches of {mixture.WORK.batch}", options.out / "mixture.png")
        text = mixture.text(drawn, mixture.WORK)
        (options.out / "mixture.md").write_text(f"# Drawing from several buffers\n\n{text}\n")
        print(f"\n{text}")
        path = options.out / "mixture.json"
        _write(path, {**here, "effort": {**asdict(turns), **asked}, **drawn.as_json(), "other_work": others.share()})
    if "gpu" in parts:
        backends = accelerated_backends()
        if backends:
            section = compare(work, effort, device="cuda", backends=backends, say=_say)
            found["gpu"] = section.as_json()
            report.draw_ratios(section, report.sizes_of(work), options.out / "ratios_gpu.png")
            print(f"\n{report.table(section)}")
        else:
            found["gpu"] = None
            print("\nGPU: skipped, neither JAX nor torch sees one here")

    found["other_work"] = others.share()
    if (found["other_work"] or 0.0) > 0.1:
        print(f"\nCAUTION: other processes took {found['other_work']:.0%} of a core; measure again when it is quiet")
    if set(parts) - set(APART):
        _write(options.out / "results.json", found)
    print(f"\n{time.perf_counter() - started:.0f} s; results in {options.out}")
    return 0


def _write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ours and its peers.")
    parser.add_argument("part", nargs="?", default="all", choices=("all", *PARTS), help="default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes, a few minutes")
    parser.add_argument("--rounds", type=int, help="rounds of the comparison")
    parser.add_argument("--capacity", type=int, default=Workload.capacity, help="default: %(default)s")
    parser.add_argument("--torch-threads", type=int, help="default: torch's own choice")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="default: %(default)s")
    return parser.parse_args(arguments)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
