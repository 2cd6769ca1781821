"""Compiled kernels, kept on disk between processes.

numba's own cache lies beside the source file and is out of date when that file changes; but a kernel has what it calls
compiled into it, and constants of other modules too. Here a file is named by what the kernel is made of, by the types
of its arguments, and by whom it is compiled for: another one of any of these is another file, so that several versions
of this package share a folder. A file that is not whole counts as none. Whatever is wrong with the folder, kernels are
compiled and work.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import llvmlite
import llvmlite.binding
import numba
import numpy as np
from numba import types
from numba.core import caching, ccallback, compiler, config
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps

from functional_rb.cpu_kernels import folder as folders
from functional_rb.cpu_kernels.content import content_of
from functional_rb.cpu_kernels.folder import folder

OPTIONS: Final = {"nogil": True, "error_model": "numpy"}
COMPILED_BY: Final = (
    *(
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        sys.implementation.cache_tag,
        getattr(sys, "abiflags", ""),
    ),
    *(config.OPT, config.BOUNDSCHECK, sorted(OPTIONS.items())),
)
SUFFIX: Final = ".kernel"
VERSIONS: Final = 64
"""So many files of a kernel are kept, the newest."""
LEFT_BEHIND: Final = 3600.0
"""Seconds after which a file that somebody has begun is known to be left behind."""

ENTRIES: Final[list[Any]] = []
"""The kernels that Python calls, of the modules that are imported so far."""

_log = logging.getLogger("functional_rb")
_said: set[str] = set()
done: Counter[str] = Counter()
"""How many kernels this process has loaded, compiled, and not been able to keep."""


def _say_once(kind: str, message: str, *arguments: object) -> None:
    if kind not in _said:
        _said.add(kind)
        _log.warning(message, *arguments)


def processor() -> str:
    """A description of the processor for which kernels are compiled."""
    name: str = config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    return name


class KernelCache(caching._Cache):
    """What is compiled of one function, one file for each signature and processor."""

    def __init__(self, function: Any) -> None:
        """Of a function that is not compiled yet."""
        self._function = function
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"

    @property
    def cache_path(self) -> str | None:
        """The path of the cache's folder, or None if there is none."""
        path = folder().path
        return None if path is None else str(path)

    def enable(self) -> None:
        """Do nothing, as the cache is always enabled."""

    def disable(self) -> None:
        """Do nothing, as the cache cannot be disabled."""

    def flush(self) -> None:
        """Do nothing, as no entry is ever out of date."""

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        path = folder().path
        if path is None:
            return None
        made_of = repr((content_of(self._function), signature, codegen.magic_tuple(), COMPILED_BY))
        return path / f"{self._name}-{hashlib.sha256(made_of.encode()).hexdigest()[:40]}{SUFFIX}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was compiled for a signature, None if that is not here: then it will be compiled."""
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        found = None if path is None else _kept(path)
        if found is not None:
            # Made of bytes that are whole; if numba cannot take them all the same, it compiles.
            with contextlib.suppress(Exception):
                loaded = compiler.CompileResult._rebuild(target_context, *pickle.loads(found))
                done["loaded"] += 1
                return loaded
        done["compiled"] += 1
        kept = f"they are kept in {path.parent}" if path else f"they cannot be kept for later ones: {folder().why_not}"
        _say_once("compiles", "functional_rb: this process compiles kernels, for up to half a minute; %s", kept)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep it, if the folder can be written to."""
        path = self._path(sig, data.codegen)
        if path is None:
            done["not kept"] += 1
            return
        try:
            _keep(path, dumps(data._reduce()), self._name)
        except OSError as error:
            done["not kept"] += 1
            _say_once("unkept", "functional_rb: compiled kernels cannot be kept for later processes: %s", error)


def _kept(path: Path) -> bytes | None:
    """What a file holds behind the hash of it, if it is whole, and nobody else could have written it."""
    try:
        with _opened(path.parent) as directory:
            whole = folders.read(path.name, directory, path.parent)
    except folders.UnsafeError as error:
        _say_once("unsafe", "functional_rb: compiled kernels that are there are not run: %s", error)
        return None
    except OSError:
        return None
    return whole[32:] if hashlib.sha256(whole[32:]).digest() == whole[:32] else None


def _keep(path: Path, content: bytes, name: str) -> None:
    """Write a file that others see once it is whole, and remove what is old of the same kernel."""
    with _opened(path.parent) as directory:
        folders.write(path.name, hashlib.sha256(content).digest() + content, directory)
        _forget_old(directory, name)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The descriptor of the folder, looked at anew: another one may be there by now."""
    directory = folders.opened(path)
    try:
        yield directory
    finally:
        os.close(directory)


def _forget_old(directory: int, name: str) -> None:
    """Remove what is left of older versions of a kernel, and files that were never ended."""
    # Files may vanish meanwhile, as others do the same.
    with contextlib.suppress(FileNotFoundError):
        of_kernel = [file for file in os.listdir(directory) if file.startswith(f"{name}-")]
        times = {file: os.stat(file, dir_fd=directory, follow_symlinks=False).st_mtime for file in of_kernel}
        newest = sorted((file for file in times if file.endswith(SUFFIX)), key=lambda file: times[file], reverse=True)
        left = [file for file in times if file.endswith(folders.PART) and times[file] < time.time() - LEFT_BEHIND]
        for file in [*newest[VERSIONS:], *left]:
            os.unlink(file, dir_fd=directory)


class Kernel(CPUDispatcher):
    """A function that is compiled for the types of its arguments, and not for each constant that it is called with."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What other kernels call: the same for all numbers of a type."""
        return super().get_call_template(tuple(map(types.unliteral, args)), kws)


def compiled(function: Any) -> Any:
    """Compile for the CPU when first called, releasing the GIL."""
    kernel = Kernel(function, targetoptions={"nopython": True, "boundscheck": None, **OPTIONS})
    kernel._cache = KernelCache(function)
    return kernel


def entry_point(function: Any) -> Any:
    """Compile a kernel that Python calls too: one of those that `beforehand` compiles."""
    ENTRIES.append(compiled(function))
    return ENTRIES[-1]


def callback(signature: Any, function: Any) -> Any:
    """Compile for callers in C, now; the address is that of the result's `ctypes`."""
    made = ccallback.CFunc(function, (signature.args, signature.return_type), {}, {"nopython": True, **OPTIONS})
    made._cache = KernelCache(function)  # type: ignore[attr-defined]  # as numba keeps its own
    made.compile()
    return made
