"""What pickles name to write arrays of NumPy, and how arrays are put together of it, without any call."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from functional_rb.base.arrays import NumpyArray


class RefusedError(Exception):
    """Why a pickle is refused: what it holds."""


def _shown(value: object) -> str:
    # Of what lies in containers no text is made: lists that each have the one before twice would fill the memory.
    if isinstance(value, tuple) and all(type(element) is int for element in value):
        return f"{value[:20]!r:.80}"
    return repr(value[:80]) if isinstance(value, str) else f"a {type(value).__name__}"


class Name:
    """A function or a class that pickles of arrays name."""

    def __init__(self, name: str) -> None:
        self.name = name


RECONSTRUCT, NDARRAY, DTYPE, SCALAR, FROM_BUFFER, ENCODE, ORDERED, BYTEARRAY = map(
    Name, ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer", "encode", "OrderedDict", "bytearray")
)
# What a pickle may name.
KNOWN: Final = {
    "numpy.ndarray": NDARRAY,
    "numpy.dtype": DTYPE,
    "_codecs.encode": ENCODE,
    "collections.OrderedDict": ORDERED,
    "builtins.bytearray": BYTEARRAY,
    # NumPy 1 and 2 call the package by different names.
    "numpy.core.multiarray._reconstruct": RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": RECONSTRUCT,
    "numpy.core.multiarray.scalar": SCALAR,
    "numpy._core.multiarray.scalar": SCALAR,
    "numpy.core.numeric._frombuffer": FROM_BUFFER,
    "numpy._core.numeric._frombuffer": FROM_BUFFER,
}


class PickledType:
    """A dtype that is being put together: a text tells kind and size, its state the order of bytes."""

    def __init__(self, text: object) -> None:
        self.holds_objects = text == "O8"  # as arrays of objects have it, which are read as lists
        if not isinstance(text, str) or not re.fullmatch(r"[biufcSU]\d{1,9}|O8", text, re.ASCII):
            raise RefusedError(
                f"an array of dtype {_shown(text)}, expected numbers, truth values, or texts of one length"
            )
        self.dtype = np.dtype(text)

    def set(self, state: object) -> None:
        """Take the state: a version, the order of bytes, what plain values do not have, and sizes."""
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in (*"<>|=",) or any(state[2:5]):
            raise RefusedError("a dtype of another kind, expected numbers, truth values, or texts of one length")
        if not self.holds_objects:
            self.dtype = self.dtype.newbyteorder(state[1])


class PendingArray:
    """An array that was named, and gets its state later."""

    def __init__(self) -> None:
        self.value: object = self  # of an array of objects the list of them, or the single one of one without axes

    def set(self, state: object) -> None:
        """Take the state: a version, the shape, the dtype, whether the order is Fortran's, and the bytes."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise RefusedError("an array without a state")
        _, shape, kind, is_fortran, content = state
        if not isinstance(kind, PickledType) or not kind.holds_objects:
            self.value = _array(content, kind, shape, "F" if is_fortran else "C")
        elif type(content) is list and shape in ((), (len(content),)) and (shape or len(content) == 1):
            self.value = content if shape else content[0]
        else:
            raise RefusedError(f"an array of objects of shape {_shown(shape)}")


def built(name: object, arguments: object) -> object:
    """What stands for the call of a known name; any other call is refused."""
    match name, arguments:
        case Name(), (first, *_) if name is RECONSTRUCT and first is NDARRAY:
            return PendingArray()
        case Name(), (str(text), *_) if name is DTYPE:
            return PickledType(text)
        case Name(), (kind, content) if name is SCALAR:
            return _array(content, kind, (), "C")[()]
        case Name(), (content, kind, shape, order) if name is FROM_BUFFER:
            return _array(content, kind, shape, order)
        case Name(), (str(text), "latin1") if name is ENCODE:
            return text.encode("latin1")
        case Name(), () if name is ORDERED:
            return {}
        case Name(), (bytes(content),) if name is BYTEARRAY:
            return content
    called = name.name if isinstance(name, Name) else _shown(name)
    raise RefusedError(f"a call of {called} as arrays are not written with")


def _array(content: object, kind: object, shape: object, order: object) -> NumpyArray:
    if not isinstance(kind, PickledType) or not isinstance(content, bytes) or order not in ("C", "F"):
        raise RefusedError("an array without dtype or bytes")
    if kind.holds_objects:
        raise RefusedError("an array of objects that is made of bytes")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise RefusedError(f"an array of shape {_shown(shape)}")
    try:
        flat = np.frombuffer(content, kind.dtype) if content else np.zeros(0, kind.dtype)
        return flat.reshape(shape, order=order)
    except ValueError:
        raise RefusedError(f"an array {kind.dtype} {_shown(shape)} of {len(content)} bytes") from None
