"""Numbers that are given as whatever may hold one: what has no value, or another kind of one, is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend
from tests.mixture.mixtures import SKEWED, filled, pair
from tests.support.backends import Backend

META = torch.tensor([0.5, 0.5], device="meta")


def two() -> frb.Mixture:
    return frb.Mixture([filled(torch_backend, SKEWED, first, 4) for first in (0, 10)])


@pytest.mark.parametrize("draw", [torch_backend.sample, torch_backend.sample_])
@pytest.mark.parametrize("make", [lambda: filled(torch_backend, SKEWED, 0, 4), two], ids=["buffer", "mixture"])
def test_a_beta_on_meta_has_no_number(draw: Any, make: Any) -> None:
    state = make()
    with pytest.raises(ValueError, match="expected a number, got a tensor on meta, which has none; give one on cpu"):
        draw(state, torch_backend.key(0), 4, beta=META[0])
    assert torch_backend.sample(state, torch_backend.key(0), 4)[1].weights.isfinite().all()


@pytest.mark.parametrize("p", [META, [META[0], 0.5], [0.5, META[0]]], ids=["array", "first", "last"])
def test_shares_on_meta_have_no_numbers(p: Any) -> None:
    mixture = two()
    with pytest.raises(ValueError, match="expected a number, got a tensor on meta, which has none; give one on cpu"):
        torch_backend.sample(mixture, torch_backend.key(0), 4, p=p)
    if isinstance(p, list):
        with pytest.raises(TypeError, match="Mixture: p: expected 2 numbers, or an array of them"):
            frb.Mixture(mixture.states, p)


SHARES: dict[str, Any] = {
    "complex": lambda array: np.complex64(1),
    "an array of complex": lambda array: array(np.complex64(1)),
    "one element": lambda array: array(np.ones(1, np.float32)),
    "too large": lambda array: 10**400,
    "a text": lambda array: np.str_("1"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SHARES)
def test_shares_are_single_real_numbers(library: Backend, name: str) -> None:
    mixture = pair(library)
    p = [0.5, SHARES[name](library.array)]
    with pytest.raises(TypeError, match=r"^Mixture: p: expected 2 numbers, or an array of them, got"):
        frb.Mixture(mixture.states, p)
    with pytest.raises((TypeError, ValueError), match=r"^sample: p: expected .*numbers"):
        library.rb.sample(mixture, library.rb.key(0), 2, p=p)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("listed", [True, False], ids=["list", "array"])
def test_a_mixture_keeps_shares_without_their_history(listed: bool) -> None:
    """Nor does it change by what is written to their array later."""
    p = torch.tensor([1.0, 0.0]).requires_grad_()
    mixture = frb.Mixture(two().states, list(p) if listed else p)
    with torch.no_grad():
        p.copy_(torch.tensor([0.0, 1.0]))
    assert mixture.p is None or not mixture.p.requires_grad
    _, sample = torch_backend.sample(mixture, torch_backend.key(0), 4)
    assert sample.extras["buffer_ids"].tolist() == [0] * 4


@pytest.mark.parametrize("seed", [1.0, 1j, "1", None, [1], np.float64(1), np.ones(1, np.int64)], ids=repr)
def test_a_seed_is_a_whole_number(library: Backend, seed: Any) -> None:
    with pytest.raises(TypeError, match=r"^key: expected a seed as an? "):
        library.rb.key(seed)
    if hasattr(seed, "dtype"):
        with pytest.raises(TypeError, match=r"^key: expected a seed as an? "):
            library.rb.key(library.array(seed))


def test_a_seed_on_meta_is_none() -> None:
    with pytest.raises(TypeError, match=r"^key: expected a seed"):
        torch_backend.key(torch.tensor(1, device="meta"))  # type: ignore[arg-type]  # refused


@pytest.mark.parametrize("n", [np.ones(1, np.int32), np.bool_(True)], ids=["one element", "truth value"])
def test_a_count_is_a_scalar_number(library: Backend, n: Any) -> None:
    rb, mixture = library.rb, pair(library)
    calls = {
        "split": lambda n: rb.split(rb.key(0), n),
        "sample": lambda n: rb.sample(mixture.states[0], rb.key(0), n),
        "can_sample": lambda n: rb.can_sample(mixture.states[0], n),
    }
    for name, call in calls.items():
        for given in (n, library.array(n)):
            with pytest.raises(TypeError, match=rf"^{name}: expected .* as a Python int"):
                call(given)
