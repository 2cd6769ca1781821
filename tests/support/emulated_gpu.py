"""The kernels for GPUs, carried out on the CPU by emulated blocks, whose threads take turns in a chosen order."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.chain_programs import NotHere
from tools.native_build import SOURCES, compiler
from torch_backend.gpu.kernels import FIELDS, Kernels
from torch_backend.library import TORCH

ORDERS = {"forward": 0, "backward": 1, "scattered": 2}


class Emulated:
    """Carries kernels out at once, on tensors of the CPU; tells what was launched, and on how many blocks.

    Attributes:
        launched: the names of kernels with their grids, the oldest first.
    """

    def __init__(self, order: str) -> None:
        """Have threads and blocks take turns in an order."""
        self._library, self._order = library(), ORDERS[order]
        self.launched: list[tuple[str, tuple[int, int]]] = []

    def ready(self, device: int) -> bool:
        """Always."""
        return True

    def launch(
        self, device: int, name: str, call: ctypes.Array[Any], grid: tuple[int, int], threads: int, done: list[int]
    ) -> None:
        """Carry a kernel out."""
        self.launched.append((name, grid))
        numbers = [ctypes.c_int64(x) for x in (*grid, self._order)]
        given = (ctypes.byref(call), *numbers)
        done.extend(map(getattr(self._library, f"frb_{name}"), *[(each,) for each in given]))


@functools.cache
def library() -> ctypes.CDLL:
    """The emulator, compiled once a process."""
    source = Path(__file__).with_suffix(".cpp")
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/emulated.so"
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wno-unknown-pragmas", f"-I{SOURCES}"]
        subprocess.run([*compiler(), *flags, str(source), "-o", made], check=True)
        loaded = ctypes.CDLL(made)
    assert loaded.frb_call_bytes() == 8 * len(FIELDS), "Python packs the record as C++ declares it"
    return loaded


@contextlib.contextmanager
def using(launcher: Emulated) -> Iterator[None]:
    """Let states on the CPU be worked on as if they were on a GPU."""
    before = TORCH.gpu, TORCH.chain
    TORCH.gpu, TORCH.chain = Kernels(launcher, "cpu"), NotHere()
    try:
        yield
    finally:
        TORCH.gpu, TORCH.chain = before
