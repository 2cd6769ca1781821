"""Forests of single steps, and trees that are read of them."""

from __future__ import annotations

import functools
from typing import Any

import hypothesis.strategies as st
import numpy as np

import functional_rb as frb
import torch_backend as rb

SPEC = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(3), capacity=300, children=9)


# Steps: observation, action, next observation.
SHAPES: dict[str, list[tuple[int, int, int]]] = {
    "cycle": [(0, 0, 1), (1, 0, 2), (2, 0, 0)],
    "self-loop": [(0, 0, 0), (0, 1, 1)],
    "diamond": [(0, 0, 1), (0, 1, 2), (1, 0, 3), (2, 0, 3), (3, 2, 4)],
    "chain": [(k, 1, k + 1) for k in range(9)],
    "fork": [(0, 0, 1), (1, 0, 2), (2, 0, 3), (2, 1, 4), (4, 0, 5), (5, 2, 6)],
}


def forest_of(steps: list[tuple[int, int, int]]) -> Any:
    before, action, after = (np.array(x, np.int32) for x in zip(*steps, strict=True))
    reward = (10 * before + after).astype(np.float32)
    transitions = frb.ted.from_transitions(before, action, reward, after, done=np.zeros(len(steps), bool))
    return rb.add(rb.init(SPEC), transitions)


@functools.cache
def tree_of(shape: str, compact: bool = False) -> Any:
    return rb.trees.view(forest_of(SHAPES[shape]), np.int32(0), compact=compact)


steps = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 6)), min_size=1, max_size=14)
