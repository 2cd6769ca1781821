"""The floor of sampling: a bare gather of as many rows as are drawn, without any buffer around it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np

from benchmarks.contender import Backend, Contender
from benchmarks.workload import ROW_WORDS, Workload

NAME = "bare gather"


class Gather(Contender):
    """Gathers random rows of an int32 [capacity, ROW_WORDS] table."""

    def __init__(self, backend: Backend, gather: Callable[[], None]) -> None:
        super().__init__(NAME, backend, "uniform")
        self.operations = ("sample",)
        self._gather = gather

    def add(self) -> None:
        """Not among its operations: the rows stay as they are."""

    def update(self) -> None:
        """Nor is this."""

    def sample(self) -> None:
        self._gather()


def jax_floor(work: Workload, length: int = 1) -> Gather:
    """A jitted take on JAX's default device, of runs of `length` rows."""
    import jax
    import jax.numpy as jnp

    take = jax.jit(lambda table, rows: table.at[rows].get(mode="clip"))
    table = jnp.array(_table(work))
    rows = cycle([jnp.asarray(rows) for rows in _rows(work, length)])

    def gather() -> None:
        jax.block_until_ready(take(table, next(rows)))

    return Gather("jax", gather)


def torch_floor(work: Workload, device: str = "cpu", length: int = 1) -> Gather:
    """An index_select on `device`, of runs of `length` rows."""
    import torch

    from benchmarks.torch_loop import synchronizer

    table = torch.as_tensor(_table(work), device=device)
    rows = cycle([torch.as_tensor(rows, device=device) for rows in _rows(work, length)])
    synchronize = synchronizer(device)

    def gather() -> None:
        table.index_select(0, next(rows))
        synchronize()

    return Gather("torch", gather)


def _table(work: Workload) -> np.ndarray:
    # Written, not only reserved: untouched pages would all be the same page of zeros.
    return np.arange(work.capacity * ROW_WORDS, dtype=np.int32).reshape(work.capacity, ROW_WORDS)


def _rows(work: Workload, length: int) -> list[np.ndarray]:
    """As many rows in all, whatever the length of a run: each int32 [sample_size * length]."""
    rng = np.random.default_rng(work.seed)
    draws = -(-work.draws // length)
    starts = rng.integers(work.capacity - length + 1, size=(draws, work.sample_size, 1), dtype=np.int32)
    return list((starts + np.arange(length, dtype=np.int32)).reshape(draws, -1))
