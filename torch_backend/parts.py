"""Parts of the core as compiled kernels, for plain tensors in the CPU's memory; see `Native`.

Like `ops.set_at`, what writes does so in place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from functional_rb.base.dtypes import shown
from functional_rb.core.frame_store import FramePlan
from functional_rb.cpu_kernels import calls, descriptor
from functional_rb.cpu_kernels import frame_ring as chains
from functional_rb.structures.episode_windows import Entries, Lanes, Rule, Slices
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.ring import Ends, Removal, Ring, Write
from functional_rb.structures.row_layout import Layout, LeafLayout
from functional_rb.structures.sparse_set import SparseSet
from functional_rb.transforms.step_queue import Line
from torch_backend import ops
from torch_backend.addresses import call, call_storage, held

NONE = torch.empty(0)
"""Stands for a tensor that is not given."""
LARGE = 2**18
"""Bytes of a leaf in a batch from which on torch's threads copy faster than one kernel."""


def descend(tree: torch.Tensor, capacity: int, draws: torch.Tensor) -> torch.Tensor:
    """`sum_tree.descend`: leaves int32 [B] by draws int32 [B, levels]."""
    draws = _ready(draws, torch.int32)
    batch, words = draws.shape
    leaves = ops.empty(batch, dtype=torch.int32)
    call(calls.descend, (tree, draws, leaves), descriptor.encode_tree(capacity), tree.numel(), batch, words)
    return leaves


def set_leaves(tree: torch.Tensor, capacity: int, leaves: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`sum_tree.set_leaves`: leaves int32 [n], values float32 [n]."""
    leaves, values = _ready(leaves, torch.int32), _ready(values, torch.float32)
    call(calls.set_leaves, (tree, leaves, values), descriptor.encode_tree(capacity), tree.numel(), leaves.shape[0])
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
    call_storage(calls.read, (slots,), held([rows, *wide]), leaves, descriptor.encode_layout(layout), batch)
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
    source, live = _ready_some(source, torch.int32), _ready_some(live, torch.bool)
    leaves = [leaf.contiguous() for leaf in leaves]
    call_storage(
        calls.store,
        (slots, source, live),
        held([rows, *wide]),
        leaves,
        descriptor.encode_layout(layout),
        slots.shape[0],
        leaves[0].shape[0] if leaves else 0,
    )
    return rows, tuple(wide)


def draws(key: torch.Tensor, batch: int, words: int) -> torch.Tensor:
    """`random.draws`: uniform int32 [batch, words]."""
    numbers = ops.empty((batch, words), dtype=torch.int32)
    call(calls.fill_draws, (numbers,), int(key), batch * words)
    return numbers


def below(draws: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """`integers.below`: draws int32 [B, 2], n int32 [B] or scalar."""
    draws, n = _ready(draws, torch.int32), _ready(n, torch.int32)
    chosen = ops.empty(draws.shape[0], dtype=torch.int32)
    call(calls.below, (draws, n, chosen), n.numel(), chosen.shape[0])
    return chosen


def stored_value(priorities: torch.Tensor, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`weights.stored_value`: values float32 [B], and which are good, bool [B]."""
    priorities = _ready(priorities, torch.float32)
    values, good = torch.empty_like(priorities), torch.empty_like(priorities, dtype=torch.bool)
    call(calls.stored_values, (priorities, values, good), descriptor.encode_alpha(alpha), priorities.shape[0])
    return values, good


def importance_weights(values: torch.Tensor, smallest: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """`weights.importance_weights`: float32 [B], for scalars smallest and beta."""
    values = _ready(values, torch.float32)
    smallest, beta = _ready(smallest, torch.float32), _ready(beta, torch.float32)
    weights = torch.empty_like(values)
    call(calls.importance_weights, (values, smallest, beta, weights), values.shape[0])
    return weights


def plan_write(ring: Ring, ends: Ends, batch: int, mask: torch.Tensor | None) -> Write:
    """`ring.plan_write`: mask bool [batch]."""
    cursors, sizes = _ready(ends.cursors, torch.int32), _ready(ends.sizes, torch.int32)
    marked = _ready_some(mask, torch.bool)
    steps = batch // ring.lanes
    n = min(steps, ring.length) * ring.lanes
    slots, written = ops.empty(n, dtype=torch.int32), torch.empty_like(cursors)
    after = Ends(torch.empty_like(cursors), torch.empty_like(sizes))
    source = live = None
    if mask is not None:
        mask, source, live = marked, torch.empty_like(slots), torch.empty_like(slots, dtype=torch.bool)
    call(
        calls.plan_write,
        (cursors, sizes, marked, slots, _some(source), _some(live), written, *after),
        descriptor.encode_ring(ring),
        steps,
        n,
    )
    return Write(slots, source, live, written, after, mask)


def step_ages(
    next_age: torch.Tensor, written: torch.Tensor, begins: torch.Tensor | None, ends: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`windows.step_ages`: begins and ends bool [E, T], next_age and written int32 [E]."""
    next_age, written = _ready(next_age, torch.int32), _ready(written, torch.int32)
    given = begins if ends is None else ends
    assert given is not None
    ages, following = ops.empty(given.shape, dtype=torch.int32), torch.empty_like(next_age)
    call(
        calls.step_ages,
        (next_age, written, _ready_some(begins, torch.bool), _ready_some(ends, torch.bool), ages, following),
        next_age.shape[0],
        ages.numel(),
    )
    return ages, following


def changed(rule: Rule, lanes: Lanes, age: torch.Tensor, n: int, by_trajectory: bool) -> Entries:
    """`windows.changed`."""
    cursors, sizes = _ready(lanes.ends.cursors, torch.int32), _ready(lanes.ends.sizes, torch.int32)
    distances = descriptor.encode_distances(lanes.ring, rule, n, by_trajectory)
    count = descriptor.entries(lanes.ring, distances)
    entries = Entries(*(ops.empty(count, dtype=torch.int32) for _ in Entries._fields))
    windows = descriptor.encode_windows(lanes.ring, rule, by_trajectory)
    call(calls.changed, (cursors, sizes, age, *entries), windows, distances, count)
    return entries


def weights_at(rule: Rule, lanes: Lanes, age: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """`windows.weights_at`: slots int32 [n]."""
    cursors, sizes = _ready(lanes.ends.cursors, torch.int32), _ready(lanes.ends.sizes, torch.int32)
    slots = _ready(slots, torch.int32)
    numbers = torch.empty_like(slots)
    windows = descriptor.encode_windows(lanes.ring, rule, False)
    call(calls.weights_at, (cursors, sizes, age, slots, numbers), windows, slots.shape[0])
    return numbers


def plan_frames(
    chain: Chain, cursor: torch.Tensor, written: torch.Tensor, shares: torch.Tensor, moves: torch.Tensor | None
) -> FramePlan:
    """`frame_writes.plan_frames`: shares and moves bool [T * lanes]."""
    cursor, written, shares = _ready(cursor, torch.int32), _ready(written, torch.int32), _ready(shares, torch.bool)
    lanes, rows = cursor.shape[0], shares.shape[0]
    n = lanes * min(chain.most * (rows // lanes), chain.room)
    slots, source = ops.empty(n, dtype=torch.int32), ops.empty(n, dtype=torch.int32)
    live, after = ops.empty(n, dtype=torch.bool), torch.empty_like(cursor)
    at = ops.empty((lanes, rows // lanes), dtype=torch.int32)
    call(
        calls.plan_frames,
        (cursor, written, shares, _ready_some(moves, torch.bool), slots, source, live, after, at),
        chains.encode_chain(chain),
        lanes,
        rows,
        n,
    )
    return FramePlan(slots, source, live, after, at)


def overwritten(chain: Chain, at: torch.Tensor, ends: Ends, after: torch.Tensor, steps: int) -> Removal:
    """`frame_writes.overwritten`."""
    cursors, sizes, after = (_ready(x, torch.int32) for x in (*ends, after))
    lanes = cursors.shape[0]
    n = lanes * min(chain.most * steps, chain.items.length)
    slots, gone = ops.empty(n, dtype=torch.int32), ops.empty(n, dtype=torch.bool)
    left = torch.empty_like(sizes)
    call(
        calls.overwritten,
        (at, cursors, sizes, after, slots, gone, left),
        chains.encode_chain(chain),
        at.shape[0],
        lanes,
        n,
    )
    return Removal(slots, gone, Ends(ends.cursors, left))


def places(chain: Chain, at: torch.Tensor, slots: torch.Tensor, depth: int, following: bool) -> torch.Tensor:
    """`frames.places`: slots int32 [n]."""
    slots = _ready(slots, torch.int32)
    count = slots.shape[0]
    found = ops.empty(count * depth, dtype=torch.int32)
    encoded = chains.encode(chain, depth, following)
    call(calls.places, (at, slots, found), encoded, at.shape[0], count)
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
    shape = (slots.shape[0], rule.length)
    numbers = [ops.empty(shape, dtype=torch.int32) for _ in range(2)]
    slices = Slices(*numbers, *(ops.empty(shape, dtype=torch.bool) for _ in range(4)))
    call(
        calls.expand,
        (cursors, sizes, age, next_age, slots, draws, _ready_some(live, torch.bool), *slices),
        descriptor.encode_windows(lanes.ring, rule, by_trajectory),
        slots.shape[0],
    )
    return slices


def following(lanes: Lanes, age: torch.Tensor, slots: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`windows.following`: slots int32 [m]."""
    cursors, slots = _ready(lanes.ends.cursors, torch.int32), _ready(slots, torch.int32)
    shape = (slots.shape[0], n)
    found, real = ops.empty(shape, dtype=torch.int32), ops.empty(shape, dtype=torch.bool)
    call(calls.following, (cursors, age, slots, found, real), descriptor.encode_ring(lanes.ring), *shape)
    return found, real


def extent(lanes: Lanes, age: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`windows.extent`: slots int32 [m]."""
    cursors, sizes = _ready(lanes.ends.cursors, torch.int32), _ready(lanes.ends.sizes, torch.int32)
    slots = _ready(slots, torch.int32)
    before, after = torch.empty_like(slots), torch.empty_like(slots)
    encoded = descriptor.encode_ring(lanes.ring)
    call(calls.extent, (cursors, sizes, age, slots, before, after), encoded, slots.shape[0])
    return before, after


def fold(rewards: torch.Tensor, real: torch.Tensor, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`returns.fold`: rewards float32 or float64 [m, n, *shape], real bool [m, n]."""
    dtype = torch.float64 if rewards.dtype == torch.float64 else torch.float32
    rewards, real = _ready(rewards, dtype), _ready(real, torch.bool)
    m, n, *shape = rewards.shape
    total, steps = ops.empty((m, *shape), dtype=dtype), ops.empty(m, dtype=torch.int32)
    discounts = descriptor.encode_discounts(gamma, n, shown(dtype))
    call(calls.fold, (rewards, real, total, steps), discounts, m, math.prod(shape))
    return total, steps


def members(sparse_set: SparseSet, count: torch.Tensor, slots: torch.Tensor, marked: torch.Tensor) -> torch.Tensor:
    """`sparse_set.members`: slots int32 [B], marked bool [B]."""
    slots, marked, count = _ready(slots, torch.int32), _ready(marked, torch.bool), _ready(count, torch.int32)
    found = torch.empty_like(marked)
    order, place = sparse_set
    call(calls.members, (order, place, count, slots, marked, found), order.shape[0], slots.shape[0])
    return found


def exchanges(
    sparse_set: SparseSet, boundary: torch.Tensor, positions: torch.Tensor, marked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`sparse_set.exchanges`: positions int32 [B], marked bool [B]."""
    positions, marked = _ready(positions, torch.int32), _ready(marked, torch.bool)
    boundary = _ready(boundary, torch.int32)
    batch, order = positions.shape[0], sparse_set.order
    at, slots = ops.empty(2 * batch, dtype=torch.int32), ops.empty(2 * batch, dtype=torch.int32)
    after = torch.empty_like(boundary)
    count = call(calls.move_back, (order, boundary, positions, marked, at, slots, after), order.shape[0], batch)
    return at[:count], slots[:count], after


def appended(
    sparse_set: SparseSet, count: torch.Tensor, slots: torch.Tensor, marked: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`sparse_set.appended`: slots int32 [B], marked bool [B]."""
    slots, marked, count = _ready(slots, torch.int32), _ready(marked, torch.bool), _ready(count, torch.int32)
    at, new, after = torch.empty_like(slots), torch.empty_like(slots), torch.empty_like(count)
    found = call(calls.appended, (count, slots, marked, at, new, after), slots.shape[0])
    return at[:found], new[:found], after


def distinct(draws: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """`sparse_set.distinct`: draws int32 [B, 2], n an int32 scalar."""
    draws, n = _ready(draws, torch.int32), _ready(n, torch.int32)
    chosen = ops.empty(draws.shape[0], dtype=torch.int32)
    call(calls.distinct, (draws, n, chosen), chosen.shape[0])
    return chosen


def plan_line(
    pending: torch.Tensor, ended: torch.Tensor, ids: torch.Tensor | None, mask: torch.Tensor | None, n: int
) -> Line:
    """`line.plan_line`: ended and mask bool [batch], ids int32 [rows, words]."""
    pending, ended = _ready(pending, torch.int32), _ready(ended, torch.bool)
    ids, mask = _ready_some(ids, torch.int32), _ready_some(mask, torch.bool)
    lanes, batch = pending.shape[0], ended.shape[0]
    rows = batch + lanes * (n - 1)
    line = Line(
        ops.empty((rows, n), dtype=torch.int32),
        ops.empty((rows, n), dtype=torch.bool),
        ops.empty(rows, dtype=torch.bool),
        ops.empty(lanes * (n - 1), dtype=torch.int32),
        torch.empty_like(pending),
    )
    words = ids.shape[1] if ids.numel() else 0
    call(calls.plan_line, (pending, ended, ids, mask, *line), lanes, batch, words, n)
    return line


def _some(tensor: torch.Tensor | None) -> torch.Tensor:
    return NONE if tensor is None else tensor


def _ready_some(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    return NONE if tensor is None else _ready(tensor, dtype)


def _ready(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor as a kernel reads it. The core makes no other dtype; if it did, the kernel would read past the end."""
    assert tensor.dtype == dtype, (tensor.dtype, dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


@functools.lru_cache(maxsize=1024)
def _results(layout: Layout, batch: int) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    """Shape, strides and dtype of each leaf of a batch: allocated by strides, torch is twice as fast."""
    shapes = [(batch, *leaf.shape) for leaf in layout.leaves]
    strides = [torch.empty(shape, device="meta").stride() for shape in shapes]
    dtypes = [ops.DTYPES[leaf.dtype] for leaf in layout.leaves]
    return list(zip(shapes, strides, dtypes, strict=True))
