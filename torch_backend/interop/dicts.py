"""What the functions on state dicts need of torch."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from functional_rb.base.arrays import DeviceLike, NumpyArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State as CoreState
from functional_rb.core.draft import Arrays
from functional_rb.interop import dicts
from functional_rb.interop import state_dict as core
from functional_rb.versions.memory import Memory
from torch_backend.arrays.convert import from_numpy
from torch_backend.engines import execute
from torch_backend.engines.restore import restore
from torch_backend.lib import LIB
from torch_backend.memory.state import State


# Not by `restore`, which takes arrays of NumPy: what lies on a GPU would come over the host.
def _on_device(spec: BufferSpec, target: CoreState | None, mapping: object, device: DeviceLike) -> State:
    if device is None and target is not None:
        device = target.counters.device
    arrays = core.as_arrays(spec, mapping, _taken, _read)
    state = execute.init(spec, device)
    for mine, saved in zip(_in_order(state.own()), _in_order(arrays), strict=True):
        mine.copy_(saved)
    restored = state.likewise(arrays.counters.to(state.counters.device, copy=True), state._target)
    return restored.note_fullest(None)  # only the device knows how full it is


def _in_order(of: Memory | Arrays) -> list[torch.Tensor]:
    return [
        of.rows,
        *of.wide,
        *([] if of.tree is None else [of.tree]),
        *(of.auxiliary[name] for name in sorted(of.auxiliary)),
    ]


def _taken(name: str, array: object) -> torch.Tensor:
    if not isinstance(array, torch.Tensor):
        return from_numpy(np.asarray(array))
    _check_at_hand(name, array)
    return array.detach()


def _read(name: str, array: object) -> NumpyArray:
    return _taken(name, array).cpu().numpy()


# Refuse a tensor that is no array in memory: a meta, fake or sparse one, or many in one.
def _check_at_hand(name: str, tensor: torch.Tensor) -> None:
    if torch.compiler.is_compiling():
        return
    strange = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    batched = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    if strange or batched or tensor.is_meta or tensor.layout is not torch.strided:
        raise TypeError(
            f"load_state_dict: {name!r}: expected a tensor with its values in memory, got {type(tensor).__name__} on "
            f"{tensor.device}, {tensor.layout}; load it outside of torch.func and fake tensors, as torch.load gives it"
        )


_LIB: Final[dicts.DictsLib[torch.Tensor]] = dicts.DictsLib.of(
    LIB,
    text=str,
    check_at_hand=_check_at_hand,
    read=_read,
    copied=lambda name, array: _taken(name, array).clone(),
    restore=restore,
    on_device=_on_device,
)

state_dict = _LIB.bind(dicts.state_dict)
load_state_dict = _LIB.bind(dicts.load_state_dict)
