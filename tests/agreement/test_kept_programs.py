"""Programs that were kept from another version of the library: handlers refuse what they were not compiled for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from jax.experimental import serialize_executable
from torch._dynamo.backends.common import aot_autograd

import functional_rb as frb
import jax_backend as rb
import torch_backend
from tests.support.backends import needs_native

pytestmark = needs_native  # programs without kernels call no handlers

SPEC = frb.BufferSpec({"x": frb.Unbounded((3,))}, 8, sampler=frb.Prioritized())
REFUSED = "compiled by another version of functional_rb, or for arrays of other shapes; trace it again"


class Call(NamedTuple):
    """A custom call as XLA is told of it."""

    target: str
    operands: list[Any]
    results: list[jax.ShapeDtypeStruct]
    attributes: dict[str, Any]

    def carried_out(self) -> list[jax.Array]:
        found: list[jax.Array] = jax.ffi.ffi_call(self.target, self.results)(*self.operands, **self.attributes)
        return jax.block_until_ready(found)


def program(state: Any, batch: Any) -> Any:
    """One that has a handler whose operands and results are of many kinds."""
    return rb.add(state, batch)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """The call of `add` in a program that is traced now, with operands of zeros."""
    calls: list[Call] = []
    lowering = jax.ffi.ffi_lowering

    def noted(target: str, **others: Any) -> Callable[..., object]:
        rule = lowering(target, **others)

        def lower(ctx: Any, *values: object, **attributes: Any) -> object:
            operands = [np.zeros(x.shape, x.dtype) for x in ctx.avals_in]
            results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ctx.avals_out]
            calls.append(Call(target, operands, results, attributes))
            return rule(ctx, *values, **attributes)

        return lower

    monkeypatch.setattr(jax.ffi, "ffi_lowering", noted)
    jax.jit(lambda state, batch: program(state, batch)).lower(rb.init(SPEC), {"x": np.ones((4, 3), np.float32)})
    return next(x for x in calls if x.target == "functional_rb_add")


def told(call: Call, **others: Any) -> Call:
    """The same call with other attributes."""
    return call._replace(attributes=call.attributes | others)


def given(call: Call, change: Callable[[Any], Any]) -> Call:
    """The same call with another first operand."""
    return call._replace(operands=[change(call.operands[0]), *call.operands[1:]])


def but_last(call: Call) -> Call:
    """The same call without its last attribute."""
    return call._replace(attributes=dict(sorted(call.attributes.items())[:-1]))


FORGED: dict[str, Callable[[Call], Call]] = {
    "of other sources": lambda x: told(x, batch=x.attributes["batch"] + [1, 0, 0]),
    "of a layout without a seal": lambda x: told(x, batch=x.attributes["batch"][1:]),
    "of one call more": lambda x: told(x, batch=x.attributes["batch"] + [0, 1, 0]),
    "without attributes": lambda x: x._replace(attributes={}),
    "with a number for a record": lambda x: told(x, record_001=np.int32(7)),
    "with a shorter record": lambda x: told(x, record_001=x.attributes["record_001"][:-1]),
    "with another record": lambda x: told(x, record_001=x.attributes["record_001"] + 1),
    "with a record of int64": lambda x: told(x, record_001=x.attributes["record_001"].astype(np.int64)),
    "without a record": but_last,
    "with fewer operands": lambda x: x._replace(operands=x.operands[:-1]),
    "with a shorter operand": lambda x: given(x, lambda array: array[1:]),
    "with smaller elements": lambda x: given(x, lambda array: array.astype(np.int8)),
    "with fewer results": lambda x: x._replace(results=x.results[:-1]),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_handler_refuses_what_it_was_not_compiled_for(call: Call, how: str) -> None:
    call.carried_out()  # as it is, it is taken
    with pytest.raises(jax.errors.JaxRuntimeError, match=REFUSED):
        FORGED[how](call).carried_out()


def test_a_program_that_was_kept_goes_on_in_the_same_version() -> None:
    state, rows = rb.init(SPEC), np.ones((4, 3), np.float32)
    compiled = jax.jit(lambda rows: rb.items(program(rb.init(SPEC), {"x": rows}))["x"]).lower(rows).compile()
    kept = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
    np.testing.assert_array_equal(kept(rows), rb.items(rb.add(state, {"x": rows}))["x"])


def test_operations_of_torch_refuse_a_form_of_another_version() -> None:
    """A form is text of JSON in the compiled graph, which begins with the number of the sources."""
    forms: list[str] = []

    def forged(given: object) -> object:
        if not (isinstance(given, str) and given.startswith("[")):
            return given
        forms.append(given)
        sources, *rest = json.loads(given)
        return json.dumps([sources + by, *rest])

    def kept(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        for node in graph.graph.nodes:
            node.args = tuple(map(forged, node.args))
        graph.recompile()
        return make_boxed_func(graph.forward)

    def draw(state: Any, key: torch.Tensor) -> Any:
        return torch_backend.sample(state, key, 2)[1].indices

    state = torch_backend.add(torch_backend.init(SPEC), {"x": torch.ones(4, 3)})
    for by in (0, 1):
        torch._dynamo.reset()
        compiled = torch.compile(draw, backend=aot_autograd(fw_compiler=kept), fullgraph=True)
        if by:
            with pytest.raises(RuntimeError, match="was compiled by another version of functional_rb; trace it again"):
                compiled(state, torch_backend.key(0))
        else:
            assert compiled(state, torch_backend.key(0)).shape == (2,)
    assert forms
