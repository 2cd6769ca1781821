"""The losses of reward models and the KL coefficient, against plain NumPy in float64."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import functional_rb as frb
import torch_backend  # noqa: F401 - so that methods of records compute with torch
from tests.support.backends import Backend


def plain_reward_loss(pairs: frb.text.PairwiseDataset) -> float:
    """One pair after another, in loops."""
    losses = []
    for row in range(len(pairs.chosen_data.input_ids)):
        sides = (pairs.chosen_data, pairs.rejected_data)
        texts = [[np.asarray(x)[row] for x in (t.input_ids, t.attention_mask, t.rewards)] for t in sides]
        ends = [max(np.flatnonzero(mask), default=-1) for _, mask, _ in texts]
        if min(ends) < 0:
            continue
        rewards, seen = [], []
        for (ids, mask, reward), end in zip(texts, ends, strict=True):
            rewards.append([float(reward[min(t, end)]) for t in range(len(ids))])
            seen.append([int(i) if m else None for i, m in zip(ids, mask, strict=True)])
        differing = [t for t in range(len(seen[0])) if seen[0][t] != seen[1][t]]
        if differing:
            span = range(differing[0], max(ends) + 1)
            losses.append(np.mean([np.logaddexp(0, rewards[1][t] - rewards[0][t]) for t in span]))
    return float(np.mean(losses)) if losses else 0.0


def text(tokens: list[int], rewards: Any, length: int, pad: int) -> list[Any]:
    """One row: what is behind the end must not matter, so it is NaN."""
    n = len(tokens)
    full = np.full(length, np.nan, np.float32)
    full[:n] = rewards[:n]
    return [np.int32(tokens + [pad] * (length - n)), np.arange(length) < n, full]


def dataset(array: Any, rows: list[list[list[int]]], seed: int = 0, pad: int = 0) -> frb.text.PairwiseDataset:
    rng, length = np.random.default_rng(seed), 4
    sides = []
    for side in (0, 1):
        made = [text(row[side], rng.normal(size=length) * 3, length, pad) for row in rows]
        ids, mask, rewards = (array(np.stack(column)) for column in zip(*made, strict=True))
        sides.append(frb.text.RewardData(ids, mask, rewards))
    return frb.text.PairwiseDataset(*sides)


TOKENS = st.lists(st.integers(0, 2), max_size=4)  # 0 is the padding too: an end in the text is no padding
ROWS = st.lists(st.tuples(TOKENS, TOKENS).map(list), min_size=1, max_size=4)


@hypothesis.settings(max_examples=80)
@hypothesis.given(ROWS, st.integers(0, 99))
def test_the_loss_over_diverging_tokens_is_the_plain_one(rows: list[list[list[int]]], seed: int) -> None:
    pairs = dataset(torch.from_numpy, rows, seed)
    found = pairs.loss()
    assert float(found) == pytest.approx(plain_reward_loss(pairs), rel=1e-5, abs=1e-6)
    other = dataset(torch.from_numpy, rows, seed, pad=9)
    assert other.loss().equal(found)


EDGES = {
    "the same text": [[[1, 2], [1, 2]], [[1], [1]]],
    "no reply": [[[1, 2, 3], [1]], [[2], [2, 1]]],
    "no text": [[[1, 2], []], [[1], [2]]],
    "nothing at all": [[[], []], [[], []]],
    "an end in the padding's clothes": [[[1, 0], [1]], [[1, 0, 0], [1, 0]]],
}


@pytest.mark.parametrize("rows", EDGES.values(), ids=EDGES)
def test_edges_have_a_loss_and_a_gradient_on_either_backend(library: Backend, rows: Any) -> None:
    pairs = dataset(library.array, rows)
    expected = plain_reward_loss(pairs)

    def loss(rewards: Any) -> Any:
        chosen = dataclasses.replace(pairs.chosen_data, rewards=rewards)
        return dataclasses.replace(pairs, chosen_data=chosen).loss()

    given = pairs.chosen_data.rewards
    if library.library == "jax":
        found, gradient = jax.jit(jax.value_and_grad(loss))(given)
    else:
        leaf = given.clone().requires_grad_()
        found = loss(leaf)
        gradient = torch.autograd.grad(found, leaf)[0]
    assert float(found if library.library == "jax" else found.detach()) == pytest.approx(expected, abs=1e-6)
    slope, mask = library.numpy(gradient), library.numpy(pairs.chosen_data.attention_mask)
    assert np.isfinite(slope).all()
    assert (slope[~mask] == 0).all()
    assert bool((slope < 0).any()) == (expected > 0)  # higher rewards of the preferred text are better


def test_whole_texts_by_bradley_and_terry(library: Backend) -> None:
    array, bradley_terry = library.array, library.rb.text.bradley_terry_loss
    chosen, rejected, margin = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32) * 20
    each = np.logaddexp(0, -(chosen.astype(np.float64) - rejected - margin))
    mask = np.arange(8) % 3 != 0
    found = bradley_terry(array(chosen), array(rejected), array(margin), array(mask))
    assert float(found) == pytest.approx(each[mask].mean(), rel=1e-5)
    assert float(bradley_terry(array(chosen), array(chosen))) == pytest.approx(np.log(2))
    assert float(bradley_terry(array(chosen), array(rejected), mask=array(mask & False))) == 0
    far = bradley_terry(array(np.float32([0, 3e38])), array(np.float32([1e4, -3e37])))
    assert float(far) == pytest.approx(5000)
    assert np.isnan(float(bradley_terry(array(np.float32([np.nan])), array(np.float32([0])))))
    rewards, mask = array(chosen.reshape(2, 4)), array(np.bool_([[1, 1, 0, 0], [0, 0, 0, 0]]))
    ends = frb.text.RewardData(mask * 1, mask, rewards).last_rewards()
    assert ends.tolist() == [chosen[1], 0]


@pytest.mark.parametrize("lead", [(2, 3), (3, 1, 2), (6,)], ids=str)
def test_texts_may_have_any_leading_axes(library: Backend, lead: tuple[int, ...]) -> None:
    """Such as the groups that `frb.Groups` gives; one text alone has none."""
    rows = [[[1, 2], [1, 0]], [[2, 1, 1], [2]], [[2], [1, 2]], [[1], [1, 1]], [[2, 2], [1]], [[1, 2, 0], [2]]]
    flat = dataset(library.array, rows)

    def shaped(text: Any) -> Any:
        arrays = (text.input_ids, text.attention_mask, text.rewards)
        return frb.text.RewardData(*(x.reshape(*lead, *x.shape[1:]) for x in arrays))

    sides = shaped(flat.chosen_data), shaped(flat.rejected_data)
    found = sides[0].last_rewards()
    assert tuple(found.shape) == lead
    ends = library.numpy(flat.chosen_data.last_rewards())
    assert (library.numpy(found).reshape(-1) == ends).all()
    assert float(frb.text.PairwiseDataset(*sides).loss()) == pytest.approx(float(flat.loss()))
    text = flat.chosen_data
    one = frb.text.RewardData(text.input_ids[1], text.attention_mask[1], text.rewards[1])
    assert float(one.last_rewards()) == ends[1]


def test_torchrls_loss_where_it_has_one() -> None:
    """Texts of any length that part anywhere, and equal ones; behind its end a text has its last token's reward."""
    models = pytest.importorskip("torchrl.modules.models.llm")
    rng, pad = np.random.default_rng(0), 50256
    for _ in range(20):
        ids = rng.integers(1, 5, (2, 6, 7)).astype(np.int64)
        shared = rng.integers(0, 5, (6, 1))  # a prompt that both begin with
        ids[1] = np.where(np.arange(7) < shared, ids[0], ids[1])
        ids[1, 0] = ids[0, 0]
        lengths = np.maximum(rng.integers(1, 8, (2, 6, 1)), shared)
        lengths[:, 0] = 4
        mask = np.arange(7) < lengths
        ids[~mask] = pad
        rewards = rng.normal(size=(2, 6, 7)).astype(np.float32)
        rewards = np.where(mask, rewards, np.take_along_axis(rewards, lengths - 1, 2))
        sides = [frb.text.RewardData(*map(torch.from_numpy, (ids[k], mask[k], rewards[k]))) for k in (0, 1)]
        theirs = models.GPT2RewardModel.compute_reward_loss(chosen_batch=sides[0], rejected_batch=sides[1])
        ours = frb.text.PairwiseDataset(*sides).loss()
        assert float(ours) == pytest.approx(float(theirs), rel=1e-5)
        ends = models.GPT2RewardModel._compute_end_scores(
            SimpleNamespace(pad_id=pad), sides[0].rewards, sides[0].input_ids
        )
        assert sides[0].last_rewards().equal(ends)


REFUSED = {
    "no rewards": (
        lambda p: dataclasses.replace(p, rejected_data=dataclasses.replace(p.rejected_data, rewards=None)).loss(),
        ValueError,
        "leaf 'rejected_data/rewards': expected rewards of each token, got None",
    ),
    "other lengths": (
        lambda p: dataclasses.replace(p.chosen_data, attention_mask=p.chosen_data.attention_mask[:, :1]).last_rewards(),
        ValueError,
        r"last_rewards: expected arrays of one shape \[B, T\]",
    ),
    "no floats": (
        lambda p: dataclasses.replace(p.chosen_data, rewards=p.chosen_data.input_ids).last_rewards(),
        TypeError,
        "rewards: expected dtype float32",
    ),
    "KL of tokens": (
        lambda p: frb.text.KLController(0.1).update(0.1, p.chosen_data.rewards),
        ValueError,
        r"expected kl \[N\], one number for each reply, got shape \(1, 4\); sum over the tokens of each reply",
    ),
    "no array": (
        lambda p: frb.text.KLController(0.1).update(0.1, [1.0, 2.0]),
        TypeError,
        "kl: expected an array of NumPy or of a backend in use, got list; import jax_backend or",
    ),
}


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_errors(library: Backend, call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call(dataset(library.array, [[[1, 2], [1, 0]]]))


CONTROLLER = frb.text.KLController(0.2, target=6.0, horizon=100)


def told_by(pairs: Any, coefficient: Any, kl: Any) -> Any:
    return pairs.loss(), pairs.chosen_data.last_rewards(), CONTROLLER.update(coefficient, kl, kl > 4)


def test_methods_compute_with_the_library_of_their_arrays_compiled_too(library: Backend) -> None:
    rows, kl = [[[1, 2], [1, 0]], [[2, 1, 1], [2]]], np.float32([3, 30, np.nan])
    expected = told_by(dataset(np.asarray, rows), np.float32(0.2), kl)
    assert {type(x).__module__ for x in expected} == {"numpy"}
    given = dataset(library.array, rows), library.array(np.float32(0.2)), library.array(kl)
    compiled = jax.jit(told_by) if library.library == "jax" else torch.compile(told_by, fullgraph=True, backend="eager")
    for found in (told_by(*given), compiled(*given)):
        for x, y in zip(found, expected, strict=True):
            assert type(x) is type(given[-1])
            np.testing.assert_allclose(library.numpy(x), y, rtol=1e-6)
    mixed = CONTROLLER.update(0.2, kl, library.array(kl > 4))  # where one of them is the library's
    assert type(mixed) is type(given[-1])
    assert float(mixed) == pytest.approx(float(expected[-1]))


def test_the_coefficient_follows_ziegler_by_the_number_of_replies(library: Backend) -> None:
    update, rng = CONTROLLER.update, np.random.default_rng(0)
    coefficient: Any = CONTROLLER.initial
    expected = CONTROLLER.initial
    for n in (8, 8, 3, 8):
        kl = rng.normal(6, 5, n).astype(np.float32)
        error = np.clip(kl.astype(np.float64).mean() / 6 - 1, -0.2, 0.2)
        expected *= 1 + error * n / 100
        coefficient = update(coefficient, library.array(kl))
        assert float(coefficient) == pytest.approx(expected, rel=1e-5)
        assert str(coefficient.dtype).endswith("float32")
        padded = library.array(np.float32([*kl, *[np.nan] * (11 - n)]))  # of those that do not count nothing is seen
        again = update(0.2, padded, library.array(np.arange(11) < n))
        assert float(again) == pytest.approx(0.2 * (1 + error * n / 100), rel=1e-5)
    many = library.array(np.zeros(1000, np.float32))  # ten horizons at once: it would become negative
    assert float(update(0.2, many)) == pytest.approx(0.16)
    bad = library.array(np.float32([np.nan, np.inf, -np.inf]))
    assert float(update(0.2, bad)) == pytest.approx(0.2)
    assert float(frb.text.KLController(0.3).update(0.3, many)) == pytest.approx(0.3)


def test_the_coefficient_is_state_under_jit(library: Backend) -> None:
    kl, update = library.array(np.float32([3, 30])), CONTROLLER.update
    start = library.array(np.float32(0.2))

    def step(coefficient: Any) -> Any:
        return update(coefficient, kl)

    if library.library == "jax":
        found = jax.lax.scan(lambda c, _: (step(c), None), start, None, length=3)[0]
    else:
        compiled = torch.compile(step, fullgraph=True, backend="eager")
        found = compiled(compiled(compiled(start)))
    assert float(found) == pytest.approx(0.2 * 1.004**3, rel=1e-5)


def test_coefficients_of_torch_do_not_lead_back_through_earlier_steps() -> None:
    coefficient: Any = CONTROLLER.initial
    for _ in range(2):
        kl = torch.full((4,), 12.0, requires_grad=True)
        (coefficient * kl).sum().backward()  # a second time through the first step would be an error of torch's
        coefficient = CONTROLLER.update(coefficient, 2 * kl)
        assert not coefficient.requires_grad


NAN = float("nan")


@pytest.mark.parametrize("numbers", [(0.0, 6.0, 10), (0.1, -1.0, 10), (0.1, 6.0, 0), (0.1, NAN, 10), (True, 6.0, 10)])
def test_numbers_that_make_no_controller(numbers: Any) -> None:
    with pytest.raises(ValueError, match=r"expected .* as a positive number, got"):
        frb.text.KLController(*numbers)
    with pytest.raises(ValueError, match="expected initial as a number that is not negative"):
        frb.text.KLController(-0.1)
    assert frb.text.KLController(0).initial == 0
    with pytest.raises(ValueError, match="expected target and horizon together"):
        frb.text.KLController(0.1, target=6.0)
