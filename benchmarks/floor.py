"""The floor of sampling: a bare gather of as many rows as are drawn, without any buffer around it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np

from benchmarks.contender import Backend, Calls, Operation, Sampler
from benchmarks.workload import ROW_WORDS, ObservationWorkload, Workload

NAME = "bare gather"
DISTINCT = "bare gather, each frame once"
NUMPY = "bare gather, NumPy"
RANDOM = "bare uniform"
FILE = "bare file"
NOTHING = "nothing"


def jax_floor(work: Workload, length: int = 1) -> Calls:
    """A jitted take on JAX's default device, of runs of `length` rows."""
    import jax
    import jax.numpy as jnp

    take = jax.jit(lambda table, rows: table.at[rows].get(mode="clip"))
    table = jnp.array(_table(work))
    rows = cycle([jnp.asarray(rows) for rows in _rows(work, length)])

    def gather() -> None:
        jax.block_until_ready(take(table, next(rows)))

    return _of("jax", gather)


def torch_floor(work: Workload, device: str = "cpu", length: int = 1) -> Calls:
    """An index_select on `device`, of runs of `length` rows."""
    import torch

    from benchmarks.torch_loop import synchronizer

    table = torch.arange(work.capacity * ROW_WORDS, dtype=torch.int32, device=device).view(work.capacity, ROW_WORDS)
    rows = cycle([torch.as_tensor(rows, device=device) for rows in _rows(work, length)])
    synchronize = synchronizer(device)

    def gather() -> None:
        table.index_select(0, next(rows))
        synchronize()

    return _of("torch", gather)


def jax_nothing(sampler: Sampler) -> Calls:
    """A jitted program that does next to nothing, waited for: less than that no call takes."""
    import jax
    import jax.numpy as jnp

    increase, number = jax.jit(lambda x: x + 1), jnp.zeros(())
    return _for_each_operation("jax", sampler, lambda: jax.block_until_ready(increase(number)))


def torch_nothing(sampler: Sampler, device: str) -> Calls:
    """The same on torch: a kernel of a GPU that ends at once."""
    import torch

    from benchmarks.torch_loop import synchronizer

    synchronize = synchronizer(device)
    begin: Callable[[int], None] = torch.cuda._sleep if torch.device(device).type == "cuda" else lambda cycles: None

    def launch() -> None:
        begin(0)
        synchronize()

    return _for_each_operation("torch", sampler, launch)


def _for_each_operation(backend: Backend, sampler: Sampler, call: Callable[[], object]) -> Calls:
    operations: tuple[Operation, ...] = ("add", "sample", "update") if sampler == "prioritized" else ("add", "sample")
    return Calls(NOTHING, backend, sampler, dict.fromkeys(operations, call))


def observation_floor(
    work: ObservationWorkload, backend: Backend, table: np.ndarray, *, distinct: bool = False
) -> Calls:
    """A take of the frames of a batch from `table`, jitted on JAX."""
    name = DISTINCT if distinct else NAME
    if backend == "jax":
        import jax
        import jax.numpy as jnp

        take = jax.jit(lambda frames, rows: frames.at[rows].get(mode="clip"))
        stored = jnp.asarray(table)
        drawn = cycle([jnp.asarray(rows) for rows in work.rows(distinct=distinct)])

        def take_frames() -> None:
            jax.block_until_ready(take(stored, next(drawn)))

        return _of("jax", take_frames, name)

    import torch

    frames = torch.as_tensor(table)
    indices = cycle([torch.as_tensor(rows) for rows in work.rows(distinct=distinct)])

    def gather() -> None:
        frames.index_select(0, next(indices))

    return _of("torch", gather, name)


def numpy_floor(work: ObservationWorkload, table: np.ndarray) -> Calls:
    """The same take in NumPy, for peers that know nothing else."""
    indices = cycle(work.rows())

    def gather() -> None:
        table.take(next(indices), axis=0)

    return _of("torch", gather, NUMPY)


def _of(backend: Backend, gather: Callable[[], None], name: str = NAME) -> Calls:
    return Calls(name, backend, "uniform", {"sample": gather})


def _table(work: Workload) -> np.ndarray:
    # Written, not only reserved: untouched pages would all be the same page of zeros.
    return np.arange(work.capacity * ROW_WORDS, dtype=np.int32).reshape(work.capacity, ROW_WORDS)


def _rows(work: Workload, length: int) -> list[np.ndarray]:
    """As many rows in all, whatever the length of a run: each int32 [sample_size * length]."""
    rng = np.random.default_rng(work.seed)
    draws = -(-work.draws // length)
    starts = rng.integers(work.capacity - length + 1, size=(draws, work.sample_size, 1), dtype=np.int32)
    return list((starts + np.arange(length, dtype=np.int32)).reshape(draws, -1))
