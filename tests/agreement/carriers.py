"""What carries out the functions on arrays that are written in place: torch, and the engine of host states on NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import torch_backend
from functional_rb.storage import host_state
from functional_rb.storage.host_state import ENGINE, Bits
from tests.support.backends import _torch_numpy
from tests.support.chain_programs import Noting
from torch_backend.arrays import random
from torch_backend.engines import execute
from torch_backend.memory.library import TORCH


class OnTorch:
    """The functions of a backend, as they are carried out."""

    memory_of = staticmethod(lambda state: state._version.own())
    init = staticmethod(torch_backend.init)
    add = staticmethod(torch_backend.add)
    update = staticmethod(torch_backend.update)

    @staticmethod
    def sample(state: Any, seed: int, batch: int, wanted: int | None = None, beta: float = 0.0) -> Any:
        number = None if wanted is None else torch.tensor(wanted, dtype=torch.int32)
        return execute.sample(state, torch_backend.key(seed), batch, beta, number)


class OnNumPy:
    """The functions of host states, which JAX gives random bits."""

    memory_of = staticmethod(lambda state: state._version.own())
    init = staticmethod(lambda spec: host_state.init(spec, None))

    @staticmethod
    def add(state: Any, items: dict[str, Any], mask: Any = None, priorities: Any = None) -> Any:
        lead = len(items["id"]) if state.spec.lanes is None else items["id"].size
        leaves = [x.reshape(lead, *leaf.shape) for x, leaf in zip(items.values(), state.spec.plan.leaves, strict=True)]
        mask, priorities = (None if x is None else x.reshape(lead) for x in (mask, priorities))
        return ENGINE.add(state, leaves, lead, mask, priorities, None)

    @staticmethod
    def update(state: Any, handles: Any, priorities: Any, items: dict[str, Any] | None = None) -> Any:
        names = state.spec.plan.names
        return ENGINE.update(state, handles, priorities, {names.index(name): x for name, x in (items or {}).items()})

    @staticmethod
    def sample(state: Any, seed: int, batch: int, wanted: int | None = None, beta: float = 0.0) -> Any:
        bits = random.draws(torch_backend.key(seed), *state.spec.draw_shape(batch)).numpy()
        return ENGINE.sample(state, Bits(bits), batch, beta, None if wanted is None else np.int32(wanted))


LIBRARIES = (OnTorch, OnNumPy)


@contextlib.contextmanager
def noting(on: Any) -> Iterator[Noting]:
    """Meanwhile a library's chain notes what it does itself."""
    library = TORCH if on is OnTorch else ENGINE.library
    before = library.chain
    library.chain = chain = Noting(before)
    try:
        yield chain
    finally:
        library.chain = before


def told(drawn: Any) -> list[Any]:
    """What was drawn, all of it in bytes with their dtypes and shapes."""
    leaves, selection = drawn
    arrays = [
        _torch_numpy(x) if isinstance(x, torch.Tensor) else np.asarray(x)
        for x in (*leaves, *(x for x in selection[:-1] if x is not None), *selection.extras.values())
    ]
    return [(x.dtype, x.shape, x.tobytes()) for x in arrays]


def items(first: int, n: int, lanes: int | None = None) -> dict[str, Any]:
    """Items that are told apart, [n] or [n // lanes, lanes]."""
    ids = np.arange(first, first + n, dtype=np.int32)
    lead = (n,) if lanes is None else (n // lanes, lanes)
    images = np.repeat(ids[:, None] % 251, 1030, 1).astype(np.uint8)
    parts = {"id": ids, "image": images, "x": np.stack([ids, -ids, ids / 2], 1).astype(np.float32)}
    return {name: part.reshape(*lead, *part.shape[1:]) for name, part in parts.items()}


def content(on: Any, state: Any) -> dict[str, bytes]:
    """All of a state, whose memory stays its own."""
    memory = on.memory_of(state)
    found = {name: np.asarray(array).tobytes() for name, array in memory.by_name.items()}
    return {**found, "counters": np.asarray(state._counters).tobytes()}
