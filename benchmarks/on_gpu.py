"""The comparison with peers where every contender's buffer lies on a GPU, and what calls come to there.

It is made of parts, each of which is known as soon as it was measured: a machine with a GPU is had for minutes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks import floor, ours
from benchmarks.compare import Effort, Section, compare, joined, measure
from benchmarks.contender import Backend, Operation, Sampler, describe
from benchmarks.goals import COPY, TENSORS, image_comparisons, motion_comparisons
from benchmarks.group_report import markdown, ratio_table, who_did_not_run
from benchmarks.workload import ITEM_BYTES, Workload

# Steps of one scanned call.
SCAN = 100
# Of the time in which the device copies as many bytes, so much may the work on it take.
BANDWIDTH_GOAL = 1.3
AMP_RATES = "128 M inserts and 19.3 M uniform samples a second on one GPU"


@dataclass(frozen=True)
class Part:
    """What was measured together.

    Attributes:
        title: a heading.
        lines: Markdown.
        told: the figures.
        section: that which a chart is drawn of, if there is one.
    """

    title: str
    lines: list[str]
    told: dict[str, Any] = field(default_factory=dict)
    section: Section | None = None


def seen() -> dict[Backend, str]:
    """The backends that see a GPU here, each with the GPU's name."""
    found: dict[Backend, str] = {}
    with contextlib.suppress(ImportError, RuntimeError):
        import jax

        found["jax"] = jax.devices("gpu")[0].device_kind
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            found["torch"] = torch.cuda.get_device_name()
    return found


def parts(
    work: Workload,
    effort: Effort,
    gpus: Mapping[Backend, str],
    *,
    device: str = "cuda",
    larger: int = 10,
    only: str = "",
    say: Callable[[str], None] = print,
) -> Iterator[Part]:
    """Every part, as soon as it is known; of one that cannot be measured, why.

    Args:
        work: the workload.
        effort: of each part.
        gpus: backends to measure.
        device: where torch's buffers lie, and JAX's likewise.
        larger: how many times as many items the larger buffers of torch hold.
        only: parts with this in their titles, all if empty.
        say: told what goes on.
    """
    measures: dict[str, Callable[[str], Part]] = {}
    torch = partial(_peers, "torch", effort, device, say)
    if "torch" in gpus:
        measures["torch, uniform"] = partial(torch, work, "uniform")
        measures["torch, prioritized"] = partial(torch, work, "prioritized")
        measures["torch, launches and waits"] = partial(_counts, work, device)
        measures["torch, launches of every kind"] = partial(_kinds, device)
        measures["torch, images"] = partial(_images, effort, device, say)
        measures["torch, motions"] = partial(_motions, effort, device, say)
    if len(gpus) == 2:
        measures["torch to JAX and back"] = partial(_crossing, work, device)
    if "jax" in gpus:
        scanned = replace(work, scan_length=SCAN)
        for sampler in _SAMPLERS:
            measures[f"JAX, {sampler}"] = partial(_peers, "jax", effort, device, say, scanned, sampler)
    if "torch" in gpus:
        large = replace(work, capacity=larger * work.capacity)
        for sampler in _SAMPLERS:
            measures[f"torch, {sampler}, {large.capacity:,} items"] = partial(torch, large, sampler)
    for title, measured in measures.items():
        if only in title:
            say(title)
            try:
                yield measured(title)
            # Whatever goes wrong is a line of the report: the other parts must outlive it.
            except Exception as error:
                yield Part(title, [f"It was not measured: {describe(error)}"])
            _let_go(gpus, device)


_SAMPLERS: tuple[Sampler, ...] = "uniform", "prioritized"


def text(gpus: Mapping[Backend, str], found: Sequence[Part]) -> str:
    """The parts in Markdown: where, and what was measured."""
    where = "; ".join(f"{backend}: {name}" for backend, name in gpus.items())
    about = (
        f"Every buffer lies on the GPU ({where}). A call has ended when the GPU has done its work, unless a part says "
        f"otherwise. Ratios: time of `compared` over time of `against`, median and quartiles of the rounds' ratios."
    )
    lines = [
        about,
        "",
        f"- {ours.NAME}: on JAX jitted, the state donated; on torch eager",
        f"- {ours.IN_PLACE}: `add_`, `sample_` and `update_`",
        "- flashbax, torchrl: with their buffers on the GPU",
        f"- {floor.NAME}: of as many rows, without any buffer around it",
        f"- {floor.NOTHING}: a kernel that does nothing, on JAX a jitted `x + 1`: calling and waiting alone",
    ]
    for part in found:
        lines += ["", f"## {part.title[0].upper()}{part.title[1:]}", "", *part.lines]
    return "\n".join(lines)


def charted(found: Sequence[Part], capacity: int, device: str = "cuda") -> Section:
    """All sections about buffers of so many items, as one."""
    return joined([part.section for part in found if part.section and part.told["capacity"] == capacity], device)


def _let_go(gpus: Mapping[Backend, str], device: str) -> None:
    """Give the memory of what was measured back, so that the next part has it."""
    gc.collect()
    if "torch" in gpus and device != "cpu":
        import torch

        torch.cuda.empty_cache()


def _peers(
    backend: Backend,
    effort: Effort,
    device: str,
    say: Callable[[str], None],
    work: Workload,
    sampler: Sampler,
    title: str,
) -> Part:
    """Beside peers and floors."""
    section = compare(work, effort, device=device, backends=(backend,), samplers=(sampler,), say=say)
    about = (
        f"{work.capacity:,} items of {ITEM_BYTES} bytes; {work.add_size} are added, {work.sample_size} drawn"
        f"{' and updated' if sampler == 'prioritized' else ''} at a time"
    )
    scans = f"; a `step` is one of {work.scan_length} in a scan" if backend == "jax" else ""
    lines = [f"{about}{scans}.", "", *ratio_table(section), "", *who_did_not_run(section)]
    return Part(title, lines, {"capacity": work.capacity, **section.as_json()}, section)


def _counts(work: Workload, device: str, title: str) -> Part:
    """What one call of ours asks of the GPU."""
    from benchmarks.gpu_counts import counted

    rows: list[Sequence[str]] = [("sampler", "contender", "operation", "launches", "copies", "waits", "GPU's work, us")]
    told = []
    for sampler in _SAMPLERS:
        for in_place in (False, True):
            contender = ours.OursTorch(work, sampler, in_place=in_place, device=device, waits=False)
            contender.sample()  # what is updated was drawn
            operations: tuple[Operation, ...] = "add", "sample", "update"
            for operation in (each for each in operations if each in contender.operations):
                found = counted(getattr(contender, operation), device)
                numbers = (found.launches, found.copies, found.waits)
                shown = [*(f"{number:g}" for number in numbers), f"{found.seconds * 1e6:.1f}"]
                rows.append((sampler, contender.name, operation, *shown))
                told.append(dict(zip(rows[0][:3], rows[-1][:3], strict=True)) | found._asdict())
    about = (
        "Of one call, the mean of 20 by torch's profiler, which are not waited for; these numbers no machine changes."
    )
    return Part(title, [about, "", *markdown(rows)], {"calls": told})


def _kinds(device: str, title: str) -> Part:
    """What one call of ours asks of the GPU, of every kind of buffer."""
    from benchmarks import gpu_kinds

    found = list(gpu_kinds.rows(device))
    rows: list[Sequence[str]] = [("buffer", "function", "launches", "copies", "waits", "GPU's work, us")]
    for kind, function, of in found:
        numbers = (of.launches, of.copies, of.waits)
        rows.append((kind, function, *(f"{number:g}" for number in numbers), f"{of.seconds * 1e6:.1f}"))
    about = "Of one call, as above; of mixtures of two buffers, and of a hash map whose keys are four numbers."
    told = [{"kind": kind, "function": function, **of._asdict()} for kind, function, of in found]
    return Part(title, [about, "", *markdown(rows)], {"calls": told})


def _images(effort: Effort, device: str, say: Callable[[str], None], title: str) -> Part:
    """Bytes that must be moved, over what the device's memory can move."""
    from benchmarks import gpu_shapes
    from benchmarks.gpu_counts import counted

    rate = gpu_shapes.bandwidth(device, 2**30 if device == "cuda" else 2**20)
    rows: list[Sequence[str]] = [
        (
            "contender",
            "operation",
            "MB moved",
            "call, us",
            "of a copy's",
            "GPU's work, us",
            "of the bandwidth's",
            "goal",
            "",
        )
    ]
    told: list[dict[str, Any]] = []
    missing: list[str] = []
    for shape in (gpu_shapes.images(64), gpu_shapes.images(1024)):
        section = measure(gpu_shapes.group(shape, device), image_comparisons(), effort, device=device, say=say)
        missing += who_did_not_run(section)
        times = {(f.contender, f.operation): f.seconds.median for f in section.figures}
        beside = {(r.comparison.top, r.comparison.operation): r.ratio for r in section.results}
        for in_place in (False, True):
            contender = gpu_shapes.OursShaped(shape, device, in_place=in_place, waits=False)
            for operation, items in (("add", shape.add_size), ("sample", shape.sample_size)):
                # Read and written; of a value also the rows that its older state keeps.
                times_moved = 4 if operation == "add" and not in_place else 2
                moved = times_moved * items * shape.item_bytes
                work = counted(getattr(contender, operation), device).seconds
                ratio, least = beside.get((contender.name, operation)), moved / rate
                verdict = "pass" if work <= BANDWIDTH_GOAL * least else "MISSED"
                call = times.get((contender.name, operation))
                cells = [f"{operation} {items:,}", f"{moved / 1e6:.1f}", "-" if call is None else f"{call * 1e6:.1f}"]
                cells += ["-" if ratio is None else f"{ratio.median:.2f}", f"{work * 1e6:.1f}", f"{work / least:.2f}"]
                rows.append((contender.name, *cells, f"<= {BANDWIDTH_GOAL}", verdict))
                told.append(
                    {"contender": contender.name, "operation": operation, "items": items, "bytes": moved}
                    | {"call_s": call, "copy_ratio": ratio and ratio.median, "gpu_s": work, "least_s": least}
                )
            del contender
    about = (
        f"100,000 images of 84 x 84 x 4 bytes. A copy of a GB reads and writes {rate / 1e12:.2f} TB/s; `of the "
        f"bandwidth's`: the work on the GPU over the time for the bytes moved at that rate; `of a copy's`: the call "
        f"over {COPY} on the device of what comes in or goes out. An add of a value also keeps what it overwrites."
    )
    return Part(title, [about, "", *markdown(rows), "", *missing], {"bytes_per_s": rate, "calls": told})


def _motions(effort: Effort, device: str, say: Callable[[str], None], title: str) -> Part:
    """Items a second."""
    from benchmarks import gpu_shapes

    shape = gpu_shapes.MOTIONS
    section = measure(
        gpu_shapes.group(shape, device), motion_comparisons(), replace(effort, burst=1), device=device, say=say
    )
    items: dict[str, int] = {"add": shape.adds * shape.add_size, "sample": shape.samples * shape.sample_size}
    rows: list[Sequence[str]] = [("contender", "operation", "M items a second")]
    rates = {(f.contender, f.operation): items[f.operation] / f.seconds.median for f in section.figures}
    rows += [(*key, f"{rate / 1e6:.1f}") for key, rate in rates.items()]
    about = (
        f"As in amp-rsl-rl's own benchmark of its replay buffer: {shape.capacity:,} pairs of 60 numbers, {shape.adds} "
        f"times {shape.add_size:,} added, {shape.samples} mini-batches of {shape.sample_size:,} drawn, and only then "
        f"the GPU is waited for. Told of it: {AMP_RATES}. {TENSORS}: what such a buffer does, written anew."
    )
    told = {"rates": [{"contender": c, "operation": o, "items_per_s": rate} for (c, o), rate in rates.items()]}
    lines = [about, "", *markdown(rows), "", *ratio_table(section), "", *who_did_not_run(section)]
    return Part(title, lines, {**section.as_json(), **told})


def _crossing(work: Workload, device: str, title: str) -> Part:
    """Whether memory stays where it is."""
    from benchmarks.gpu_counts import crossing

    found = crossing(work, device)
    line = (
        f"Of the {found.arrays} arrays of a prioritized buffer, {found.nbytes / 1e6:.1f} MB, {found.there} are in the "
        f"same memory on JAX, and {found.back} when they are back; the way there took "
        f"{found.there_seconds * 1e6:.0f} us, the way back {found.back_seconds * 1e6:.0f}."
    )
    return Part(title, [line], found._asdict())
