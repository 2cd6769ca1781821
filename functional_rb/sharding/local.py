"""How each shard draws its share of a batch among its own items: nothing moves, and all know the law.

Of a batch of B each of D shards draws B / D, so an item of shard s has the probability `p_i / (D * m_s)`, where p_i is
its priority to the power alpha (1, if there are none) and m_s what those of its shard add up to. Importance weights are
of that law, `(q_i / q_min) ** -beta`, where q_min is the least probability of any item of any shard. All of this is
read off the index, which each shard has: not even a scalar is sent.

A `Queue` gives windows of all lanes in step, so each shard takes those of its own lanes, and all know what the others
take.
"""

from __future__ import annotations

import dataclasses

from functional_rb.base.arrays import BackendArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Draft
from functional_rb.core.strategy import Selection
from functional_rb.ops import scalars
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers import Prioritized, PrioritizedSlices, Queue, Recency, Slices, Uniform, draw_limits
from functional_rb.samplers.base import LEAST_CHANCE
from functional_rb.samplers.importance import importance_weights
from functional_rb.sharding import deal
from functional_rb.sharding.deal import Dealing
from functional_rb.structures import sum_tree

# Probabilities are at least 2^-126, and weights are computed of numbers from 2^-100 on.
RAISED = 2.0**26


def check(spec: BufferSpec) -> None:
    """Refuse a sampler for whose draws a shard has to know what others draw."""
    sampler = spec.sampler
    kinds = (Uniform, Recency, Prioritized, Slices, PrioritizedSlices)
    if type(sampler) in kinds and not sampler.remembers and getattr(sampler, "replacement", True):
        return
    if type(sampler) is Queue:
        return
    raise ValueError(
        f"sample: draw='local': expected a sampler whose draws are independent of each other (Uniform, Recency, "
        f"Prioritized, Slices, PrioritizedSlices, with replacement and without a limit), or a Queue, got {sampler}; "
        f"give draw='global', with which all shards draw the same batch"
    )


def check_dealing(dealing: Dealing) -> None:
    """Refuse a sampler of whose batch the shards would have unequal shares."""
    if dealing.spec.sampler.takes_out and not dealing.is_even:
        raise ValueError(
            f"sample: draw='local': expected a number of lanes that the shards divide, as a queue gives as many "
            f"windows of each lane, got {dealing.lanes} lanes on {dealing.shards} shards; give draw='global'"
        )


def draw_shape(dealing: Dealing, batch: int) -> tuple[int, int]:
    """How many draws a shard takes for its share of a batch, as (rows, words): for its part of a tree one word more."""
    rows, words = dealing.index.draw_shape(batch)
    return rows, words + (dealing.index.plan.tree_shape is not None)


def draw(
    ops: Ops, dealing: Dealing, draft: Draft, draws: Array, beta: Array, batch: int, shard: Array
) -> tuple[Array, Selection]:
    """Draw a shard's share of a batch, B / D of them, by its own draws int32 [rows, words]; see `draw_shape`.

    Returns slots of the index, int32 [n], all of them of the shard, and their selection; handles are -1 and weights 0
    if it has nothing to draw.
    """
    sampler = draft.plan.sampler
    if dealing.spec.sampler.takes_out:
        slots, selection = dealing.spec.sampler.draw(ops, draft, draws, beta, batch * dealing.shards)
        windows = slots.reshape(*selection.handles.shape)
        return of_own_lanes(ops, dealing, windows, shard).reshape(-1), own_windows(ops, dealing, selection, shard)
    if sampler in ("Uniform", "Recency"):
        return _among_own(ops, dealing, draft, draws, beta, batch, shard)
    return _by_tree(ops, dealing, draft, draws, beta, shard)


def own_windows(ops: Ops, dealing: Dealing, selection: Selection, shard: Array) -> Selection:
    """What a shard has of a selection of windows of all lanes in step: those of its own lanes."""
    windows: dict[str, BackendArray] = {
        name: of_own_lanes(ops, dealing, x, shard)
        for name, x in selection._asdict().items()
        if x is not None and name != "extras"
    }
    return selection._replace(**windows)


def of_own_lanes(ops: Ops, dealing: Dealing, rows: Array, shard: Array) -> BackendArray:
    """The rows of a shard's lanes, [n * lanes_each, ...], among those of all, [n * lanes, ...], dealt evenly."""
    n, shape = rows.shape[0] // dealing.lanes, rows.shape[1:]
    by_shard = ops.moveaxis(rows.reshape(n, dealing.shards, dealing.lanes_each, *shape), 1, 0)
    return ops.take(by_shard, shard.reshape(1)).reshape(n * dealing.lanes_each, *shape)


# Draw by the sampler itself, to which the lanes, or slots, of others are empty.
def _among_own(
    ops: Ops, dealing: Dealing, draft: Draft, draws: Array, beta: Array, batch: int, shard: Array
) -> tuple[Array, Selection]:
    ends = draft.counters.ends
    take = deal.ends_of_slots if dealing.by_slots else deal.ends_of_shard
    own_draft = dataclasses.replace(draft, counters=draft.counters.replace(ends=take(ops, dealing, ends, shard)))
    slots, selection = dealing.spec.sampler.draw(ops, own_draft, draws, beta, batch)
    if dealing.by_slots:  # which were drawn as if the first shard had them
        slots = ops.minimum(slots + shard * dealing.slots_each, ops.full_like(slots, dealing.spec.capacity - 1))
        handles = ops.where(selection.handles >= 0, draft.handles_of(ops, slots), selection.handles)
        selection = selection._replace(handles=handles)
    law = _law(ops, dealing, selection.probabilities)
    selection = selection._replace(probabilities=law)
    if draft.plan.sampler == "Recency":  # whose weights are all 1
        return slots, selection
    counts = ops.cast(deal.sizes_of_shards(ops, dealing, ends), "float32")
    weights = _weights(ops, law, _least(ops, dealing, counts, counts * 0 + 1), beta)
    return slots, selection._replace(weights=ops.where(law > 0, weights, ops.full_like(weights, 0)))


# Draw by those nodes of the index's tree that lie above the shard's own slots.
def _by_tree(
    ops: Ops, dealing: Dealing, draft: Draft, draws: Array, beta: Array, shard: Array
) -> tuple[Array, Selection]:
    sampler, capacity, tree = dealing.spec.sampler, draft.plan.capacity, draft.known_tree
    slices = isinstance(sampler, Slices | PrioritizedSlices)
    places = ops.integers(dealing.first_slots(), draft.counters.ends.sizes)
    bits, which = draws[:, :-2] if slices else draws, shard.reshape(1)
    slots, totals, smallest = sum_tree.draw_in_span(ops, tree, capacity, places[:-1], places[1:], which, bits)
    own_total = ops.take(totals, which)
    values = sum_tree.get_leaves(ops, tree, slots)
    live = (values > 0) & (own_total > 0)
    in_proportion = not isinstance(sampler, Slices)  # else each trajectory, or window, is as likely as any other
    scale = scalars.reciprocal(ops, ops.where(own_total > 0, own_total, ops.full_like(own_total, 1)))
    law = _law(ops, dealing, (values if in_proportion else ops.full_like(values, 1)) * scale)
    least = _least(ops, dealing, totals, smallest if in_proportion else ops.full_like(totals, 1))
    weights = _weights(ops, law, least, beta)
    if isinstance(sampler, Slices | PrioritizedSlices):
        return sampler.cut(ops, draft, slots, draws[:, -2:], weights, law, live)
    selection = draw_limits.masked(ops, Selection(draft.handles_of(ops, slots), weights, law), live)
    return slots, selection._replace(mask=None)


# Probabilities among a shard's own items as those in the batch: each shard gives as many. Of 0 it makes 0.
def _law(ops: Ops, dealing: Dealing, chances: Array) -> Array:
    law = chances * (1.0 / dealing.shards)
    return ops.where(chances > 0, ops.maximum(law, ops.full_like(law, LEAST_CHANCE)), ops.full_like(law, 0))


# The least probability of any item of any shard, float32 scalar, of totals and smallest values [D]; 1 for none.
def _least(ops: Ops, dealing: Dealing, totals: Array, smallest: Array) -> Array:
    there = (totals > 0) & (smallest > 0)
    one = ops.full_like(totals, 1)
    chances = ops.divide(ops.where(there, smallest, one), ops.where(there, totals, one))
    chances = ops.where(there, _law(ops, dealing, chances), one)
    least = -ops.cummax(-chances)[-1:]
    return least[0]


def _weights(ops: Ops, law: Array, least: Array, beta: Array) -> Array:
    return importance_weights(ops, law * RAISED, least * RAISED, beta)
