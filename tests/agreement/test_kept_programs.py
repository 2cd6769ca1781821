"""Programs that were kept from another version of the library: handlers refuse what they were not compiled for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from jax.experimental import serialize_executable

import functional_rb as frb
import jax_backend as rb
from functional_rb import _native
from functional_rb.native.switch import switch
from torch_backend.kernels import custom_ops

pytestmark = pytest.mark.skipif(not switch.on, reason="programs without kernels call no handlers")

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


@pytest.mark.parametrize("name", _native.GPU_HANDLERS)
def test_launches_for_gpus_refuse_it_too(name: str) -> None:
    jax.ffi.register_ffi_target(f"forged_{name}", _native.GPU_HANDLERS[name], platform="cpu")
    forged = Call(
        f"forged_{name}", [np.zeros(4, np.float32)], [jax.ShapeDtypeStruct((4,), np.float32)], {"batch": np.arange(3)}
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match=REFUSED):
        forged.carried_out()


def test_a_program_that_was_kept_goes_on_in_the_same_version() -> None:
    state, rows = rb.init(SPEC), np.ones((4, 3), np.float32)
    compiled = jax.jit(lambda rows: rb.items(program(rb.init(SPEC), {"x": rows}))["x"]).lower(rows).compile()
    kept = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
    np.testing.assert_array_equal(kept(rows), rb.items(rb.add(state, {"x": rows}))["x"])


def test_operations_of_torch_refuse_a_form_of_another_version() -> None:
    draws, most = torch.zeros(3, 2, dtype=torch.int32), torch.tensor(5, dtype=torch.int32)
    below = torch.ops.functional_rb.below.default
    form = custom_ops.Form(_native.SOURCES, [0, 1], [], [("int32", 1)])
    assert below([draws, most], [3], json.dumps(form))[0].tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="was compiled by another version of functional_rb; trace it again"):
        below([draws, most], [3], json.dumps(form._replace(sources=_native.SOURCES + 1)))
