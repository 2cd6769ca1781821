"""Whole draws of `samplers.Slices` as one kernel; the items are read behind it, as they may be large, or frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import buffer, episode_windows, random_bits
from functional_rb.cpu_kernels.cache import entry_point
from functional_rb.cpu_kernels.descriptor import (
    RING_CAPACITY,
    RING_LANES,
    SLICES_COUNTERS,
    SLICES_CURSORS,
    SLICES_NEXT,
    SLICES_SIZES,
    WINDOW_LENGTH,
)
from functional_rb.cpu_kernels.raw_memory import INT32, bools, floats, ints, table


@entry_point
def draw_slices(
    tree: Any,
    counters: Any,
    in_episode: Any,
    numbers: Any,
    slots: Any,
    handles: Any,
    mask: Any,
    is_first: Any,
    is_last: Any,
    truncated: Any,
    weights: Any,
    probabilities: Any,
    plan: Any,
    windows: Any,
    tree_size: Any,
    key: Any,
    words: Any,
    batch: Any,
) -> Any:
    """Draw slices by random bits int32 [batch, words], or by a key if there are none; whether there are any.

    Plan is that of the tree; for windows see `descriptor.encode_slices`. What is drawn has batch * length steps.
    """
    if numbers == 0:
        draws = np.empty((batch, words), np.int32)
        random_bits.fill(key, draws)
    else:
        draws = table(numbers, INT32, (batch, words))
    lanes, counters = np.int64(windows[RING_LANES]), ints(counters, np.int64(windows[SLICES_COUNTERS]))
    cursors, sizes, following = windows[SLICES_CURSORS], windows[SLICES_SIZES], windows[SLICES_NEXT]
    in_episode = ints(in_episode, np.int64(windows[RING_CAPACITY]))
    starts, nobody = np.empty(batch, np.int32), np.empty(0, np.uint8)
    total = buffer.descend(plan, floats(tree, tree_size), draws, starts)
    shape = batch, np.int64(windows[WINDOW_LENGTH])
    told = episode_windows.slices_at((slots, handles, mask, is_first, is_last, truncated), shape)
    ends = counters[cursors : cursors + lanes], counters[sizes : sizes + lanes]
    of_lanes = *ends, in_episode, counters[following : following + lanes]
    episode_windows.cut(windows, *of_lanes, starts, draws[:, words - 2 :], nobody, told)
    real, chance, found = bools(mask, batch * shape[1]), np.float32(1) / max(total, np.float32(1)), False
    weights, probabilities = floats(weights, batch), floats(probabilities, batch)
    for i in range(batch):
        live = real[i * shape[1]] != 0
        weights[i] = np.float32(live)
        probabilities[i] = chance if live else np.float32(0)
        found = found or live
    return found
