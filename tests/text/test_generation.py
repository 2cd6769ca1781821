"""Replies: the cache changes nothing, padding is never seen, and what is told of them is so."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.language_models import (
    END,
    MASK,
    PROMPTS,
    REPLIES,
    VOCABULARY,
    N,
    all_replies,
    gpt2,
    gpt2_params,
    table,
)
from tests.support.laws import chance_of

LEFT = np.array([[1, 2, 3, 4], [9, 9, 9, 2], [9, 9, 3, 1]], np.int32) % VOCABULARY
LEFT_MASK = MASK[:, ::-1]
HOLES = np.array([[1, 2, 3, 4], [0, 2, 4, 4], [3, 4, 4, 1]], np.int32)
HOLES_MASK = np.array([[1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 0, 1]], bool)


def generated(library: Backend, prompts: np.ndarray, mask: Any, seed: int = 0, **options: Any) -> Any:
    step, cache = gpt2(library)
    cache = options.pop("cache", cache)
    decoding = frb.text.Decoding(**{"n": N, "replies": REPLIES, "eos": END, "pad": END, **options})
    params = gpt2_params(library)
    made = library.rb.text.generate(step, params, prompts, library.rb.key(seed), decoding, mask=mask, cache=cache)
    return made._make(map(library.numpy, made))


def assert_equal(one: Any, other: Any) -> None:
    for name in ("tokens", "mask", "lengths", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    for name in ("log_probs", "law_log_probs"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5, err_msg=name)


def test_cache_padding_and_turns_change_nothing(library: Backend) -> None:
    expected = generated(library, PROMPTS, MASK)
    assert_equal(generated(library, LEFT, LEFT_MASK.astype(np.int64)), expected)
    assert_equal(generated(library, HOLES, HOLES_MASK), expected)
    assert_equal(generated(library, PROMPTS, MASK, cache=None), expected)
    assert_equal(generated(library, PROMPTS, MASK, at_once=2), expected)
    assert len(set(map(tuple, expected.tokens.tolist()))) > 3  # something was drawn


def torch_logits(row: np.ndarray) -> np.ndarray:
    """What torch's GPT-2 says after each token of a row, for either backend."""
    with backends.make("torch") as torch:
        positions = np.arange(len(row), dtype=np.int32)
        given = map(torch.array, (row[None], positions[None]))
        return torch.numpy(gpt2(torch)[0](gpt2_params(torch), None, *given)[0])[0]


def test_what_is_told_is_what_the_model_says_of_the_rows(library: Backend) -> None:
    """Teacher forcing, of all rows together and of each alone, without any padding."""
    made = generated(library, PROMPTS, MASK)
    rb, (step, _), params = library.rb, gpt2(library), gpt2_params(library)
    joined = made._make(map(library.array, made)).join(PROMPTS, MASK, pad=END)
    told = library.numpy(rb.text.log_probs(step, params, joined.ids, joined.mask))
    ids, mask, reply = map(library.numpy, joined)
    for x, y in zip(made.join(PROMPTS, MASK, pad=END), (ids, mask, reply), strict=True):  # of NumPy's arrays alone
        assert isinstance(x, np.ndarray)
        np.testing.assert_array_equal(x, y)
    np.testing.assert_allclose(told[reply], made.log_probs[made.mask], atol=1e-5)
    np.testing.assert_array_equal(ids[reply], made.tokens[made.mask])
    assert (told[~mask] == 0).all()
    assert (told[:, 0] == 0).all()
    for i in effort([1, 8], range(12)):
        prompt = PROMPTS[i // REPLIES][MASK[i // REPLIES]]
        row = np.concatenate([prompt, made.tokens[i][made.mask[i]]]).astype(np.int32)
        np.testing.assert_array_equal(ids[i][mask[i]], row)
        each = np.float64(torch_logits(row)[:-1])
        each -= np.log(np.exp(each).sum(-1, keepdims=True))
        np.testing.assert_allclose(told[i][mask[i]][1:], each[np.arange(len(row) - 1), row[1:]], atol=1e-5)


def test_log_probs_of_padding_anywhere(library: Backend) -> None:
    step, _ = gpt2(library)
    params = gpt2_params(library)
    told = [
        library.numpy(library.rb.text.log_probs(step, params, ids, mask))
        for ids, mask in ((PROMPTS, MASK), (LEFT, LEFT_MASK), (HOLES, HOLES_MASK))
    ]
    for mask, other in zip((LEFT_MASK, HOLES_MASK), told[1:], strict=True):
        for row in range(3):
            np.testing.assert_allclose(other[row][mask[row]], told[0][row][MASK[row]], atol=1e-5)
        assert (other[~mask] == 0).all()
    some = HOLES_MASK & [[True], [False], [True]]  # a row without any token
    empty = library.numpy(library.rb.text.log_probs(step, params, HOLES, some))
    np.testing.assert_allclose(empty, np.where(some, told[2], 0), atol=1e-5)


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize("law", [(1.0, 5, 1.0), (0.6, 5, 1.0), (1.5, 3, 1.0), (1.0, 5, 0.7), (1.3, 4, 0.8)])
def test_all_replies_sum_to_one_and_are_drawn_by_their_probability(library: Backend, law: Any) -> None:
    """A vocabulary of 5 and replies of 3 tokens at most: each reply as likely as the model, or the law, says."""
    rb, (step, _), params = library.rb, gpt2(library), gpt2_params(library)
    prompt, every = np.array([[1, 3]], np.int32), np.array([*itertools.product(range(5), repeat=3)], np.int32)
    told = library.numpy(rb.text.log_probs(step, params, np.concatenate([np.tile(prompt, (125, 1)), every], 1)))[:, 2:]
    assert np.exp(np.float64(told).sum(1)).sum() == pytest.approx(1.0, abs=1e-5)  # of all 125 rows
    by_model, by_law = all_replies(told, *law)
    assert by_model.sum() == pytest.approx(1.0, abs=1e-5)
    assert by_law.max() < 0.6
    temperature, top_k, top_p = law
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "cache": None}
    made = generated(library, prompt, None, replies=effort(2000, 20000), **options)
    number = made.tokens @ np.array([25, 5, 1])  # behind its end a reply goes on with ends
    assert (by_law[number] > 0).all()
    np.testing.assert_allclose(np.exp(made.log_probs.sum(1)), by_model[number], rtol=1e-4)
    np.testing.assert_allclose(np.exp(made.law_log_probs.sum(1)), by_law[number], rtol=1e-4)
    counts, expected = np.bincount(number, minlength=125), by_law * len(number)
    often = expected >= 5  # the others together
    pairs = [np.append(x[often], x[~often].sum()) for x in (counts, expected / expected.sum() * len(number))]
    if pairs[1][-1] < 1e-9:  # there are none
        pairs = [x[:-1] for x in pairs]
    assert len(pairs[0]) > 8
    assert chance_of(*pairs) > 1e-3


def test_temperature_changes_the_law_and_not_the_models_log_probs(library: Backend) -> None:
    plain = generated(library, PROMPTS, MASK, temperature=1.0)
    np.testing.assert_allclose(plain.law_log_probs, plain.log_probs, atol=1e-5)
    cold = generated(library, PROMPTS, MASK, temperature=0.0)
    rb, (step, _), params = library.rb, gpt2(library), gpt2_params(library)
    joined = cold._make(map(library.array, cold)).join(PROMPTS, MASK, pad=END)
    told = library.numpy(rb.text.log_probs(step, params, joined.ids, joined.mask))
    np.testing.assert_allclose(cold.log_probs[cold.mask], told[library.numpy(joined.reply)], atol=1e-5)
    assert (cold.law_log_probs == 0).all()
    assert (cold.tokens[::REPLIES] == cold.tokens[1::REPLIES]).all()  # all replies are the most likely one
    assert (cold.log_probs[cold.mask] < -0.01).any()


AFTER = np.full((4, 4), -np.inf, np.float32)
# After each token the next one, and after the last the first: what else would be minus infinity.
AFTER[[0, 1, 2, 3], [1, 2, 3, 0]] = 0.0


def test_the_end_is_told_though_padding_is_the_same_token(library: Backend) -> None:
    prompts = np.array([[3, 0], [3, 2], [1, 3], [0, 1]], np.int32)  # an eos in a prompt ends nothing
    made = library.rb.text.generate(
        table, library.array(AFTER), prompts, library.rb.key(0), frb.text.Decoding(2, eos=(1, 0))
    )
    made = made._make(map(library.numpy, made))
    assert made.tokens.tolist() == [[1, 0], [3, 0], [0, 0], [2, 3]]
    assert made.lengths.tolist() == [1, 2, 1, 2]
    assert made.terminated.tolist() == [True, True, True, False]
    assert (made.truncated == ~made.terminated).all()
    assert (made.mask == (np.arange(2) < made.lengths[:, None])).all()
    assert (made.log_probs == 0).all()  # each token is certain, and none became NaN
    assert (made.law_log_probs == 0).all()


def test_what_cannot_be_has_minus_infinity(library: Backend) -> None:
    ids, nothing = np.array([[0, 1, 3, 0]], np.int32), AFTER + np.where(np.arange(4) == 3, -np.inf, 0)[:, None]
    for params, last in ((AFTER, 0.0), (nothing.astype(np.float32), -np.inf)):
        told = library.numpy(library.rb.text.log_probs(table, library.array(params), ids))
        assert told.tolist() == [[0.0, 0.0, -np.inf, last]]


def test_log_probs_have_gradients(library: Backend) -> None:
    logits, ids = np.full((3, 3), -np.inf, np.float32), np.array([[0, 1, 0, 2, 1]], np.int32)
    logits[:2, :2] = np.log([[0.5, 0.5], [0.25, 0.75]])  # what cannot be has no gradient, which is not NaN
    if library.library == "jax":
        import jax

        gradient = jax.jit(jax.grad(lambda params: library.rb.text.log_probs(table, params, ids).sum()))(logits)
    else:
        params = library.array(logits).requires_grad_()
        library.rb.text.log_probs(table, params, ids).sum().backward()
        gradient = params.grad
    expected = [[-0.5, 0.5, 0], [0.75, -0.75, 0], [0, 0, 0]]
    np.testing.assert_allclose(library.numpy(gradient), expected, atol=1e-6)


def test_a_law_that_changes_is_not_compiled_again() -> None:
    import jax

    import jax_backend as rb

    traces = []

    def step(params: Any, cache: Any, ids: Any, positions: Any) -> Any:
        traces.append(ids.shape)
        return params[ids], None

    @jax.jit
    def both(params: Any, temperature: Any, top_k: Any, top_p: Any) -> Any:
        return rb.text.generate(
            step, params, PROMPTS, rb.key(0), frb.text.Decoding(2, temperature, top_k, top_p), mask=MASK
        )

    params = np.eye(5, dtype=np.float32)
    found = [both(params, t, k, p).tokens for t, k, p in ((1.0, 5, 1.0), (0.1, 2, 0.5), (0.0, 1, 0.1))]
    assert traces == [(3, 6)]  # all tokens so far, which are asked about anew for each; the prompts alone never are
    assert (found[2] == PROMPTS[np.arange(3), MASK.sum(1) - 1][:, None]).all()


def test_torch_compiles_it_as_a_whole() -> None:
    import torch

    import torch_backend as rb

    params, prompts, mask = torch.tensor(AFTER), torch.tensor(PROMPTS % 4), torch.tensor(MASK)

    def both(prompts: torch.Tensor) -> Any:
        return rb.text.generate(table, params, prompts, rb.key(1), frb.text.Decoding(effort(1, 3), eos=3), mask=mask)

    compiled = torch.compile(both, fullgraph=True, backend="eager")
    for one, other in zip(compiled(prompts), both(prompts), strict=True):
        assert torch.equal(one, other)


# Of each token the next one follows; of token 3 what a test puts there.
FAILING = np.log(np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], np.float32) + 1e-9)


def failing(library: Backend, bad: float) -> Any:
    params = FAILING.copy()
    params[3] = bad
    return library.array(params)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_law_are_refused(library: Backend, bad: float) -> None:
    """Reply 1 to the second prompt is to go on after its third token; the first prompt's end before."""
    prompts, text = np.array([[3, 0], [3, 1]], np.int32), library.rb.text
    given = table, failing(library, bad), prompts, library.rb.key(0)
    where = r"token 2 of reply 0 to prompt 1: expected logits .* got NaN, infinity or minus infinity alone"
    with pytest.raises(ValueError, match=rf"text.generate: {where}"):
        text.generate(*given, frb.text.Decoding(3, temperature=0.0, replies=2))
    with pytest.raises(ValueError, match=rf"text.generate: {where}"):
        text.rollout(*given, 3, lambda ids, mask, reply: reply.sum(1) * np.float32(1))
    assert text.generate(*given, 2).tokens.tolist() == [[1, 2], [2, 3]]
    assert not library.numpy(text.generate(*given, frb.text.Decoding(3, eos=3, replies=2)).rejected).any()


def test_a_reference_that_tells_nan_is_refused(library: Backend) -> None:
    text, params = library.rb.text, (failing(library, 0.0), failing(library, np.nan))
    with pytest.raises(ValueError, match="the reference's logits of row 1 are NaN or infinite"):
        text.rollout(
            table, params[0], np.array([[0], [1]], np.int32), library.rb.key(0), 3,
            frb.text.Reward(lambda ids, mask, reply: reply.sum(1) * np.float32(1), params[1], 0.1),
        )  # fmt: skip


def test_compiled_programs_leave_out_what_cannot_go_on(library: Backend) -> None:
    """Where the end and the padding are one token, and where nothing is the end; no step is made of such rows."""
    prompts, text, key = library.array(np.array([[0], [2]], np.int32)), library.rb.text, library.rb.key(0)

    def score(ids: Any, mask: Any, reply: Any) -> Any:
        return reply.sum(1) * 1.0

    def program(params: Any) -> Any:
        decoding, reward = frb.text.Decoding(2, eos=0), frb.text.Reward(score, params, 0.1)
        return text.rollout(table, params, prompts, key, decoding, reward)

    if library.library == "jax":
        import jax

        compiled: Any = jax.jit(program)
    else:
        import torch

        compiled = torch.compile(program, fullgraph=True, backend="eager")
    made = compiled(failing(library, np.nan))
    told = {name: getattr(made.generation, name).tolist() for name in ("tokens", "rejected", "terminated", "truncated")}
    assert told == {
        "tokens": [[1, 2], [3, 0]],
        "rejected": [False, True],
        "terminated": [False, False],
        "truncated": [True, False],
    }
    assert library.numpy(made.mask).any(1).tolist() == [True, False]
    assert library.numpy(made.steps["next"]["reward"])[1].tolist() == [0.0] * 2
    assert np.isfinite(library.numpy(made.kl)).all()


@pytest.mark.parametrize(("temperature", "top_p"), [(np.nan, None), (1.0, np.nan), (-1.0, None)])
def test_laws_that_are_arrays_are_looked_at_too(library: Backend, temperature: float, top_p: float | None) -> None:
    law = [None if x is None else library.array(np.float32(x)) for x in (temperature, top_p)]
    decoding = frb.text.Decoding(1, law[0], None, law[1])
    with pytest.raises(ValueError, match=r"expected (temperature as a finite number|top_p as a number above 0)"):
        library.rb.text.generate(table, failing(library, 0.0), PROMPTS % 3, library.rb.key(0), decoding)


@pytest.mark.parametrize("with_prefill", [True, False])
@pytest.mark.parametrize("at_once", effort([2], [1, 2, 4]))
def test_prompts_go_through_the_model_once_and_caches_are_held_for_few(
    library: Backend, at_once: int, with_prefill: bool
) -> None:
    """And where the model has a prefill, it is never asked what comes after a prompt's tokens."""
    seen = []

    def step(params: Any, cache: Any, ids: Any, positions: Any) -> Any:
        assert cache["x"].shape == (ids.shape[0], 4 + N)
        seen.append(tuple(ids.shape))
        assert ids.shape[1] == 1 or not with_prefill
        return params[ids], cache

    def prefill(params: Any, cache: Any, ids: Any, positions: Any) -> Any:
        seen.append(tuple(ids.shape))
        return cache

    if with_prefill:
        step.prefill = prefill

    def cache(rows: int, tokens: int) -> Any:
        return {"x": library.array(np.zeros((rows, tokens), np.float32)), "size": library.array(np.int32(0))}

    params = library.array(np.zeros((5, 5), np.float32))
    decoding = frb.text.Decoding(N, replies=REPLIES, at_once=at_once)
    library.rb.text.generate(step, params, PROMPTS, library.rb.key(0), decoding, mask=MASK, cache=cache)
    tokens = 1 if library.library == "jax" else N * REPLIES // at_once  # traced once for all
    assert seen == [(3, 4)] + [(3 * at_once, 1)] * tokens


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_replies() -> None:
    """What the program holds beside its results, for a GPT-2 whose cache is nearly all of it."""
    import jax

    import jax_backend as rb

    with backends.make("jax") as library:
        (step, cache), params = gpt2(library), gpt2_params(library)
    prompts = np.ones((8, 512), np.int32)
    held = []
    for replies in (2, 32):

        def generate(params: Any, key: Any, replies: int = replies) -> Any:
            return rb.text.generate(
                step, params, prompts, key, frb.text.Decoding(8, replies=replies, at_once=1), cache=cache
            )

        compiled = jax.jit(generate).lower(params, rb.key(0)).compile()
        held.append(compiled.memory_analysis().temp_size_in_bytes)
    caches = 8 * 520 * 8 * 4 * 2 * 2  # rows, tokens, width, bytes, keys and values, layers
    assert held[1] < held[0] + caches


def test_a_cache_that_cannot_be_copied_is_refused() -> None:
    import torch

    import torch_backend as rb

    def kept(params: Any, cache: Any, ids: Any, positions: Any) -> Any:
        return params[ids], cache

    with pytest.raises(TypeError, match="cache: expected a nest of tensors and numbers, got set in it"):
        rb.text.generate(
            kept,
            torch.zeros(5, 5),
            PROMPTS,
            rb.key(0),
            frb.text.Decoding(1, replies=2),
            mask=MASK,
            cache=lambda *_: set(),
        )


FIELDS = [field.name for field in dataclasses.fields(frb.text.Decoding)]
ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"prompts": [[1]]}, TypeError, "prompts: expected an array of"),
    ({"prompts": np.zeros(3, np.int32)}, ValueError, r"prompts: expected shape \[rows, tokens\]"),
    ({"prompts": np.zeros((1, 2), np.float32)}, TypeError, "prompts: expected dtype int32, got float32"),
    ({"mask": np.ones((3, 3), bool)}, ValueError, r"mask: expected shape \[3, 4\], got \[3, 3\]"),
    ({"mask": MASK & [[True], [False], [True]]}, ValueError, "prompt 1 has no token; give each a first one"),
    ({"n": 0}, ValueError, "expected n as an int from 1 on, got 0"),
    ({"temperature": -1.0}, ValueError, "expected temperature as a finite number from 0 on, got -1.0"),
    ({"top_k": 0}, ValueError, "expected top_k as an int from 1 on, got 0"),
    ({"top_p": 1.5}, ValueError, "expected top_p as a number above 0, up to 1, got 1.5"),
    ({"replies": 4, "at_once": 3}, ValueError, "expected at_once to divide replies=4, got 3"),
    ({"eos": "x"}, TypeError, "expected eos as an int, got 'x'"),
    ({"pad": -1}, ValueError, "expected pad as an int from 0 on, got -1"),
    ({"step": None}, TypeError, "expected step as a function, got NoneType"),
    ({"key": 0}, TypeError, "key: expected"),
    ({"step": lambda *given: (given[2], None)}, ValueError, r"step: logits: expected shape \[3, 6, vocabulary\]"),
    ({"step": lambda *given: given[2]}, TypeError, "step: expected a pair of logits and cache"),
]


@pytest.mark.parametrize(("changed", "error", "message"), ERRORS)
def test_errors_say_what_was_expected(
    library: Backend, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"step": table, "params": library.array(np.eye(5, dtype=np.float32)), "prompts": PROMPTS}
    given |= {"mask": MASK, "key": library.rb.key(0)} | {k: x for k, x in changed.items() if k not in FIELDS}
    decoding = frb.text.Decoding(**{"n": 2} | {k: x for k, x in changed.items() if k in FIELDS})
    with pytest.raises(error, match=message):
        library.rb.text.generate(**given, decoding=decoding)
