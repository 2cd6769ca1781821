"""Buffers that tests of mixtures mix, and what they read of samples."""

from __future__ import annotations

from typing import Any

import numpy as np

import functional_rb as frb
from tests.support.backends import Backend

ITEM = {"x": frb.Unbounded(())}
UNIFORM = frb.BufferSpec(ITEM, capacity=8)
SKEWED = frb.BufferSpec(ITEM, capacity=6, sampler=frb.Prioritized(alpha=1.0, beta=1.0))
REMEMBERING = [
    frb.Queue(),
    frb.WithoutReplacement(),
    frb.WithoutReplacement(shuffle=False),
    frb.InOrder(max_times_sampled=1),
    frb.Uniform(max_times_sampled=1),
    frb.Prioritized(max_times_sampled=1),
]


def filled(rb: Any, spec: frb.BufferSpec, first: float, n: int, priorities: Any = None) -> Any:
    """A buffer of the items first, first + 1, ..."""
    items = {"x": np.arange(first, first + n, dtype=np.float32)}
    given = None if priorities is None else np.asarray(priorities, np.float32)
    return rb.add(rb.init(spec), items, priorities=given)


def pair(library: Backend, **how: Any) -> frb.Mixture:
    """Five items alike, and four with the priorities 1 to 4."""
    skewed = filled(library.rb, SKEWED, 10, 4, [1, 2, 3, 4])
    return frb.Mixture([filled(library.rb, UNIFORM, 0, 5), skewed], **how)


def numbers(library: Backend, sample: Any) -> dict[str, np.ndarray]:
    """A sample's arrays in NumPy."""
    arrays = {"x": sample.items["x"], "ids": sample.extras["buffer_ids"]}
    arrays |= {name: getattr(sample, name) for name in ("indices", "weights", "probabilities")}
    return {name: library.numpy(x) for name, x in arrays.items()}


def graphs() -> int:
    """How many programs torch has compiled by now."""
    import torch

    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
