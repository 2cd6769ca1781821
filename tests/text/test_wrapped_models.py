"""Language models inside of other modules, and with other tensors in place of their own."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import functional_rb as frb
import torch_backend as rb
from tests.support.effort import effort
from tests.text.causal_models import VOCABULARY, made, own_log_probs, padded


class Tuner(torch.nn.Module):
    """As `peft.LoraModel`: what it does not have is the model's."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)


class Peft(torch.nn.Module):
    """As `peft.PeftModelForCausalLM`, whose function names a few arguments and hands on the others."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.base_model = Tuner(model)

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        return self.base_model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)


class Around(torch.nn.Module):
    """A module of somebody's own, without the model's attributes."""

    def __init__(self, policy: torch.nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, **kwargs: Any) -> Any:
        return self.policy(**kwargs)


def wrapped_function(model: Any, keeps_signature: bool = True) -> Any:
    """As accelerate and loggers do: another function on the model itself, closed over its own."""
    old = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return old(*args, **kwargs)

    model.forward = functools.wraps(old)(forward) if keeps_signature else forward
    return model


def partial_function(model: Any) -> Any:
    """As accelerate does where layers lie on several devices."""

    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        return module.old_forward(*args, **kwargs)

    model.old_forward = model.forward
    model.forward = functools.update_wrapper(functools.partial(forward, model), model.old_forward)
    return model


def calling_what_it_wraps(model: Any, partial: bool) -> Any:
    """As hooks do that can be taken off again: what they wrap is found by the function on the model."""

    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        return module.forward.__wrapped__(*args, **kwargs)

    hooked = functools.partial(forward, model) if partial else lambda *args, **kwargs: forward(model, *args, **kwargs)
    model.forward = functools.update_wrapper(hooked, model.forward)
    return model


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "peft": Peft,
    "torch.compile": compiled,
    "compile in place": compiled_in_place,
    "DataParallel": torch.nn.DataParallel,
    "peft of torch.compile": lambda model: Peft(compiled(model)),
    "torch.compile of peft": lambda model: compiled(Peft(model)),
    "DataParallel of an own one": lambda model: torch.nn.DataParallel(Around(model)),
    "functools.wraps": wrapped_function,
    "another function": lambda model: wrapped_function(model, keeps_signature=False),
    "functools.partial": partial_function,
    "a partial's __wrapped__": lambda model: calling_what_it_wraps(model, partial=True),
    "a function's __wrapped__": lambda model: calling_what_it_wraps(model, partial=False),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=effort(2, 30), deadline=None)
def test_replies_of_wrapped_models_have_the_log_probs_that_log_probs_tells(wrapper: str, seed: int) -> None:
    """By the module, by a dict of its tensors, and by the model alone, with padding wherever it is.

    Compiled modules run uncompiled, which compiles nothing for each shape.
    """
    rng = np.random.default_rng(seed)
    bare = made("GPT2", n_layer=1)
    model = WRAPPERS[wrapper](made("GPT2", n_layer=1))
    prompts, mask = rng.integers(2, VOCABULARY, (3, 5)), rng.random((3, 5)) < 0.6
    mask[:, rng.integers(5)] = True
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        step, cache = rb.text.causal_lm(model)
        decoding = frb.text.Decoding(4, replies=2, eos=1)
        replies = rb.text.generate(step, model, prompts, rb.key(seed), decoding, mask=mask, cache=cache)
        rows = replies.join(prompts, mask)
        told = rb.text.log_probs(step, model, rows.ids, rows.mask)
        own = dict(model.named_parameters())
        by_dict = rb.text.log_probs(step, own, rows.ids, rows.mask)
        again = rb.text.generate(step, own, prompts, rb.key(seed), decoding, mask=mask, cache=cache)
        others = {name: x * 0 for name, x in own.items()}  # every token is as likely
        flat = rb.text.log_probs(step, others, rows.ids, rows.mask)[rows.reply]
    assert replies.tokens.tolist() == again.tokens.tolist()
    torch.testing.assert_close(told[rows.reply], replies.log_probs[replies.mask], atol=1e-4, rtol=0)
    torch.testing.assert_close(by_dict, told, atol=1e-4, rtol=0)
    torch.testing.assert_close(flat, torch.full_like(flat, -np.log(VOCABULARY)), atol=1e-4, rtol=0)
    for row in range(len(rows.ids)):
        expected = own_log_probs(bare, rows.ids[row][rows.mask[row]].tolist())
        np.testing.assert_allclose(told[row][rows.mask[row]][1:], expected, atol=1e-4)


@pytest.mark.long
def test_a_compiled_model_replies_as_the_model_does() -> None:
    model = made("GPT2")
    prompts, mask = padded("anywhere")
    found = []
    for one in (model, compiled(model)):
        step, cache = rb.text.causal_lm(one)
        found.append(rb.text.generate(step, one, prompts, rb.key(0), 3, mask=mask, cache=cache))
    assert found[0].tokens.tolist() == found[1].tokens.tolist()
    torch.testing.assert_close(found[0].log_probs, found[1].log_probs, atol=1e-4, rtol=0)


class Fixed(torch.nn.Module):
    """Which hands on what it knows."""

    def __init__(self, policy: torch.nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, input_ids: Any, attention_mask: Any, use_cache: bool, past_key_values: Any = None) -> Any:
        return self.policy(input_ids, past_key_values, attention_mask=attention_mask, use_cache=use_cache)


class Unknown(torch.nn.Module):
    """Whose model is none of its modules."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.config, self.get_output_embeddings = model.config, model.get_output_embeddings

    def forward(self, **kwargs: Any) -> Any:
        raise AssertionError("never called")


class WithValues(Around):
    """As models with a value head in TRL: they give tuples."""

    def forward(self, **kwargs: Any) -> Any:
        told = self.policy(**kwargs)
        return told.logits, told.logits.sum(-1)


def test_what_loses_positions_is_refused() -> None:
    model = made("GPT2", n_layer=1)
    with pytest.raises(TypeError, match=r"Fixed.forward does not take position_ids, which GPT2LMHeadModel needs"):
        rb.text.causal_lm(Fixed(model))
    with pytest.raises(TypeError, match=r"Unknown.forward does not tell whether it takes position_ids; name it there"):
        rb.text.causal_lm(Unknown(model))
    prompt_tuned = Peft(model)
    prompt_tuned.active_peft_config = type("PrefixTuningConfig", (), {"is_prompt_learning": True})()
    with pytest.raises(TypeError, match="Peft puts PrefixTuningConfig's tokens before each row and drops positions"):
        rb.text.causal_lm(prompt_tuned)
    headed = WithValues(model)
    step, _ = rb.text.causal_lm(headed)
    with pytest.raises(
        TypeError, match=r"expected WithValues to give logits by that name, .* got tuple; give the model"
    ):
        rb.text.log_probs(step, headed, *padded("left"))
    step, _ = rb.text.causal_lm(model)
    name = "transformer.wte.weight"
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel has no tensor 'module.*'; expected .* such as 'transf"):
        rb.text.log_probs(step, dict(torch.nn.DataParallel(model).named_parameters()), *padded("left"))
    with pytest.raises(ValueError, match=rf"params: '{name}': expected shape \[11, 16\], got \[10, 16\]"):
        rb.text.log_probs(step, {name: torch.zeros(10, 16)}, *padded("left"))


# --- other tensors in place of a module's own -------------------------------------------------------------------------


@pytest.mark.parametrize("actor_has", ["dict", "module"])
def test_a_dict_in_one_thread_is_nothing_to_another(actor_has: str) -> None:
    """An actor stops in the midst of the model, while a learner asks it by the module, and by another dict."""
    model = made("GPT2", n_layer=1)
    step, _ = rb.text.causal_lm(model)
    own = dict(model.named_parameters())
    params = [model, {name: x.detach() * 0.5 for name, x in own.items()}, {name: x * 2 for name, x in own.items()}]
    rows = padded("right")
    expected = [rb.text.log_probs(step, x, *rows) for x in params]
    assert not torch.allclose(expected[0], expected[1], atol=0.1)
    inside, go_on, told = threading.Event(), threading.Event(), []

    def act() -> None:
        told.append(rb.text.log_probs(step, params[1 if actor_has == "dict" else 0], *rows))

    actor = threading.Thread(target=act)

    def wait(*_: Any) -> None:
        if threading.current_thread() is actor:
            inside.set()
            assert go_on.wait(60)

    model.transformer.h[0].register_forward_pre_hook(wait)
    actor.start()
    try:
        assert inside.wait(60)
        for x, told_before in zip(params, expected, strict=True):
            assert torch.equal(rb.text.log_probs(step, x, *rows), told_before)
        assert model(torch.tensor(rows[0][:1])).logits.isfinite().all()
    finally:
        go_on.set()
        actor.join()
    assert torch.equal(told[0], expected[1 if actor_has == "dict" else 0])
    assert all(x is y for x, y in zip(model.parameters(), own.values(), strict=True))


def test_what_is_computed_again_for_gradients_has_the_same_tensors() -> None:
    """Of a model in training that keeps nothing of its layers, which are gone through again afterwards."""
    model = made("Llama").train()
    step, _ = rb.text.causal_lm(model)
    named = {name: (p.detach() * 0.5).requires_grad_() for name, p in model.named_parameters()}
    found = []
    for kept in (True, False):
        if not kept:
            model.activation_checkpointing_enable()
        told = rb.text.log_probs(step, named, *padded("right"))
        found.append(torch.autograd.grad(told.square().sum(), list(named.values())))
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


def test_a_module_may_change_after_it_was_given() -> None:
    """Its mode, its buffers, and of a dict that names some tensors the others."""
    model = made("GPT2", n_layer=1).train()
    step, _ = rb.text.causal_lm(model)
    rows, name = padded("left"), "transformer.wpe.weight"
    some = {name: model.get_parameter(name).detach() * 2}
    with pytest.raises(ValueError, match="is in training mode"):
        rb.text.log_probs(step, some, *rows)
    model.eval()
    before = rb.text.log_probs(step, some, *rows)
    with torch.no_grad():
        model.transformer.wte.weight.mul_(0.5)  # tied to the head
        after = rb.text.log_probs(step, some, *rows)
        assert not torch.allclose(after, before, atol=0.1)
        model.get_parameter(name).mul_(2)
        torch.testing.assert_close(rb.text.log_probs(step, model, *rows), after)
