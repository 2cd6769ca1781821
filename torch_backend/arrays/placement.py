"""Where the arrays of a new buffer lie, and where its samples go: what `BufferSpec.storage` means on torch."""

from __future__ import annotations

import torch

from functional_rb.base.arrays import DeviceLike
from functional_rb.buffer.functions import Stored
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Device, Memmap
from functional_rb.checkpoint import in_place
from functional_rb.storage.mapped import MappedFiles
from torch_backend.arrays import devices


def begin(spec: BufferSpec, device: DeviceLike) -> tuple[torch.device | None, torch.device | None, MappedFiles | None]:
    """For an empty buffer: the device of its arrays, that of its samples, and the files that some arrays lie in."""
    storage = spec.storage
    if not storage.on_host:
        return device_of(spec, device), None, None
    target = devices.target(device)
    files = in_place.create(spec) if isinstance(storage, Memmap) else None
    return torch.device("cpu"), target, files


def device_of(spec: BufferSpec, device: object) -> torch.device:
    """Where the arrays of a state lie: on the device that is given, else on that of the storage, else by default."""
    named = spec.storage.device if isinstance(spec.storage, Device) else None
    return devices.resolve(named if device is None else device) or torch.get_default_device()


def tensors(files: MappedFiles) -> Stored:
    """The arrays of mapped files, as tensors."""
    wide = tuple(torch.from_numpy(array) for array in files.wide)
    return (
        torch.from_numpy(files.rows),
        wide,
        {name: torch.from_numpy(array) for name, array in files.auxiliary.items()},
    )
