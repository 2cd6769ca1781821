"""Run the measurements, all or one part of them: `python -m benchmarks [PART] [--quick] [--out DIR]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import (
    atari,
    datasets,
    group_report,
    items,
    mixture,
    n_step,
    on_gpu,
    report,
    specs,
    storage,
    texts,
    trees,
)
from benchmarks.compare import Effort, Section, compare
from benchmarks.contender import Backend
from benchmarks.machine import OtherWork, machine, versions
from benchmarks.memory import memory
from benchmarks.scaling import CAPACITIES, as_json, scaling
from benchmarks.slices import GROUPS, capacities_around, slices
from benchmarks.workload import NStepWorkload, SliceWorkload, Workload

PARTS = (
    *("compare", "memory", "scaling", "slices", "n_step", "atari", "specs", "storage", "trees", "items", "mixture"),
    *("datasets", "text", "gpu"),
)
# Written to files of their own, so that measuring them anew leaves the other figures as they are.
APART = ("n_step", "atari", "specs", "storage", "trees", "items", "mixture", "datasets", "text", "gpu")


class Run(NamedTuple):
    """What parts share that write files of their own.

    Attributes:
        out: the folder for results.
        effort: of the whole run.
        here: the machine, and the versions of libraries.
        asked: how the run was called.
        others: what other processes took meanwhile.
    """

    out: Path
    effort: Effort
    here: dict[str, Any]
    asked: dict[str, Any]
    others: OtherWork

    def effort_of(self, share: int, burst: int) -> Effort:
        """The effort for a part that takes long: one of so many rounds, but five at least."""
        return Effort(max(5, self.effort.rounds // share), burst)

    def write_table(self, part: str, title: str, text: str) -> None:
        """Write and print the table of a part."""
        (self.out / f"{part}.md").write_text(f"# {title}\n\n{text}\n")
        print(f"\n{text}")

    def write(self, part: str, title: str, text: str, effort: Effort, told: dict[str, Any]) -> None:
        """Write the table of a part, and its figures."""
        self.write_table(part, title, text)
        self.write_figures(part, effort, told)

    def write_figures(self, part: str, effort: Effort, told: dict[str, Any]) -> None:
        """Write the figures of a part."""
        settings = {**self.here, "effort": {**asdict(effort), **self.asked}}
        _write(self.out / f"{part}.json", {**settings, **told, "other_work": self.others.share()})

    def section(
        self,
        part: str,
        title: str,
        measure: Callable[..., Section],
        text: Callable[..., str],
        work: Any,
        sizes: str,
        share: int,
        burst: int,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Measure a part that compares times, draw its ratios, and write its table and figures."""
        turns = self.effort_of(share, burst)
        found = measure(work, turns, say=_say)
        self.write(part, title, text(found, work), turns, {**found.as_json(), **(more or {})})
        report.draw_ratios(found, sizes, self.out / f"{part}.png")  # the last, as it wants matplotlib


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
    run = Run(options.out, effort, here, asked, others)
    print(", ".join(f"{name} {value}" for name, value in (here["machine"] | here["versions"]).items()))
    print(f"{effort.rounds} rounds of bursts of {effort.burst}, {work.capacity:,} items")

    found: dict[str, Any] = {**here, "workload": asdict(work), "effort": {**asdict(effort), **asked}}
    found |= _together(run, parts, work, options)
    _apart(run, parts, work, options)
    found["other_work"] = others.share()
    if (found["other_work"] or 0.0) > 0.1:
        print(f"\nCAUTION: other processes took {found['other_work']:.0%} of a core; measure again when it is quiet")
    if set(parts) - set(APART):
        _write(options.out / "results.json", found)
    print(f"\n{time.perf_counter() - started:.0f} s; results in {options.out}")
    return 0


def _together(run: Run, parts: Sequence[str], work: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts whose figures stand in one file; the figures."""
    found: dict[str, Any] = {}
    if "compare" in parts:
        section = compare(work, run.effort, say=_say)
        found["compare"] = section.as_json()
        report.draw_ratios(section, report.sizes_of(work), run.out / "ratios.png")
        print(f"\n{report.table(section)}")
    if "memory" in parts:
        footprints = memory(work)
        found["memory"] = [held.as_json() for held in footprints]
        print(f"\nMemory of a full buffer, in bytes\n\n{report.memory_table(footprints)}")
    if "scaling" in parts:
        capacities = tuple(size for size in CAPACITIES if not options.quick or size <= 1_000_000)
        points = scaling(work, run.effort_of(4, run.effort.burst), capacities, say=_say)
        found["scaling"] = as_json(points)
        report.draw_scaling(points, run.out / "scaling.png")
        print(f"\nMedians in microseconds by capacity\n\n{report.scaling_table(points)}")
    if "slices" in parts:
        turns, slice_work = run.effort_of(4, 10), SliceWorkload(capacity=options.capacity)
        capacities = capacities_around(slice_work, quick=options.quick)
        sequences = slices(slice_work, turns, capacities, groups=GROUPS, say=_say)
        found["slices"] = {"effort": asdict(turns), **sequences.as_json()}
        group_report.draw_groups(sequences, run.out / "slices.png")
        run.write_table("slices", "Sampling slices of episodes", group_report.slices_text(sequences))
    return found


def _apart(run: Run, parts: Sequence[str], work: Workload, options: argparse.Namespace) -> None:
    """Measure the parts that write files of their own."""
    if "n_step" in parts:
        turns, n_step_work = run.effort_of(4, 10), NStepWorkload(capacity=options.capacity)
        capacities = capacities_around(n_step_work, quick=True)
        returns = n_step.n_step(n_step_work, turns, capacities, groups=n_step.GROUPS, say=_say)
        group_report.draw_groups(returns, run.out / "n_step.png", ("add", "sample", "step"))
        run.write("n_step", "Sampling n-step transitions", group_report.n_step_text(returns), turns, returns.as_json())
    if "atari" in parts:
        turns = run.effort_of(4, 10)
        sections = [
            atari.atari(observations, turns, groups=groups, say=_say)
            for observations, groups in atari.sized(options.capacity // (100 if options.quick else 10))
        ]
        group_report.draw_observations(sections, run.out / "atari.png")
        text, told = group_report.observations_text(sections), [section.as_json() for section in sections]
        run.write("atari", "Storing no observation twice", text, turns, {"sections": told})
    if "specs" in parts:
        sizes = f"{specs.WORK.sample_size} values at a time"
        run.section("specs", "Values of specs", specs.specs, specs.text, specs.WORK, sizes, 4, run.effort.burst)
    if "storage" in parts:
        kept, title = replace(work, capacity=options.capacity // (10 if options.quick else 1)), "Buffers that last"
        run.section("storage", title, storage.storage, storage.text, kept, report.sizes_of(kept), 4, run.effort.burst)
    if "trees" in parts:
        measure = partial(trees.trees, groups=trees.QUICK if options.quick else trees.GROUPS)
        sizes = f"{trees.WORK.keys:,} keys"
        run.section("trees", "Maps, forests and trees", measure, trees.text, trees.WORK, sizes, 30, 1)
    if "items" in parts:
        sizes = f"{items.WORK.batch} images"
        run.section("items", "Functions of images", items.items, items.text, items.WORK, sizes, 10, 1)
    if "mixture" in parts:
        title, sizes = "Drawing from several buffers", f"batches of {mixture.WORK.batch}"
        run.section("mixture", title, mixture.mixture, mixture.text, mixture.WORK, sizes, 4, 10)
    if "datasets" in parts:
        sizes = f"{datasets.WORK.episodes:,} episodes"
        rows = datasets.memory_rows(datasets.peaks(datasets.WORK))
        more = {"memory": [dict(zip(("format", "file_bytes", "contender", "MB"), row, strict=True)) for row in rows]}
        run.section("datasets", "Offline datasets", datasets.datasets, datasets.text, datasets.WORK, sizes, 30, 1, more)
    if "text" in parts:
        title, sizes = "Preparing and loading texts", f"{texts.WORK.pairs:,} pairs of texts"
        held = {"bytes": texts.held(texts.WORK)}
        run.section("text", title, texts.text_section, texts.text, texts.WORK, sizes, 1, 25, held)
    if "gpu" in parts:
        seen = on_gpu.seen()
        if seen:
            _on_gpu(run, work, seen, options.only)
        else:
            print("\nGPU: skipped, neither JAX nor torch sees one here")


def _on_gpu(run: Run, work: Workload, seen: Mapping[Backend, str], only: str, device: str = "cuda") -> None:
    """Measure on a GPU part by part, and write what is known after each: a machine that has one is had for minutes."""
    found: list[on_gpu.Part] = []
    for part in on_gpu.parts(work, run.effort, seen, device=device, only=only, say=_say):
        found.append(part)
        print("\n".join(["", part.title, *part.lines]), flush=True)
        (run.out / "gpu.md").write_text(f"# On a GPU\n\n{on_gpu.text(seen, found)}\n")
        told = [{"title": each.title, **each.told} for each in found]
        run.write_figures("gpu", run.effort, {"gpus": dict(seen), "parts": told})
    report.draw_ratios(on_gpu.charted(found, work.capacity, device), report.sizes_of(work), run.out / "gpu.png")


def _write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ours and its peers.")
    parser.add_argument("part", nargs="?", default="all", choices=("all", *PARTS), help="default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes, a few minutes")
    parser.add_argument("--rounds", type=int, help="rounds of the comparison")
    parser.add_argument("--capacity", type=int, default=Workload.capacity, help="default: %(default)s")
    parser.add_argument("--only", default="", help="of the part gpu: what has this in its title")
    parser.add_argument("--torch-threads", type=int, help="default: torch's own choice")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="default: %(default)s")
    return parser.parse_args(arguments)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
