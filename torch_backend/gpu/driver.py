"""CUDA's driver, and the compiler that torch's builds for CUDA bring along, without a header of either.

What is compiled is kept in the user's folder of caches, under a name that tells of all that it is made of.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final

import torch

import functional_rb
from functional_rb import _native

SOURCES: Final = Path(functional_rb.__file__).parent / "native" / "src"
HEADERS: Final = ("gpu.h", "buffer_call.h", "records.h", "base.h", "tables.h")
FLAGS: Final = ("-std=c++17", "--fmad=false")  # the reference rounds after each operation
BLOCKS: Final = 1024
"""So many blocks of a launch are enough for any GPU, which has up to 150 multiprocessors."""
SHARE: Final = 4096
"""Bytes of an item that the threads of one block read together; of more several blocks."""
_READY: dict[int, bool] = {}


def ready(device: int) -> bool:
    """Whether kernels can be launched on a device; a warning says once why they cannot."""
    if device not in _READY:
        try:
            _native.gpu_device(device, *_loaded(device))
            _native.gpu_driver(_functions(), BLOCKS, SHARE)
            _READY[device] = True
        except (RuntimeError, OSError, AssertionError) as error:
            _READY[device] = False
            warnings.warn(
                f"on cuda:{device} functional_rb goes on by torch's operations, many times as slow as its kernels: "
                f"{error}; functional_rb.kernels(False) says that this is meant",
                RuntimeWarning,
                stacklevel=2,
            )
    return _READY[device]


def _functions() -> tuple[int, ...]:
    """The addresses of the driver's functions that are called from C++."""
    names = "cuLaunchKernel", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuGetErrorString"
    return tuple(ctypes.cast(getattr(_cuda(), name), c_void_p).value or 0 for name in names)


@functools.cache
def _cuda() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, what: str) -> None:
    if status:
        told = c_char_p()
        _cuda().cuGetErrorString(status, byref(told))
        raise RuntimeError(f"CUDA refused {what}: {(told.value or b'').decode()} ({status})")


def _loaded(device: int) -> tuple[int, tuple[int, ...]]:
    """The context that torch uses on a device, and the kernels, which are compiled if they have not been."""
    cuda, handle, context, library = _cuda(), c_int(), c_void_p(), c_void_p()
    torch.empty(0, device=torch.device("cuda", device))  # torch has begun
    _check(cuda.cuDeviceGet(byref(handle), device), "cuDeviceGet")  # both heed CUDA_VISIBLE_DEVICES
    _check(cuda.cuDevicePrimaryCtxRetain(byref(context), handle), "cuDevicePrimaryCtxRetain")
    major, minor = torch.cuda.get_device_capability(device)
    image = compiled(f"sm_{major}{minor}")
    nothing = (None, None, 0, None, None, 0)
    _check(cuda.cuLibraryLoadData(byref(library), image, *nothing), "cuLibraryLoadData")
    kernels = []
    for name in _native.GPU_KERNELS:
        kernel = c_void_p()
        _check(cuda.cuLibraryGetKernel(byref(kernel), library, f"frb_{name}".encode()), f"the kernel {name}")
        kernels.append(kernel.value or 0)
    return context.value or 0, tuple(kernels)


def compiled(architecture: str) -> bytes:
    """The kernels for an architecture, as in `sm_90`; those in the user's cache if they were made of the same."""
    sources = {name: (SOURCES / name).read_bytes() for name in ("gpu.cu", *HEADERS)}
    compiler = _compiler()
    version = (c_int(), c_int())
    compiler.nvrtcVersion(byref(version[0]), byref(version[1]))
    made_of = repr((architecture, FLAGS, version[0].value, version[1].value, sorted(sources.items())))
    folder = _cache()
    path = None if folder is None else folder / f"{hashlib.sha256(made_of.encode()).hexdigest()}.cubin"
    if path is not None and path.is_file():
        return path.read_bytes()
    image = _compile(compiler, sources, architecture)
    if path is not None:
        _keep(path, image)
    return image


def _compile(compiler: Any, sources: dict[str, bytes], architecture: str) -> bytes:
    program, headers = c_void_p(), [(name.encode(), text) for name, text in sources.items() if name != "gpu.cu"]
    names, texts = ((c_char_p * len(headers))(*column) for column in zip(*headers, strict=True))
    compiler.nvrtcCreateProgram(byref(program), sources["gpu.cu"], b"gpu.cu", len(headers), texts, names)
    flags = [*FLAGS, f"--gpu-architecture={architecture}"]
    status = compiler.nvrtcCompileProgram(program, len(flags), (c_char_p * len(flags))(*[x.encode() for x in flags]))
    if status:
        log = _bytes_of(compiler.nvrtcGetProgramLogSize, compiler.nvrtcGetProgramLog, program)
        raise RuntimeError(f"the kernels cannot be compiled for {architecture} ({status}): {log.decode()}")
    image = _bytes_of(compiler.nvrtcGetCUBINSize, compiler.nvrtcGetCUBIN, program)
    compiler.nvrtcDestroyProgram(byref(program))
    return image


def _bytes_of(size_of: Callable[..., int], read: Callable[..., int], program: c_void_p) -> bytes:
    size = c_size_t()
    size_of(program, byref(size))
    found = ctypes.create_string_buffer(size.value)
    read(program, found)
    return found.raw


@functools.cache
def _compiler() -> Any:
    """NVRTC, as torch's builds for CUDA bring it, or the system has it."""
    for path in _places():
        try:
            # It looks for its other half by name, and does not look beside itself: so that has to be there before.
            for half in sorted(Path(path).parent.glob("libnvrtc-builtins.so*")):
                ctypes.CDLL(str(half))
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise RuntimeError(
        "expected NVRTC, CUDA's compiler at run time, which torch's builds for CUDA bring along; install "
        "nvidia-cuda-nvrtc"
    )


def _places() -> Iterator[str]:
    major = (torch.version.cuda or "").partition(".")[0]
    spec = importlib.util.find_spec("nvidia")
    folders = [*(spec.submodule_search_locations or ())] if spec is not None else []
    for folder in (*folders, str(Path(torch.__file__).parent / "lib")):
        yield from (str(path) for path in sorted(Path(folder).rglob(f"libnvrtc.so.{major}*")))
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    yield from (f"libnvrtc.so.{major}", f"{home}/lib64/libnvrtc.so.{major}", "libnvrtc.so")


def _cache() -> Path | None:
    """The folder, which nobody else may write to, as what lies there is carried out; None if there is no such one."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "functional_rb" / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    safe = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if safe else None


def _keep(path: Path, image: bytes) -> None:
    """Put a file there at once; where that cannot be, it is compiled again the next time."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as made:
            made.write(image)
        os.replace(made.name, path)
    except OSError:
        pass
