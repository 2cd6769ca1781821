"""Draws of each shard among its own items, in NumPy: their law by enumeration, and what they tell of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.buffer import functions
from functional_rb.core.draft import Draft
from functional_rb.ops import numpy_ops as ops
from functional_rb.sharding import deal, local
from functional_rb.structures import sum_tree

LANES, LENGTH, SHARDS = 5, 60, 3
SKEW = 1e6
Floats = np.ndarray[Any, np.dtype[np.float64]]


def shares_of(dealing: deal.Dealing, draft: Draft) -> sum_tree.Spans:
    """What of the index's tree belongs to each shard."""
    first = np.array(dealing.first_slots(), np.int32)
    return sum_tree.spans(ops, draft.known_tree, draft.plan.capacity, first[:-1], first[1:])


def index_of(sampler: Any, seed: int = 0, empty: tuple[int, ...] = ()) -> tuple[deal.Dealing, Draft]:
    """The index of a buffer that has been added to, not in every lane as often; priorities differ by 10^6 and more."""
    item = {"x": frb.Unbounded(()), "done": frb.Binary(())}
    spec = frb.BufferSpec(item, LANES * LENGTH, sampler, lanes=LANES)
    dealing, rng = deal.deal(spec, SHARDS), np.random.default_rng(seed)
    arrays = functions.init(ops, dealing.index)
    steps = LENGTH + 7
    mask = rng.random((steps, LANES)) < np.linspace(0.3, 1, LANES)
    mask[:, list(empty)] = False
    values = np.exp(rng.uniform(0, np.log(SKEW), (steps, LANES))).astype(np.float32)
    values[0] = 1, 1, SKEW, SKEW, 1
    priorities = values.reshape(-1) if spec.sampler.has_priorities else None
    leaves = [rng.random(steps * LANES) < 0.1] if dealing.index.plan.leaves else []
    with np.errstate(all="ignore"):
        arrays = functions.add(ops, arrays, dealing.index, leaves, steps * LANES, mask.reshape(-1), priorities)
    return dealing, Draft.of(arrays, dealing.index.plan)


def drawn(dealing: deal.Dealing, draft: Draft, shard: int, batch: int, beta: float = 0.4, seed: int = 1) -> Any:
    shape = local.draw_shape(dealing, batch)
    draws = np.random.default_rng(seed).integers(0, 2**31, shape, np.int32)
    with np.errstate(all="ignore"):
        return local.draw(ops, dealing, draft, draws, np.float32(beta), batch, np.int32(shard))


def counted(weights: Any) -> Floats:
    """How many of the 2^31 draws lead to each of a node's children, of integer weights [n, 16]."""
    reach = np.cumsum(weights, 1, dtype=np.int32)
    bounds = np.concatenate([reach * 0 - 1, reach], 1)[:, 15:]
    for k in range(1, 17):
        bounds[:, k] = sum_tree._draws_below(ops, reach[:, k - 1 : k], reach[:, -1])[:, 0]
    return np.diff(bounds.astype(np.int64), axis=1).astype(np.float64)


def law_of(draft: Draft, span: sum_tree.Spans) -> Floats:
    """The probability of each leaf in a span, by counting which draws lead to it."""
    capacity, tree = draft.plan.capacity, draft.known_tree
    levels = sum_tree.geometry(capacity).levels
    with np.errstate(all="ignore"):
        runs = [sum_tree._runs(ops, tree, level, span, height) for height, level in enumerate(levels)]
        sums = np.concatenate([run.sums for run in runs])
        shares = sum_tree.as_integers(ops, np.pad(sums, (0, 16 - len(sums)))[None])[0].astype(np.float64)
    chances = np.zeros(1)
    for height, level in reversed([*enumerate(levels)]):
        with np.errstate(all="ignore"):
            nodes = tree[level.sums : level.sums + level.groups]
            counts = counted(sum_tree.as_integers(ops, nodes)) * (nodes.sum(1, keepdims=True) > 0)
        chances = (chances[:, None] * counts / 2**31).reshape(-1)  # from above
        first, last = int(span.edges[height].first[0]), int(span.edges[height].last[0])
        inner, reaches = int(height > 0), height + 1 < len(levels)
        above = [int(x[0]) for x in span.edges[height + 1][:2]] if reaches else [0, 0]
        for side in (0, 1):
            begin = first + inner if side == 0 or above[0] == above[1] else above[1] * 16
            end = last + 1 - inner if side == 1 or above[0] == above[1] else above[0] * 16 + 16
            if begin < end and shares[2 * height + side] > 0:
                own = counts.reshape(-1)[begin:end]
                chances[begin:end] += shares[2 * height + side] / shares.sum() * own / own.sum()
        chances = chances[: level.nodes]
    return chances


@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_the_law_is_the_stated_one(alpha: float) -> None:
    dealing, draft = index_of(frb.Prioritized(alpha=alpha))
    values = draft.known_tree.reshape(-1)[: draft.plan.capacity].astype(np.float64)
    assert values[values > 0].max() / values[values > 0].min() >= SKEW**alpha * 0.99
    shares, first = shares_of(dealing, draft), dealing.first_slots()
    for shard in range(SHARDS):
        own = np.zeros_like(values)
        own[first[shard] : first[shard + 1]] = values[first[shard] : first[shard + 1]]
        law = law_of(draft, shares.at(ops, np.array([shard])))
        assert np.abs(law - own / own.sum()).sum() / 2 < 1e-6
        assert ((law > 0) == (own > 0)).all(), "each item that lies there can be drawn, and no other"
        assert np.isclose(shares.totals[shard], own.sum(), rtol=1e-6)
        assert shares.smallest[shard] == own[own > 0].min()


def test_draws_follow_the_law() -> None:
    """Which the other test reads off the tree: here it is what is drawn."""
    dealing, draft = index_of(frb.Prioritized(alpha=1.0))
    batch, shares = 400_000, shares_of(dealing, draft)
    for shard in range(SHARDS):
        slots, _ = drawn(dealing, draft, shard, batch)
        expected = law_of(draft, shares.at(ops, np.array([shard]))) * batch
        found = np.bincount(slots, minlength=draft.plan.capacity)
        assert (found[expected == 0] == 0).all()
        often = expected > 5
        chi = ((found - expected) ** 2 / np.where(often, expected, 1))[often].sum()
        assert abs(chi - often.sum()) < 6 * np.sqrt(2 * often.sum())


@pytest.mark.parametrize("sampler", [frb.Prioritized(alpha=1.0), frb.PrioritizedSlices(1, alpha=1.0), frb.Uniform()])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_what_is_told_is_the_law(sampler: Any, beta: float) -> None:
    """Probabilities p / (D m), and weights relative to the least likely item of any shard."""
    dealing, draft = index_of(sampler)
    capacity, first = draft.plan.capacity, dealing.first_slots()
    if draft.tree is None:
        sizes = draft.counters.ends.sizes
        values = (np.arange(capacity) % LENGTH < np.repeat(sizes, LENGTH)).astype(np.float64)
    else:
        values = draft.tree.reshape(-1)[:capacity].astype(np.float64)
    law = np.zeros(capacity)
    for shard in range(SHARDS):
        own = values[first[shard] : first[shard + 1]]
        law[first[shard] : first[shard + 1]] = own / own.sum() / SHARDS
    weights = (np.where(law > 0, law, 1) / law[law > 0].min()) ** -beta
    assert np.isclose(law.sum(), 1)
    for shard in range(SHARDS):
        slots, selection = drawn(dealing, draft, shard, 500, beta)
        slots = slots.reshape(500, -1)[:, 0]
        assert (dealing.slots_each * shard <= slots).all()
        assert (slots < dealing.slots_each * (shard + 1)).all()
        np.testing.assert_allclose(selection.probabilities, law[slots], rtol=1e-6)
        np.testing.assert_allclose(selection.weights, weights[slots], rtol=1e-5)
        assert (selection.handles.reshape(500, -1)[:, 0] % capacity == slots).all()


@pytest.mark.parametrize("sampler", [frb.Prioritized(alpha=1.0), frb.Uniform()])
@pytest.mark.parametrize(("capacity", "n"), [(100, 10), (100, 25), (100, 100), (4, 5)])
def test_the_law_where_slots_are_dealt(sampler: Any, capacity: int, n: int) -> None:
    """By a writer that chooses them: one shard, two or all three have items; the last has fewer slots, or none."""
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity, sampler, frb.Reservoir(), lanes=1)
    dealing, rng = deal.deal(spec, SHARDS), np.random.default_rng(n)
    draws, given = rng.integers(0, 2**31, (n, 2), np.int32), np.exp(rng.uniform(0, 13, n)).astype(np.float32)
    arrays = functions.init(ops, dealing.index)
    priorities = given if spec.sampler.has_priorities else None
    for _ in range(2):
        arrays = functions.add(ops, arrays, dealing.index, [], n, None, priorities, draws)
    draft = Draft.of(arrays, dealing.index.plan)
    size = min(2 * n, capacity)
    values = (np.arange(capacity) < size).astype(np.float64)
    values = values if draft.tree is None else draft.tree.reshape(-1)[:capacity].astype(np.float64)
    shard_of = np.arange(capacity) // dealing.slots_each
    totals = np.bincount(shard_of, values)
    law = values / np.where(totals > 0, totals, 1)[shard_of] / SHARDS
    for shard in range(SHARDS):
        slots, selection = drawn(dealing, draft, shard, 400, 1.0)
        if totals[shard : shard + 1].sum() == 0:
            assert ((slots >= 0) & (slots < capacity)).all()
            assert (selection.handles == -1).all()
            assert (selection.weights == 0).all()
            continue
        assert (shard_of[slots] == shard).all()
        assert (selection.handles == draft.auxiliary["handle"][slots]).all()
        np.testing.assert_allclose(selection.probabilities, law[slots], rtol=1e-6)
        np.testing.assert_allclose(selection.weights, law[law > 0].min() / law[slots], rtol=1e-5)
        if draft.tree is None and size == capacity:
            assert set(slots) == set(np.flatnonzero(shard_of == shard)), "400 draws find each of 34"


@pytest.mark.parametrize(
    "sampler", [frb.Prioritized(), frb.Uniform(), frb.Recency(), frb.Slices(3), frb.PrioritizedSlices(3)]
)
def test_a_shard_without_items_gives_nothing(sampler: Any) -> None:
    """And is none of the shards among which the least probability is found."""
    dealing, draft = index_of(sampler, empty=(2, 3))  # lanes 2 and 3 are the second shard's
    slots, selection = drawn(dealing, draft, 1, 8)
    assert (selection.handles == -1).all()
    assert (selection.weights == 0).all()
    assert (selection.probabilities == 0).all()
    assert ((slots >= 0) & (slots < draft.plan.capacity)).all()
    for shard in (0, 2):
        _, selection = drawn(dealing, draft, shard, 8)
        assert (selection.handles >= 0).reshape(8, -1)[:, 0].all()
        assert ((selection.weights > 0) & (selection.weights <= 1)).all()
        assert (selection.probabilities < 0.5).all()


def test_each_takes_its_own_windows_out_of_a_queue() -> None:
    dealing = deal.deal(frb.BufferSpec((frb.Unbounded(()),), 6 * 8, frb.Queue(2), lanes=6), SHARDS)
    mask = np.random.default_rng(0).random(6 * 6) < 0.7
    arrays = functions.add(ops, functions.init(ops, dealing.index), dealing.index, [], 6 * 6, mask, None)
    whole = Draft.of(arrays, dealing.index.plan)
    _, expected = dealing.spec.sampler.draw(ops, whole, np.zeros((12, 0), np.int32), np.float32(1), 12)
    lanes = np.arange(12) % 6
    for shard in range(SHARDS):
        draft = Draft.of(arrays, dealing.index.plan)
        slots, got = drawn(dealing, draft, shard, 4)
        own = lanes // 2 == shard
        assert got.handles.tolist() == expected.handles[own].tolist()
        assert got.mask.tolist() == expected.mask[own].tolist()
        assert got.weights.tolist() == expected.weights[own].tolist()
        assert (slots // dealing.slots_each == shard)[got.mask.reshape(-1)].all()
        assert draft.counters.ends.sizes.tolist() == whole.counters.ends.sizes.tolist(), "all know what all take"


def test_unequal_shares_of_a_queue_are_refused() -> None:
    dealing = deal.deal(frb.BufferSpec((frb.Unbounded(()),), 20, frb.Queue(2), lanes=5), SHARDS)
    with pytest.raises(ValueError, match=r"a number of lanes that the shards divide.* got 5 lanes on 3 shards"):
        local.check_dealing(dealing)


@pytest.mark.parametrize("weighting", ["trajectory", "window"])
def test_slices_are_alike_within_a_shard(weighting: Any) -> None:
    dealing, draft = index_of(frb.Slices(3, weighting=weighting))
    shares = shares_of(dealing, draft)
    for shard in range(SHARDS):
        slots, selection = drawn(dealing, draft, shard, 64)
        own, mine = deal.own_slots(ops, dealing, slots, np.int32(shard))
        assert mine.all()
        assert own.max() < dealing.slots_each
        np.testing.assert_allclose(selection.probabilities, 1 / shares.totals[shard] / SHARDS, rtol=1e-6)


@pytest.mark.parametrize("capacity", [1, 15, 16, 17, 300, 5000])
def test_spans_add_up_what_lies_in_them(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    tree = np.zeros((sum_tree.geometry(capacity).rows, sum_tree.FANOUT), np.float32)
    values = (rng.integers(0, 3, capacity) * rng.integers(1, 1000, capacity)).astype(np.float32)  # sums are exact
    tree = sum_tree.set_leaves(ops, tree, capacity, np.arange(capacity, dtype=np.int32), values)
    ends = np.sort(rng.integers(0, capacity + 1, (200, 2)), 1).astype(np.int32)
    ends[:4] = [[0, capacity], [0, 0], [capacity, capacity], [capacity - 1, capacity]]
    found = sum_tree.spans(ops, tree, capacity, ends[:, 0], ends[:, 1])
    for k, (first, end) in enumerate(ends):
        own = values[first:end]
        assert found.totals[k] == own.sum()
        assert found.smallest[k] == own[own > 0].min(initial=np.inf if (own > 0).any() else 0)
        if own.sum() > 0:
            draws = rng.integers(0, 2**31, (50, len(sum_tree.geometry(capacity).levels) + 1), np.int32)
            draws[:2] = [[0], [2**31 - 1]]
            with np.errstate(all="ignore"):
                leaves = sum_tree.descend_span(ops, tree, capacity, found.at(ops, np.array([k])), draws)
            assert ((first <= leaves) & (leaves < end)).all()
            assert (values[leaves] > 0).all()


@pytest.mark.parametrize(
    "sampler",
    [
        frb.WithoutReplacement(),
        frb.Prioritized(replacement=False),
        frb.Prioritized(max_times_sampled=1),
        frb.Uniform(max_times_sampled=1),
        frb.SlicesWithoutReplacement(2),
        frb.Groups(2, "episode"),
    ],
)
def test_what_shards_cannot_draw_alone_is_refused_by_name(sampler: Any) -> None:
    item = {"done": frb.Binary(()), "episode": frb.Unbounded((), "int32")}
    name = type(sampler).__name__
    with pytest.raises(ValueError, match=rf"draw='local': .* got {name}.*; give draw='global'"):
        local.check(frb.BufferSpec(item, 40, sampler, lanes=LANES))
