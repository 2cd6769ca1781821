"""Where the rows of a buffer lie: `BufferSpec(storage=...)`.

Whatever the storage, the functions and their results are the same. What is small (the sum tree, what samplers and
writers keep, the counters) is never in files.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from functional_rb.base.files import as_path

if TYPE_CHECKING:
    from functional_rb.core.plan import Plan


class StorageBase:
    """What every storage tells.

    Attributes:
        on_host: whether the rows lie in the memory of the host, whatever the device that trains.
        shared: whether several processes write and sample the buffer at once.
    """

    on_host: bool = True
    shared: bool = False

    def check(self, plan: Plan) -> None:
        """Refuse a spec that does not fit."""


@dataclasses.dataclass(frozen=True)
class Device(StorageBase):
    """Rows in the memory of a device: the default.

    Attributes:
        device: which, by name ("cuda:1", "cpu"); None for the backend's default. The device given to
            `init(device=...)` takes precedence.

    Raises:
        TypeError: if the device is no string.

    Example:
        >>> Device("cpu")
        Device(device='cpu')
    """

    device: str | None = None
    on_host = False

    def __post_init__(self) -> None:
        if self.device is not None and not isinstance(self.device, str):
            raise TypeError(
                f"Device.device: expected a name such as 'cuda:0', got {self.device!r}; write str(device), "
                f"or give init(device=...)"
            )


@dataclasses.dataclass(frozen=True)
class Host(StorageBase):
    """Rows in the memory of the host, while training runs on an accelerator; Python objects too, on both backends.

    `init(device=...)` names the accelerator: what is sampled comes there, from pinned memory without waiting where it
    is CUDA, and what is added may lie on either.

    Where all leaves are single Python objects (`NonTensor`), `add` takes a list for a batch of them, one for each item
    (and an item that is a list itself as `[item]`), and anything but a list or an object array for one item.

    Example:
        >>> Host()
        Host()
    """


@dataclasses.dataclass(frozen=True)
class Memmap(StorageBase):
    """Rows in memory-mapped files, sparse until written: the capacity may be far beyond the machine's memory.

    Attributes:
        path: the directory of the files; None for files in the temporary directory, which nobody else sees.
        existsok: whether files that are there already are taken as they are; else they are an error. The
            buffer begins empty either way: what a run left behind is read by `frb.load`.
        auto_cleanup: whether the files are removed once no state uses them any more, at the latest as the process that
            made them ends; if shared, only then. None for what is usual: with `shared=True` and no path of one's own.
            Files without a path have no name, and go when the last state that uses them does, in whatever way.
        shared: whether several processes write and sample the buffer at once. The first of them makes the files, the
            others open them.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for files that are to stay but have no path.

    Example:
        >>> Memmap("/data/replay", existsok=True).path
        '/data/replay'
    """

    path: str | None = None
    existsok: bool = False
    auto_cleanup: bool | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "path", as_path(self.path, "Memmap.path"))
        for name in ("existsok", "shared"):
            _check_flag(name, getattr(self, name))
        if self.auto_cleanup is not None:
            _check_flag("auto_cleanup", self.auto_cleanup)
            if self.path is None and not self.auto_cleanup and not self.shared:
                raise ValueError("Memmap: auto_cleanup=False needs a path: files without one go with the last state")

    def check(self, plan: Plan) -> None:
        # Python objects are no bytes that another process could read.
        if plan.objects:
            raise ValueError(
                f"Memmap: leaf {plan.first_object!r} holds Python objects, which cannot lie in files; "
                f"use storage=frb.Host(), or leave the leaf out of BufferSpec.item"
            )


Storage = Device | Host | Memmap


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"Memmap.{name}: expected True or False, got {value!r}")
