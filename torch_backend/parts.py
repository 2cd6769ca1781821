"""Parts of the core as compiled kernels, for plain tensors in the CPU's memory; see `functional_rb.ops.Native`.

Like `ops.set_at`, what writes does so in place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch

from functional_rb.deck import Deck
from functional_rb.dtypes import shown
from functional_rb.frame_writes import FramePlan
from functional_rb.frames import Chain
from functional_rb.layout import Layout, LeafLayout
from functional_rb.native import calls, plan
from functional_rb.native import chain as chains
from functional_rb.ring import Ends, Removal, Ring, Write
from functional_rb.transforms.line import Line
from functional_rb.windows import Entries, Lanes, Rule, Slices
from torch_backend import ops

LARGE = 2**18
"""Bytes of a leaf in a batch from which on torch's threads copy faster than one kernel."""


def descend(tree: torch.Tensor, capacity: int, draws: torch.Tensor) -> torch.Tensor:
    """`sum_tree.descend`: leaves int32 [B] by draws int32 [B, levels]."""
    draws = _ready(draws, torch.int32)
    batch, words = draws.shape
    leaves = ops.empty(batch, dtype=torch.int32)
    calls.descend(
        plan.encode_tree(capacity), tree.data_ptr(), tree.numel(), draws.data_ptr(), batch, words, leaves.data_ptr()
    )
    return leaves


def set_leaves(tree: torch.Tensor, capacity: int, leaves: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`sum_tree.set_leaves`: leaves int32 [n], values float32 [n]."""
    leaves, values = _ready(leaves, torch.int32), _ready(values, torch.float32)
    calls.set_leaves(
        plan.encode_tree(capacity),
        tree.data_ptr(),
        tree.numel(),
        leaves.data_ptr(),
        values.data_ptr(),
        leaves.shape[0],
    )
    return tree


def settle(arrays: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same arrays: torch computes one thing after the other."""
    return list(arrays)


def read(layout: Layout, rows: torch.Tensor, wide: Sequence[torch.Tensor], slots: torch.Tensor) -> list[torch.Tensor]:
    """`layout.read`: the leaves [B, *shape] in slots int32 [B]."""
    slots = _ready(slots, torch.int32)
    batch = slots.shape[0]
    large = [
        leaf.nbytes * batch >= LARGE and (leaf.wide is not None or leaf.nbytes == 4 * layout.row_words)
        for leaf in layout.leaves
    ]
    if any(large):
        return _read_apart(layout, rows, wide, slots, large)
    leaves = [
        torch.empty_strided(shape, strides, dtype=dtype, device=ops.CPU)
        for shape, strides, dtype in _results(layout, batch)
    ]
    calls.read(plan.encode_layout(layout), _addresses([rows, *wide]), slots.data_ptr(), batch, _addresses(leaves))
    return leaves


def read_batches(
    layout: Layout, rows: torch.Tensor, wide: Sequence[torch.Tensor], batches: Sequence[torch.Tensor]
) -> list[list[torch.Tensor]]:
    """`layout.read_batches`: as one, and then cut."""
    sizes = [slots.shape[0] for slots in batches]
    together = read(layout, rows, wide, torch.cat(list(batches)))
    return [list(leaves) for leaves in zip(*(leaf.split(sizes) for leaf in together), strict=True)]


def _read_apart(
    layout: Layout, rows: torch.Tensor, wide: Sequence[torch.Tensor], slots: torch.Tensor, large: Sequence[bool]
) -> list[torch.Tensor]:
    """Large leaves that have an array, or the rows, for themselves by torch, whose threads share the copy; the rest."""
    others = tuple(k for k, is_large in enumerate(large) if not is_large)
    arrays = [wide[own] for k in others if (own := layout.leaves[k].wide) is not None]
    rest = iter(read(layout.part(others), rows, arrays, slots) if others else [])
    return [
        _taken(leaf, rows if leaf.wide is None else wide[leaf.wide], slots) if is_large else next(rest)
        for leaf, is_large in zip(layout.leaves, large, strict=True)
    ]


def _taken(leaf: LeafLayout, array: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return ops.take(array, slots).view(ops.DTYPES[leaf.dtype]).view(slots.shape[0], *leaf.shape)


def store(
    layout: Layout,
    rows: torch.Tensor,
    wide: Sequence[torch.Tensor],
    slots: torch.Tensor,
    source: torch.Tensor | None,
    live: torch.Tensor | None,
    leaves: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """`layout.store`: rows of leaves [B, *shape], those of source int32 [n], to slots int32 [n] where live bool [n]."""
    slots = _ready(slots, torch.int32)
    source = None if source is None else _ready(source, torch.int32)
    live = None if live is None else _ready(live, torch.bool)
    leaves = [leaf.contiguous() for leaf in leaves]
    calls.store(
        plan.encode_layout(layout),
        _addresses([rows, *wide]),
        slots.data_ptr(),
        slots.shape[0],
        _address(source),
        _address(live),
        _addresses(leaves),
        leaves[0].shape[0] if leaves else 0,
    )
    return rows, tuple(wide)


def draws(key: torch.Tensor, batch: int, words: int) -> torch.Tensor:
    """`random.draws`: uniform int32 [batch, words]."""
    numbers = ops.empty((batch, words), dtype=torch.int32)
    calls.fill_draws(int(key), numbers.data_ptr(), batch * words)
    return numbers


def below(draws: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """`integers.below`: draws int32 [B, 2], n int32 [B] or scalar."""
    draws, n = _ready(draws, torch.int32), _ready(n, torch.int32)
    chosen = ops.empty(draws.shape[0], dtype=torch.int32)
    calls.below(draws.data_ptr(), n.data_ptr(), n.numel(), chosen.data_ptr(), chosen.shape[0])
    return chosen


def stored_value(priorities: torch.Tensor, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`weights.stored_value`: values float32 [B], and which are good, bool [B]."""
    priorities = _ready(priorities, torch.float32)
    values, good = torch.empty_like(priorities), torch.empty_like(priorities, dtype=torch.bool)
    calls.stored_values(
        plan.encode_alpha(alpha), priorities.data_ptr(), priorities.shape[0], values.data_ptr(), good.data_ptr()
    )
    return values, good


def importance_weights(values: torch.Tensor, smallest: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """`weights.importance_weights`: float32 [B], for scalars smallest and beta."""
    values = _ready(values, torch.float32)
    smallest, beta = _ready(smallest, torch.float32), _ready(beta, torch.float32)
    weights = torch.empty_like(values)
    calls.importance_weights(
        values.data_ptr(), values.shape[0], smallest.data_ptr(), beta.data_ptr(), weights.data_ptr()
    )
    return weights


def plan_write(ring: Ring, ends: Ends, batch: int, mask: torch.Tensor | None) -> Write:
    """`ring.plan_write`: mask bool [batch]."""
    cursors, sizes = _ready(ends.cursors, torch.int32), _ready(ends.sizes, torch.int32)
    mask = None if mask is None else _ready(mask, torch.bool)
    steps = batch // ring.lanes
    n = min(steps, ring.length) * ring.lanes
    slots, written = ops.empty(n, dtype=torch.int32), torch.empty_like(cursors)
    after = Ends(torch.empty_like(cursors), torch.empty_like(sizes))
    source = live = None
    if mask is not None:
        source, live = torch.empty_like(slots), torch.empty_like(slots, dtype=torch.bool)
    calls.plan_write(
        plan.encode_ring(ring),
        cursors.data_ptr(),
        sizes.data_ptr(),
        steps,
        _address(mask),
        slots.data_ptr(),
        n,
        _address(source),
        _address(live),
        written.data_ptr(),
        after.cursors.data_ptr(),
        after.sizes.data_ptr(),
    )
    return Write(slots, source, live, written, after, mask)


def step_ages(
    next_age: torch.Tensor, written: torch.Tensor, begins: torch.Tensor | None, ends: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`windows.step_ages`: begins and ends bool [E, T], next_age and written int32 [E]."""
    next_age, written = _ready(next_age, torch.int32), _ready(written, torch.int32)
    begins = None if begins is None else _ready(begins, torch.bool)
    ends = None if ends is None else _ready(ends, torch.bool)
    given = begins if ends is None else ends
    assert given is not None
    ages, following = ops.empty(given.shape, dtype=torch.int32), torch.empty_like(next_age)
    calls.step_ages(
        next_age.data_ptr(),
        written.data_ptr(),
        next_age.shape[0],
        _address(begins),
        _address(ends),
        ages.data_ptr(),
        ages.numel(),
        following.data_ptr(),
    )
    return ages, following


def changed(rule: Rule, lanes: Lanes, age: torch.Tensor, n: int, by_trajectory: bool) -> Entries:
    """`windows.changed`."""
    cursors, sizes = _ready(lanes.ends.cursors, torch.int32), _ready(lanes.ends.sizes, torch.int32)
    distances = plan.encode_distances(lanes.ring, rule, n, by_trajectory)
    count = plan.entries(lanes.ring, distances)
    entries = Entries(*(ops.empty(count, dtype=torch.int32) for _ in Entries._fields))
    calls.changed(
        plan.encode_windows(lanes.ring, rule, by_trajectory),
        distances,
        cursors.data_ptr(),
        sizes.data_ptr(),
        age.data_ptr(),
        count,
        *(array.data_ptr() for array in entries),
    )
    return entries


def weights_at(rule: Rule, lanes: Lanes, age: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """`windows.weights_at`: slots int32 [n]."""
    cursors, sizes = _ready(lanes.ends.cursors, torch.int32), _ready(lanes.ends.sizes, torch.int32)
    slots = _ready(slots, torch.int32)
    numbers = torch.empty_like(slots)
    calls.weights_at(
        plan.encode_windows(lanes.ring, rule, False),
        cursors.data_ptr(),
        sizes.data_ptr(),
        age.data_ptr(),
        slots.data_ptr(),
        slots.shape[0],
        numbers.data_ptr(),
    )
    return numbers


def plan_frames(
    chain: Chain, cursor: torch.Tensor, written: torch.Tensor, shares: torch.Tensor, moves: torch.Tensor | None
) -> FramePlan:
    """`frame_writes.plan_frames`: shares and moves bool [T * lanes]."""
    cursor, written, shares = _ready(cursor, torch.int32), _ready(written, torch.int32), _ready(shares, torch.bool)
    moves = None if moves is None else _ready(moves, torch.bool)
    lanes, rows = cursor.shape[0], shares.shape[0]
    n = lanes * min(chain.most * (rows // lanes), chain.room)
    slots, source = ops.empty(n, dtype=torch.int32), ops.empty(n, dtype=torch.int32)
    live, after = ops.empty(n, dtype=torch.bool), torch.empty_like(cursor)
    at = ops.empty((lanes, rows // lanes), dtype=torch.int32)
    calls.plan_frames(
        chains.encode_chain(chain),
        lanes,
        cursor.data_ptr(),
        written.data_ptr(),
        rows,
        shares.data_ptr(),
        _address(moves),
        n,
        *(array.data_ptr() for array in (slots, source, live, after, at)),
    )
    return FramePlan(slots, source, live, after, at)


def overwritten(chain: Chain, at: torch.Tensor, ends: Ends, after: torch.Tensor, steps: int) -> Removal:
    """`frame_writes.overwritten`."""
    cursors, sizes, after = (_ready(x, torch.int32) for x in (*ends, after))
    lanes = cursors.shape[0]
    n = lanes * min(chain.most * steps, chain.items.length)
    slots, gone = ops.empty(n, dtype=torch.int32), ops.empty(n, dtype=torch.bool)
    left = torch.empty_like(sizes)
    calls.overwritten(
        chains.encode_chain(chain),
        at.data_ptr(),
        at.shape[0],
        lanes,
        cursors.data_ptr(),
        sizes.data_ptr(),
        after.data_ptr(),
        n,
        *(array.data_ptr() for array in (slots, gone, left)),
    )
    return Removal(slots, gone, Ends(ends.cursors, left))


def places(chain: Chain, at: torch.Tensor, slots: torch.Tensor, depth: int, following: bool) -> torch.Tensor:
    """`frames.places`: slots int32 [n]."""
    slots = _ready(slots, torch.int32)
    count = slots.shape[0]
    found = ops.empty(count * depth, dtype=torch.int32)
    encoded = chains.encode(chain, depth, following)
    calls.places(encoded, at.data_ptr(), at.shape[0], slots.data_ptr(), count, found.data_ptr())
    return found


def expand(
    rule: Rule,
    lanes: Lanes,
    age: torch.Tensor,
    next_age: torch.Tensor,
    slots: torch.Tensor,
    draws: torch.Tensor,
    live: torch.Tensor | None,
    by_trajectory: bool,
) -> Slices:
    """`windows.expand`: slots int32 [S], draws int32 [S, 2], live bool [S] or None."""
    cursors, sizes = _ready(lanes.ends.cursors, torch.int32), _ready(lanes.ends.sizes, torch.int32)
    next_age, slots, draws = (_ready(x, torch.int32) for x in (next_age, slots, draws))
    live = None if live is None else _ready(live, torch.bool)
    shape = (slots.shape[0], rule.length)
    numbers = [ops.empty(shape, dtype=torch.int32) for _ in range(2)]
    slices = Slices(*numbers, *(ops.empty(shape, dtype=torch.bool) for _ in range(4)))
    calls.expand(
        plan.encode_windows(lanes.ring, rule, by_trajectory),
        cursors.data_ptr(),
        sizes.data_ptr(),
        age.data_ptr(),
        next_age.data_ptr(),
        slots.data_ptr(),
        slots.shape[0],
        draws.data_ptr(),
        _address(live),
        *(array.data_ptr() for array in slices),
    )
    return slices


def following(lanes: Lanes, age: torch.Tensor, slots: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`windows.following`: slots int32 [m]."""
    cursors, slots = _ready(lanes.ends.cursors, torch.int32), _ready(slots, torch.int32)
    shape = (slots.shape[0], n)
    found, real = ops.empty(shape, dtype=torch.int32), ops.empty(shape, dtype=torch.bool)
    calls.following(
        plan.encode_ring(lanes.ring),
        cursors.data_ptr(),
        age.data_ptr(),
        slots.data_ptr(),
        *shape,
        found.data_ptr(),
        real.data_ptr(),
    )
    return found, real


def extent(lanes: Lanes, age: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`windows.extent`: slots int32 [m]."""
    cursors, sizes = _ready(lanes.ends.cursors, torch.int32), _ready(lanes.ends.sizes, torch.int32)
    slots = _ready(slots, torch.int32)
    before, after = torch.empty_like(slots), torch.empty_like(slots)
    calls.extent(
        plan.encode_ring(lanes.ring),
        cursors.data_ptr(),
        sizes.data_ptr(),
        age.data_ptr(),
        slots.data_ptr(),
        slots.shape[0],
        before.data_ptr(),
        after.data_ptr(),
    )
    return before, after


def fold(rewards: torch.Tensor, real: torch.Tensor, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`returns.fold`: rewards float32 or float64 [m, n, *shape], real bool [m, n]."""
    dtype = torch.float64 if rewards.dtype == torch.float64 else torch.float32
    rewards, real = _ready(rewards, dtype), _ready(real, torch.bool)
    m, n, *shape = rewards.shape
    total, steps = ops.empty((m, *shape), dtype=dtype), ops.empty(m, dtype=torch.int32)
    calls.fold(
        plan.encode_discounts(gamma, n, shown(dtype)),
        rewards.data_ptr(),
        real.data_ptr(),
        m,
        math.prod(shape),
        total.data_ptr(),
        steps.data_ptr(),
    )
    return total, steps


def members(deck: Deck, count: torch.Tensor, slots: torch.Tensor, marked: torch.Tensor) -> torch.Tensor:
    """`deck.members`: slots int32 [B], marked bool [B]."""
    slots, marked, count = _ready(slots, torch.int32), _ready(marked, torch.bool), _ready(count, torch.int32)
    found = torch.empty_like(marked)
    order, place = deck
    calls.members(
        order.data_ptr(),
        place.data_ptr(),
        order.shape[0],
        count.data_ptr(),
        slots.data_ptr(),
        marked.data_ptr(),
        slots.shape[0],
        found.data_ptr(),
    )
    return found


def exchanges(
    deck: Deck, boundary: torch.Tensor, positions: torch.Tensor, marked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`deck.exchanges`: positions int32 [B], marked bool [B]."""
    positions, marked = _ready(positions, torch.int32), _ready(marked, torch.bool)
    boundary = _ready(boundary, torch.int32)
    batch, order = positions.shape[0], deck.order
    at, slots = ops.empty(2 * batch, dtype=torch.int32), ops.empty(2 * batch, dtype=torch.int32)
    after = torch.empty_like(boundary)
    count = calls.move_back(
        order.data_ptr(),
        order.shape[0],
        boundary.data_ptr(),
        positions.data_ptr(),
        marked.data_ptr(),
        batch,
        at.data_ptr(),
        slots.data_ptr(),
        after.data_ptr(),
    )
    return at[:count], slots[:count], after


def appended(
    deck: Deck, count: torch.Tensor, slots: torch.Tensor, marked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`deck.appended`: slots int32 [B], marked bool [B]."""
    slots, marked, count = _ready(slots, torch.int32), _ready(marked, torch.bool), _ready(count, torch.int32)
    at, new, after = torch.empty_like(slots), torch.empty_like(slots), torch.empty_like(count)
    found = calls.appended(
        count.data_ptr(),
        slots.data_ptr(),
        marked.data_ptr(),
        slots.shape[0],
        at.data_ptr(),
        new.data_ptr(),
        after.data_ptr(),
    )
    return at[:found], new[:found], after


def distinct(draws: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """`deck.distinct`: draws int32 [B, 2], n an int32 scalar."""
    draws, n = _ready(draws, torch.int32), _ready(n, torch.int32)
    chosen = ops.empty(draws.shape[0], dtype=torch.int32)
    calls.distinct(draws.data_ptr(), n.data_ptr(), chosen.data_ptr(), chosen.shape[0])
    return chosen


def plan_line(
    pending: torch.Tensor, ended: torch.Tensor, ids: torch.Tensor | None, mask: torch.Tensor | None, n: int
) -> Line:
    """`line.plan_line`: ended and mask bool [batch], ids int32 [rows, words]."""
    pending, ended = _ready(pending, torch.int32), _ready(ended, torch.bool)
    ids = None if ids is None else _ready(ids, torch.int32)
    mask = None if mask is None else _ready(mask, torch.bool)
    lanes, batch = pending.shape[0], ended.shape[0]
    rows = batch + lanes * (n - 1)
    line = Line(
        ops.empty((rows, n), dtype=torch.int32),
        ops.empty((rows, n), dtype=torch.bool),
        ops.empty(rows, dtype=torch.bool),
        ops.empty(lanes * (n - 1), dtype=torch.int32),
        torch.empty_like(pending),
    )
    calls.plan_line(
        pending.data_ptr(),
        lanes,
        ended.data_ptr(),
        batch,
        _address(ids),
        0 if ids is None else ids.shape[1],
        _address(mask),
        n,
        *(array.data_ptr() for array in line),
    )
    return line


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _ready(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor as a kernel reads it. The core makes no other dtype; if it did, the kernel would read past the end."""
    assert tensor.dtype == dtype, (tensor.dtype, dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _addresses(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """Where tensors lie, int64 [n]."""
    return np.array([tensor.data_ptr() for tensor in tensors], np.int64)


@functools.lru_cache(maxsize=1024)
def _results(layout: Layout, batch: int) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    """Shape, strides and dtype of each leaf of a batch: allocated by strides, torch is twice as fast."""
    shapes = [(batch, *leaf.shape) for leaf in layout.leaves]
    strides = [torch.empty(shape, device="meta").stride() for shape in shapes]
    dtypes = [ops.DTYPES[leaf.dtype] for leaf in layout.leaves]
    return list(zip(shapes, strides, dtypes, strict=True))
