"""Ctrl-C at lines of the functions that write to a map or a forest in its own memory: it is whole, or consumed.

On torch, where the library writes; on JAX the memory is JAX's, which takes it by donation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from tests.support import interrupts
from tests.support.effort import effort

LINES = effort(20, None)
KEYS = np.arange(12, dtype=np.int32) % 7
OBSERVATION = frb.Unbounded((), "int32")


def steps(first: int) -> dict[str, Any]:
    """A walk of four steps in TED."""
    states = np.arange(first, first + 5, dtype=np.int32)
    following = {"observation": states[1:], "reward": np.ones(4, np.float32), "terminated": np.zeros(4, bool)}
    return {"observation": states[:-1], "action": np.ones(4, np.int32), "next": following}


def of_maps(rb: Any) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    made, _ = rb.add(rb.init(frb.HashMapSpec(key=OBSERVATION, capacity=20)), KEYS[:3])
    return made, lambda m: rb.add_(m, KEYS)[0], lambda m: rb.visits(m, KEYS)


def of_forests(rb: Any) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    spec = frb.trees.ForestSpec(OBSERVATION, frb.Unbounded((), "int32"), capacity=20, children=40)
    made = rb.add(rb.init(spec), steps(0))
    return made, lambda f: rb.add_(f, steps(3)), lambda f: rb.visits(f, KEYS)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("of", [of_maps, of_forests])
def test_functions_in_place_consume_what_they_are_given_or_leave_it(of: Any, kernels: bool) -> None:
    with frb.kernels(kernels):
        check(*of(torch_backend))


def check(base: Any, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
    before, after = np.asarray(read(base)).tolist(), np.asarray(read(write(copy.deepcopy(base)))).tolist()
    assert before != after
    places = interrupts.lines(write, copy.deepcopy(base))
    consumed = 0
    last = range(max(len(places) - 8, 0), len(places))  # all is written by then
    for line in sorted({*last, *interrupts.chosen(places, LINES)}):
        given = copy.deepcopy(base)
        interrupts.interrupted(line, write, given)
        try:
            assert np.asarray(read(given)).tolist() == before, f"line {line}"
        except RuntimeError:
            consumed += 1
    assert consumed
    assert np.asarray(read(write(copy.deepcopy(base)))).tolist() == after
