"""flashbax: its item buffer, and its prioritised trajectory buffer with sequences of length 1."""

from __future__ import annotations

from typing import Any

import flashbax
import jax
import jax.numpy as jnp

from benchmarks.contender import Contender, Sampler
from benchmarks.jax_loop import prepare, scanned_step, to_device
from benchmarks.workload import Workload


class Flashbax(Contender):
    """A flashbax buffer, jitted, add and update donating the state.

    One row along the time axis, which is the layout of its item buffer. 64 rows, one for each added item,
    were measured too and are about as fast (uniform 23 / 155 us against 26 / 174, prioritised 105 / 251 / 59
    us against 110 / 217 / 61 for add / sample / update).
    """

    def __init__(self, work: Workload, sampler: Sampler, platform: str = "cpu") -> None:
        super().__init__("flashbax", "jax", sampler)
        buffer, lead = _buffer(work, sampler, platform)

        def update(state: Any, indices: Any, priorities: Any) -> Any:
            return buffer.set_priorities(state, indices, priorities)

        self._data = prepare(work, lead)
        self._add = jax.jit(buffer.add, donate_argnums=0)
        self._sample = jax.jit(buffer.sample)
        self._update = jax.jit(update, donate_argnums=0)
        self.step_length = work.scan_length
        self._step = scanned_step(
            buffer.add,
            lambda state, key: (state, buffer.sample(state, key)),
            (lambda state, drawn, p: update(state, drawn.indices, p)) if sampler == "prioritized" else None,
        )

        chunk = to_device(work.chunk(), lead)
        priorities = jnp.asarray(work.chunk_priorities())
        first = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(lead) + 1 :])[0], chunk)
        self._state = buffer.init(first)
        for slots in work.slots():
            self._state = self._add(self._state, chunk)
            if sampler == "prioritized":
                self._state = self._update(self._state, jnp.asarray(slots), priorities)
        self._last = self._sample(self._state, next(self._data.keys))

    def add(self) -> None:
        self._state = jax.block_until_ready(self._add(self._state, next(self._data.batches)))

    def sample(self) -> None:
        drawn = jax.block_until_ready(self._sample(self._state, next(self._data.keys)))
        if self.sampler == "prioritized":
            self.drawn.append(drawn.indices)

    def update(self) -> None:
        state = self._update(self._state, self.next_drawn(), next(self._data.priorities))
        self._state = jax.block_until_ready(state)

    def step(self) -> None:
        carried = self._step(self._state, self._last, next(self._data.scans))
        self._state, self._last = jax.block_until_ready(carried)


def _buffer(work: Workload, sampler: Sampler, platform: str) -> tuple[Any, tuple[int, ...]]:
    """The buffer, and the axes that its batches have before the batch axis."""
    if sampler == "uniform":
        return flashbax.make_item_buffer(work.capacity, 1, work.sample_size, add_batches=True), ()
    buffer = flashbax.make_prioritised_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=work.sample_size,
        sample_sequence_length=1,
        period=1,
        min_length_time_axis=1,
        max_length_time_axis=work.capacity,
        priority_exponent=work.alpha,
        device=platform,  # it picks another algorithm for GPUs
    )
    return buffer, (1,)
