"""Schedules: what they say by their formulas, for numbers and for arrays of each library, traced ones among them."""

from __future__ import annotations

import math
import pickle
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch

from functional_rb import Schedule

STEPS = [0, 9, 10, 17, 30, 49, 50, 51, 10**9]
FORMULAS: dict[str, Any] = {
    "linear": lambda t: 0.8 + (0.2 - 0.8) * t,
    "cosine": lambda t: 0.2 + (0.8 - 0.2) * (1 + math.cos(math.pi * t)) / 2,
    "exponential": lambda t: 0.8 * (0.2 / 0.8) ** t,
}


@pytest.mark.parametrize("kind", FORMULAS)
def test_schedules_say_what_their_formulas_say(kind: Any) -> None:
    schedule = Schedule(0.8, 0.2, steps=40, after=10, kind=kind)
    wanted = [FORMULAS[kind](min(max((step - 10) / 40, 0.0), 1.0)) for step in STEPS]
    assert [schedule(step) for step in STEPS] == pytest.approx(wanted, rel=1e-9)
    assert schedule(10**9) == schedule(50)
    compiled = jax.jit(jax.vmap(schedule))
    for array in (
        np.array(STEPS),
        jax.numpy.asarray(STEPS),
        torch.tensor(STEPS),
        torch.tensor(STEPS, dtype=torch.int32),
    ):
        np.testing.assert_allclose(np.asarray(schedule(array)), wanted, rtol=1e-6)
    np.testing.assert_allclose(compiled(jax.numpy.asarray(STEPS)), wanted, rtol=1e-6)
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_they_are_those_of_optax() -> None:
    steps = range(0, 130, 7)
    for ours, theirs in (
        (Schedule(0.4, 1.0, 100), optax.linear_schedule(0.4, 1.0, 100)),
        (Schedule(2.0, 0.5, 100, kind="cosine"), optax.cosine_decay_schedule(2.0, 100, alpha=0.25)),
    ):
        np.testing.assert_allclose([ours(k) for k in steps], [theirs(k) for k in steps], rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("linear", 0.0, 1.0, 0), "Schedule: expected steps as a positive number, got 0"),
        (("cosine", math.nan, 1.0, 5), "Schedule: expected first as a finite number, got nan"),
        (("exponential", 1.0, 0.0, 5), "Schedule: expected last as a positive number, got 0.0"),
        (("sine", 1.0, 0.0, 5), "Schedule: expected kind as one of .*, got 'sine'"),
    ],
)
def test_numbers_that_do_not_fit(given: Any, message: str) -> None:
    kind, *numbers = given
    with pytest.raises(ValueError, match=message):
        Schedule(*numbers, kind=kind)
