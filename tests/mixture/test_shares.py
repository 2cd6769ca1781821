"""How much of a batch each buffer gives: up to one row its share, on average just that, and by draws in proportion."""

import functools
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import functional_rb as frb
import jax_backend.arrays.ops
import torch_backend
import torch_backend.arrays.ops
from functional_rb.core.counters import SIZE
from functional_rb.mixture import functions, shares
from functional_rb.mixture.value import How, MixtureSpec
from functional_rb.ops import numpy_ops
from tests.mixture.mixtures import UNIFORM, filled, numbers
from tests.support.backends import Backend
from tests.support.effort import effort

EIGHTHS = st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(any)


def spec_of(how: How, parts: int = 1) -> MixtureSpec:
    return MixtureSpec(None, how, None, parts, False)


def normalized(weights: list[Any]) -> np.ndarray:
    return shares.normalized(numpy_ops, np.array(weights, np.float32), np.ones(len(weights), bool))


def every_way(p: np.ndarray, batch: int) -> list[tuple[Fraction, np.ndarray]]:
    """How a batch is shared out by each of the 2^30 draws: the counts, and which part of the draws gives them.

    It is looked at where one way begins and where it ends; between these the running sums pass no whole number.
    """
    starts = turns(p, batch)
    found = []
    for start, end in zip(starts, [*starts[1:], 2**30], strict=True):
        plan, other = exact(p, batch, start), exact(p, batch, end - 1)
        assert (plan.counts == other.counts).all()
        assert plan.ids.tolist() == np.repeat(np.arange(len(p)), plan.counts).tolist()
        found.append((Fraction(end - start, 2**30), plan.counts))
    return found


def turns(p: np.ndarray, batch: int) -> list[int]:
    """The draws in [0, 2^30) from which on a batch is shared out in another way, ascending from 0."""
    over = np.cumsum(shares.quotas(numpy_ops, p, np.int32(batch))[1], dtype=np.int64) % 2**30
    return sorted({0, *(2**30 - over[over > 0]).tolist()})


def exact(p: np.ndarray, batch: int, draw: int) -> shares.Assignment:
    return shares.assign(numpy_ops, spec_of("exact"), p, np.int32(batch), batch, np.full(1, draw << 1, np.int32))


def on_average(ways: list[tuple[Fraction, np.ndarray]]) -> list[Fraction]:
    return [sum((part * int(counts[k]) for part, counts in ways), Fraction(0)) for k in range(len(ways[0][1]))]


@given(EIGHTHS, st.integers(1, 300))
def test_over_all_draws_each_buffer_gives_just_its_share(weights: list[int], batch: int) -> None:
    # Sums that are powers of two, so that float32 has the shares exactly.
    weights = [*weights, 2 ** (sum(weights) - 1).bit_length() - sum(weights)]
    quotas = [Fraction(w * batch, sum(weights)) for w in weights]
    ways = every_way(normalized(weights), batch)
    assert on_average(ways) == quotas
    for _, counts in ways:
        assert counts.sum() == batch
        assert all(abs(int(count) - quota) < 1 for count, quota in zip(counts, quotas, strict=True))


@given(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=5), st.integers(0, shares.LARGEST_BATCH))
def test_shares_are_kept_as_far_as_float32_knows_them(weights: list[float], batch: int) -> None:
    p = normalized(weights)
    draws = [0, *turns(p, batch), 2**30 - 1]
    ends = [shares.by_random_rounding(numpy_ops, p, np.int32(batch), np.int32(draw)) for draw in draws]
    counts = np.diff(np.array(ends), axis=1, prepend=0)
    assert (counts.sum(1) == (batch if p.any() else 0)).all()
    assert not counts[:, p == 0].any()
    assert (counts >= 0).all()
    assert (np.ptp(counts, 0) <= 1).all()
    parts = np.diff([0, *draws[2:-1], 2**30]) / 2**30  # the first two draws are 0
    quotas = p.astype(np.float64) * batch
    # The largest takes what the others were rounded by.
    allowed = np.where(p == p.max(), 5e-6 * batch, 5e-6 * quotas) + 1e-8
    assert (np.abs(parts @ counts[1:-1] - quotas) <= allowed).all()


def test_a_share_of_whole_rows_is_the_same_in_every_batch() -> None:
    """Though float32 has a tenth, and three tenths of ten, not exactly."""
    for weights, batch, counts in (
        ([0.1] * 10, 10, [1] * 10),
        ([0.3, 0.7], 10, [3, 7]),
        ([0.1, 0.9], 1000, [100, 900]),
    ):
        assert [(part, found.tolist()) for part, found in every_way(normalized(weights), batch)] == [(1, counts)]


def test_many_small_buffers_come_in_turn() -> None:
    """Ten tasks and batches of eight: by the largest remainders two of them came never."""
    ways = every_way(normalized([0.1] * 10), 8)
    assert all(set(counts.tolist()) == {0, 1} for _, counts in ways)
    np.testing.assert_allclose([float(x) for x in on_average(ways)], 0.8, rtol=2e-6)
    ways = every_way(normalized([100_000, 150]), 256)
    np.testing.assert_allclose([float(x) for x in on_average(ways)], [256 / 1.0015, 256 * 0.0015 / 1.0015], rtol=1e-6)


def test_shares_that_are_none_count_as_zero_where_nothing_can_be_known() -> None:
    p = np.array([np.nan, -1.0, np.inf, 2.0, 1e-40, 2.0], np.float32)
    found = shares.normalized(numpy_ops, p, np.array([1, 1, 0, 1, 1, 1], bool))
    assert found.tolist() == [0, 0, 0, 0.5, 0, 0.5]


@pytest.mark.parametrize("how", ["items", "buffers"])
def test_each_buffer_is_drawn_by_its_share(how: str) -> None:
    """All draws that are multiples of 2^18: each share gets its part, up to one for a border."""
    p = np.array([0.1, 0.0, 0.25, 0.65], np.float32)
    draws = np.arange(2**13, dtype=np.int32) << 18
    found = shares.assign(numpy_ops, spec_of(how, 2**13), p, np.int32(2**13), 2**13, draws)
    assert np.abs(found.counts - p * 2**13).max() <= 1
    assert found.counts[1] == 0
    assert (np.bincount(found.ids, minlength=4) == found.counts).all()


def test_a_tiny_share_is_drawn() -> None:
    p = np.array([1.0, 1e-20], np.float32)
    draws = np.array([2**31 - 1, 0], np.int32)
    assert shares.assign(numpy_ops, spec_of("items"), p, np.int32(2), 2, draws).ids.tolist() == [1, 0]


@given(st.data())
def test_ranks_number_the_rows_of_each_buffer(data: st.DataObject) -> None:
    how = data.draw(st.sampled_from(["exact", "items", "buffers"]))
    count, batch, parts = (data.draw(st.integers(1, n)) for n in (3, 12, 4))
    wanted = data.draw(st.integers(0, batch))
    seed = data.draw(st.integers(0, 2**31 - 1))
    n = shares.rows_of_draws(spec_of(how, parts), batch)
    draws = np.random.default_rng(seed).integers(0, 2**31, n).astype(np.int32)
    p = shares.normalized(numpy_ops, np.arange(1, count + 1, dtype=np.float32), np.ones(count, bool))
    found = shares.assign(numpy_ops, spec_of(how, parts), p, np.int32(wanted), batch, draws)
    for k in range(count):
        mine = [int(r) for r, b in zip(found.ranks[:wanted], found.ids[:wanted], strict=True) if b == k]
        assert mine == list(range(len(mine))) == list(range(int(found.counts[k])))
    if how == "buffers":
        sizes = [len(list(run)) for run in np.split(found.ids[:wanted], np.arange(parts)[1:] * wanted // parts)]
        assert max(sizes) - min(sizes) <= 1


def shared(ops: Any, how: str, parts: int, p: Any, drawable: Any, wanted: Any, batch: int, draws: Any) -> Any:
    """What a mixture does with its shares."""
    return shares.assign(ops, spec_of(how, parts), shares.normalized(ops, p, drawable), wanted, batch, draws)


def test_all_backends_share_out_alike() -> None:
    """The same draws, the same buffers, ranks and chances, bit for bit, also where XLA puts steps together."""
    generator = np.random.default_rng(0)
    compiled = jax.jit(functools.partial(shared, jax_backend.arrays.ops), static_argnums=(0, 1, 5))
    for turn in range(effort(24, 300)):
        how, count, batch, parts = ("exact", "items", "buffers")[turn % 3], 3, 16, 4
        p = generator.random(count).astype(np.float32)
        wanted, drawable = np.int32(generator.integers(0, batch + 1)), generator.random(count) < 0.8
        draws = generator.integers(0, 2**31, shares.rows_of_draws(spec_of(how, parts), batch)).astype(np.int32)
        expected = shared(numpy_ops, how, parts, p, drawable, wanted, batch, draws)
        found = compiled(how, parts, p, drawable, wanted, batch, draws)
        tensors = [torch.from_numpy(np.array(x)) for x in (p, drawable, wanted, draws)]
        other = shared(torch_backend.arrays.ops, how, parts, *tensors[:3], batch, tensors[3])
        for mine, *theirs in zip(expected, found, other, strict=True):
            for one in theirs:
                np.testing.assert_array_equal(mine, np.asarray(one))


@pytest.mark.parametrize("how", ["exact", "items", "buffers"])
def test_items_come_by_the_chances_that_are_told(how: str) -> None:
    """Chi-square over all items of a mixture of skewed buffers: by the law, and not by another one near to it."""
    rb = torch_backend
    mixture, chances = skewed_pair(how)
    _, sample = rb.sample(mixture, rb.key(1), 2**14)
    counts = np.bincount(sample.items["x"].int().numpy(), minlength=8)
    np.testing.assert_allclose(sample.probabilities.numpy(), chances[sample.items["x"].int()], rtol=1e-6)
    assert chi_square(counts, chances) < 27, "a chance of 0.0003"
    assert chi_square(counts, chances * [1.2, *[1] * 7] / (1 + 0.2 * chances[0])) > 27
    # The weights make all of them one law, the uniform one.
    weighed = np.bincount(sample.items["x"].int().numpy(), sample.weights.numpy(), minlength=8)
    np.testing.assert_allclose(weighed / weighed.sum(), 1 / 8, atol=0.01)


@pytest.mark.parametrize("p", [[0.3, 0.7], None], ids=["given", "by size"])
def test_weights_hold_whatever_a_batch_was_rounded_to(library: Backend, p: Any) -> None:
    """The chance that is told is that of all batches, not the part of this one; and both ways of rounding come."""
    mixture, _ = skewed_pair("exact", library.rb, p)
    weights, share = np.arange(1, 6, dtype=np.float32), 0.3 if p else 3 / 8
    chances = np.concatenate([np.full(3, share / 3), (1 - share) * weights / weights.sum()])
    counts = []
    for key in library.rb.split(library.rb.key(2), 12):
        _, sample = library.rb.sample(mixture, key, 4)
        x = library.numpy(sample.items["x"]).astype(int)
        np.testing.assert_allclose(library.numpy(sample.probabilities), chances[x], rtol=2e-6)
        np.testing.assert_allclose(library.numpy(sample.weights), chances.min() / chances[x], rtol=2e-6)
        counts.append(int((library.numpy(sample.extras["buffer_ids"]) == 0).sum()))
    assert set(counts) == {1, 2}


def skewed_pair(how: str, rb: Any = torch_backend, p: Any = (0.25, 0.75)) -> tuple[Any, np.ndarray]:
    """Three items alike and five by priority, and how likely each of them is in a draw."""
    item, weights = {"x": frb.Unbounded(())}, np.arange(1, 6, dtype=np.float32)
    states = []
    for sampler, first, n in ((frb.Uniform(), 0, 3), (frb.Prioritized(alpha=1.0, beta=1.0), 3, 5)):
        items = {"x": np.arange(first, first + n, dtype=np.float32)}
        priorities = weights if sampler.has_priorities else None
        states.append(rb.add(rb.init(frb.BufferSpec(item, 8, sampler)), items, priorities=priorities))
    parts = {"parts": 2**14} if how == "buffers" else {}
    mixture = frb.Mixture(states, p=p, how=how, **parts)  # type: ignore[arg-type]  # each of them is one
    return mixture, np.concatenate([np.full(3, 0.25 / 3), 0.75 * weights / weights.sum()])


def chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    expected = counts.sum() * chances
    return float(((counts - expected) ** 2 / expected).sum())


def test_more_than_an_int32_tells_are_not_enough() -> None:
    """How many are stored together is told up to 2^31 - 1, which may be that many or more."""
    counters = np.zeros(SIZE + 1, np.int32)
    counters[SIZE] = 2**31 - 1
    for wanted, expected in ((2**31 - 1, True), (2**31, False)):
        assert bool(functions.enough(numpy_ops, wanted, [(np.True_, ()), (np.False_, ())], [counters] * 2)) is expected


def test_a_mixture_counts_in_another_by_what_of_it_can_be_drawn(library: Backend) -> None:
    """Seven items beside five are all as likely: what lies in a buffer without a share is not counted."""
    inner = frb.Mixture([filled(library.rb, UNIFORM, 0, 8), filled(library.rb, UNIFORM, 10, 7)], [0.0, 1.0])
    mixture = frb.Mixture([inner, filled(library.rb, UNIFORM, 20, 5)])
    found = numbers(library, library.rb.sample(mixture, library.rb.key(0), 24)[1])
    assert found["indices"][:, :2].tolist() == [[0, 1]] * 14 + [[1, 0]] * 10
    np.testing.assert_allclose(found["probabilities"], 1 / 12, rtol=1e-6)
