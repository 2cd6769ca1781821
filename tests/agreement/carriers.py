"""What tests of the version chain look at: what it does itself, and all that a state holds."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import functional_rb as frb
from functional_rb.core import counters
from functional_rb.structures import frame_ring
from tests.support.chain_programs import Noting
from torch_backend.memory.library import TORCH


@contextlib.contextmanager
def noting(library: str = "torch") -> Iterator[Noting]:
    """Meanwhile the chain notes what it does itself: torch's, or that of JAX's buffers in the host's memory."""
    libraries: list[Any] = [TORCH]
    if library != "torch":
        from jax_backend.engines import hosted  # imported only here, as sanitizers make it slow

        libraries = [hosted._engine.library, hosted._sending.library]
    before = [each.chain for each in libraries]
    chain = Noting(before[0])
    for each in libraries:
        each.chain = Noting(each.chain, chain.calls)
    try:
        yield chain
    finally:
        for each, itself in zip(libraries, before, strict=True):
            each.chain = itself


def items(first: int, n: int, lanes: int | None = None) -> dict[str, Any]:
    """Items that are told apart, [n] or [n // lanes, lanes]."""
    ids = np.arange(first, first + n, dtype=np.int32)
    lead = (n,) if lanes is None else (n // lanes, lanes)
    images = np.repeat(ids[:, None] % 251, 1030, 1).astype(np.uint8)
    parts = {"id": ids, "image": images, "x": np.stack([ids, -ids, ids / 2], 1).astype(np.float32)}
    return {name: part.reshape(*lead, *part.shape[1:]) for name, part in parts.items()}


def content(state: Any) -> dict[str, bytes]:
    """All of a state, whose memory stays its own."""
    found = {name: np.asarray(array).tobytes() for name, array in state._version.own().by_name.items()}
    return {**found, "counters": np.asarray(state._counters).tobytes()}


def counter(spec: frb.BufferSpec, name: str) -> int:
    """Where a counter of one number lies."""
    at = counters.place(spec.plan, name)
    assert at is not None
    return at


def frame_cursors(spec: frb.BufferSpec) -> slice:
    """Where the numbers of the lanes' next frames lie."""
    at = counter(spec, frame_ring.CURSOR)
    return slice(at, at + (spec.lanes or 1))


def surrounded(state: Any) -> dict[str, Any]:
    """The arrays that a sampler or a writer keeps, from now on in the middle of larger ones, by name; these are -5."""
    memory = state._version.own()
    around = {
        name: torch.full((x.shape[0] + 128, *x.shape[1:]), -5, dtype=x.dtype) for name, x in memory.auxiliary.items()
    }
    memory.auxiliary = {name: x[64:-64] for name, x in around.items()}
    memory.take(memory.by_name)
    return around


def agreeing(life: Callable[[], Any]) -> tuple[Any, collections.Counter[str]]:
    """What a function returns, the same by the core and by the version chain, and which calls the chain did itself."""
    with frb.kernels(False), noting() as chain:
        expected = life()
    assert chain.done == 0
    with noting() as chain:
        found = life()
    assert found == expected
    return found, chain.calls
