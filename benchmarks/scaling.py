"""Cost of our operations as the buffer grows, beside the bare gather, which shows what the cache does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from benchmarks import floor, ours
from benchmarks.compare import Effort, placed
from benchmarks.contender import Backend, Contender, Operation, Sampler
from benchmarks.measure import Spread, interleave, spread
from benchmarks.workload import Workload

CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000)


@dataclass(frozen=True)
class Point:
    """Seconds of one operation at one capacity; without a sampler it is the bare gather."""

    backend: Backend
    sampler: Sampler | None
    operation: Operation
    capacity: int
    seconds: Spread


def scaling(
    work: Workload,
    effort: Effort,
    capacities: tuple[int, ...] = CAPACITIES,
    *,
    backends: tuple[Backend, ...] = get_args(Backend),
    say: Callable[[str], None] = print,
) -> list[Point]:
    """Measure ours at every capacity, the capacities interleaved."""
    points: list[Point] = []
    for backend in backends:
        for sampler in (*get_args(Sampler), None):
            say(f"scaling {backend} {sampler or floor.NAME} ...")
            with placed(backend, "cpu"):
                contenders = [_sized(work, backend, sampler, capacity) for capacity in capacities]
                timings = interleave(contenders, rounds=effort.rounds, burst=effort.burst)
            points += [
                Point(backend, sampler, operation, int(name), spread(seconds))
                for (name, operation), seconds in timings.items()
            ]
            del contenders
            gc.collect()
    return points


def growth(points: Sequence[Point]) -> list[dict[str, Any]]:
    """How much dearer each operation is at the largest capacity than at the smallest."""
    curves: dict[tuple[Backend, Sampler | None, Operation], list[Point]] = {}
    for point in points:
        curves.setdefault((point.backend, point.sampler, point.operation), []).append(point)
    rows = []
    for (backend, sampler, operation), curve in curves.items():
        ends = sorted(curve, key=lambda point: point.capacity)
        rows.append(
            {
                "backend": backend,
                "sampler": sampler,
                "operation": operation,
                "from_capacity": ends[0].capacity,
                "to_capacity": ends[-1].capacity,
                "growth": ends[-1].seconds.median / ends[0].seconds.median,
            }
        )
    return rows


def as_json(points: Sequence[Point]) -> dict[str, Any]:
    """The points, times in seconds, and their growth."""
    return {"points": [asdict(point) for point in points], "growth": growth(points)}


def _sized(work: Workload, backend: Backend, sampler: Sampler | None, capacity: int) -> Contender:
    """The contender of one capacity, named by it."""
    sized = replace(work, capacity=capacity)
    contender: Contender
    if sampler is None:
        contender = floor.jax_floor(sized) if backend == "jax" else floor.torch_floor(sized)
    else:
        contender = ours.OursJax(sized, sampler) if backend == "jax" else ours.OursTorch(sized, sampler)
    contender.name = str(capacity)
    contender.operations = tuple(operation for operation in contender.operations if operation != "step")
    return contender
