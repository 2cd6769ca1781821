"""The state on torch: a value whose arrays are shared with its successors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch.utils import _pytree as pytree

from functional_rb.base.arrays import BackendArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays, by_name
from functional_rb.structures.row_layout import STORED_AS
from functional_rb.versions.library import Library
from functional_rb.versions.object_table import Held, held_objects
from functional_rb.versions.state import VersionedState, readable
from torch_backend.arrays import ops
from torch_backend.memory import streams
from torch_backend.memory.library import TORCH


class State(VersionedState):
    """A replay buffer as a value; see `VersionedState`. The pytree's leaves count as exported too."""

    __slots__ = ()

    library: ClassVar[Library] = TORCH

    @property
    def counters(self) -> torch.Tensor:
        # They were made on the stream that worked on the version's memory.
        version, counters = readable(self), self._counters
        # Trees may have anything in the place of tensors, as those of `in_dims` have that torch's maps make.
        if type(counters) is torch.Tensor and counters.device.type != "cpu" and not torch.compiler.is_compiling():
            with version.lock:
                version.newest_memory()[0].join_stream()
            streams.keep(counters)
        return counters

    def __reduce__(self) -> tuple[object, ...]:
        memory = self.exported_memory()
        arrays = signed(memory.state_arrays(self.counters))
        return unpickled, (arrays, self.spec, held_objects(memory), self._target)


def signed(arrays: Arrays) -> Arrays:
    """Arrays of dtypes that torch can read from a pickle: of unsigned ones it cannot."""

    def as_signed(array: torch.Tensor) -> torch.Tensor:
        return array.view(ops.SIGNED.get(array.dtype, array.dtype))

    auxiliary = {name: as_signed(array) for name, array in arrays.auxiliary.items()}
    return arrays._replace(wide=tuple(map(as_signed, arrays.wide)), auxiliary=auxiliary)


def unpickled(
    arrays: Arrays,
    spec: BufferSpec,
    held: Mapping[int, object] | None,
    target: torch.device | None,
    pinned: bool = True,
) -> State:
    """A state of such arrays, with the dtypes as they were; pinned if somebody else may hold them."""
    wide = [ops.DTYPES[STORED_AS.get(leaf.dtype, leaf.dtype)] for leaf in spec.plan.layout.wide]
    restored = tuple(array.view(dtype) for array, dtype in zip(arrays.wide, wide, strict=True))
    auxiliary = {
        name: array.view(ops.DTYPES[spec.plan.auxiliary[name].dtype]) for name, array in arrays.auxiliary.items()
    }
    return State.of_arrays(arrays._replace(wide=restored, auxiliary=auxiliary), spec, pinned, held, target)


Outline = tuple[BufferSpec, Held | None, torch.device | None]


def _flatten_with_keys(state: State) -> tuple[list[tuple[pytree.KeyEntry, BackendArray]], Outline]:
    memory = state.exported_memory()
    leaves = by_name(memory.state_arrays(state.counters), state.spec.plan)
    held = Held(memory.table, memory) if state.spec.plan.objects else None
    return [(pytree.GetAttrKey(name), leaf) for name, leaf in leaves.items()], (state.spec, held, state._target)


def _flatten(state: State) -> tuple[list[torch.Tensor], Outline]:
    named, outline = _flatten_with_keys(state)
    return [leaf for _, leaf in named], outline


def _unflatten(leaves: Iterable[torch.Tensor], outline: Outline) -> State:
    spec, held, target = outline
    arrays = Arrays.of_leaves(spec.plan, leaves)
    return State.of_arrays(arrays, spec, objects=None if held is None else held.table, target=target)


pytree.register_pytree_node(
    State, _flatten, _unflatten, serialized_type_name="torch_backend.State", flatten_with_keys_fn=_flatten_with_keys
)
