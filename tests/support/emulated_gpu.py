"""The kernels for GPUs, carried out on the CPU by emulated blocks, whose threads take turns in a chosen order."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from functional_rb import _native
from functional_rb.native import gpu
from functional_rb.native.gpu import BLOCKS, SHARE
from functional_rb.versions.memory import Memory
from tests.support import native_builds
from tools.native_build import SOURCES, compiler
from torch_backend.memory.gpus import Gpus
from torch_backend.memory.library import TORCH

ORDERS = {"forward": 0, "backward": 1, "scattered": 2}


class OnTheCpu(Gpus):
    """One whose memory is the CPU's."""

    def has(self, memory: Memory) -> bool:
        """What lies in one piece on the CPU."""
        return memory.is_ordinary

    def where(self, device: torch.device) -> tuple[tuple[int, int], int]:
        """On the CPU, which has no streams."""
        return (1, 0), 0

    def works_on(self, arrays: Sequence[torch.Tensor]) -> bool:
        """Whether they lie on the CPU."""
        return all(x.device.type == "cpu" for x in arrays)


class Emulated:
    """The emulator while it is at work.

    Attributes:
        launched: the names of kernels with their grids, the oldest first.
    """

    def __init__(self) -> None:
        """Nothing was launched yet."""
        self.launched: list[tuple[str, tuple[int, int]]] = []

    def note(self) -> None:
        """Take what was launched since the last time."""
        found = library()
        count = found.frb_launched(None, 0)
        told = (ctypes.c_int64 * (3 * count))()
        found.frb_launched(told, count)
        kernels = [told[k : k + 3] for k in range(0, 3 * count, 3)]
        self.launched += [(_native.GPU_KERNELS[kernel], (columns, lines)) for kernel, columns, lines in kernels]


def built(name: str, *more: str) -> Path:
    """The emulator, compiled with more flags."""
    flags = ["-std=c++17", "-O0", "-fPIC", "-shared", "-ffp-contract=off", f"-I{SOURCES}", *more]
    source = str(Path(__file__).with_suffix(".cpp"))

    def make(target: Path) -> None:
        subprocess.run([*compiler(), *flags, source, "-o", str(target)], check=True)

    return native_builds.kept(name, flags, make)


@functools.cache
def library() -> ctypes.CDLL:
    """The emulator, loaded once a process."""
    return declared(ctypes.CDLL(str(built("emulated"))))


def declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """The emulator, with the types of its functions."""
    loaded.frb_launched.restype = ctypes.c_int64
    loaded.frb_launched.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    loaded.frb_record_bytes.restype = ctypes.c_int64
    loaded.frb_in_order.argtypes = [ctypes.c_int64]
    return loaded


def _address(function: object) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert found is not None
    return found


@contextlib.contextmanager
def launching(
    order: str, blocks: int = BLOCKS, share: int = SHARE, on: ctypes.CDLL | None = None
) -> Iterator[Emulated]:
    """Let the emulator carry out what is launched, threads and blocks taking turns in an order.

    On a device of the tests' own, if one is given, its memory is open to kernels alone.
    """
    found, emulated = library(), Emulated()
    launch = _address(found.frb_launch if on is None else on.device_launch)
    if on is not None:
        on.device_launches_by(found.frb_launch, ctypes.c_int64(found.frb_record_bytes()))
    _native.gpu_driver((launch, 0 if on is None else _address(on.device_context), 0, 0, 0), blocks, share)
    _native.gpu_device(0, 0, tuple(range(1, len(_native.GPU_KERNELS) + 1)))
    found.frb_in_order(ORDERS[order])
    found.frb_launched((ctypes.c_int64 * 0)(), 0)
    try:
        yield emulated
    finally:
        emulated.note()
        gpu.tell()  # a GPU that is there is itself again


@contextlib.contextmanager
def using(order: str, blocks: int = BLOCKS, share: int = SHARE) -> Iterator[Emulated]:
    """Let torch's states on the CPU be worked on as if they were on a GPU."""
    with launching(order, blocks, share) as emulated:
        before, TORCH.gpus = TORCH.gpus, OnTheCpu()
        try:
            yield emulated
        finally:
            TORCH.gpus = before
