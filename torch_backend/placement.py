"""Where the arrays of a memory lie, and where what is drawn from it goes: what `BufferSpec.storage` means on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from functional_rb import mapped
from functional_rb.buffer_spec import BufferSpec
from functional_rb.mapped import MappedFiles
from functional_rb.ring import modulus
from functional_rb.samplers import Drawn
from functional_rb.storages import Memmap

if TYPE_CHECKING:
    from torch_backend.memory import Memory

OLDER_BYTES = 2**30
"""So much is kept in memory for older states of a mapped buffer, before the oldest gets files of its own."""


class Placement:
    """Where a memory lies.

    Attributes:
        spec: of a buffer whose rows belong in mapped files, else None.
        files: those files; None also for arrays that came from elsewhere, until they are written to.
        target: the device that samples go to, and from which items may come; None for that of the memory.
    """

    __slots__ = ("files", "spec", "target")

    def __init__(
        self, spec: BufferSpec | None = None, files: MappedFiles | None = None, target: torch.device | None = None
    ) -> None:
        """Plain memory unless said otherwise."""
        self.spec, self.files, self.target = spec, files, target

    def copied(self, memory: Memory) -> tuple[dict[str, torch.Tensor], Placement]:
        """The arrays that belong in files, by name, in files without a name; and where those lie."""
        if self.files is not None:
            self.files.check_process()
            files = self.files.copy()
        elif self.spec is not None and memory.plain:
            given = {"rows": memory.rows, **{f"wide_{k}": x for k, x in enumerate(memory.wide)}, **memory.kept}
            files = mapped.filled(self.spec, {name: given[name].numpy() for name in mapped.shapes(self.spec)})
        else:
            return {}, self
        return tensors(files), Placement(self.spec, files, self.target)

    def make_room(self, spec: BufferSpec, counters: torch.Tensor, batch: int) -> None:
        """Have room on the disk for what adding a batch may write, or raise `StorageFullError`."""
        if self.files is None or self.files.complete:
            return
        if torch.compiler.is_compiling():
            raise ValueError(
                "add_: room for a Memmap buffer is reserved on the disk before rows are written, which torch.compile "
                "cannot trace; call add_ outside of the compiled function until the buffer is full, or use frb.Host()"
            )
        mapped.make_room(self.files, spec, counters.numpy(), batch)

    def make_room_at(self, handles: torch.Tensor, capacity: int) -> None:
        """Likewise for rewriting the items that handles int32 [B] name."""
        if self.files is None or self.files.complete or torch.compiler.is_compiling():
            return
        handles = handles.clamp(min=0)  # what names nothing may be written as slot 0, as it was
        self.files.reserve_slots((torch.where(handles < modulus(capacity), handles, 0) % capacity).numpy())

    def received(self, tensor: Any, device: torch.device) -> Any:
        """What a caller gives, on the memory's device if it is on the target."""
        if self.target is None or not isinstance(tensor, torch.Tensor) or tensor.device != self.target:
            return tensor
        return tensor.to(device)

    def sent(self, tensor: Any) -> Any:
        """A result on the target: from pinned memory to CUDA, so that nobody waits for the copy."""
        if self.target is None or not isinstance(tensor, torch.Tensor) or tensor.device == self.target:
            return tensor
        if self.target.type == "cuda" and not torch.compiler.is_compiling() and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self.target, non_blocking=True)

    def sample_sent(self, leaves: Sequence[Any], drawn: Drawn) -> tuple[list[Any], Drawn]:
        """A sample likewise; Python objects stay as they are."""
        if self.target is None:
            return list(leaves), drawn
        told = {name: self.sent(x) for name, x in drawn._asdict().items() if name != "extras"}
        extras = {name: self.sent(x) for name, x in drawn.extras.items()}
        return [self.sent(leaf) for leaf in leaves], Drawn(**told, extras=extras)


def tensors(files: MappedFiles) -> dict[str, torch.Tensor]:
    """The arrays of mapped files by name."""
    named = {"rows": files.rows, **{f"wide_{k}": x for k, x in enumerate(files.wide)}, **files.kept}
    return {name: torch.from_numpy(array) for name, array in named.items()}


def begin(spec: BufferSpec, device: Any) -> tuple[torch.device | None, dict[str, torch.Tensor], Placement]:
    """For an empty buffer: the device of its arrays, the arrays that lie in files, and where it lies."""
    storage = spec.storage
    if not storage.on_host:
        return device if device is not None else getattr(storage, "device", None), {}, DEFAULT
    target = None if device is None else torch.device(device)
    host = torch.device("cpu")
    if target is not None:
        target = None if target.type == "cpu" else torch.empty(0, device=target).device  # "cuda" is the current one
    if not isinstance(storage, Memmap):
        return host, {}, Placement(target=target)
    files = mapped.create(spec)
    return host, tensors(files), Placement(spec, files, target)


def of_arrays(spec: BufferSpec, target: torch.device | None) -> Placement:
    """Of arrays that came from elsewhere."""
    return Placement(spec if isinstance(spec.storage, Memmap) else None, None, target)


DEFAULT = Placement()
