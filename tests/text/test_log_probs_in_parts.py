"""Log-probabilities of some rows, or some tokens, at a time: the same ones, with the same gradients, in less memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from functional_rb.text import laws
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.language_models import MASK, PROMPTS, gpt2, gpt2_params, table
from tests.support.versions import is_version
from torch_backend.arrays import in_parts, ops

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


class Largest(TorchDispatchMode):
    """Notes how many new tensors are as large as all logits."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers, self.seen = numbers, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **kwargs or {})
        for x in made if isinstance(made, (tuple, list)) else (made,):
            known = {y.untyped_storage().data_ptr() for y in args if isinstance(y, torch.Tensor)}
            if isinstance(x, torch.Tensor) and x.numel() >= self.numbers:
                self.seen += x.untyped_storage().data_ptr() not in known
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_holds_the_logits_once_and_their_gradient(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    import torch_backend as rb

    monkeypatch.setattr(in_parts, "AT_ONCE", 100)
    ids = torch.randint(0, 40, (8, 6), generator=torch.Generator(torch.get_default_device()).manual_seed(0)).int()
    params = (
        torch.randn(40, 40, generator=torch.Generator(torch.get_default_device()).manual_seed(1))
        .to(dtype)
        .requires_grad_()
    )

    def step(params: Any, cache: Any, ids: Any, positions: Any) -> Any:
        return params[ids], cache

    with Largest(8 * 6 * 40) as made:
        told = rb.text.log_probs(step, params, ids).sum()
    assert made.seen == 1  # the logits
    with Largest(8 * 6 * 40) as made:
        (found,) = torch.autograd.grad(told, params)
    assert made.seen == 1  # their gradient
    monkeypatch.setattr(in_parts, "AT_ONCE", 10**6)
    (plain,) = torch.autograd.grad(rb.text.log_probs(step, params, ids).sum(), params)
    torch.testing.assert_close(found, plain, atol=1e-6 if dtype is torch.float32 else 0.05, rtol=0)


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


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # which torch.func.jvp uses
def test_parts_on_torch_have_all_kinds_of_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `backward`, twice too, and those of `torch.func`; with logits that are minus infinity among them."""
    x = torch.randn(
        3, 4, 7, dtype=torch.float64, generator=torch.Generator(torch.get_default_device()).manual_seed(0)
    ).float()
    x[0, 0, :3] = x[1, 1] = x[2, 2, 1:] = -torch.inf
    y = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 0], [1, 2, 0, 4]], dtype=torch.int32)
    by = torch.arange(12.0).reshape(3, 4)

    def told(x: torch.Tensor) -> torch.Tensor:
        return ops.by_places(partial(laws.log_probs_of, ops), partial(laws.log_prob_slopes, ops), x, y)

    def loss(x: torch.Tensor) -> torch.Tensor:
        found = told(x)
        return (torch.where(found.isinf(), 0, found) * by).sum()

    expected = {}
    for at_once in (10**6, 14):
        monkeypatch.setattr(in_parts, "AT_ONCE", at_once)
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
        (second,) = torch.autograd.grad((first * x.clamp_min(-9)).sum(), leaf)
        leaf = x.clone().requires_grad_()
        (straight,) = torch.autograd.grad(told(leaf), leaf, by)  # also of what cannot be
        found = [
            told(x),
            straight,
            first.detach(),
            second,
            torch.func.grad(loss)(x),
            torch.func.jvp(loss, (x,), (x.exp(),))[1],
        ]
        expected[at_once] = found
    for one, other in zip(*expected.values(), strict=True):
        assert not one.isnan().any()
        torch.testing.assert_close(one, other)
    assert (expected[14][1][1, 1] == 0).all()
    assert (expected[14][1][0, 0] == 0).all()


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
