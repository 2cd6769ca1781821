"""Which module carries the public functions out on which states."""

from __future__ import annotations

from typing import Any

from functional_rb.buffer.spec import BufferSpec
from torch_backend.engines import execute, shared
from torch_backend.scale import engine as sharded
from torch_backend.scale.state import ShardedState


def of(state: object) -> Any:
    """The engine of a state, which carries out in-place writes too."""
    if isinstance(state, ShardedState):
        return sharded
    return shared.engine if isinstance(state, shared.SharedState) else execute


def for_spec(spec: object) -> Any:
    """The engine that makes a state of a spec."""
    return shared.engine if isinstance(spec, BufferSpec) and spec.storage.shared else execute
