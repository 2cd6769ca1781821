"""Where the arrays of a memory lie, and where what is drawn from it goes: what `BufferSpec.storage` means on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from functional_rb.buffer.functions import Stored
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Device, Memmap
from functional_rb.checkpoint import in_place
from functional_rb.samplers import Selection
from functional_rb.storage import placement
from functional_rb.storage.mapped import MappedFiles
from functional_rb.structures.ring import modulus
from functional_rb.versions.version import Files, Memory
from torch_backend import devices


class Placement(placement.Placement):
    """Where the memories of a lineage belong, and where samples go.

    Attributes:
        target: the device that samples go to, and from which items may come; None for that of the memory.
    """

    __slots__ = ("target",)

    def __init__(self, spec: BufferSpec, target: torch.device | None = None) -> None:
        """As the storage of the spec says."""
        super().__init__(spec)
        self.target = target

    def make_room(self, memory: Memory, counters: torch.Tensor, batch: int) -> None:
        """Have room on the disk for what adding a batch may write, or raise `StorageFullError`."""
        if self.spec is None or memory.files is None:
            return
        if not torch.compiler.is_compiling():
            memory.files.make_room(self.spec, counters.numpy(), batch)
        elif not memory.files.complete:
            raise ValueError(
                "add_: room for a Memmap buffer is reserved on the disk before rows are written, which torch.compile "
                "cannot trace; call add_ outside of the compiled function until the buffer is full, or use frb.Host()"
            )
        else:
            _refuse_undo(memory.files, "add_")

    def make_room_at(self, memory: Memory, handles: torch.Tensor) -> None:
        """Likewise for rewriting the items that handles int32 [B] name."""
        if self.spec is None or memory.files is None:
            return
        if torch.compiler.is_compiling():
            _refuse_undo(memory.files, "update_")
            return
        if memory.files.ready:
            return
        known = (handles >= 0) & (handles < modulus(self.spec.capacity))
        # What names nothing may be written as slot 0, as it was.
        memory.files.prepare_slots((torch.where(known, handles, 0) % self.spec.capacity).numpy())

    def received(self, tensor: Any, device: torch.device) -> Any:
        """What a caller gives, on the memory's device if it is on the target."""
        if self.target is None or not isinstance(tensor, torch.Tensor) or tensor.device != self.target:
            return tensor
        return tensor.to(device)

    def sent(self, tensor: Any) -> Any:
        """A result on the target: from pinned memory to CUDA, so that nobody waits for the copy."""
        if self.target is None or not isinstance(tensor, torch.Tensor) or tensor.device == self.target:
            return tensor
        if self.target.type == "cuda" and not torch.compiler.is_compiling():
            tensor = tensor.pin_memory()
        return tensor.to(self.target, non_blocking=True)

    def sample_sent(self, leaves: Sequence[Any], selection: Selection) -> tuple[list[Any], Selection]:
        """A sample likewise; Python objects stay as they are."""
        if self.target is None:
            return list(leaves), selection
        told = {name: self.sent(x) for name, x in selection._asdict().items() if name != "extras"}
        extras = {name: self.sent(x) for name, x in selection.extras.items()}
        return [self.sent(leaf) for leaf in leaves], Selection(**told, extras=extras)


def _refuse_undo(files: Files, function: str) -> None:
    if files.undo is not None:
        raise ValueError(
            f"{function}: this Memmap buffer is saved in its own directory, so what checkpoints need is kept before it "
            f"is overwritten, which torch.compile cannot trace; call {function} outside of the compiled function, or "
            f"save to another directory"
        )


def begin(spec: BufferSpec, device: Any) -> tuple[torch.device | None, MappedFiles | None, Placement]:
    """For an empty buffer: the device of its arrays, the files that some of them lie in, and its place."""
    storage = spec.storage
    if not storage.on_host:
        return device_of(spec, device), None, Placement(spec)
    target = devices.target(device)
    files = in_place.create(spec) if isinstance(storage, Memmap) else None
    return torch.device("cpu"), files, Placement(spec, target)


def device_of(spec: BufferSpec, device: Any) -> torch.device | None:
    """Where the arrays of a state lie: on the device that is given, else on that of the storage."""
    named = spec.storage.device if isinstance(spec.storage, Device) else None
    return devices.resolve(named if device is None else device)


def tensors(files: MappedFiles) -> Stored:
    """The arrays of mapped files."""
    wide = tuple(torch.from_numpy(array) for array in files.wide)
    return (
        torch.from_numpy(files.rows),
        wide,
        {name: torch.from_numpy(array) for name, array in files.auxiliary.items()},
    )
