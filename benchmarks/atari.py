"""Transitions that hold every observation twice, stored compactly: bytes held and times, beside peers and the floor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks import floor, ours
from benchmarks.compare import Effort
from benchmarks.contender import Contender, Entry
from benchmarks.goals import CAT_FRAMES, TORCHRL_PLAIN, Comparison, observation_comparisons
from benchmarks.groups import Group, GroupSection, measure_groups
from benchmarks.machine import require_memory
from benchmarks.workload import ATARI, HUMANOID, ObservationWorkload

# Each workload with those who run it: stacks of frames, and observations that are states.
GROUPS = (
    (ATARI, (Group("torch", "frames"), Group("jax", "frames"))),
    (HUMANOID, (Group("torch", "observations"), Group("jax", "observations"))),
)


def sized(capacity: int) -> list[tuple[ObservationWorkload, tuple[Group, ...]]]:
    """The workloads at a capacity, each with its groups."""
    return [(replace(work, capacity=capacity), groups) for work, groups in GROUPS]


def roster(work: ObservationWorkload, group: Group) -> list[Entry]:
    """Everyone who takes part in one group at the workload's capacity."""
    compact = work.capacity * (work.frame_bytes + work.other_bytes)
    plain = work.capacity * work.item_bytes

    @functools.cache
    def table() -> np.ndarray:
        return work.table()  # the gathers on torch and NumPy read the same memory

    def of_ours(name: str) -> Contender:
        from benchmarks.slice_ours import OursJaxSteps, OursTorchSteps, observation_spec

        of_backend = OursJaxSteps if group.backend == "jax" else OursTorchSteps
        return of_backend(work, group.sampler, observation_spec(work, compact=name == ours.NAME), name)

    def torchrl_plain() -> Contender:
        from benchmarks.peers_torchrl import TorchrlObservations

        return TorchrlObservations(work, group.sampler, TORCHRL_PLAIN)

    def torchrl_cat_frames() -> Contender:
        from benchmarks.peers_torchrl import TorchrlCatFrames

        return TorchrlCatFrames(work, group.sampler, CAT_FRAMES)

    def cpprb() -> Contender:
        from benchmarks.peers_cpprb import CpprbObservations

        return CpprbObservations(work, group.sampler)

    def gather(*, distinct: bool = False) -> Contender:
        return floor.observation_floor(work, group.backend, table(), distinct=distinct)

    # What each of them allocates, and how it is built.
    builders: dict[str, tuple[int, Callable[[], Contender]]] = {
        ours.NAME: (compact, lambda: of_ours(ours.NAME)),
        ours.PLAIN: (plain, lambda: of_ours(ours.PLAIN)),
        floor.NAME: (compact, gather),
    }
    if work.stack > 1:
        builders[floor.DISTINCT] = (compact, lambda: gather(distinct=True))
    if group.backend == "torch":
        builders["cpprb"] = (compact, cpprb)
        builders[floor.NUMPY] = (0, lambda: floor.numpy_floor(work, table()))
        builders[TORCHRL_PLAIN] = (plain, torchrl_plain)
        if work.stack > 1:
            builders[CAT_FRAMES] = (2 * compact, torchrl_cat_frames)

    def guarded(needed: int, build: Callable[[], Contender]) -> Callable[[], Contender]:
        def build_if_it_fits() -> Contender:
            require_memory(needed)
            return build()

        return build_if_it_fits

    return [
        Entry(name, group.backend, group.sampler, guarded(needed, build)) for name, (needed, build) in builders.items()
    ]


def atari(
    work: ObservationWorkload,
    effort: Effort,
    *,
    groups: tuple[Group, ...],
    entries: Callable[[ObservationWorkload, Group], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> GroupSection:
    """Measure one group after the other at the workload's capacity; who cannot run is named with the reason."""

    def wanted(group: Group) -> list[Comparison]:
        return observation_comparisons(group.backend, group.sampler)

    capacities = (work.capacity,)
    return measure_groups(work, effort, capacities, groups=groups, entries=entries, wanted=wanted, say=say)
