"""The functions of `buffer.backend.Backend` and `buffer.in_place.InPlace` on torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer import checks, functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State as CoreState
from functional_rb.core import counters as core_counters
from functional_rb.shared.state import SharedState
from functional_rb.specs import values
from functional_rb.specs.values import Outline
from functional_rb.versions.engine import Engine
from functional_rb.versions.version import part_with_older
from torch_backend import compat
from torch_backend.arrays import modes, ops, placement, random
from torch_backend.arrays.convert import as_vector as as_vector
from torch_backend.arrays.convert import build_mapping as build_mapping
from torch_backend.arrays.convert import convert as convert
from torch_backend.arrays.convert import is_batched
from torch_backend.arrays.convert import unsupported as unsupported
from torch_backend.arrays.convert import value_of as value_of
from torch_backend.compiling.opaque import traceable
from torch_backend.engines.mapping import evaluated as evaluated
from torch_backend.engines.mapping import map_items as map_items
from torch_backend.memory.library import TORCH
from torch_backend.memory.library import numbers as numbers
from torch_backend.memory.state import State

_compiling, _transforms = torch.compiler.is_compiling, torch._C._functorch.peek_interpreter_stack
_WRITES = frozenset(("add", "add_", "update", "update_"))

_engine = Engine(TORCH)
add, sample, update, advance = _engine.add, _engine.sample, _engine.update, _engine.advance
clear, with_spec = _engine.clear, _engine.with_spec
count_invalid, get, items = _engine.count_invalid, _engine.get, _engine.items
counter, look, read_by, write_by = _engine.counter, _engine.look, _engine.read_by, _engine.write_by
sample_, renamed, taken_over = _engine.sample_, _engine.renamed, _engine.taken_over
add_, update_, advance_ = _engine.add_, _engine.update_, _engine.advance_
clear_, write_by_ = _engine.clear_, _engine.write_by_
split = random.split


def own_(state: State) -> State:
    """Make a state the only owner of its memory, at the price of a copy where it is not yet.

    The in-place functions do this themselves, except while `torch.compile` traces them: there a state whose memory
    older states still need is an error.

    Args:
        state: consumed.

    Returns:
        The same value.

    Example:
        >>> older = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> state = rb.add(older, (1.0,))
        >>> state = rb.own_(state)
        >>> int(rb.size(older)), int(rb.size(state))
        (0, 1)
    """
    check_state(state, "own_")
    with state.lock():
        memory = state.own()
        if memory.pinned:
            owner: State = write_by_(state, lambda _, arrays, __: arrays)
        else:  # nothing is written, as a compiled function may hold the version that it was given
            part_with_older(memory)
            owner = renamed(state)
        return owner


def check_state(state: object, function: str) -> None:
    """Refuse what is no state of torch, and to trace one that holds Python objects."""
    # The usual case costs one comparison; what is wrong is looked at closely.
    if type(state) is not State:
        checks.check_state(state, function)
        assert isinstance(state, CoreState)
        own_state(state, function)
    assert isinstance(state, State)
    if not compat.IS_MAPPED:
        compat.check_mapped(function)
    if function in _WRITES and not _compiling() and _transforms() is not None:
        _refuse_vmap(state, function)
    if state.spec.plan.objects and _compiling():
        raise TypeError(
            f"{function}: leaf {state.spec.plan.first_object!r} holds Python objects, which torch.compile "
            f"cannot trace; call {function} outside of the compiled function, or leave the leaf out of BufferSpec.item"
        )


# Refuse to write to a single buffer under torch.vmap, whose tensors stand for several; a stack of states may.
def _refuse_vmap(state: State, function: str) -> None:
    is_vmap = _transforms().key() == torch._C._functorch.TransformType.Vmap
    if is_vmap and not is_batched(state._counters):
        raise TypeError(
            f"{function}: torch.vmap cannot write to one buffer for each of its rows; give all rows as one batch "
            f"[N * B, *shape], or map over a stack of states"
        )


def own_state(state: CoreState, function: str) -> State:
    """A state of this backend, not shared."""
    if isinstance(state, SharedState) and state.library.ops is ops.OPS:
        raise TypeError(f"{function}: a shared buffer is written in place anyway; call rb.{function.rstrip('_')}")
    if not isinstance(state, State):
        raise checks.of_other_backend(state, function, "torch_backend", "JAX")
    return state


def init(spec: BufferSpec, device: object = None) -> State:
    """An empty state of a spec, on its device."""
    with modes.outside_inference():
        device, target, files = placement.begin(spec, device)
        stored = None if files is None else placement.tensors(files)
        arrays = functions.init(ops.OPS, spec, device, stored)
        state = State.of_arrays(arrays, spec, pinned=False, target=target, files=files)
    # That it is empty is known to the host from here on: `sample` then refuses without waiting for a device.
    return state.note_fullest(0)


def inside(outline: Outline, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Whether values lie in the domain of each unit."""
    with modes.without_gradients():
        return values.inside(ops.OPS, traceable(outline), leaves)


def known(state: CoreState, mask: torch.Tensor | None) -> tuple[NumpyArray, NumpyArray | None] | None:
    """The state's counters and a mask as NumPy arrays, None while tracing; of an accelerator this waits for them."""
    counters = own_state(state, "add").counters
    if _compiling() or is_batched(counters) or is_batched(mask):
        return None
    numbers = counters.cpu().numpy()
    if counters.device.type != "cpu" and not state.spec.writer.overwrites:
        own_state(state, "add").note_fullest(int(core_counters.read(state.spec.plan, numbers).ends.sizes.max()))
    return numbers, None if mask is None else mask.cpu().numpy()
