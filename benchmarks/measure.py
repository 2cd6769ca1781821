"""Timing by interleaved bursts, and the statistics made from it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.contender import OPERATIONS, Contender, Operation

# Seconds per operation, one value a round, for each contender and operation.
Timings = dict[tuple[str, Operation], list[float]]

# The same for one contender.
TurnTimings = dict[Operation, list[float]]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of one quantity over the rounds."""

    median: float
    q1: float
    q3: float
    rounds: int


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of `values`."""
    q1, median, q3 = (float(value) for value in np.percentile(np.asarray(values), (25, 50, 75)))
    return Spread(median, q1, q3, len(values))


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> Spread:
    """Spread of the per-round ratios: what slows a whole round down cancels out in it."""
    return spread([top / bottom for top, bottom in zip(numerator, denominator, strict=True)])


def interleave(contenders: Sequence[Contender], *, rounds: int, burst: int, warmup: int = 2) -> Timings:
    """Time every contender in every round, operation by operation, in shuffled order.

    Within a round each contender runs one burst of an operation before the next contender's turn, so that
    all of them meet the same machine: its frequency, its neighbours, and a cache the others have used.
    """
    timings: Timings = {(c.name, operation): [] for c in contenders for operation in c.operations}
    order = random.Random(0)
    for number in range(warmup + rounds):
        for operation in OPERATIONS:
            turn = [c for c in contenders if operation in c.operations]
            order.shuffle(turn)
            for contender in turn:
                seconds = _burst(contender, operation, burst)
                if number >= warmup:
                    timings[contender.name, operation].append(seconds)
    return timings


def _burst(contender: Contender, operation: Operation, burst: int) -> float:
    """Seconds for one operation, averaged over a burst."""
    call = getattr(contender, operation)
    steps = contender.step_length if operation == "step" else 1
    calls = max(1, burst // steps)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / (calls * steps)


def alternate(
    contenders: Sequence[Contender], *, rounds: int, turns: int, patience: float = 0.1, warmup: int = 1
) -> tuple[list[TurnTimings], dict[int, Exception]]:
    """Time every contender in every round, its operations in turn, so that each sample follows an add.

    Some peers keep what they found out about the stored episodes, and lose it at the next add: a burst of samples
    would show a cost that no training loop ever has.

    Args:
        contenders: who is measured.
        rounds: how often each of them has its burst.
        turns: adds, samples and updates in one burst.
        patience: seconds after which a burst ends early; one turn is always run.
        warmup: rounds that do not count.

    Returns:
        Seconds per operation, one value a round, for each contender in their order; and for the places of those that
        raised, the error. They had no further turn.
    """
    timings: list[TurnTimings] = [{operation: [] for operation in c.operations} for c in contenders]
    errors: dict[int, Exception] = {}
    order = random.Random(0)
    places = list(range(len(contenders)))
    for number in range(warmup + rounds):
        order.shuffle(places)
        for place in [place for place in places if place not in errors]:
            try:
                seconds = _turns(contenders[place], turns, patience)
            # As in `assemble`: what a peer raises is a row of the report.
            except Exception as error:
                errors[place] = error
                continue
            if number >= warmup:
                for operation, value in seconds.items():
                    timings[place][operation].append(value)
    return timings, errors


def _turns(contender: Contender, turns: int, patience: float) -> dict[Operation, float]:
    """Seconds for each operation, averaged over the turns of a burst."""
    spent = dict.fromkeys(contender.operations, 0.0)
    calls = [(operation, getattr(contender, operation)) for operation in contender.operations]
    begun, done = time.perf_counter(), 0
    while done < turns and (done == 0 or time.perf_counter() - begun < patience):
        for operation, call in calls:
            start = time.perf_counter()
            call()
            spent[operation] += time.perf_counter() - start
        done += 1
    return {operation: seconds / done for operation, seconds in spent.items()}
