"""States of torch from arrays of NumPy that nobody else holds."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from functional_rb.base.arrays import DeviceLike, NumpyArray
from functional_rb.buffer import state as core
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.checkpoint import in_place
from functional_rb.core import save_history
from functional_rb.core.draft import Arrays
from functional_rb.storage import elsewhere as other_storage
from functional_rb.storage import mapped
from functional_rb.storage.mapped import MappedFiles
from torch_backend.arrays import devices, modes
from torch_backend.arrays.convert import build_mapping as build_mapping
from torch_backend.arrays.convert import from_numpy
from torch_backend.arrays.placement import device_of
from torch_backend.engines import shared
from torch_backend.engines.shared import SharedState
from torch_backend.memory.state import State


def elsewhere(state: core.State, spec: BufferSpec) -> core.State:
    """A state under another spec, in another storage."""
    if torch.compiler.is_compiling():
        raise TypeError("with_spec: torch.compile cannot trace it; call it outside of the compiled function")
    if isinstance(state, SharedState):
        device, state = state.device, state.detached()
    else:
        device = state._target if isinstance(state, State) else None
    assert isinstance(state, State)
    if device is None and spec.storage.on_host and state.counters.device.type != "cpu":
        device = state.counters.device  # where the training goes on
    arrays, files, held = other_storage.of_version(state, spec, in_place.create)
    return restore(spec, arrays, device, objects=held, files=files)


def restore(
    spec: BufferSpec,
    arrays: Arrays,
    device: object = None,
    *,
    objects: Mapping[int, object] | None = None,
    stamp: str | None = None,
    files: MappedFiles | None = None,
) -> core.State:
    """A state of arrays of NumPy, which are taken over.

    Of `Memmap` storage files are made and filled, but where the arrays lie in `files` already; of shared ones those
    that are there are taken, if they have no items. `objects` are the Python objects by their tokens, and `stamp` is of
    the checkpoint that the arrays come from, see `functional_rb.core.save_history`.
    """
    if spec.storage.shared:
        return shared.engine.restored(spec, arrays, device)
    target = None
    if spec.storage.on_host:
        target, device = devices.target(device), None
    else:
        device = device_of(spec, device)
    if files is None and isinstance(spec.storage, Memmap):
        files, arrays = mapped.replaced(spec, arrays, in_place.create)

    with modes.outside_inference():
        tensors = arrays.each(lambda array: torch.from_numpy(array).to(device))
    state = State.of_arrays(tensors, spec, pinned=False, objects=objects, target=target, files=files)
    if stamp is not None:
        state.remember(save_history.NEW.saved(stamp))
    return state


def placed(leaf: NumpyArray, device: DeviceLike) -> torch.Tensor:
    """A leaf of a nest on a device, None for the default."""
    return from_numpy(leaf).to(torch.get_default_device() if device is None else device)
