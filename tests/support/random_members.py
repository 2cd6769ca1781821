"""Samplers and writers with random settings, and the shapes of the histories they are tried in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import functional_rb as frb
from tests.support.histories import STEP, Rng, Shapes, pick

SCORED = STEP | {"score": frb.Unbounded((2,))}
LIMITS = [None, 1, 2, 2, 5]
ON_TORCH = Shapes((0, 1, 1, 2, 3, 5, 20), (1, 2, 3, 7), False)
ON_JAX = Shapes((8,), (4,), True)
VARIANTS = ["torch", "torch", "torch-core", "torch-inplace"]
SAMPLERS: dict[str, Callable[[Rng], Any]] = {
    "uniform": lambda rng: frb.Uniform(pick(rng, LIMITS)),
    "prioritized": lambda rng: frb.Prioritized(
        pick(rng, [0.0, 0.5, 0.6, 1.0, 2.0]), pick(rng, [0.0, 0.4, 1.0]), pick(rng, ["live", "ever"]), pick(rng, LIMITS)
    ),
    "recency": lambda rng: frb.Recency(pick(rng, [1, 2, 3, 4])),
    "shuffled": lambda rng: frb.WithoutReplacement(drop_last=pick(rng, [False, True])),
    "in order": lambda rng: frb.WithoutReplacement(drop_last=pick(rng, [False, True]), shuffle=False),
    "queue of windows": lambda rng: frb.Queue(pick(rng, [1, 2, 3, 4])),
    "queue": lambda rng: frb.Queue(),
    "fifo": lambda rng: frb.InOrder(pick(rng, LIMITS)),
    "lifo": lambda rng: frb.InOrder(pick(rng, LIMITS), newest_first=True),
}
ONE_LANE = ("queue", "fifo", "lifo")
REDUCTIONS = ["sum", "mean", "max", "min", "median", "median"]
WRITERS: dict[str, Callable[[Rng], Any]] = {
    "best": lambda rng: frb.MaxValue("score", pick(rng, REDUCTIONS)),
    "reservoir": lambda rng: frb.Reservoir(),
    "full": lambda rng: frb.StopWhenFull(),
    "dataset": lambda rng: frb.Immutable(),
}
