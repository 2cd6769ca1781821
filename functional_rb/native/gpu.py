"""CUDA's driver, and the compiler that builds of torch and JAX for CUDA bring along, without a header of either.

What is compiled is kept in the user's folder of caches, under a name that tells of all that it is made of. Kernels are
handles of a library, which belongs to no context: each is carried out in that of the thread. The extension is imported
where it is used, as there may be none.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from functional_rb.base.files import cache_folder
from functional_rb.native.sources import MAIN, shipped, with_headers

if TYPE_CHECKING:
    from functional_rb.native.kernels import Kernel

FLAGS: Final = (
    "-std=c++17",
    "--fmad=false",  # the reference rounds after each operation
    "--device-as-default-execution-space",  # else lambdas with parameters of any type are taken for the host's
)
# So many blocks of a launch are enough for any GPU, which has up to 150 multiprocessors.
BLOCKS: Final = 1024
# Rows of an update that one block has, and a fourth of the bytes of an item; of more several blocks.
SHARE: Final = 4096
# The functions of the driver that are called from C++.
FUNCTIONS: Final = "cuLaunchKernel", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuGetErrorString"
# The numbers of the compute capability among a device's attributes.
MAJOR, MINOR = 75, 76


class Loaded(NamedTuple):
    """The kernels on a device.

    Attributes:
        context: the primary one of the device, which torch and XLA use.
        kernels: handles by name, the same for all devices of an architecture.
    """

    context: int
    kernels: dict[str, int]


_ready: dict[int, bool] = {}
_there: dict[int, Loaded] = {}


def ready(device: int, library: str) -> bool:
    """Whether kernels can be carried out on a device; a warning says once why they cannot.

    Args:
        device: its number, as CUDA counts those that are visible.
        library: whose operations do the work then.
    """
    if device not in _ready:
        try:
            _there[device] = loaded(device)
            tell()
            _ready[device] = True
        except (RuntimeError, OSError) as error:
            _ready[device] = False
            warnings.warn(
                f"on cuda:{device} functional_rb goes on by {library}'s operations, many times as slow as its kernels: "
                f"{error}; functional_rb.kernels(False) says that this is meant",
                RuntimeWarning,
                stacklevel=2,
            )
    return _ready[device]


def tell() -> None:
    """Tell the extension how to launch, and of the kernels on each device."""
    from functional_rb import _native

    if _there:
        addresses = tuple(ctypes.cast(getattr(cuda(), name), c_void_p).value or 0 for name in FUNCTIONS)
        _native.gpu_driver(addresses, BLOCKS, SHARE)
    for device, there in _there.items():
        _native.gpu_device(device, there.context, tuple(there.kernels[name] for name in _native.GPU_KERNELS))


def fits(kernel: Kernel) -> bool:
    """Whether there is a launch for a kernel that can name all that the buffer has."""
    if kernel.on_gpu is None:
        return False
    records = dict(zip(kernel.record_names, kernel.records[1:], strict=False))
    return "plan" not in records or has_room(records, len(kernel.in_order) * (kernel.on_gpu.name == "read_drawn"))


def has_room(records: Mapping[str, Any], read: int = 0) -> bool:
    """Whether a launch can name all that the records of a buffer say, and so many results that are read."""
    from functional_rb import _native

    most, of_plan, of_rings, of_beside, of_their_plan, arrays_beside = _native.GPU_ROOM
    record = {name: x for name, x in records.items() if isinstance(x, np.ndarray)}
    size = {name: len(x) for name, x in record.items()}
    room = {"plan": of_plan, "ring": of_rings, "queue": of_beside, "frames": of_beside, "beside_plan": of_their_plan}
    if any(size.get(name, 0) > limit for name, limit in room.items()):
        return False
    leaves, wide = record["plan"][:2]
    if read:  # what is told of returns lies behind what is told of frames
        return size.get("returns", 0) + size.get("frames", 0) <= of_beside and read <= most and bool(wide < most)
    if "beside_plan" in record:  # rows of another layout, each leaf of which may stand for two
        leaves += 2 * record["beside_plan"][0]
        wide = max(wide, record["beside_plan"][1] + most - arrays_beside)
    return bool(leaves <= most and wide < most)


def scratch(kernel: Kernel) -> int:
    """How many numbers of int32 the launch for a kernel wants for its own use."""
    from functional_rb import _native

    assert kernel.on_gpu is not None
    return _native.gpu_scratch(kernel.on_gpu.name, tuple(kernel.vectors))


@functools.cache
def cuda() -> Any:
    """The driver's library; it has begun.

    Raises:
        OSError: if there is none.
        RuntimeError: if it refuses.
    """
    library = ctypes.CDLL("libcuda.so.1")
    status = library.cuInit(0)
    if status:
        raise RuntimeError(f"CUDA refused cuInit ({status})")
    return library


def check(status: int, what: str) -> None:
    """Raise the error that a status of the driver stands for, if it is one."""
    if status:
        text = c_char_p()
        cuda().cuGetErrorString(status, byref(text))
        raise RuntimeError(f"CUDA refused {what}: {(text.value or b'').decode()} ({status})")


@functools.cache
def loaded(device: int) -> Loaded:
    """The kernels on a device, compiled if they have not been, and loaded, so that a capture may launch them at once.

    Raises:
        RuntimeError: if the driver refuses, or there is no compiler.
        OSError: if there is no driver.
    """
    library, handle, context, version = cuda(), c_int(), c_void_p(), c_int()
    major, minor = c_int(), c_int()
    check(library.cuDeviceGet(byref(handle), device), "cuDeviceGet")  # which heeds CUDA_VISIBLE_DEVICES
    check(library.cuDevicePrimaryCtxRetain(byref(context), handle), "cuDevicePrimaryCtxRetain")
    check(library.cuDeviceGetAttribute(byref(major), MAJOR, handle), "cuDeviceGetAttribute")
    check(library.cuDeviceGetAttribute(byref(minor), MINOR, handle), "cuDeviceGetAttribute")
    check(library.cuDriverGetVersion(byref(version)), "cuDriverGetVersion")
    architecture = f"sm_{major.value}{minor.value}"
    kernels = _library(architecture, version.value // 1000)
    check(library.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
    try:
        for name, kernel in kernels.items():  # else loaded when it is first launched, which no capture permits
            function = c_void_p()
            check(library.cuKernelGetFunction(byref(function), c_void_p(kernel)), f"the kernel {name}")
            if hasattr(library, "cuFuncLoad"):
                check(library.cuFuncLoad(function), f"the kernel {name}")
    finally:
        library.cuCtxPopCurrent_v2(byref(c_void_p()))
    assert context.value is not None
    return Loaded(context.value, kernels)


@functools.cache
def _library(architecture: str, newest: int) -> dict[str, int]:
    from functional_rb import _native

    library, kernels, nothing = c_void_p(), {}, (None, None, 0, None, None, 0)
    path = shipped()
    # An older driver knows less than nvcc has made; then NVRTC, of its own version, makes it anew.
    if not path.is_file() or cuda().cuLibraryLoadData(byref(library), path.read_bytes(), *nothing):
        image = compiled(architecture, newest)
        check(cuda().cuLibraryLoadData(byref(library), image, *nothing), "cuLibraryLoadData")
    for name in _native.GPU_KERNELS:
        kernel = c_void_p()
        check(cuda().cuLibraryGetKernel(byref(kernel), library, f"frb_{name}".encode()), f"the kernel {name}")
        kernels[name] = kernel.value or 0
    return kernels


def compiled(architecture: str, newest: int | None = None) -> bytes:
    """The kernels for an architecture, as in `sm_90`; those in the user's cache if they were made of the same."""
    sources = with_headers()
    compiler = _compiler(newest)
    version = (c_int(), c_int())
    compiler.nvrtcVersion(byref(version[0]), byref(version[1]))
    key = repr((architecture, FLAGS, version[0].value, version[1].value, sorted(sources.items())))
    folder = _cache()
    path = None if folder is None else folder / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    if path is not None and path.is_file():
        return path.read_bytes()
    image = _compile(compiler, sources, architecture)
    if path is not None:
        _keep(path, image)
    return image


def _compile(compiler: Any, sources: dict[str, bytes], architecture: str) -> bytes:
    program, headers = c_void_p(), [(name.encode(), text) for name, text in sources.items() if name != MAIN]
    names, texts = ((c_char_p * len(headers))(*column) for column in zip(*headers, strict=True))
    compiler.nvrtcCreateProgram(byref(program), sources[MAIN], MAIN.encode(), len(headers), texts, names)
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
    content = ctypes.create_string_buffer(size.value)
    read(program, content)
    return content.raw


@functools.cache
def _compiler(newest: int | None) -> Any:
    """NVRTC, as builds of torch and JAX for CUDA bring it, or the system has it."""
    for path in _places(newest):
        try:
            # It looks for its other half by name, and does not look beside itself: so that has to be there before.
            for half in sorted(Path(path).parent.glob("libnvrtc-builtins.so*")):
                ctypes.CDLL(str(half))
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise RuntimeError(
        "expected NVRTC, CUDA's compiler at run time, which builds of torch and JAX for CUDA bring along; install "
        "nvidia-cuda-nvrtc"
    )


def _places(newest: int | None) -> Iterator[str]:
    """Where NVRTC may lie, first the newest whose code the driver can load."""
    folders = [path for name in ("nvidia", "torch") for path in _package(name)]
    libraries = {str(path) for folder in folders for path in Path(folder).rglob("libnvrtc*.so.*") if _major(path.name)}
    fits = [path for path in libraries if newest is None or _major(path) <= newest]
    yield from sorted(fits, key=lambda path: (-_major(path), path))
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    for version in range(newest or 13, 11, -1):
        yield from (f"libnvrtc.so.{version}", f"{home}/lib64/libnvrtc.so.{version}")


def _package(name: str) -> list[str]:
    """The folders of a package, which is not imported."""
    spec = importlib.util.find_spec(name)
    return [] if spec is None else [*(spec.submodule_search_locations or ())]


def _major(path: str) -> int:
    """The version that the name of NVRTC's library ends with; 0 for its other half, and for other names."""
    match = re.fullmatch(r"libnvrtc(?:-[0-9a-f]+)?\.so\.(\d+)(?:\.\d+)*", Path(path).name)
    return int(match[1]) if match else 0


def _cache() -> Path | None:
    """The folder of compiled kernels; None if others may write to it, as what lies there is carried out."""
    folder = Path(cache_folder("kernels"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    safe = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if safe else None


def _keep(path: Path, image: bytes) -> None:
    """Write a file whole or not at all; where that cannot be, the kernels are compiled again the next time."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(image)
        os.replace(file.name, path)
    except OSError:
        pass
