"""Which module carries the public functions out on which states."""

from __future__ import annotations

from typing import Any

from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.storage.host_state import HostState
from jax_backend.engines import execute, hosted, inplace, shared
from jax_backend.scale import engine as sharded
from jax_backend.scale.state import ShardedState

# What carries the functions out for states of other classes than `State`, whose arrays are on a device.
_ENGINES: dict[type, Any] = {HostState: hosted, shared.SharedState: shared.engine, ShardedState: sharded}


def of(state: object) -> Any:
    """The engine of a state."""
    return execute if type(state) is State else _ENGINES.get(type(state), execute)


def in_place(engine: object) -> Any:
    """What carries out in-place writes on the states of an engine."""
    return inplace if engine is execute else engine


def for_spec(spec: object) -> Any:
    """The engine that makes a state of a spec."""
    if not isinstance(spec, BufferSpec) or not spec.storage.on_host:
        return execute
    return shared.engine if spec.storage.shared else hosted
