"""Where compiled kernels are kept between processes, and when they are out of date.

numba keeps what it compiled beside the source file, and compiles again when that file changes. But a kernel has what it
calls compiled into it, and constants of other modules too: after an upgrade that changed only those, numba would run
the old code on the new layout of memory. So here the stamp is the content of the whole package.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import numba
from numba.core import caching, ccallback

PACKAGE = Path(__file__).resolve().parent.parent
OPTIONS = {"nogil": True, "error_model": "numpy"}


@functools.cache
def stamp() -> str:
    """A hash of every module of the package."""
    content = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        content.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return content.hexdigest()


def _stamped(locator: Any) -> Any:
    return type(locator.__name__, (locator,), {"get_source_stamp": lambda self: stamp()})


class _Results(caching.CompileResultCacheImpl):
    # Not annotated as a ClassVar, as the linter would have it, because numba's own is not.
    _locator_classes = [_stamped(locator) for locator in caching.CompileResultCacheImpl._locator_classes]  # noqa: RUF012


class KernelCache(caching.FunctionCache):
    """numba's cache of a function, with the package's stamp."""

    _impl_class = _Results


def keep(compiled: Any, function: Any) -> None:
    """Keep what is compiled of a function on disk, if there is a folder that may be written to."""
    try:
        compiled._cache = KernelCache(function)
    except RuntimeError:  # numba found no such folder: each process compiles anew
        return


def compiled(function: Any) -> Any:
    """Compile for the CPU when first called, releasing the GIL."""
    dispatcher = numba.njit(**OPTIONS)(function)
    keep(dispatcher, function)
    return dispatcher


def callback(signature: Any, function: Any) -> Any:
    """Compile for callers in C, now; the address is that of the result's `ctypes`."""
    made = ccallback.CFunc(function, (signature.args, signature.return_type), {}, {"nopython": True, **OPTIONS})
    keep(made, function)
    made.compile()
    return made
