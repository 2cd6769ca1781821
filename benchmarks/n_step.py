"""Sampling of n-step transitions, adding one step of every environment between samples, beside peers and the floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks import floor, ours
from benchmarks.compare import Effort
from benchmarks.contender import Contender, Entry
from benchmarks.goals import Comparison, n_step_comparisons
from benchmarks.groups import Group, GroupSection, measure_groups
from benchmarks.workload import NStepWorkload

LANES = 16

GROUPS = (
    Group("torch", "n-step", LANES),
    Group("torch", "n-step"),  # cpprb's n-step buffer knows one environment
    Group("jax", "n-step", LANES),
)


def roster(work: NStepWorkload, group: Group) -> list[Entry]:
    """Everyone who takes part in one group at the workload's capacity."""
    work = replace(work, add_size=work.lanes)

    def of_ours(name: str) -> Callable[[], Contender]:
        def build() -> Contender:
            from benchmarks.slice_ours import OursJaxSteps, OursTorchSteps, n_step_spec

            of_backend = OursJaxSteps if group.backend == "jax" else OursTorchSteps
            return of_backend(work, "n-step", n_step_spec(work, name), name)

        return build

    def torchrl() -> Contender:
        from benchmarks.peers_torchrl import TorchrlNStep

        return TorchrlNStep(work)

    def cpprb() -> Contender:
        from benchmarks.peers_cpprb import CpprbNStep

        return CpprbNStep(work)

    def gather() -> Contender:
        return floor.jax_floor(work, work.n) if group.backend == "jax" else floor.torch_floor(work, length=work.n)

    builders = {name: of_ours(name) for name in (ours.NAME, ours.AT_ADD, ours.ONE_STEP)}
    if group.backend == "torch":
        builders["torchrl"] = torchrl
        if group.lanes == 1:
            builders["cpprb"] = cpprb
    builders[floor.NAME] = gather
    return [Entry(name, group.backend, group.sampler, build) for name, build in builders.items()]


def n_step(
    work: NStepWorkload,
    effort: Effort,
    capacities: tuple[int, ...],
    *,
    groups: tuple[Group, ...],
    entries: Callable[[NStepWorkload, Group], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> GroupSection:
    """Measure one group after the other, each at all capacities; who cannot run is named with the reason."""

    def wanted(group: Group) -> list[Comparison]:
        return n_step_comparisons(group.backend, lanes=group.lanes)

    return measure_groups(work, effort, capacities, groups=groups, entries=entries, wanted=wanted, say=say)
