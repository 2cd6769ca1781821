"""Rollouts as steps of episodes, and advantages of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.language_models import END, MASK, PROMPTS, REPLIES, N, all_replies, gpt2, gpt2_params, table
from tests.support.versions import is_version


def longest_first(ids: Any, mask: Any, reply: Any) -> Any:
    """A programmed reward: the length of the reply, and ten for each of the prompt's tokens."""
    return reply.sum(1) * np.float32(1) + (mask & ~reply).sum(1) * np.float32(10)


def rolled(library: Backend, score: Any = longest_first, kl: float = 0.5, seed: int = 0) -> Any:
    step, cache = gpt2(library)
    params, reference = (gpt2_params(library, seed) for seed in (0, 1))
    decoding = frb.text.Decoding(N, 1.3, eos=END, pad=END, replies=REPLIES)
    reward = frb.text.Reward(score, reference, kl)
    return library.rb.text.rollout(
        step, params, PROMPTS, library.rb.key(seed), decoding, reward, mask=MASK, cache=cache
    )


def test_the_score_is_paid_once_and_the_penalty_at_each_token(library: Backend) -> None:
    calls = []

    def score(*joined: Any) -> Any:
        calls.append([x.shape for x in joined])
        return longest_first(*joined)

    made = rolled(library, score)
    assert calls == [[(12, 7)] * 3]
    frb.ted.check(made.steps, time_axis=1, mask=made.mask)
    (step, _), rb, numpy = gpt2(library), library.rb, library.numpy
    steps = {name: numpy(x) for name, x in made.steps.items() if name != "next"}
    after = {name: numpy(x) for name, x in made.steps["next"].items()}
    mask, lengths, scores = numpy(made.mask), numpy(made.generation.lengths), numpy(made.scores)
    ids, tokens = numpy(made.joined.ids), numpy(made.joined.mask)
    told = [
        numpy(rb.text.log_probs(step, gpt2_params(library, seed), made.joined.ids, made.joined.mask)) for seed in (0, 1)
    ]
    prompt = np.repeat(MASK.sum(1), REPLIES)
    assert (scores == lengths + 10 * prompt).all()
    assert len(set(lengths.tolist())) == N
    ended = []
    for row in range(12):
        first, last = prompt[row] - 1, prompt[row] + lengths[row] - 2  # steps that lead to tokens of the reply
        assert mask[row].nonzero()[0].tolist() == list(range(last + 1))
        assert steps["reply"][row].nonzero()[0].tolist() == list(range(first, last + 1))
        np.testing.assert_array_equal(np.append(steps["observation"][row], after["observation"][row][-1:]), ids[row])
        np.testing.assert_array_equal(steps["action"][row], ids[row][1:])
        apart = np.zeros(len(mask[row]))
        apart[first : last + 1] = (told[0] - told[1])[row, first + 1 : last + 2]
        expected = -0.5 * apart
        expected[last] += scores[row]
        np.testing.assert_allclose(after["reward"][row], expected, atol=1e-5)
        np.testing.assert_allclose(numpy(made.kl)[row], apart.sum(), atol=1e-5)
        by_model = told[0][row, first + 1 : last + 2]
        np.testing.assert_allclose(steps["log_prob"][row, first : last + 1], by_model, atol=1e-5)
        by_eos = bool(ids[row][last + 1] == END)
        ended.append(by_eos)
        assert after["terminated"][row].nonzero()[0].tolist() == [last] * by_eos
        assert after["truncated"][row].nonzero()[0].tolist() == [last] * (not by_eos)
        assert (ids[row][~tokens[row]] == END).all()  # padding, which ended nothing
    assert set(ended) == {True, False}
    assert not steps["done"].any()
    np.testing.assert_allclose(after["reward"].sum(1), scores - 0.5 * numpy(made.kl), atol=1e-4)


def held_by_rollouts(vocabulary: int, batch: int, width: int, **options: Any) -> int:
    """Bytes that a compiled program takes beside its arguments: what it gives, and what it computes with."""
    import jax

    import jax_backend as rb

    def step(params: Any, cache: Any, ids: Any, positions: Any) -> Any:
        return params[ids], cache

    def score(ids: Any, mask: Any, reply: Any) -> Any:
        return reply.sum(1) * np.float32(1)

    def program(params: Any, key: Any) -> Any:
        prompts = np.zeros((batch, width), np.int32)
        decoding, reward = frb.text.Decoding(eos=END, **options), frb.text.Reward(score, params, 0.1)
        cache = lambda rows, tokens: jax.numpy.zeros((rows, tokens))  # noqa: E731
        return rb.text.rollout(step, params, prompts, key, decoding, reward, cache=cache)

    params = np.zeros((vocabulary, vocabulary), np.float32)
    memory = jax.jit(program).lower(params, rb.key(0)).compile().memory_analysis()
    return int(memory.temp_size_in_bytes + memory.output_size_in_bytes)


@pytest.mark.parametrize("n", effort([400], [100, 400, 1600]))
def test_rollouts_grow_with_the_length_of_replies_and_not_with_its_square(n: int) -> None:
    """A token takes a hundred bytes; where steps have all tokens before them it takes as many numbers as these."""
    assert held_by_rollouts(5, batch=8, width=32, n=n) < 150 * 8 * (32 + n)


@pytest.mark.parametrize("at_once", effort([1], [1, 4, 16, None]))
def test_the_reference_is_asked_about_few_replies_at_a_time(at_once: int | None) -> None:
    import jax

    held = held_by_rollouts(512, batch=2, width=8, n=24, replies=16, at_once=at_once)
    logits = 2 * (at_once or 16) * 32 * 512 * 4
    copies = 1.1 if is_version(jax, "0.10") else 2.1  # before, XLA holds them twice
    assert logits <= held < copies * logits + 70_000


def each_leaf(function: Any, steps: Any) -> Any:
    return {name: each_leaf(function, x) if isinstance(x, dict) else function(x) for name, x in steps.items()}


def test_steps_are_items_of_a_buffer_and_so_are_whole_replies() -> None:
    """On torch, which compiles nothing; the page docs/generation.md does it on JAX too."""
    with backends.make("torch") as library:
        rb, made = library.rb, rolled(library)
    flat = each_leaf(lambda x: x.reshape(-1), made.steps)
    spec = frb.BufferSpec(frb.specs.spec_of(each_leaf(lambda x: x[0], flat)), capacity=64, sampler=frb.Slices(2))
    frb.ted.check(spec)
    state = rb.add(rb.init(spec), flat, mask=made.mask.reshape(-1))
    assert int(rb.size(state)) == library.numpy(made.mask).sum()
    _, sample = rb.sample(state, rb.key(0), 16)
    frb.ted.check(sample.items, time_axis=1)  # windows of two steps, of one reply each

    whole = rb.init(frb.BufferSpec(frb.specs.spec_of(each_leaf(lambda x: x[0], made.steps)), capacity=12))
    stored = rb.items(rb.add(whole, made.steps))
    frb.ted.check(stored, time_axis=1, mask=made.mask)
    np.testing.assert_array_equal(library.numpy(stored["action"]), library.numpy(made.steps["action"]))


def test_the_penaltys_mean_is_the_divergence(library: Backend) -> None:
    """Over all 125 replies of 3 tokens, each by its probability, against the sum of KL over the tokens' laws."""
    (step, _), rb, numpy = gpt2(library), library.rb, library.numpy
    every = np.array([*itertools.product(range(5), repeat=3)], np.int32)
    ids = np.concatenate([np.full((125, 1), 2, np.int32), every], 1)
    told = np.float64([numpy(rb.text.log_probs(step, gpt2_params(library, seed), ids)) for seed in (0, 1)])
    mean = (np.exp(told[0].sum(1)) * (told[0] - told[1]).sum(1)).sum()
    exact = 0.0
    for length in range(3):  # the laws after each prefix, by the probability of that
        at, parts = 1 + length, 5 ** (2 - length)
        blocks = told[:, ::parts]  # one reply of each prefix with one token more
        reach = np.exp(blocks[0, :, 1:at].sum(1))
        exact += (reach * np.exp(blocks[0, :, at]) * (blocks[0, :, at] - blocks[1, :, at])).sum()
    assert exact > 0.01
    assert mean == pytest.approx(exact, rel=1e-4)


def test_the_divergence_of_replies_is_that_of_all_sequences() -> None:
    """Replies that end early among them, against the sum over all; on torch, as the rows are tested on both."""
    with backends.make("torch") as library:
        (step, cache), rb = gpt2(library), library.rb
        every = np.array([*itertools.product(range(5), repeat=3)], np.int32)
        rows = np.concatenate([np.full((125, 1), 2, np.int32), every], 1)
        params = [gpt2_params(library, seed) for seed in (0, 1)]
        told = [library.numpy(rb.text.log_probs(step, x, rows))[:, 1:] for x in params]
        model, reference = (all_replies(x, 1.0, 5, 1.0)[0] for x in told)
        made = rb.text.rollout(
            step, params[0], rows[:1, :1], rb.key(0),
            frb.text.Decoding(3, eos=END, pad=END, replies=effort(2000, 20000)),
            frb.text.Reward(longest_first, params[1], 1.0), cache=cache,
        )  # fmt: skip
    apart = np.where(model > 0, np.log(np.maximum(model, 1e-30)) - np.log(np.maximum(reference, 1e-30)), 0)
    tokens, kl = library.numpy(made.generation.tokens), library.numpy(made.kl)
    np.testing.assert_allclose(kl, apart[tokens @ np.array([25, 5, 1])], atol=1e-4)
    exact = (model * apart).sum()
    assert exact > 0.1
    assert abs(kl.mean() - exact) < 5 * kl.std() / len(kl) ** 0.5
    assert len(set(library.numpy(made.generation.lengths).tolist())) == 3


def test_what_the_reference_never_says_is_infinitely_far(library: Backend) -> None:
    params = library.array(np.zeros((3, 3), np.float32))
    never = np.zeros((3, 3), np.float32)
    never[:, 1] = -np.inf
    for kl, expected in ((1.0, {0.0, -np.inf}), (0.0, {0.0})):
        made = library.rb.text.rollout(
            table, params, np.zeros((8, 1), np.int32), library.rb.key(0), 2,
            frb.text.Reward(lambda ids, mask, reply: np.zeros(8, np.float32), library.array(never), kl),
        )  # fmt: skip
        rewards = library.numpy(made.steps["next"]["reward"])
        drawn = library.numpy(made.steps["action"])
        assert not np.isnan(rewards).any()
        assert set(rewards[drawn == 1].tolist()) == expected - ({0.0} if kl else set())
        assert np.isinf(library.numpy(made.kl)).any()


@pytest.mark.parametrize(
    ("score", "error", "message"),
    [
        (lambda *_: np.array([0, np.nan] * 4, np.float32), ValueError, "the score of row 1 is nan"),
        (lambda *_: np.array([-np.inf, 0] * 4, np.float32), ValueError, "the score of row 0 is -inf; give a finite"),
        (lambda *_: np.zeros((2, 3), np.float32), ValueError, r"what score gave: expected shape \[8\], got \[2, 3\]"),
        (lambda *_: [0.0, 0.0], TypeError, "what score gave: expected an array"),
        (0.0, TypeError, "expected score as a function, got float"),
    ],
)
def test_scores_that_do_not_fit_are_refused(library: Backend, score: Any, error: Any, message: str) -> None:
    params, prompts = library.array(np.zeros((3, 3), np.float32)), np.zeros((8, 1), np.int32)
    with pytest.raises(error, match=message):
        library.rb.text.rollout(table, params, prompts, library.rb.key(0), 2, score)
    with pytest.raises(ValueError, match="reference_step was given without parameters"):
        frb.text.Reward(longest_first, reference_step=table)


# --- advantages -----------------------------------------------------------------------------------------------------

GAMMA, LAM = 0.9, 0.8


def backwards(rewards: Any, values: Any, terminated: Any, truncated: Any, mask: Any) -> np.ndarray:
    """Generalized advantage estimation from the last step to the first, of rows without what is no step."""
    found = np.zeros(rewards.shape)
    for row in range(len(rewards)):
        steps = mask[row].nonzero()[0].tolist()
        following = 0.0
        for k in reversed(range(len(steps))):
            t = steps[k]
            ends = terminated[row, t] or truncated[row, t]
            after = t + 1 if truncated[row, t] or k + 1 == len(steps) else steps[k + 1]
            value = 0.0 if terminated[row, t] else np.float64(values[row, after])
            delta = rewards[row, t] + GAMMA * value - values[row, t]
            following = delta + (0.0 if ends else GAMMA * LAM * following)
            found[row, t] = following
    return found


@pytest.mark.parametrize("steps", [1, 7])
def test_advantages_are_those_of_the_recurrence(library: Backend, steps: int) -> None:
    """Padded behind, before and between, where several turns of a model are in one row."""
    rng = np.random.default_rng(steps)
    rewards, values = (rng.normal(size=(64, steps + k)).astype(np.float32) for k in (0, 1))
    terminated, truncated = (rng.random((64, steps)) < 0.2 for _ in range(2))
    right = np.arange(steps) < rng.integers(0, steps + 1, (64, 1))
    gaps = rng.random((64, steps)) < 0.5
    for mask in (right, right[:, ::-1].copy(), gaps, gaps & right, np.ones_like(gaps)):
        expected = backwards(rewards, values, terminated, truncated, mask)
        last = mask & (mask.cumsum(1) == mask.sum(1, keepdims=True))
        used = np.pad(mask, ((0, 0), (0, 1))) | np.pad(last | (mask & truncated), ((0, 0), (1, 0)))
        given = (
            np.where(mask, rewards, np.float32(np.nan)),
            np.where(used, values, np.float32(np.nan)),
        )  # what is no step counts for nothing
        found = library.rb.text.gae(*given, terminated, truncated, None if mask.all() else mask, GAMMA, LAM)
        np.testing.assert_allclose(library.numpy(found.advantages), expected, atol=1e-5)
        returns = np.where(mask, expected + values[:, :-1], 0)
        np.testing.assert_allclose(library.numpy(found.returns), returns, atol=1e-5)


def test_earlier_turns_get_credit_for_what_later_ones_are_paid(library: Backend) -> None:
    """By default settings each turn's tokens are told of the reward at the end, discounted by tokens of the model."""
    rewards, values = np.zeros((4, 7), np.float32), np.zeros((4, 8), np.float32)
    own, end = np.array([[1, 1, 0, 0, 0, 1, 1]] * 4, bool), np.zeros((4, 7), bool)
    rewards[:, 6], end[:, 6] = 1, True
    values[:, 2:5] = 9  # of what others say
    found = library.rb.text.gae(rewards, values, end, mask=own, lam=0.5).advantages.tolist()
    assert found == [[0.125, 0.25, 0, 0, 0, 0.5, 1]] * 4


def test_a_truncated_reply_has_the_value_after_it_and_a_terminated_one_has_none(library: Backend) -> None:
    rewards, values, end = np.zeros((1, 1), np.float32), np.array([[1.0, 5.0]], np.float32), np.ones((1, 1), bool)
    gae = library.rb.text.gae
    assert gae(rewards, values, ~end, end, gamma=0.5).returns.tolist() == [[2.5]]
    assert gae(rewards, values, end, ~end, gamma=0.5).returns.tolist() == [[0.0]]
    with pytest.raises(ValueError, match=r"values: expected shape \[1, 2\], got \[1, 1\]"):
        gae(rewards, values[:, :1], end)
    with pytest.raises(TypeError, match="terminated: expected dtype bool, got float32"):
        gae(rewards, values, rewards)


def test_rollouts_keep_no_gradients() -> None:
    import torch

    import torch_backend as rb

    params, prompts = torch.zeros(3, 3, requires_grad=True), np.zeros((8, 1), np.int32)

    def score(ids: Any, mask: Any, reply: Any) -> Any:  # by a model that is being learned
        return params.sum() + torch.zeros(8)

    made = rb.text.rollout(table, params, prompts, rb.key(0), 2, frb.text.Reward(score, params, 1.0))
    told = (made.steps["next"]["reward"], made.steps["log_prob"], made.steps["reference_log_prob"], made.scores)
    assert not any(x.requires_grad for x in told)
