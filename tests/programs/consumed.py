"""A few items in small buffers, and whether a state was consumed: of tests of programs that write in place."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

import functional_rb as frb
import jax_backend

rb = jax_backend
CONSUMED = r"this state was consumed by an in-place function.*go on with what that returned"
SPEC = frb.BufferSpec({"x": frb.Unbounded((2,)), "n": frb.Unbounded((), "int32")}, 8, frb.Prioritized())
UNIFORM = dataclasses.replace(SPEC, sampler=frb.Uniform())
# Of a sampler that remembers what it drew.
LIMITED = dataclasses.replace(SPEC, sampler=frb.Uniform(max_times_sampled=2))
HANDLES, PRIORITIES = np.arange(3, dtype=np.int32), np.ones(3, np.float32)


def batch(start: int, count: int = 3) -> dict[str, np.ndarray]:
    numbers = np.arange(start, start + count, dtype=np.int32)
    return {"x": np.stack([numbers, -numbers], 1).astype(np.float32), "n": numbers}


def filled(spec: frb.BufferSpec = SPEC, rb: Any = jax_backend) -> Any:
    return rb.add(rb.init(spec), batch(0))


def is_gone(state: Any) -> bool:
    """All of it, as JAX says."""
    return all(x.is_deleted() for x in jax.tree.leaves(state))


def numbers(state: Any) -> list[int]:
    return rb.items(state)["n"].tolist()
