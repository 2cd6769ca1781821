"""flashbax: its item buffer, its prioritised trajectory buffer with sequences of length 1, and sequences proper."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import flashbax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contender import Contender, Sampler, Sequencing, SliceContender
from benchmarks.jax_loop import prepare, scanned_step, to_device
from benchmarks.workload import SliceWorkload, Workload


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


class FlashbaxSlices(SliceContender):
    """flashbax's trajectory buffer or its prioritised one, jitted, add and update donating the state.

    It knows no episodes: its windows cross their ends, and it has no counterpart of a draw by trajectory.
    """

    def __init__(self, work: SliceWorkload, sampler: Sequencing) -> None:
        super().__init__("flashbax", "jax", sampler)
        buffer = _trajectory_buffer(work, sampler)
        self._add = jax.jit(buffer.add, donate_argnums=0)
        self._sample = jax.jit(buffer.sample)
        self._batches = cycle([jax.device_put(batch) for batch in work.adds()])
        self._priorities = cycle([jnp.asarray(values) for values in work.priorities()])
        self._keys = cycle(list(jax.random.split(jax.random.key(work.seed), work.draws)))
        self._state = buffer.init(_first_step(work))
        for chunk in work.fills():
            self._state = self._add(self._state, jax.device_put(chunk))
        if sampler == "prioritized slices":
            self._update = jax.jit(buffer.set_priorities, donate_argnums=0)
            priorities = jnp.asarray(work.chunk_priorities())
            for starts in _starts(work):
                self._state = self._update(self._state, jnp.asarray(starts), priorities)

    def add(self) -> None:
        self._state = jax.block_until_ready(self._add(self._state, next(self._batches)))

    def sample(self) -> None:
        drawn = jax.block_until_ready(self._sample(self._state, next(self._keys)))
        self.steps = drawn.experience["done"].size
        if self.sampler == "prioritized slices":
            self.drawn.append(drawn.indices)

    def update(self) -> None:
        state = self._update(self._state, self.drawn[0], next(self._priorities))
        self._state = jax.block_until_ready(state)


class FlashbaxQueue(SliceContender):
    """flashbax's trajectory queue, half full: what was added first leaves first, one window of every lane at a time."""

    def __init__(self, work: SliceWorkload, sampler: Sequencing) -> None:
        super().__init__("flashbax", "jax", sampler)
        width = work.add_size // work.lanes
        queue = flashbax.make_trajectory_queue(
            max_length_time_axis=work.lane_capacity,
            add_batch_size=work.lanes,
            add_sequence_length=width,
            sample_sequence_length=width,  # it consumes as many steps as are added
        )
        self._add = jax.jit(queue.add, donate_argnums=0)
        self._sample = jax.jit(queue.sample, donate_argnums=0)
        self._batches = cycle([jax.device_put(batch) for batch in work.adds()])
        state = queue.init(_first_step(work))
        # Adding writes as many rows wherever the cursor is: the half that is waiting need not have been written.
        self._state = state.replace(write_index=jnp.asarray(work.lane_capacity // 2, state.write_index.dtype))

    def add(self) -> None:
        self._state = jax.block_until_ready(self._add(self._state, next(self._batches)))

    def sample(self) -> None:
        self._state, drawn = jax.block_until_ready(self._sample(self._state))
        self.steps = drawn.experience["done"].size


def _trajectory_buffer(work: SliceWorkload, sampler: Sequencing) -> Any:
    sizes = {
        "add_batch_size": work.lanes,
        "sample_batch_size": work.sample_size,
        "sample_sequence_length": work.length,
        "period": 1,
        "min_length_time_axis": work.length,
        "max_length_time_axis": work.lane_capacity,
    }
    if sampler == "window slices":
        return flashbax.make_trajectory_buffer(**sizes)
    if sampler == "prioritized slices":
        return flashbax.make_prioritised_trajectory_buffer(**sizes, priority_exponent=work.alpha, device="cpu")
    raise ValueError(f"flashbax has no counterpart of {sampler!r}")


def _first_step(work: SliceWorkload) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), work.adds()[0])


def _starts(work: SliceWorkload) -> list[np.ndarray]:
    """All valid starts, int32 [chunk_size] at a time, the last of them repeated.

    A priority set elsewhere would stay, and the windows that begin there cross the write cursor.
    """
    cursor = work.chunks * work.chunk_size // work.lanes % work.lane_capacity
    slots = (cursor + np.arange(work.lane_capacity - work.length + 1)) % work.lane_capacity
    starts = (np.arange(work.lanes)[:, None] * work.lane_capacity + slots).astype(np.int32).ravel()
    return list(np.pad(starts, (0, -len(starts) % work.chunk_size), mode="edge").reshape(-1, work.chunk_size))
