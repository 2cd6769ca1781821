"""Models of Hugging Face in `rb.text`: what they generate by themselves is what they generate here."""

from __future__ import annotations

import itertools
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support import backends
from tests.support.effort import effort
from tests.support.language_models import LAYERS, gpt2
from tests.support.laws import chance_of
from tests.text.causal_models import EOS, KINDS, PAD, TEXTS, VOCABULARY, made, own_log_probs, padded

N = 6


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {kind: made(kind) for kind in KINDS}


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_its_own_generate(models: dict[str, Any], kind: str, static: bool) -> None:
    model = models[kind]
    ids, mask = (torch.tensor(x) for x in padded("left"))
    expected = model.generate(ids, attention_mask=mask.long(), max_new_tokens=N, do_sample=False)[:, ids.shape[1] :]
    step, cache = rb.text.causal_lm(model, static=static)
    for side in ("left", "right", "anywhere"):
        ours, where = padded(side)
        given = (step, model, ours, rb.key(0), frb.text.Decoding(N, temperature=0, eos=EOS, pad=PAD))
        found = rb.text.generate(*given, mask=where, cache=cache)
        assert found.tokens.tolist() == expected.tolist(), side
        if static:
            continue
        without = rb.text.generate(*given, mask=where)
        assert without.tokens.tolist() == expected.tolist(), side
    assert set(found.terminated.tolist()) == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_are_its_own(models: dict[str, Any], kind: str) -> None:
    """Of replies by another law, padded and beside each other, when they are made and when they are given."""
    model, (step, cache) = models[kind], rb.text.causal_lm(models[kind])
    decoding, seen = frb.text.Decoding(N, 1.5, top_k=7, replies=3, eos=EOS, pad=EOS), []
    for side in effort(("left", "anywhere"), ("left", "right", "anywhere")):
        prompts, mask = padded(side)
        found = rb.text.generate(step, model, prompts, rb.key(1), decoding, mask=mask, cache=cache)
        rows = found.join(prompts, mask)
        seen.append(found.tokens.tolist())
        told = rb.text.log_probs(step, model, rows.ids, rows.mask).detach()
        for row in effort(range(0, 15, 2), range(15)):
            text = rows.ids[row][rows.mask[row]].tolist()
            expected = own_log_probs(model, text)
            np.testing.assert_allclose(told[row][rows.mask[row]][1:], expected, atol=1e-4)
            reply = found.log_probs[row][found.mask[row]]
            np.testing.assert_allclose(reply, expected[-len(reply) :], atol=1e-4)
    assert seen[0] == seen[1] == seen[-1]  # padding changes nothing about what is drawn
    assert len({tuple(x) for x in seen[0]}) > 6


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_of_some_tokens_at_a_time_are_those_of_all(models: dict[str, Any], kind: str) -> None:
    """Wherever padding is: the last three tokens, and a state, would be others if it stood between tokens."""
    model, (step, cache) = models[kind], rb.text.causal_lm(models[kind])
    for side in effort(("right", "anywhere"), ("left", "right", "anywhere")):
        given = (step, model, *padded(side))
        with torch.no_grad():
            expected = rb.text.log_probs(*given)
            for some in effort((4,), (1, 2, 4, 5)) if kind != "Mamba" else (1,):
                found = rb.text.log_probs(*given, tokens_at_once=some, cache=cache, rows_at_once=3)
                torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    if kind == "Mamba":
        with pytest.raises(ValueError, match=r"MambaForCausalLM remembers a state .* give tokens_at_once=1"):
            rb.text.log_probs(*given, tokens_at_once=2, cache=cache)


def test_some_rows_at_a_time_have_the_gradients_of_all(models: dict[str, Any]) -> None:
    model = models["Llama"]
    step, _ = rb.text.causal_lm(model)
    found = []
    for some in (None, 2):
        model.zero_grad()
        rb.text.log_probs(step, model, *padded("anywhere"), rows_at_once=some).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
    model.zero_grad()


def test_log_probs_have_the_gradients_of_the_model(models: dict[str, Any]) -> None:
    """Of the module's own parameters, and of a dict's in place of them."""
    model = models["Llama"]
    step, _ = rb.text.causal_lm(model)
    ids, mask = padded("anywhere")
    model.zero_grad()
    rb.text.log_probs(step, model, ids, mask).sum().backward()
    named = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    rb.text.log_probs(step, named, ids, mask).sum().backward()
    by_module = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for text in TEXTS:
        if len(text) > 1:
            row = torch.tensor([text])
            model(row).logits[0, :-1].log_softmax(-1).gather(1, row[0, 1:, None]).sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(by_module[name], p.grad, atol=1e-3, rtol=1e-3, msg=name)
        torch.testing.assert_close(named[name].grad, p.grad, atol=1e-3, rtol=1e-3, msg=name)


def test_all_replies_are_drawn_by_their_probability_beside_longer_prompts() -> None:
    """A vocabulary of 5 and replies of 3 tokens: 125 of them, after a prompt that is padded."""
    model = made("GPT2", vocab_size=5, initializer_range=0.3)
    step, cache = rb.text.causal_lm(model)
    every = [*itertools.product(range(5), repeat=3)]
    expected = np.exp([own_log_probs(model, [2, 4, *reply])[1:].sum() for reply in every])
    assert expected.sum() == pytest.approx(1, abs=1e-5)
    prompts, mask = np.array([[3, 0, 1, 1], [2, 0, 4, 0]]), np.array([[1, 1, 1, 1], [1, 0, 1, 0]])
    decoding = frb.text.Decoding(3, replies=effort(3000, 30000), at_once=1500)
    found = rb.text.generate(step, model, prompts, rb.key(5), decoding, mask=mask, cache=cache)
    drawn = found.tokens.numpy().reshape(2, -1, 3)[1] @ np.array([25, 5, 1])
    counts = np.bincount(drawn, minlength=125)
    often = expected * len(drawn) >= 5  # the others together
    pairs = [np.append(x[often], x[~often].sum()) for x in (counts, expected * len(drawn) / expected.sum())]
    assert often.sum() > 20
    assert chance_of(*pairs) > 1e-3


def test_a_rollout_pays_the_score_once_and_keeps_to_a_reference_of_other_parameters(models: dict[str, Any]) -> None:
    model = models["GPT2"]
    step, cache = rb.text.causal_lm(model)
    reference = {name: p.detach() * 0.9 for name, p in model.named_parameters()}
    other = made("GPT2")
    other.load_state_dict(reference, strict=False)
    prompts, mask = padded("left")
    rolled = rb.text.rollout(
        step, model, prompts, rb.key(3), frb.text.Decoding(N, eos=EOS, pad=EOS, replies=2, at_once=1),
        frb.text.Reward(lambda ids, mask, reply: reply.sum(1) * 1.0, reference, 0.3), mask=mask, cache=cache,
    )  # fmt: skip
    for row in range(len(TEXTS) * 2):
        text = rolled.joined.ids[row][rolled.joined.mask[row]].tolist()
        length = int(rolled.generation.lengths[row])
        apart = (own_log_probs(model, text) - own_log_probs(other, text))[-length:]
        assert abs(apart).sum() > 0.01
        np.testing.assert_allclose(rolled.kl[row], apart.sum(), atol=1e-4)
        expected = -0.3 * apart
        expected[-1] += length  # the score, which is the reply's length
        reward = rolled.steps["next"]["reward"][row]
        np.testing.assert_allclose(reward[rolled.steps["reply"][row]], expected, atol=1e-4)
        assert (reward[~rolled.steps["reply"][row]] == 0).all()


@pytest.mark.parametrize("at_once", [1, 3])
def test_replies_share_the_cache_of_their_prompt(models: dict[str, Any], at_once: int) -> None:
    """The prompts go through the model once, one column of their logits at most; caches of at_once replies live."""
    model, (step, cache) = models["Llama"], rb.text.causal_lm(models["Llama"])
    seen: list[tuple[int, ...]] = []
    held: list[Any] = []
    most = 0

    def note(module: Any, given: Any, options: Any) -> None:
        nonlocal most
        seen.append(tuple(options["input_ids"].shape))
        past = options["past_key_values"]
        if all(past is not x() for x in held):
            held.append(weakref.ref(past))
        most = max(most, sum(x() is not None for x in held))

    told: list[tuple[int, ...]] = []
    hooks = [
        model.register_forward_pre_hook(note, with_kwargs=True),
        model.lm_head.register_forward_hook(lambda *given: told.append(tuple(given[2].shape))),
    ]
    prompts, mask = padded("right")
    decoding = frb.text.Decoding(2, replies=3, at_once=at_once)
    rb.text.generate(step, model, prompts, rb.key(0), decoding, mask=mask, cache=cache)
    for hook in hooks:
        hook.remove()
    rows = len(TEXTS)
    assert seen == [(rows, 6)] + [(rows * at_once, 1)] * (2 * 3 // at_once)
    assert told[0] == (rows, 1, VOCABULARY)
    assert most == 2  # the prompts' and that of the replies under way


@pytest.mark.parametrize(("kind", "static"), [("Llama", False), ("Llama", True), ("Mamba", False)])
def test_no_reply_writes_into_the_cache_of_its_prompt(models: dict[str, Any], kind: str, static: bool) -> None:
    model, (step, cache) = models[kind], rb.text.causal_lm(models[kind], static)
    prompts, mask = padded("anywhere")
    tokens = [
        rb.text.generate(
            step, model, prompts, rb.key(0), frb.text.Decoding(4, replies=6, at_once=at_once), mask=mask, cache=cache
        ).tokens.tolist()
        for at_once in (1, 2, 6)
    ]
    assert tokens[0] == tokens[1] == tokens[2]


def test_gpt2_as_a_function_reads_its_files(models: dict[str, Any], tmp_path: Path) -> None:
    """That of the examples on JAX, and the tests' on torch, which a real model's logits are compared with."""
    import gpt2_jax
    import jax
    from safetensors.numpy import load_file, save_file

    model, path = models["GPT2"], tmp_path / "model.safetensors"
    model.save_pretrained(tmp_path)
    older = load_file(path)  # files have had masks in them, and the tied layer
    older |= {f"transformer.h.{i}.attn.bias": np.ones((1, 1, 16, 16), bool) for i in range(LAYERS)}
    save_file(older | {"lm_head.weight": older["transformer.wte.weight"] + 0}, tmp_path / "older.safetensors")
    params = gpt2_jax.load(path)
    assert params.keys() == gpt2_jax.load(tmp_path / "older.safetensors").keys()
    ids, mask = (x for x in padded("left"))
    positions = np.where(mask, mask.cumsum(1) - 1, -1).astype(np.int32)
    given = {"attention_mask": torch.tensor(mask).long(), "position_ids": torch.tensor(positions).clamp_min(0)}
    with torch.no_grad():
        expected = model(torch.tensor(ids), **given).logits.numpy()
    assert np.abs(expected).max() > 1
    for name in ("jax", "torch"):
        with backends.make(name) as library:
            step, _ = gpt2(library)
            step = jax.jit(step) if name == "jax" else step
            told, _ = step(library.tree(params), None, library.array(ids.astype(np.int32)), library.array(positions))
            found = library.numpy(told)
        np.testing.assert_allclose(found[mask], expected[mask], atol=1e-4)
        assert np.isfinite(found).all()  # of padding too


def test_what_would_be_wrong_is_refused(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = models["GPT2"]
    step, cache = rb.text.causal_lm(model)
    prompts, mask = padded("left")
    with pytest.raises(TypeError, match=r"params: expected the model or a dict of its tensors, got list"):
        rb.text.log_probs(step, [], prompts, mask)
    with pytest.raises(TypeError, match="expected a model of transformers, got Linear"):
        rb.text.causal_lm(torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match="GPT2Model does not tell which token comes next; load the model by Auto"):
        rb.text.causal_lm(model.transformer)
    model.train()
    try:
        with pytest.raises(ValueError, match=r"GPT2LMHeadModel is in training mode, .*; call model.eval\(\)"):
            rb.text.log_probs(step, model, prompts, mask)
    finally:
        model.eval()
    undropped = models["Llama"].train()  # which has nothing to drop out
    try:
        step, cache = rb.text.causal_lm(undropped)
        rb.text.log_probs(step, undropped, prompts, mask)
        with pytest.raises(ValueError, match="may forget its cache"):
            rb.text.generate(step, undropped, prompts, rb.key(0), 1, mask=mask, cache=cache)
    finally:
        undropped.eval()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"needs transformers: pip install '\.\[text\]' in a checkout"):
        rb.text.causal_lm(model)
