"""XLA's FFI: how the frame of a custom call is read, and how one call serves a whole batch.

XLA's C interface (xla/ffi/api/c_api.h, version 0.1) is a stable one: XLA serves handlers of an older version, and
refuses at the first call those of a newer one. So this is the version of the oldest JAX that is supported; what is read
here has the same place in all versions since. A handler gets one pointer to a call frame; the offsets below are those
of the 64-bit layout of the header's structures. JAX is not needed here: a handler is only the address of a function.

A custom call may stand for many, as `jax.vmap` makes them: then arrays have axes in front, and the frame an attribute
that says where in them each call has its part (see `encode_batch`). A *call* is one of those, (frame, number); a
*buffer* is an operand or a result as one call sees it, (structure, bytes to skip, axes to skip).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numba import types

from functional_rb.cpu_kernels.cache import callback, compiled
from functional_rb.cpu_kernels.raw_memory import ints, load_int32, load_int64, read_only, store_int32

API_MAJOR, API_MINOR = 0, 1
FRAME_EXTENSION, FRAME_ARGUMENTS, FRAME_RESULTS, FRAME_ATTRIBUTES = 8, 40, 80, 120
LIST_SIZE, LIST_ITEMS, ATTRIBUTE_ITEMS = 16, 32, 40
BUFFER_DATA, BUFFER_RANK, BUFFER_SIZES = 24, 32, 40
ARRAY_DATA = 16
EXTENSION_TYPE, EXTENSION_METADATA, METADATA_TYPE = 8, 24, 1
METADATA_MAJOR, METADATA_MINOR, METADATA_TRAITS = 24, 28, 32

BATCH_CALLS: Final = 0
BATCH_AXES: Final = 1
BATCH_SIZES: Final = 2
"""From here: the size of each axis, then an entry for each operand and each result."""
ENTRY_SKIPPED: Final = 0
ENTRY_STRIDES: Final = 1


def encode_batch(
    sizes: Sequence[int], batched: Sequence[Sequence[bool]], nbytes: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The attribute of a call that stands for many.

    Args:
        sizes: of the axes that all these calls make, the outermost first.
        batched: for each operand and then for each result, which of the axes it has, in front of its own.
        nbytes: of each of these, for one call.
    """
    vector = [math.prod(sizes), len(sizes), *sizes]
    for axes, size in zip(batched, nbytes, strict=True):
        steps, step = [], size
        for has_axis, n in zip(reversed(axes), reversed(sizes), strict=True):
            steps.append(step if has_axis else 0)
            step *= n if has_axis else 1
        vector += [sum(axes), *reversed(steps)]
    return np.asarray(vector, np.int64)


@compiled
def calls(frame: Any) -> Any:
    """For how many calls a frame stands; none, if XLA asks for the handler's version, which is then filled in."""
    extension = load_int64(frame + FRAME_EXTENSION)
    if extension != 0 and load_int32(extension + EXTENSION_TYPE) == METADATA_TYPE:
        metadata = load_int64(extension + EXTENSION_METADATA)
        store_int32(metadata + METADATA_MAJOR, np.int32(API_MAJOR))
        store_int32(metadata + METADATA_MINOR, np.int32(API_MINOR))
        store_int32(metadata + METADATA_TRAITS, np.int32(0))
        return np.int64(0)
    batch = batch_of(frame)
    return load_int64(batch + 8 * BATCH_CALLS) if batch else np.int64(1)


@compiled
def batch_of(frame: Any) -> Any:
    """The address of what `encode_batch` made, 0 if there is none: it is the only attribute that a call may have."""
    if load_int64(frame + FRAME_ATTRIBUTES + LIST_SIZE) == 0:
        return np.int64(0)
    return load_int64(load_int64(load_int64(frame + FRAME_ATTRIBUTES + ATTRIBUTE_ITEMS)) + ARRAY_DATA)


@compiled
def operands(call: Any) -> Any:
    """How many operands the call has."""
    return load_int64(call[0] + FRAME_ARGUMENTS + LIST_SIZE)


@compiled
def operand(call: Any, k: Any) -> Any:
    """The call's k-th operand, as `part` has it."""
    return part(call, load_int64(load_int64(call[0] + FRAME_ARGUMENTS + LIST_ITEMS) + 8 * k), k)


@compiled
def result(call: Any, k: Any) -> Any:
    """The call's k-th result, as `part` has it."""
    return part(call, load_int64(load_int64(call[0] + FRAME_RESULTS + LIST_ITEMS) + 8 * k), operands(call) + k)


@compiled
def part(call: Any, structure: Any, k: Any) -> Any:
    """A buffer, by its structure and its place among operands and results."""
    frame, number = call
    batch = batch_of(frame)
    if batch == 0:
        return structure, np.int64(0), np.int64(0)
    axes = load_int64(batch + 8 * BATCH_AXES)
    entry = batch + 8 * (BATCH_SIZES + axes + k * (ENTRY_STRIDES + axes))
    skipped, rest = np.int64(0), np.int64(number)
    for back in range(axes):
        axis = axes - 1 - back
        size = load_int64(batch + 8 * (BATCH_SIZES + axis))
        skipped += rest % size * load_int64(entry + 8 * (ENTRY_STRIDES + axis))
        rest //= size
    return structure, skipped, load_int64(entry + 8 * ENTRY_SKIPPED)


@compiled
def data(buffer: Any) -> Any:
    """The address of a buffer's elements."""
    structure, skipped, _ = buffer
    return load_int64(structure + BUFFER_DATA) + skipped


@compiled
def length(buffer: Any) -> Any:
    """How many elements a buffer has."""
    structure, _, axes = buffer
    elements = np.int64(1)
    for axis in range(axes, load_int64(structure + BUFFER_RANK)):
        elements *= load_int64(load_int64(structure + BUFFER_SIZES) + 8 * axis)
    return elements


@compiled
def rows_of(buffer: Any) -> Any:
    """The size of a buffer's first axis."""
    structure, _, axes = buffer
    return load_int64(load_int64(structure + BUFFER_SIZES) + 8 * axes)


@compiled
def address(buffer: Any) -> Any:
    """Where a buffer lies; 0 for an empty one, which stands for an array that is not given."""
    return data(buffer) if length(buffer) else np.int64(0)


@compiled
def source(call: Any, k: Any) -> Any:
    """The address of the k-th operand, 0 for an empty one."""
    return address(operand(call, k))


@compiled
def target(call: Any, k: Any) -> Any:
    """The address of the k-th result, 0 for an empty one."""
    return address(result(call, k))


@compiled
def vector(call: Any, k: Any) -> Any:
    """The k-th operand as int32 [n], only to be read: kernels are compiled for that, as Python hands it over so."""
    return read_only(ints(source(call, k), length(operand(call, k))))


@compiled
def sources(call: Any, first: Any, count: Any) -> Any:
    """The addresses of consecutive operands, int64 [count]."""
    found = np.empty(count, np.int64)
    for k in range(count):
        found[k] = source(call, first + k)
    return found


@compiled
def targets(call: Any, first: Any, count: Any) -> Any:
    """The addresses of consecutive results, int64 [count]."""
    found = np.empty(count, np.int64)
    for k in range(count):
        found[k] = target(call, first + k)
    return found


def handler(function: Any) -> Any:
    """A function of one call as an XLA FFI handler, which does all calls of a frame and returns null: no error."""
    carry_out = compiled(function)

    def handle(frame: Any) -> Any:
        for number in range(calls(frame)):
            carry_out((frame, number))
        return 0

    handle.__module__, handle.__qualname__ = function.__module__, function.__qualname__
    return callback(types.int64(types.int64), handle)
