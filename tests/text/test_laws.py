"""The law that tokens are drawn from: exact, the same on both backends, never NaN; and its gradients in parts."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from functional_rb.ops.fixed_point import Fixed
from functional_rb.text import laws
from jax_backend.arrays import ops as jax_ops
from tests.support import backends
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.language_models import law_of
from torch_backend.arrays import in_parts
from torch_backend.arrays import ops as torch_ops

LAWS = [(1.0, None, None), (0.5, None, None), (2.0, 3, None), (1.0, None, 0.7), (0.8, 4, 0.9), (1.0, 1, None)]
# How many rows are drawn at a time, and 5 tokens of each: JAX compiles for few shapes.
N = 2**12


def choose(library: Backend, logits: np.ndarray, bits: np.ndarray, *law: Any) -> laws.Choice:
    """What is drawn; all numbers of the law are given, unless it has a temperature alone."""
    ops: Any = importlib.import_module(f"{library.library}_backend.arrays.ops")
    if law[1:] != (None, None):
        law = (law[0], law[1] or logits.shape[1], law[2] or 1.0)
    dtypes = (np.float32, np.int32, np.float32)
    numbers = [None if x is None else library.array(dtype(x)) for x, dtype in zip(law, dtypes, strict=True)]
    drawn = {"jax": draw_compiled, "torch": functools.partial(laws.choose, ops)}[library.library]
    return laws.Choice(*map(library.numpy, drawn(*map(library.array, (logits, bits)), laws.Law(*numbers))))


@jax.jit
def draw_compiled(logits: Any, bits: Any, law: laws.Law) -> laws.Choice:
    return laws.choose(jax_ops, logits, bits, law)


def evenly() -> np.ndarray:
    """Draws that divide [0, 1) evenly, int32 [N, 2]: the middle of each of N parts."""
    return np.stack([(2 * np.arange(N, dtype=np.int64) + 1) * 2**30 // N, np.zeros(N)], 1).astype(np.int32)


def rows(*logits: float) -> np.ndarray:
    """N rows of 5 logits, what is missing minus infinity."""
    return np.tile(np.array((*logits, *(-np.inf,) * (5 - len(logits))), np.float32), (N, 1))


@pytest.mark.parametrize("law", LAWS)
def test_all_draws_together_are_the_law(library: Backend, law: tuple[Any, ...]) -> None:
    logits = rows(0.3, -1.0, 2.0, -np.inf, 0.3)
    made = choose(library, logits, evenly(), *law)
    expected = law_of(logits[0], *law)
    # Each token gets an interval of the draws: their number is off by less than one at each end.
    np.testing.assert_allclose(np.bincount(made.token, minlength=5) / N, expected, rtol=0, atol=1.01 / N)
    np.testing.assert_allclose(np.exp(made.law_log_prob), expected[made.token], rtol=1e-6)
    model = law_of(logits[0], 1.0, None, None)
    np.testing.assert_allclose(np.exp(made.log_prob), model[made.token], rtol=1e-6)


@pytest.mark.parametrize(
    ("law", "among"),
    [((1.0, 2, None), {0, 1}), ((1.0, None, 0.5), {0, 1}), ((1.0, None, 0.5001), {0, 1, 2}), ((0.0, None, None), {0})],
)
def test_equal_tokens_come_in_their_order(library: Backend, law: tuple[Any, ...], among: set[int]) -> None:
    made = choose(library, rows(1.0, 1.0, 1.0, 1.0), evenly(), *law)
    assert set(made.token.tolist()) == among


def test_greedy_has_no_law_but_the_models_log_probs(library: Backend) -> None:
    made = choose(library, rows(0.0, 1.0, 1.0), evenly(), 0.0, None, None)
    assert set(made.token.tolist()) == {1}
    assert set(made.law_log_prob.tolist()) == {0.0}
    np.testing.assert_allclose(made.log_prob, -np.log(2 + np.exp(-1)), rtol=1e-6)


def test_the_last_bit_of_a_draw_counts(library: Backend) -> None:
    """The first token has the probability 1/2 exactly: the largest draw below it, and the smallest that is not."""
    bits = np.array([[2**30 - 1, 2**31 - 1], [2**30, 0], [0, 0], [2**31 - 1, 2**31 - 1]], np.int32)
    made = choose(library, rows(0.0, 0.0), np.tile(bits, (N // 4, 1)), 1.0, None, None)
    assert made.token[:4].tolist() == [0, 1, 0, 1]


def test_every_token_is_drawn_though_it_is_rare(library: Backend) -> None:
    """2^-38 of the probability: the last draws of all, which one word of bits does not tell apart."""
    rare = rows(0.0, -38 * np.log(2))
    bits = np.tile(np.array([[2**31 - 1, 2**31 - 1], [2**31 - 1, 2**31 - 2**27]], np.int32), (N // 2, 1))
    made = choose(library, rare, bits, 1.0, None, None)
    assert made.token[:2].tolist() == [1, 0]


@pytest.mark.parametrize("vocabulary", effort([1000], [1000, 50257, 1_000_000]))
def test_probabilities_are_those_of_exact_arithmetic(vocabulary: int) -> None:
    logits = (np.random.default_rng(0).normal(size=(2, vocabulary)) * 6).astype(np.float32)
    given = torch.tensor(logits)
    whole, fraction = laws._weights(torch_ops, given, given > -torch.inf, torch.tensor(0.7))
    assert whole.sum(1, dtype=torch.int64).max() < 2**30
    weights = (whole.double() + fraction.double() / 2**31).numpy()
    exact = np.exp((np.float64(logits) - logits.max(1, keepdims=True)) / float(np.float32(0.7)))
    apart = weights / weights.sum(1, keepdims=True) - exact / exact.sum(1, keepdims=True)
    assert np.abs(apart).sum(1).max() / 2 < 1e-7
    allowed = 2.0**-18 * exact + 2.0**-39
    assert (np.abs(weights / weights.max(1, keepdims=True) - exact) < allowed).all()


def test_sums_and_shares_are_exact() -> None:
    """Numbers of two words, against Python's own; on torch, as JAX draws the same tokens."""
    rng = np.random.default_rng(0)
    whole, fraction = rng.integers(0, 2**20, (100, 300)), rng.integers(0, 2**31, (100, 300))
    u = rng.integers(0, 2**31, (2, 100))
    u[:, 0] = 2**31 - 1
    whole[1], fraction[1], u[:, 1] = 0, np.arange(300) == 0, (0, 1)  # the smallest number there is
    given = [torch.tensor(x, dtype=torch.int32) for x in (whole, fraction, *u)]
    sums = laws._running(torch_ops, *given[:2])
    exact = np.cumsum(whole.astype(object) * 2**31 + fraction, 1)
    assert (np.array(sums.whole.tolist(), object) * 2**31 + np.array(sums.fraction.tolist(), object) == exact).all()
    share, is_exact = laws._share(torch_ops, Fixed(*given[2:]), Fixed(sums.whole[:, -1], sums.fraction[:, -1]))
    products = (u[0].astype(object) * 2**31 + u[1]) * exact[:, -1]
    assert [w * 2**31 + f for w, f in zip(share.whole.tolist(), share.fraction.tolist(), strict=True)] == [
        p // 2**62 for p in products
    ]
    assert is_exact.tolist() == [p % 2**62 == 0 for p in products]


def test_top_p_keeps_what_less_than_it_is_before() -> None:
    """Of exact numbers: also where that differs from top_p of the total by less than two words tell."""
    rng = np.random.default_rng(0)
    whole, fraction = rng.integers(0, 2**20, (100, 4)), rng.integers(0, 2**31, (100, 4))
    top_p = rng.integers(1, 2**24, 100) / 2**24
    whole[0], fraction[0], top_p[0] = (2**27, 8, 0, 0), (0, 0, 2**10, 1), 1 - 2.0**-24  # 2^-31 - 2^-45 - 2^-55 more
    whole[1], fraction[1], top_p[1] = (2**27, 2**27, 0, 0), (0, 0, 0, 0), 0.5  # as much
    for p in np.unique(top_p):
        rows = top_p == p
        given = [torch.tensor(x[rows], dtype=torch.int32) for x in (whole, fraction)]
        sums = laws._running(torch_ops, *given)
        kept = laws._within(torch_ops, sums, Fixed(*(x[:, -1] for x in sums)), torch.tensor(p, dtype=torch.float32))
        reach = np.cumsum(whole[rows].astype(object) * 2**31 + fraction[rows], 1)
        before = np.concatenate([reach[:, :1] * 0, reach[:, :-1]], 1)
        assert (kept.numpy() == (before * 2**24 < int(p * 2**24) * reach[:, -1:])).all()


@pytest.mark.parametrize("vocabulary", effort([300], [1, 2, 7, 3000, 50257, 70000]))
def test_backends_draw_the_same_tokens(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = (rng.normal(size=(64, vocabulary)) * 4).round(1).astype(np.float32)  # rounded, so that some are equal
    logits[:, 1::5] = -np.inf
    bits = rng.integers(0, 2**31, (64, 2)).astype(np.int32)
    for law in LAWS[2:5]:
        made = []
        for name in ("jax", "torch"):
            with backends.make(name) as library:
                made.append(choose(library, logits, bits, *law))
        np.testing.assert_array_equal(made[0].token, made[1].token)
        for x, y in zip(made[0][1:], made[1][1:], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
            assert np.isfinite(x).all()


# Logits that say of no token how likely it is.
BAD = np.array(
    [[np.nan, 0, 0, 0, 0], [0, 0, 0, 0, np.nan], [np.inf, 0, 0, 0, 0], [np.inf, -np.inf, 0, np.nan, 1], [-np.inf] * 5],
    np.float32,
)


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize("law", [*LAWS[:3], LAWS[4], (0.0, None, None)])
def test_nothing_is_drawn_without_a_law(library: Backend, law: tuple[Any, ...]) -> None:
    """The rows beside are drawn as ever."""
    logits = rows(0.3, -1.0, 2.0, -np.inf, 0.3)
    expected = choose(library, logits, evenly(), *law)
    assert expected.drawn.all()
    logits[: len(BAD)] = BAD
    made = choose(library, logits, evenly(), *law)
    assert made.drawn.nonzero()[0].tolist() == list(range(len(BAD), N))
    for x, y in zip(made[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(x[len(BAD) :], y[len(BAD) :])
    told = {
        "jax": jax.jit(functools.partial(laws.log_probs_of, jax_ops)),
        "torch": functools.partial(laws.log_probs_of, torch_ops),
    }[library.library]
    log_probs = [library.numpy(told(library.array(BAD), library.array(np.full(5, k, np.int32)))) for k in range(5)]
    assert np.isnan(log_probs)[:, :4].all()
    assert (np.array(log_probs)[:, 4] == -np.inf).all()


@pytest.mark.parametrize(
    "law", [(np.nan, 5, 1.0), (np.inf, 5, 1.0), (-1.0, 5, 0.5), (1.0, -1, 1.0), (1.0, 5, np.nan), (1.0, 5, -1.0)]
)
def test_nothing_is_drawn_by_numbers_that_are_no_law(library: Backend, law: tuple[Any, ...]) -> None:
    assert not choose(library, rows(0.3, -1.0, 2.0, -np.inf, 0.3), evenly(), *law).drawn.any()


# --- many at a time, on torch, and their gradients --------------------------------------------------------------------


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
        log_probs, slopes = (functools.partial(f, torch_ops) for f in (laws.log_probs_of, laws.log_prob_slopes))
        return torch_ops.by_places(log_probs, slopes, x, y)

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
