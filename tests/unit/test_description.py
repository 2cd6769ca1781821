"""Static descriptions are equal, and hash and pickle, by their arguments."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import functional_rb as frb

X = {"x": frb.Unbounded((2,)), "y": frb.Unbounded((), "int32")}
SPECS = {
    "buffer": lambda **more: frb.BufferSpec(X, **{"capacity": 4, "sampler": frb.Prioritized(), "lanes": 2} | more),
    "map": lambda **more: frb.HashMapSpec(X, **{"capacity": 4, "seed": 3} | more),
    "tree": lambda **more: frb.trees.TreeSpec(X, **{"capacity": 4, "children": 2, "statistics": "squares"} | more),
    "forest": lambda **more: frb.trees.ForestSpec(X, frb.Categorical(2), **{"capacity": 4, "children": 2} | more),
}


@pytest.mark.parametrize("make", SPECS.values(), ids=SPECS)
def test_descriptions_are_equal_by_their_arguments(make: Any) -> None:
    spec = make()
    assert spec == make() != make(capacity=6)
    assert spec != X
    assert hash(spec) == hash(make())
    other = make(capacity=6)
    object.__setattr__(other, "_hash", hash(spec))  # as may happen
    assert spec != other


@pytest.mark.parametrize("make", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("sent", [lambda spec: pickle.loads(pickle.dumps(spec)), copy.deepcopy], ids=["pickle", "copy"])
def test_a_description_of_another_process_hashes_as_one_of_this(make: Any, sent: Any) -> None:
    spec = make()
    object.__setattr__(spec, "_hash", hash(spec) + 1)  # as where strings hash otherwise
    assert hash(sent(spec)) == hash(make())
    assert sent(spec) == make()
