"""Buffers in files, kept on disk, drawn from ahead of a training loop, and shared by processes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from benchmarks import floor, ours, shared, stored
from benchmarks.compare import Effort, Section, measure
from benchmarks.contender import Backend, Contender, Entry, Storing
from benchmarks.goals import storage_comparisons
from benchmarks.group_report import ratios_text
from benchmarks.workload import ITEM_BYTES, Workload

STEPS = 500  # of one call where processes share a buffer: the other one is woken for it
GROUPS: tuple[tuple[Backend, Storing], ...] = tuple(
    (backend, group)
    for group in get_args(Storing)
    for backend in get_args(Backend)
    if (backend, group) != ("jax", "checkpoint")  # the files are the same ones
)


@dataclass(frozen=True)
class Place:
    """Where a group may write, and what is called when it is over."""

    folder: Path
    ends: contextlib.ExitStack


def roster(work: Workload, backend: Backend, group: Storing, place: Place) -> list[Entry]:
    """Everyone who takes part in one group."""
    builders: dict[str, Callable[..., Contender]]
    if group == "memmap":
        builders = {ours.NAME: stored.OursInFiles, ours.IN_MEMORY: stored.OursInMemory, "torchrl": _torchrl_in_files}
    elif group == "checkpoint":
        builders = {ours.NAME: stored.Saving, ours.INCREMENTAL: stored.SavingChanges, floor.FILE: stored.BareFile}
        builders["torchrl"] = _torchrl_saving
    elif group == "prefetch":
        builders = {ours.NAME: stored.Training, ours.AHEAD: stored.TrainingAhead}
    else:
        builders = {ours.NAME: shared.OursShared, "torchrl": _torchrl_shared}
    return [
        Entry(name, backend, group, partial(build, name, backend, group, work, place))
        for name, build in builders.items()
    ]


def storage(
    work: Workload,
    effort: Effort,
    *,
    groups: Iterable[tuple[Backend, Storing]] = GROUPS,
    entries: Callable[[Workload, Backend, Storing, Place], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> Section:
    """Measure one group after the other, each with a folder of its own; who cannot run is named with the reason."""
    whole = Section("cpu", [], [], [])
    for backend, group in groups:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, contextlib.ExitStack() as ends:
            build = partial(entries, work, backend, group, Place(Path(folder), ends))
            wanted = storage_comparisons(backend)
            section = measure({(backend, group): build}, wanted, effort_of(group, effort), say=say)
        whole.figures.extend(section.figures)
        whole.results.extend(section.results)
        whole.unavailable.extend(section.unavailable)
    return whole


def effort_of(group: Storing, effort: Effort) -> Effort:
    """Saves take as long as a thousand samples, and each follows an add; a call of those who share is many steps."""
    if group == "checkpoint":
        return Effort(max(1, effort.rounds // 8), burst=1)
    if group.startswith("shared"):
        return Effort(max(1, effort.rounds // 8), burst=STEPS)
    return effort if group == "memmap" else replace(effort, rounds=max(1, effort.rounds // 4))


def text(section: Section, work: Workload) -> str:
    """The section in Markdown: what was measured, ratios and medians, and who did not run."""
    about = (
        f"Buffers of {work.capacity:,} items of {ITEM_BYTES} bytes, drawn from uniformly; {work.add_size} are added "
        f"and {work.sample_size} drawn at a time, the pages being in memory."
    )
    who = f"""\
- {ours.NAME}, torchrl: `Memmap` and `LazyMemmapStorage`; {ours.IN_MEMORY}: `Device`
- checkpoint: `frb.save` and `frb.load`; torchrl's `dumps` and `loads`, which do not wait for the disk; {floor.FILE}: \
NumPy's write of as many bytes, and fsync; {ours.INCREMENTAL}: of 1% new items
- prefetch: samples of {stored.FRAMES} and a training step that waits as long as a sample takes; {ours.AHEAD}: by \
`frb.iterate`
- shared writer, reader: one add (a sample) while another process draws (adds) without a pause; torchrl: \
`ReplayBuffer(shared=True)`"""
    return ratios_text(about, who, section)


def _torchrl_in_files(name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> Contender:
    from benchmarks.peers_torchrl_storage import TorchrlInFiles

    return TorchrlInFiles(name, backend, group, work, place)


def _torchrl_saving(name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> Contender:
    from benchmarks.peers_torchrl_storage import TorchrlSaving

    return TorchrlSaving(name, backend, group, work, place)


def _torchrl_shared(name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> Contender:
    from benchmarks.peers_torchrl_storage import TorchrlShared

    return TorchrlShared(name, backend, group, work, place)
