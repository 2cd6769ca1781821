"""How much of a batch each buffer gives: by largest remainders exactly, and by draws exactly in proportion."""

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
import jax_backend.ops
import torch_backend.ops
from functional_rb.mixture import shares
from functional_rb.mixture.value import How, MixtureSpec
from functional_rb.ops import numpy_ops
from tests.support.effort import effort

EIGHTHS = st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(any)


def spec_of(how: How, parts: int = 1) -> MixtureSpec:
    return MixtureSpec(None, how, None, parts, False)


def by_hand(weights: list[int], batch: int) -> list[int]:
    """Hamilton's method in exact fractions, ties to the first."""
    quotas = [Fraction(w * batch, sum(weights)) for w in weights]
    counts = [int(q) for q in quotas]
    order = sorted(range(len(weights)), key=lambda k: (-(quotas[k] - counts[k]), k))
    for k in order[: batch - sum(counts)]:
        counts[k] += 1
    return counts


@given(EIGHTHS, st.integers(0, 300))
def test_largest_remainders_are_those_of_fractions(weights: list[int], batch: int) -> None:
    # Sums that are powers of two, so that float32 has the shares exactly, and ties are ties.
    weights = [*weights, 2 ** (sum(weights) - 1).bit_length() - sum(weights)]
    p = shares.normalized(numpy_ops, np.array(weights, np.float32), np.ones(len(weights), bool))
    counts = shares.by_largest_remainder(numpy_ops, p, np.int32(batch))
    assert counts.tolist() == by_hand(weights, batch)


@given(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=5), st.integers(0, shares.LARGEST_BATCH))
def test_counts_add_up_for_any_shares(weights: list[float], batch: int) -> None:
    p = shares.normalized(numpy_ops, np.array(weights, np.float32), np.ones(len(weights), bool))
    counts = shares.by_largest_remainder(numpy_ops, p, np.int32(batch))
    assert counts.sum() == (batch if p.any() else 0)
    assert not counts[p == 0].any()
    assert np.abs(counts - p.astype(np.float64) * batch).max() <= 1.5


def test_shares_that_are_none_count_as_zero_where_nothing_can_be_known() -> None:
    p = np.array([np.nan, -1.0, np.inf, 2.0, 1e-40, 2.0], np.float32)
    found = shares.normalized(numpy_ops, p, np.array([1, 1, 0, 1, 1, 1], bool))
    assert found.tolist() == [0, 0, 0, 0.5, 0, 0.5]


@pytest.mark.parametrize("how", ["items", "buffers"])
def test_each_buffer_is_drawn_by_its_share(how: str) -> None:
    """All draws whose first word is a multiple of 2^18: each share gets its part, up to one for a border."""
    p = np.array([0.1, 0.0, 0.25, 0.65], np.float32)
    draws = np.zeros((2**13, 2), np.int32)
    draws[:, 0] = np.arange(2**13) << 18
    found = shares.assign(numpy_ops, spec_of(how, 2**13), p, np.int32(2**13), 2**13, draws)
    assert np.abs(found.counts - p * 2**13).max() <= 1
    assert found.counts[1] == 0
    assert (np.bincount(found.ids, minlength=4) == found.counts).all()


def test_a_tiny_share_is_drawn() -> None:
    p = np.array([1.0, 1e-20], np.float32)
    draws = np.array([[2**31 - 1, 2**31 - 1], [0, 0]], np.int32)
    assert shares.assign(numpy_ops, spec_of("items"), p, np.int32(2), 2, draws).ids.tolist() == [1, 0]


@given(st.data())
def test_ranks_number_the_rows_of_each_buffer(data: st.DataObject) -> None:
    how = data.draw(st.sampled_from(["exact", "items", "buffers"]))
    count, batch, parts = (data.draw(st.integers(1, n)) for n in (3, 12, 4))
    wanted = data.draw(st.integers(0, batch))
    seed = data.draw(st.integers(0, 2**31 - 1))
    draws = np.random.default_rng(seed).integers(0, 2**31, (max(batch, parts), 2)).astype(np.int32)
    draws = draws[: shares.words(spec_of(how, parts), batch)[0]]
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
    compiled = jax.jit(functools.partial(shared, jax_backend.ops), static_argnums=(0, 1, 5))
    for turn in range(effort(24, 300)):
        how, count, batch, parts = ("exact", "items", "buffers")[turn % 3], 3, 16, 4
        p = generator.random(count).astype(np.float32)
        wanted, drawable = np.int32(generator.integers(0, batch + 1)), generator.random(count) < 0.8
        draws = generator.integers(0, 2**31, shares.words(spec_of(how, parts), batch)).astype(np.int32)
        expected = shared(numpy_ops, how, parts, p, drawable, wanted, batch, draws)
        found = compiled(how, parts, p, drawable, wanted, batch, draws)
        tensors = [torch.from_numpy(np.array(x)) for x in (p, drawable, wanted, draws)]
        other = shared(torch_backend.ops, how, parts, *tensors[:3], batch, tensors[3])
        for mine, *theirs in zip(expected, found, other, strict=True):
            for one in theirs:
                np.testing.assert_array_equal(mine, np.asarray(one))


@pytest.mark.parametrize("how", ["exact", "items", "buffers"])
def test_items_come_by_the_chances_that_are_told(how: str) -> None:
    """Chi-square over all items of a mixture of skewed buffers: by the law, and not by another one near to it."""
    import torch_backend as rb

    mixture, chances = skewed_pair(how)
    _, sample = rb.sample(mixture, rb.key(1), 2**14)
    counts = np.bincount(sample.items["x"].int().numpy(), minlength=8)
    np.testing.assert_allclose(sample.probabilities.numpy(), chances[sample.items["x"].int()], rtol=1e-6)
    assert chi_square(counts, chances) < 27, "a chance of 0.0003"
    assert chi_square(counts, chances * [1.2, *[1] * 7] / (1 + 0.2 * chances[0])) > 27
    # The weights make all of them one law, the uniform one.
    weighed = np.bincount(sample.items["x"].int().numpy(), sample.weights.numpy(), minlength=8)
    np.testing.assert_allclose(weighed / weighed.sum(), 1 / 8, atol=0.01)


def skewed_pair(how: str) -> tuple[Any, np.ndarray]:
    """Three items alike and five by priority, and how likely each of them is in a draw."""
    import torch_backend as rb

    item, weights = {"x": frb.Unbounded(())}, np.arange(1, 6, dtype=np.float32)
    states = []
    for sampler, first, n in ((frb.Uniform(), 0, 3), (frb.Prioritized(alpha=1.0, beta=1.0), 3, 5)):
        items = {"x": np.arange(first, first + n, dtype=np.float32)}
        priorities = weights if sampler.has_priorities else None
        states.append(rb.add(rb.init(frb.BufferSpec(item, 8, sampler)), items, priorities=priorities))
    parts = {"parts": 2**14} if how == "buffers" else {}
    mixture = frb.Mixture(states, p=[0.25, 0.75], how=how, **parts)  # type: ignore[arg-type]  # each of them is one
    return mixture, np.concatenate([np.full(3, 0.25 / 3), 0.75 * weights / weights.sum()])


def chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    expected = counts.sum() * chances
    return float(((counts - expected) ** 2 / expected).sum())
