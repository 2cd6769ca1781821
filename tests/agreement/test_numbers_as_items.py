"""The version chain takes an item of Python's numbers as the plain engine does, to the bit."""

from __future__ import annotations

from typing import Any

import pytest

import functional_rb as frb
import torch_backend as rb
from tests.agreement.chain_machine import CHAINS
from tests.support import chain_programs as programs
from tests.support.backends import needs_native

pytestmark = needs_native

NUMBERS: list[tuple[str, Any]] = [
    *(("bool", value) for value in (False, True)),
    *(("int32", value) for value in (-(2**31), -1, 2**31 - 1)),
    *(("int64", value) for value in (-(2**63), 2**62 + 1)),
    *(("float32", value) for value in (0.1, -0.0, float("inf"))),
    *(("float64", value) for value in (0.1, 1e300, float("-inf"))),
]


@pytest.mark.parametrize("way", CHAINS)
@pytest.mark.parametrize(("dtype", "number"), NUMBERS)
def test_a_number_is_stored_as_it_is(dtype: str, number: Any, way: str) -> None:
    leaf = frb.Binary() if dtype == "bool" else frb.Unbounded((), dtype)
    spec = frb.BufferSpec({"first": leaf, "n": leaf, "last": leaf}, 2)

    def added() -> Any:
        other = type(number)(1)
        return rb.add(rb.init(spec), {"first": other, "n": number, "last": other})

    chain = programs.Noting(CHAINS[way])
    with programs.using(chain):
        found = added()
    assert chain.calls["add"] == 1
    assert rb.items(found)["n"][0].item() == (number if dtype != "float32" else rb.items(found)["n"].new_tensor(number))
    with programs.using(programs.NotHere()):
        assert programs.peek(found) == programs.peek(added())
