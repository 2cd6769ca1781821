"""Whole calls on a usual buffer on a GPU, of which each is one launch; see `Library.natively`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from functional_rb.versions.engine import next_state, past_of
from functional_rb.versions.memory import Saved
from functional_rb.versions.state import readable
from torch_backend.gpu.kernels import Kernels


def natively(kernels: Kernels, function: str, state: Any, *given: Any) -> Any:
    """What a kernel makes of checked arguments; `NotImplemented` where none knows the buffer, or the call."""
    memory: Any = readable(state).own()
    if not kernels.take(memory, state.spec):
        return NotImplemented
    if function == "draw":
        return _draw(kernels, state, *given)
    consume = function.endswith("_")
    if consume and memory.pinned:  # another version is written to then
        return NotImplemented
    if function.startswith("update"):
        return _update(kernels, state, consume, *given)
    return _add(kernels, state, consume, *given)


def _add(
    kernels: Kernels,
    state: Any,
    consume: bool,
    leaves: Sequence[torch.Tensor],
    mask: torch.Tensor | None,
    priorities: torch.Tensor | None,
) -> Any:
    spec, counters, batch = state.spec, state._counters, leaves[0].shape[0]

    def room(memory: Any) -> Saved:
        return kernels.room(memory, min(batch, spec.capacity), True)

    def write(memory: Any, saved: Any) -> torch.Tensor:
        return kernels.add(memory, spec, counters, leaves, batch, mask, priorities, saved)

    return next_state(state, readable(state), write, past_of(state, batch), consume, room)


def _update(
    kernels: Kernels, state: Any, consume: bool, handles: torch.Tensor, priorities: torch.Tensor | None, leaves: Any
) -> Any:
    spec, counters, n = state.spec, state._counters, handles.shape[0]
    if priorities is None or leaves is not None or not n:
        return NotImplemented

    def room(memory: Any) -> Saved:
        return kernels.room(memory, n, False)

    def write(memory: Any, saved: Any) -> torch.Tensor:
        return kernels.update(memory, spec, counters, handles, priorities, saved)

    return next_state(state, readable(state), write, past_of(state), consume, room)


def _draw(kernels: Kernels, state: Any, key: torch.Tensor, batch: int, beta: Any) -> Any:
    memory: Any = readable(state).own()
    # Of a beta on a GPU one would have to wait for the number.
    if not batch or not memory.written or (isinstance(beta, torch.Tensor) and beta.device.type != "cpu"):
        return NotImplemented
    leaves, *told = kernels.draw(memory, state.spec, state._counters, key, batch, float(beta))
    return state, leaves, None, *told
