"""Log-probabilities of some rows, or some tokens, at a time: the same ones, with the same gradients, in less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.language_models import MASK, PROMPTS, gpt2, gpt2_params, table
from tests.support.versions import is_version

HOLES = np.array([[1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 0, 1]], bool)
PARTS: dict[str, dict[str, Any]] = {
    "a row": {"rows_at_once": 1},
    "two rows": {"rows_at_once": 2},  # of three: the last group is filled up
    "all rows": {"rows_at_once": 9},
    "a token": {"tokens_at_once": 1},
    "three tokens": {"tokens_at_once": 3},  # of four
    "both": {"rows_at_once": 2, "tokens_at_once": 2},
}


@pytest.mark.parametrize("name", effort(["two rows", "both"], list(PARTS)))
def test_parts_give_the_same(library: Backend, name: str) -> None:
    step, cache = gpt2(library)
    options = PARTS[name] | ({"cache": cache} if "tokens_at_once" in PARTS[name] else {})
    told, params = library.rb.text.log_probs, gpt2_params(library)
    for mask in (MASK, HOLES, HOLES & [[True], [False], [True]]):
        found = library.numpy(told(step, params, PROMPTS, mask, **options))
        np.testing.assert_allclose(found, library.numpy(told(step, params, PROMPTS, mask)), atol=1e-5)


@pytest.mark.parametrize("name", effort(["two rows"], list(PARTS)))
@pytest.mark.parametrize("model", effort(["table"], ["table", "gpt2"]))
def test_parts_have_the_same_gradients(library: Backend, name: str, model: str) -> None:
    options = dict(PARTS[name])
    step, cache = (table, lambda *_: None) if model == "table" else gpt2(library)
    if "tokens_at_once" in options:
        options["cache"] = cache
    by = np.random.default_rng(0).normal(size=PROMPTS.shape).astype(np.float32)
    found = []
    for more in ({}, options):

        def loss(params: Any, more: Any = more) -> Any:
            return (library.rb.text.log_probs(step, params, PROMPTS, HOLES, **more) * library.array(by)).sum()

        values = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
        params = library.array(values) if model == "table" else gpt2_params(library)
        if library.library == "jax":
            import jax

            found.append(jax.tree.leaves(jax.jit(jax.grad(loss))(params)))
        else:
            leaves = [x.requires_grad_() for x in torch.utils._pytree.tree_leaves(params)]
            found.append(torch.autograd.grad(loss(params), leaves))
    assert any(abs(library.numpy(x)).max() > 0.01 for x in found[0])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(library.numpy(one), library.numpy(other), atol=1e-5)


def test_what_does_not_fit_is_refused(library: Backend) -> None:
    told, params = library.rb.text.log_probs, library.array(np.zeros((5, 5), np.float32))
    for options, message in (
        ({"tokens_at_once": 1}, "tokens_at_once was given without cache; give both"),
        ({"cache": lambda *_: None}, "cache was given without tokens_at_once; give both"),
        ({"rows_at_once": 0}, "expected rows_at_once as an int from 1 on, got 0"),
    ):
        with pytest.raises(ValueError, match=f"text.log_probs: {message}"):
            told(table, params, PROMPTS, **options)


def test_the_logits_of_a_compiled_program_are_those_of_a_part() -> None:
    import jax

    import jax_backend as rb

    rows, width, vocabulary = 8, 32, 2048
    ids = np.zeros((rows, width), np.int32)
    params = np.zeros((4, vocabulary), np.float32)

    def step(params: Any, cache: Any, ids: Any, positions: Any) -> Any:
        return jax.numpy.tanh(params[ids]), cache

    def held(gradient: bool = False, **options: Any) -> float:
        """Bytes beside arguments and results, in those of all logits."""

        def told(params: Any) -> Any:
            return rb.text.log_probs(step, params, ids, **options).sum()

        program = jax.jit(jax.grad(told) if gradient else told).lower(params).compile()
        return float(program.memory_analysis().temp_size_in_bytes) / (rows * width * vocabulary * 4)

    def cache(rows: int, tokens: int) -> Any:
        return jax.numpy.zeros((rows, 1))

    # The logits, of which there is no float32 copy, nor a softmax. An older XLA splits sums of many numbers, and holds
    # the exponentials that it adds up.
    all_logits = 1.2 if is_version(jax, "0.10.2") else 2.2
    assert held() < all_logits
    assert held(rows_at_once=1) < all_logits / 8
    assert held(tokens_at_once=4, cache=cache) < all_logits / 8
    assert held(gradient=True, rows_at_once=1) < 0.6  # what one row needs, and none of the others is kept


def test_what_torch_computes_of_rows_is_computed_again_for_gradients() -> None:
    import torch_backend as rb

    calls = []

    def step(params: Any, cache: Any, ids: Any, positions: Any) -> Any:
        calls.append(tuple(ids.shape))
        return params[ids], cache

    params = torch.zeros(5, 5, requires_grad=True)
    told = rb.text.log_probs(step, params, PROMPTS, rows_at_once=1)
    assert calls == [(1, 4)] * 3
    told.sum().backward()
    assert calls == [(1, 4)] * 6
    with torch.no_grad():
        rb.text.log_probs(step, params, PROMPTS, rows_at_once=2)
    assert calls[6:] == [(2, 4)] * 2


@pytest.mark.long
def test_torch_compiles_parts() -> None:
    import torch_backend as rb

    def told(params: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return rb.text.log_probs(table, params, ids, rows_at_once=2)

    params, ids = (
        torch.randn(5, 5, generator=torch.Generator(torch.get_default_device()).manual_seed(0)),
        torch.tensor(PROMPTS),
    )
    found = torch.compile(told, fullgraph=True, backend="aot_eager")(params.requires_grad_(), ids)
    expected = told(params, ids)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), params) for x in (found, expected)))
