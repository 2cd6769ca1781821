"""XLA's FFI: how the frame of a custom call is read.

XLA's C interface (xla/ffi/api/c_api.h, version 0.3) is a stable one: XLA promises to serve handlers of an older
version for a year, and refuses at the first call a version that it no longer knows. A handler gets one pointer to a
call frame; the offsets below are those of the 64-bit layout of the header's structures. JAX is not needed here: a
handler is only the address of a function.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from functional_rb.native.cache import callback, compiled
from functional_rb.native.memory import load_int32, load_int64, pointer_to, store_int32

API_MAJOR, API_MINOR = 0, 3
FRAME_EXTENSION, FRAME_ARGUMENTS, FRAME_RESULTS = 8, 40, 80
LIST_SIZE, LIST_ITEMS = 16, 32
BUFFER_DATA, BUFFER_RANK, BUFFER_SIZES = 24, 32, 40
EXTENSION_TYPE, EXTENSION_METADATA, METADATA_TYPE = 8, 24, 1
METADATA_MAJOR, METADATA_MINOR, METADATA_TRAITS = 24, 28, 32

INT32, UINT8, FLOAT32 = np.int32(0), np.uint8(0), np.float32(0)


@compiled
def answers_metadata(frame: Any) -> Any:
    """When XLA asks for the handler's version rather than calls it, say so."""
    extension = load_int64(frame + FRAME_EXTENSION)
    if extension == 0 or load_int32(extension + EXTENSION_TYPE) != METADATA_TYPE:
        return False
    metadata = load_int64(extension + EXTENSION_METADATA)
    store_int32(metadata + METADATA_MAJOR, np.int32(API_MAJOR))
    store_int32(metadata + METADATA_MINOR, np.int32(API_MINOR))
    store_int32(metadata + METADATA_TRAITS, np.int32(0))
    return True


@compiled
def buffer_at(frame: Any, which: Any, k: Any) -> Any:
    """The k-th argument or result, by the offset of its list in the frame."""
    return load_int64(load_int64(frame + which + LIST_ITEMS) + 8 * k)


@compiled
def data(buffer: Any) -> Any:
    """The address of a buffer's elements."""
    return load_int64(buffer + BUFFER_DATA)


@compiled
def length(buffer: Any) -> Any:
    """How many elements a buffer has."""
    elements = np.int64(1)
    for axis in range(load_int64(buffer + BUFFER_RANK)):
        elements *= load_int64(load_int64(buffer + BUFFER_SIZES) + 8 * axis)
    return elements


@compiled
def rows_of(buffer: Any) -> Any:
    """The size of a buffer's first axis."""
    return load_int64(load_int64(buffer + BUFFER_SIZES))


@compiled
def ints(buffer: Any) -> Any:
    """A buffer as int32 [n]."""
    return numba.carray(pointer_to(data(buffer), INT32), (length(buffer),))


@compiled
def floats(buffer: Any) -> Any:
    """A buffer as float32 [n]."""
    return numba.carray(pointer_to(data(buffer), FLOAT32), (length(buffer),))


@compiled
def marks(buffer: Any) -> Any:
    """A buffer of truth values as uint8 [n]."""
    return numba.carray(pointer_to(data(buffer), UINT8), (length(buffer),))


@compiled
def addresses(frame: Any, which: Any, first: Any, count: Any) -> Any:
    """The addresses of consecutive buffers; 0 for an empty one, which stands for a leaf that is not given."""
    found = np.empty(count, np.int64)
    for k in range(count):
        buffer = buffer_at(frame, which, first + k)
        found[k] = data(buffer) if length(buffer) else 0
    return found


def handler(function: Any) -> Any:
    """A function of a call frame as an XLA FFI handler (it returns null: no error)."""
    return callback(types.int64(types.int64), function)
