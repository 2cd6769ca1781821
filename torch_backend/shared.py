"""`functional_rb.buffer.api.Backend` on torch for buffers that processes share: a state is a handle, and stays one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.samplers import Selection
from functional_rb.shared import check, state
from functional_rb.structures import row_layout
from torch_backend import devices, execute, ops, random
from torch_backend.execute import (
    as_vector,
    build_mapping,
    convert,
    count_invalid,
    inside,
    random_crop,
    split,
    unsupported,
    value_of,
)
from torch_backend.state import State as TorchState

if TYPE_CHECKING:
    from functional_rb.shared.buffer import SharedBuffer

__all__ = [
    "SharedState",
    "add",
    "add_",
    "as_vector",
    "build_mapping",
    "check_state",
    "clear",
    "clear_",
    "convert",
    "count_invalid",
    "drawable",
    "get",
    "init",
    "inside",
    "is_live",
    "items",
    "known",
    "look",
    "random_crop",
    "sample",
    "sample_",
    "split",
    "unsupported",
    "update",
    "update_",
    "value_of",
]

CPU = torch.device("cpu")


class SharedState(state.SharedState):
    """A handle of a shared buffer, on torch."""

    __slots__ = ()

    def given(self, array: Any, dtype: str) -> torch.Tensor:
        """A tensor of the same memory, or on the state's device."""
        tensor = torch.from_numpy(array).view(ops.DTYPES[dtype])
        return tensor if self.device is None else tensor.to(self.device)

    def as_value(self, arrays: Arrays, spec: BufferSpec) -> State:
        """A state of torch."""
        return TorchState.of_arrays(arrays, spec, pinned=False)


def init(spec: BufferSpec, device: Any = None) -> State:
    """A handle of the buffer that the spec names; the device is where samples go."""
    check.check_spec(spec)
    from functional_rb.shared.buffer import SharedBuffer  # needs numba

    where = devices.resolve(device)
    return SharedState(SharedBuffer.open(spec), where)


def restored(spec: BufferSpec, arrays: Arrays, device: Any) -> State:
    """A handle of a buffer that has had nothing in it so far, with the content of some arrays."""
    state = init(spec, device)
    assert isinstance(state, SharedState)
    state.buffer.fill(arrays)
    return state


def check_state(state: Any, function: str) -> None:
    """Refuse to trace: what a compiled function did once, it would not do again."""
    checks.check_state(state, function)
    if torch.compiler.is_compiling():
        raise TypeError(
            f"{function}: torch.compile cannot trace a buffer that other processes write; call {function} outside of "
            f"the compiled function"
        )


def _buffer(state: State) -> SharedBuffer:
    assert isinstance(state, SharedState)
    return state.buffer


def _numpy(tensor: Any) -> Any:
    """A tensor as a contiguous NumPy array of the same bytes; None stays None."""
    if tensor is None:
        return None
    tensor = tensor.detach().to(CPU).contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def add(
    state: State,
    leaves: Sequence[torch.Tensor],
    batch: int,
    mask: torch.Tensor | None,
    priorities: torch.Tensor | None,
    key: torch.Tensor | None,
) -> State:
    """Write a batch."""
    if key is not None:
        random.check_key(key)
    some = [None if x is None else _numpy(x.reshape(batch)) for x in (mask, priorities)]
    _buffer(state).add([_numpy(leaf) for leaf in leaves], batch, *some)
    return state


def known(state: State, mask: torch.Tensor | None) -> tuple[Any, Any] | None:
    """The counters and a mask as NumPy arrays."""
    return _buffer(state).counters(), _numpy(mask)


def sample(state: State, key: torch.Tensor, batch: int, beta: Any) -> tuple[State, list[torch.Tensor], Selection]:
    """Draw items."""
    assert isinstance(state, SharedState)
    spec = state.spec
    draws = execute.numbers(random.check_key(key), spec.sampler.draw_shape(spec, batch), CPU)
    leaves, selection = state.buffer.sample(draws.numpy(), float(beta))
    weights, probabilities = state.given(selection.weights, "float32"), state.given(selection.probabilities, "float32")
    return state, _given(state, leaves), Selection(state.given(selection.handles, "int32"), weights, probabilities)


def _given(state: SharedState, leaves: Sequence[Any]) -> list[torch.Tensor]:
    return [state.given(x, leaf.dtype) for x, leaf in zip(leaves, state.spec.layout.leaves, strict=True)]


def update(
    state: State,
    handles: torch.Tensor,
    priorities: torch.Tensor | None,
    replacements: Mapping[int, torch.Tensor],
) -> State:
    """Set priorities and rewrite leaves."""
    new = {k: _numpy(leaf) for k, leaf in replacements.items()}
    _buffer(state).update(_numpy(handles), _numpy(priorities), new)
    return state


def clear(state: State) -> State:
    """Take all items out."""
    _buffer(state).clear()
    return state


def with_spec(state: State, spec: BufferSpec) -> State:
    """A handle of the same buffer by another spec: one that all processes agree with."""
    assert isinstance(state, SharedState)
    check.check_agreed(state.spec, spec)
    from functional_rb.shared.buffer import SharedBuffer  # needs numba

    return SharedState(SharedBuffer.attach(spec, state.directory), state.device)


def get(state: State, handles: torch.Tensor) -> list[torch.Tensor]:
    """Read items by handle."""
    assert isinstance(state, SharedState)
    return _given(state, state.buffer.get(_numpy(handles)))


def items(state: State) -> list[torch.Tensor]:
    """All of the storage, a copy of one moment."""
    assert isinstance(state, SharedState)
    copied = state.detached()
    return row_layout.unpack(ops, state.spec.layout, copied.rows, copied.wide)


def is_live(state: State, handles: torch.Tensor) -> torch.Tensor:
    """Whether handles name stored items."""
    assert isinstance(state, SharedState)
    live: torch.Tensor = state.given(state.buffer.is_live(_numpy(handles)), "bool")
    return live


def look(
    state: State, function: Callable[..., Any], handles: torch.Tensor | None = None, n: int | None = None
) -> torch.Tensor:
    """What a function of `buffer` reads off a state."""
    assert isinstance(state, SharedState)
    given = [x if isinstance(x, int) else _numpy(x) for x in (handles, n) if x is not None]
    found = state.buffer.look(function, *given)
    read: torch.Tensor = state.given(found, found.dtype.name)
    return read


def drawable(state: State, n: int) -> torch.Tensor:
    """Whether n can be drawn."""
    assert isinstance(state, SharedState)
    possible: torch.Tensor = state.given(np.array([state.buffer.drawable(n)]), "bool")[0]
    return possible


add_, sample_, update_, clear_ = add, sample, update, clear
"""All is in place, and a handle stays one."""
