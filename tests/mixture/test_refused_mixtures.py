"""What is no mixture, and calls with one that are refused: each error says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.mixture.mixtures import UNIFORM, pair
from tests.support.backends import Backend


def errors(library: Backend) -> list[tuple[Any, type[Exception], str]]:
    """Calls that are refused, and how."""
    rb, key = library.rb, library.rb.key(0)
    mixture = pair(library)
    a, b = mixture
    x = {"x": np.zeros(1, np.float32)}
    array = library.array
    return [
        (lambda: frb.Mixture([]), ValueError, "at least one state, got none"),
        (lambda: frb.Mixture(a), TypeError, r"expected a list of states, got State; write frb.Mixture\("),
        (lambda: frb.Mixture([a, 3]), TypeError, r"states\[1\]: expected a State or a Mixture, got int"),
        (lambda: frb.Mixture([a, b], p=[1.0]), ValueError, "expected 2 numbers, one share for each buffer, got 1"),
        (lambda: frb.Mixture([a, b], p=[1, -1]), ValueError, "not negative"),
        (lambda: frb.Mixture([a, b], p=[float("nan"), 1]), ValueError, "finite numbers"),
        (lambda: frb.Mixture([a, b], p=[0, 0]), ValueError, "one of them positive"),
        (lambda: frb.Mixture([a, b], p="ab"), TypeError, "expected 2 numbers, or an array"),
        (lambda: frb.Mixture([a, b], p=array(np.ones(3, np.float32))), ValueError, r"shape \(2,\), one share"),
        (lambda: frb.Mixture([a, b], p=array(np.ones(2, np.int32))), TypeError, "expected dtype float32, got"),
        (lambda: frb.Mixture([a, b], p=array(np.array([np.nan, 1], np.float32))), ValueError, "Mixture: p: .*finite"),
        (lambda: frb.Mixture([a, b], p=array(np.array([-1, 2], np.float32))), ValueError, "Mixture: p: .*not negative"),
        (lambda: frb.Mixture([a, b], p=np.array([np.inf, 2])), ValueError, "Mixture: p: .*finite numbers"),
        (lambda: frb.Mixture([a, b], how="both"), ValueError, "'exact', 'items', 'buffers', got 'both'"),
        (lambda: frb.Mixture([a, b], parts=2), ValueError, "with how='buffers' alone"),
        (lambda: frb.Mixture([a, b], how="items", stacked=True), ValueError, "reshape what is sampled"),
        (lambda: frb.Mixture([a, b], how="buffers", parts=0), ValueError, "parts: expected a positive int"),
        (lambda: frb.Mixture([a, b], leaves=3), ValueError, "expected leaves as a leaf's name, .* or a list of such"),
        (lambda: frb.Mixture([a, b], leaves=[3]), TypeError, "Mixture: leaves: expected the key of a leaf as a name"),
        (lambda: frb.Mixture([a, b], leaves=["x", "x"]), ValueError, "all different"),
        (lambda: rb.sample(mixture, key), ValueError, "batch_size is missing"),
        (lambda: rb.sample(mixture, key, 2**23), ValueError, "up to 4194304 of a mixture"),
        (lambda: rb.sample(mixture, key, 2, beta=-1.0), ValueError, "in \\[0, 100\\]"),
        (lambda: rb.sample(mixture, key, 2, p=[0.0, 0.0]), ValueError, "one of them positive"),
        (lambda: rb.sample(mixture, key, 2, p=[1.0]), ValueError, r"sample: p: expected shape \(2,\)"),
        (
            lambda: rb.sample(mixture, key, 2, p=3),
            TypeError,
            "sample: p: expected 2 numbers, or an array .* got 3",
        ),
        (lambda: rb.sample(mixture, key, 2, p=["a", "b"]), TypeError, "sample: p: expected 2 numbers, or an array"),
        (lambda: rb.sample(mixture, key, 2, p=[np.str_("a"), 1]), TypeError, "sample: p: expected 2 numbers, or an"),
        (lambda: rb.sample(mixture, key, 2, p=[None, 1]), TypeError, "sample: p: expected 2 numbers, or an array"),
        (lambda: rb.sample(a, key, 2, p=[1.0]), ValueError, "a single buffer gives all of the batch"),
        (
            lambda: rb.sample(frb.Mixture([a, b], how="buffers"), key, 5),
            ValueError,
            "multiple of the mixture's 2 parts",
        ),
        (lambda: rb.add(mixture, x), ValueError, r"rb.add\(mixture, items, to=k\)"),
        (lambda: rb.add(mixture, x, to=2), IndexError, "from 0 to 1, got 2"),
        (lambda: rb.add(mixture, x, to="a"), TypeError, "number of a buffer as an int, got str"),
        (lambda: rb.add(mixture, x, to=(0, 1)), ValueError, "there is a single buffer"),
        (lambda: mixture.replace(5, a), IndexError, "replace: expected the number of a buffer from 0 to 1"),
        (lambda: mixture.replace(0, 5), TypeError, "expected a State or a Mixture, got int"),
        (lambda: rb.update(mixture, array(np.zeros(3, np.int32))), ValueError, r"expected shape \(B, 2\)"),
        (
            lambda: rb.update(mixture, array(np.zeros((1, 2), np.int32)), array(np.ones(2, np.float32))),
            ValueError,
            r"priorities: expected shape \(1,\)",
        ),
        (
            lambda: rb.update(frb.Mixture([a]), array(np.zeros((1, 2), np.int32)), array(np.ones(1, np.float32))),
            ValueError,
            "the sampler is Uniform",
        ),
        (lambda: rb.priorities(frb.Mixture([a]), array(np.zeros((1, 2), np.int32))), ValueError, "has no priorities"),
        (lambda: rb.items(mixture), TypeError, r"rb.items\(mixture\[k\]"),
        (lambda: rb.size(a, each=True), TypeError, "expected a Mixture beside each=True, got a State"),
    ]


def test_errors_say_what_to_do(library: Backend) -> None:
    for call, kind, message in errors(library):
        with pytest.raises(kind, match=message):
            call()


def test_a_state_of_the_other_backend_is_refused() -> None:
    import jax_backend
    import torch_backend

    mixture = frb.Mixture([jax_backend.init(UNIFORM), torch_backend.init(UNIFORM)])
    for rb in (jax_backend, torch_backend):
        with pytest.raises(TypeError, match=r"bring it over by rb.from_dlpack\(state\)"):
            rb.sample(mixture, rb.key(0), 2)
