"""The comparison with peers: who takes part, section by section, and the rows that come out."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, get_args

from benchmarks import floor, ours
from benchmarks.contender import AnySampler, Backend, Contender, Entry, Sampler, Unavailable, assemble
from benchmarks.goals import Comparison, Verdict, comparisons, gpu_comparisons, ratio_of
from benchmarks.measure import Spread, Timings, interleave, spread
from benchmarks.workload import Workload


@dataclass(frozen=True)
class Effort:
    """How long to measure: rounds, and calls of an operation in one burst."""

    rounds: int
    burst: int


@dataclass(frozen=True)
class Figure:
    """Seconds that one operation of one contender took."""

    contender: str
    backend: Backend
    sampler: AnySampler
    operation: str
    seconds: Spread


@dataclass(frozen=True)
class Result:
    """A comparison as measured."""

    comparison: Comparison
    ratio: Spread | None
    verdict: Verdict


@dataclass(frozen=True)
class Section:
    """Everything measured on one kind of device."""

    device: str
    figures: list[Figure]
    results: list[Result]
    unavailable: list[Unavailable]

    def as_json(self) -> dict[str, Any]:
        """The section as the JSON report holds it; times in microseconds."""
        return {
            "device": self.device,
            "figures": [
                {
                    "contender": figure.contender,
                    "backend": figure.backend,
                    "sampler": figure.sampler,
                    "operation": figure.operation,
                    "median_us": figure.seconds.median * 1e6,
                    "q1_us": figure.seconds.q1 * 1e6,
                    "q3_us": figure.seconds.q3 * 1e6,
                    "rounds": figure.seconds.rounds,
                }
                for figure in self.figures
            ],
            "ratios": [
                {
                    **asdict(result.comparison),
                    "goal": result.comparison.goal,
                    "verdict": result.verdict,
                    "ratio": None if result.ratio is None else asdict(result.ratio),
                }
                for result in self.results
            ],
            "unavailable": [asdict(missing) for missing in self.unavailable],
        }


def roster(work: Workload, backend: Backend, sampler: Sampler, device: str = "cpu") -> list[Entry]:
    """Everyone who takes part in the comparisons of one backend and sampler on one kind of device."""

    def flashbax() -> Contender:
        from benchmarks.peers_flashbax import Flashbax

        return Flashbax(work, sampler, "cpu" if device == "cpu" else "gpu")

    def torchrl() -> Contender:
        from benchmarks.peers_torchrl import Torchrl

        return Torchrl(work, sampler, device)

    def cpprb() -> Contender:
        from benchmarks.peers_cpprb import Cpprb

        return Cpprb(work, sampler)

    builders: dict[str, Callable[[], Contender]]
    if backend == "jax":
        builders = {
            ours.NAME: lambda: ours.OursJax(work, sampler),
            "flashbax": flashbax,
            floor.NAME: lambda: floor.jax_floor(work),
        }
    else:
        builders = {
            ours.NAME: lambda: ours.OursTorch(work, sampler, device=device),
            ours.IN_PLACE: lambda: ours.OursTorch(work, sampler, in_place=True, device=device),
            "torchrl": torchrl,
            "cpprb": cpprb,
            floor.NAME: lambda: floor.torch_floor(work, device),
        }
        if device != "cpu":
            del builders["cpprb"]  # NumPy only
    if device != "cpu":
        builders[floor.NOTHING] = partial(_nothing, backend, sampler, device)
    return [Entry(name, backend, sampler, build) for name, build in builders.items()]


def _nothing(backend: Backend, sampler: Sampler, device: str) -> Contender:
    return floor.jax_nothing(sampler) if backend == "jax" else floor.torch_nothing(sampler, device)


def compare(
    work: Workload,
    effort: Effort,
    *,
    device: str = "cpu",
    backends: tuple[Backend, ...] = get_args(Backend),
    samplers: tuple[Sampler, ...] = get_args(Sampler),
    entries: Callable[[Workload, Backend, Sampler, str], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> Section:
    """Measure every group of contenders and compare them; who cannot run is named with the reason."""
    groups: dict[tuple[Backend, AnySampler], Callable[[], list[Entry]]] = {
        (backend, sampler): partial(entries, work, backend, sampler, device)
        for backend in backends
        for sampler in samplers
    }
    wanted = comparisons() if device == "cpu" else gpu_comparisons()
    return measure(groups, wanted, effort, device=device, say=say)


def joined(parts: Sequence[Section], device: str = "cpu") -> Section:
    """What was measured in several turns on one kind of device, as one."""
    figures, results, unavailable = [], [], []
    for part in parts:
        figures += part.figures
        results += part.results
        unavailable += part.unavailable
    return Section(device, figures, results, unavailable)


def measure(
    groups: Mapping[tuple[Backend, AnySampler], Callable[[], list[Entry]]],
    wanted: Sequence[Comparison],
    effort: Effort,
    *,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> Section:
    """Measure one group after the other, each with its entries, and make the comparisons that are for it."""
    figures: list[Figure] = []
    results: list[Result] = []
    unavailable: list[Unavailable] = []
    for (backend, sampler), entries in groups.items():
        say(f"measuring {backend} {sampler} on {device} ...")
        with placed(backend, device):
            ready, failed = assemble(entries())
            timings = interleave(ready, rounds=effort.rounds, burst=effort.burst)
        measured = _figures(ready, timings, sampler)
        for figure in measured:  # a run may be cut short
            say(f"  {figure.contender} {figure.operation}: {figure.seconds.median * 1e6:.3g} us")
        figures += measured
        unavailable += failed
        for comparison in wanted:
            if (comparison.backend, comparison.sampler) == (backend, sampler):
                ratio = ratio_of(comparison, timings)
                results.append(Result(comparison, ratio, comparison.verdict(ratio)))
        # A filled buffer holds a sixth of a gigabyte: let this group's go before the next is built.
        del ready
        gc.collect()
    return Section(device, figures, results, unavailable)


@contextlib.contextmanager
def placed(backend: Backend, device: str) -> Iterator[None]:
    """Make `device` JAX's default; torch contenders are told theirs."""
    if backend == "torch":
        yield
        return
    import jax

    with jax.default_device(jax.devices("cpu" if device == "cpu" else "gpu")[0]):
        yield


def _figures(contenders: list[Contender], timings: Timings, sampler: AnySampler) -> list[Figure]:
    # Under the group's sampler: the floor, which has none, is measured in every group anew.
    return [
        Figure(c.name, c.backend, sampler, operation, spread(timings[c.name, operation]))
        for c in contenders
        for operation in c.operations
    ]
