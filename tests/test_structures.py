"""What items are put in comes back, whatever it is: containers of every kind, on both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.backends import Backend

Tree = Any
NUMBERS = np.arange(4, dtype=np.float32)


def test_updates_take_the_items_of_a_sample_with_empty_containers(backend: Backend) -> None:
    scalar = frb.Unbounded(())
    spec = frb.BufferSpec({"x": scalar, "nothing": {}, "pair": (), "list": [scalar, {}, {"deep": []}]}, 4)
    state = backend.init(spec)
    array = backend.array(NUMBERS)
    batch = {"x": array, "nothing": {}, "pair": (), "list": [array, {}, {"deep": []}]}
    state = backend.add(state, batch)
    handles = backend.array(np.arange(4, dtype=np.int32))
    items = backend.rb.get(state, handles)
    state = backend.update(state, handles, items=items | {"x": array + 10})
    state = backend.update(state, handles, items={"list": [array + 20, {}, {}]})
    stored = backend.rb.items(state)
    assert backend.numpy(stored["x"]).tolist() == [10, 11, 12, 13]
    assert backend.numpy(stored["list"][0]).tolist() == [20, 21, 22, 23]
    assert (stored["nothing"], stored["pair"], stored["list"][1:]) == ({}, (), [{}, {"deep": []}])
    for wrong in ({"nothing": {"x": array}}, {"none": {}}, {"list": [array, {"x": {}}]}):
        with pytest.raises(ValueError, match=r"no such leaf in BufferSpec.item; expected some of \['x', 'list/0'\]"):
            backend.update(state, handles, items=wrong)
