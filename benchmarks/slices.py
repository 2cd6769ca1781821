"""Sampling of slices of episodes from buffers of growing size, adding between samples, beside peers and the floor."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from benchmarks import floor, ours
from benchmarks.compare import Effort
from benchmarks.contender import Contender, Entry, Sequencing
from benchmarks.goals import Comparison, slice_comparisons
from benchmarks.groups import Group, GroupSection, measure_groups
from benchmarks.workload import SliceWorkload

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


def capacities_around(work: SliceWorkload, *, quick: bool = False) -> tuple[int, ...]:
    """A tenth of the workload's capacity, where the goals are judged, and ten times as much."""
    return (work.capacity // 10, work.capacity) if quick else (work.capacity // 10, work.capacity, work.capacity * 10)


def roster(work: SliceWorkload, group: Group) -> list[Entry]:
    """Everyone who takes part in one group at the workload's capacity."""
    sampler = cast(Sequencing, group.sampler)
    run = 1 if sampler == "without replacement" else work.length

    def torchrl() -> Contender:
        from benchmarks.peers_torchrl import TorchrlSlices

        return TorchrlSlices(work, sampler)

    def flashbax() -> Contender:
        from benchmarks.peers_flashbax import FlashbaxQueue, FlashbaxSlices

        return FlashbaxQueue(work, sampler) if sampler == "queue" else FlashbaxSlices(work, sampler)

    def of_ours() -> Contender:
        from benchmarks.slice_ours import OursJaxQueue, OursJaxSteps, OursTorchSteps, slice_spec

        if sampler == "queue":
            return OursJaxQueue(work, sampler)
        build = OursJaxSteps if group.backend == "jax" else OursTorchSteps
        return build(work, sampler, slice_spec(work, sampler))

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
) -> GroupSection:
    """Measure one group after the other, each at all capacities; who cannot run is named with the reason."""

    def wanted(group: Group) -> list[Comparison]:
        return [row for row in slice_comparisons() if (row.backend, row.sampler) == (group.backend, group.sampler)]

    return measure_groups(work, effort, capacities, groups=groups, entries=entries, wanted=wanted, say=say)
