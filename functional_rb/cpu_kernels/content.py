"""What a kernel is made of, as one hash: its own code, the constants that it names, and all of this of what it calls.

Two kernels with the same hash compile to the same machine code under the same numba, wherever they lie. Docstrings,
comments, line numbers and whatever else a module holds are no part of it.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types

PACKAGE: Final = __name__.partition(".")[0]
SCALARS: Final = (bool, int, float, complex, str, bytes, type(None), type(...))


@functools.cache
def content_of(function: Any) -> str:
    """The hash of a function that is to be compiled, or that generates code.

    Raises:
        TypeError: if it takes something of which no constant is known, as an object of a class of this package.
    """
    content = hashlib.sha256()
    for piece in _pieces(function):
        content.update(piece.encode() + b"\0")
    return content.hexdigest()


def _pieces(function: Any) -> Iterator[str]:
    yield from _code(function.__code__, function.__globals__)
    for cell in function.__closure__ or ():
        yield from _value(cell.cell_contents)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()):
        yield from _value(default)


def _code(code: CodeType, names: Mapping[str, Any]) -> Iterator[str]:
    """Instruction by instruction: what is never loaded, as a docstring, does not count."""
    yield repr((code.co_argcount, code.co_kwonlyargcount, code.co_varnames, code.co_freevars, code.co_exceptiontable))
    found: Any = None
    for instruction in dis.get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        if name == "EXTENDED_ARG":
            continue
        yield name
        if name == "LOAD_GLOBAL":
            found = names.get(argument, getattr(builtins, argument, None))
        elif _is_ours(found) and name in ("LOAD_ATTR", "LOAD_METHOD"):
            found = getattr(found, argument)
        elif isinstance(argument, CodeType):
            yield from _code(argument, names)
            continue
        else:
            found = None
            yield repr(argument)
            continue
        if not _is_ours(found):
            yield from _value(found)


def _is_ours(value: Any) -> bool:
    """Whether it is a module of this package, which stands for nothing but what is taken from it."""
    return isinstance(value, ModuleType) and value.__name__.partition(".")[0] == PACKAGE


def _value(value: Any) -> Iterator[str]:
    function = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
    if isinstance(function, FunctionType) and function.__module__.partition(".")[0] == PACKAGE:
        yield f"{type(value).__name__} {content_of(function)}"
    elif isinstance(value, SCALARS):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, np.generic | np.ndarray):
        yield f"{value.dtype.str} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, tuple):
        yield f"tuple {len(value)}"
        for item in value:
            yield from _value(item)
    elif isinstance(value, ir.Type | types.Type | np.dtype):
        yield f"{type(value).__name__} {value}"
    else:
        yield _name_of(value)


def _name_of(value: Any) -> str:
    """The name of what is defined elsewhere; the version of numba stands for what it is."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    home = getattr(value, "__module__", None) or ""
    if name is None or home.partition(".")[0] == PACKAGE:
        raise TypeError(
            f"a kernel takes {value!r}: expected a number, a string, a tuple or array of these, or a kernel"
        )
    return f"{home} {name}"
