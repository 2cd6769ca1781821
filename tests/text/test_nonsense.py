"""Arguments of functions of text that make no sense: refused by name, before anything is computed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend

PROMPTS = np.array([[0, 1], [2, 3]], np.int32)


def generated(rb: Any) -> Any:
    def step(params: Any, cache: Any, ids: Any, positions: Any) -> Any:
        return params[ids], None

    params = rb.from_dlpack(np.zeros((4, 4), np.float32), copy=True)
    return rb.text.generate(step, params, PROMPTS, rb.key(0), frb.text.Decoding(2, temperature=0))


JOINED: list[tuple[Any, type[Exception], str]] = [
    (lambda made: made._replace(tokens=made.tokens[:, :1]), ValueError, "mask: expected shape [2, 1], got [2, 2]"),
    (lambda made: made._replace(tokens=np.zeros((2, 2))), TypeError, "Generation.join: tokens"),
    (
        lambda made: made._replace(tokens=made.tokens[:, 0]),
        ValueError,
        "tokens: expected shape [rows, token",
    ),
    (lambda made: made._replace(tokens=made.tokens[:0], mask=made.mask[:0]), ValueError, "at least one of each"),
    (lambda made: made._replace(tokens=made.tokens[:1], mask=made.mask[:1]), ValueError, "a multiple of 2 replies"),
]


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize(("change", "kind", "text"), JOINED)
def test_join(library: Backend, change: Any, kind: type[Exception], text: str) -> None:
    rb = library.rb
    made = generated(rb)
    with pytest.raises(kind, match=re.escape(text)):
        change(made).join(PROMPTS)
    with pytest.raises(ValueError, match=r"Generation\.join: expected pad below 2\^31, as int32 has it, got"):
        made.join(PROMPTS, pad=2**40)
    assert made.join(PROMPTS).ids.shape == (2, 4)


CONTROLLERS = [frb.text.KLController(0.1), frb.text.KLController(0.1, 6.0, 100.0)]


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("given", [-0.1, float("nan"), float("inf"), np.float32(-1), -1])
def test_coefficients_of_no_sense(library: Backend, controller: Any, given: Any) -> None:
    kl = np.ones(3, np.float32)
    for form in (given, library.array(np.float32(given))):
        with pytest.raises(
            ValueError, match=r"KLController\.update: expected coefficient as a finite number that is not "
        ):
            controller.update(form, kl)
    for other in ("0.1", None, True):
        with pytest.raises(TypeError, match=r"KLController\.update: expected coefficient as a number, got"):
            controller.update(other, kl)
    with pytest.raises(ValueError, match=r"KLController\.update: expected coefficient as one number, got shape \(2,\)"):
        controller.update(library.array(np.ones(2, np.float32)), kl)
    assert float(controller.update(0.0, kl)) == 0


@pytest.mark.parametrize(
    ("sequences", "options", "text"),
    [
        ([[3], [1, -2]], {}, "sequence 1: expected tokens from 0 to 2^31 - 1, got -2"),
        ([[1, -100]], {}, "such as labels of -100, belongs into a mask"),
        ([[2**31]], {}, "expected tokens from 0 to 2^31 - 1, got 2147483648"),
        ([[2**40]], {}, "sequence 0: expected tokens from 0"),
        ([np.array([2**63], np.uint64)], {}, "sequence 0: expected tokens from 0"),
        ([[1]], {"pad": 2**31}, "expected pad below 2^31, as int32 has it, got 2147483648"),
    ],
)
def test_tokens_that_are_none(sequences: Any, options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        frb.text.pack(sequences, 4, **options)


@pytest.mark.parametrize("given", [None, 3])
def test_what_is_no_sequence_of_sequences(given: Any) -> None:
    with pytest.raises(TypeError, match=r"text\.pack: expected sequences of token ids, got (NoneType|int)"):
        frb.text.pack(given, 4)


def test_labels_may_be_padded_by_what_losses_ignore() -> None:
    assert frb.text.pack([[1, 2**31 - 1]], 4, pad=-100).ids.tolist() == [[1, 2**31 - 1, -100, -100]]
