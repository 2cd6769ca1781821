"""A device of torch's private kind, for tests without an accelerator: "elsewhere", whose memory the host may not touch.

Torch's functions for the CPU carry out what is asked of it, on memory that is open to them alone. So a test finds what
an accelerator would find: a tensor that is read as the host's, one that was made on the wrong device, a function that
has the host wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
import types
from pathlib import Path
from typing import NamedTuple

from tests.support import native_builds
from tests.support.gpu import NAME as NAME
from tools.native_build import compiler


class Counts(NamedTuple):
    """What has happened on the device since it was made.

    Attributes:
        waits: for how many calls the host would have had to wait.
        operations: how many operations were carried out.
        recorded: how many events were recorded in streams.
        blocked: how often a stream was told to wait for an event.
        pinned: for how many tensors of the host pinned memory was taken.
        sent: how many copies of the host's memory came.
        bytes: of all of these.
        aside: how many of the copies were given to another stream than the usual one.
        races: how many operations and launches worked on memory that another stream has written, or wrote what another
            one has used, without an order between the two.
        lost: how much memory was let go that another stream than its own might still have been at.
    """

    waits: int
    operations: int
    recorded: int
    blocked: int
    pinned: int
    sent: int
    bytes: int
    aside: int
    races: int
    lost: int


def built() -> Path:
    """The device, compiled: kept until its source, torch or the compiler changes."""
    import torch

    package = Path(torch.__file__).parent
    includes = [f"-I{package / 'include'}", f"-I{package / 'include/torch/csrc/api/include'}"]
    strings = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-w", strings, *includes]
    linked = [f"-L{package / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    source = str(Path(__file__).with_suffix(".cpp"))

    def make(target: Path) -> None:
        subprocess.run([*compiler(), *flags, source, *linked, "-o", str(target)], check=True)

    return native_builds.kept("device", [*flags, torch.__version__], make)


@functools.cache
def library() -> ctypes.CDLL:
    """Tell torch of the device, once a process."""
    import torch

    loaded = ctypes.CDLL(str(built()))
    loaded.device_counts.argtypes = [ctypes.c_void_p]
    torch.utils.rename_privateuse1_backend(NAME)
    loaded.device_begin()
    torch._register_device_module(NAME, module(loaded))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    return loaded


def module(loaded: ctypes.CDLL) -> types.ModuleType:
    """What torch asks of a device's module."""
    found = types.ModuleType(f"torch.{NAME}")
    found.__dict__.update(
        is_available=lambda: True,
        device_count=loaded.device_count,
        current_device=loaded.device_current,
        set_device=loaded.device_choose,
        device=lambda device: contextlib.nullcontext(),  # a tensor says itself on which it is to be
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
    )
    return found


def counts() -> Counts:
    """What has happened until now."""
    found = (ctypes.c_int64 * len(Counts._fields))()
    library().device_counts(found)
    return Counts(*found)
