"""Segments: files in the safetensors form that hold some blocks of some arrays, and the checksums of these.

What lies where in the file follows from which blocks it has, so a reader expects every byte of the header and
believes none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from functional_rb.base.checksum import DIGEST
from functional_rb.base.progress import Progress
from functional_rb.buffer.reader import Reader
from functional_rb.checkpoint.blocks import Run, Stored, as_array, bytes_of, chunks
from functional_rb.storage import disk

OBJECTS = "objects"
CHECKSUMS = "{}.checksums"
ALIGNMENT = 64  # of the data, in bytes: a line of a cache, and more than any dtype needs
METADATA = {"format": "functional_rb.checkpoint", "version": "1"}
# Dtypes as safetensors calls them.
NAMES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
}


class Places(NamedTuple):
    """Where things lie in a segment, counted in bytes from its beginning."""

    header: bytes  # the file's first bytes
    data: dict[str, int]  # of each array where its blocks begin
    tables: dict[str, int]  # of each array where its checksums begin, uint8 [blocks, 16]
    objects: int  # where the Python objects begin
    size: int  # of the file


def places(runs: Mapping[str, tuple[Stored, list[Run]]], objects: int, in_place: Collection[str] = ()) -> Places:
    tensors: list[tuple[str, str, tuple[int, ...], int]] = []
    for name, (stored, has) in runs.items():
        if name in in_place:
            continue
        shape = (stored.length(has), *stored.shape[1:])
        tensors.append((name, NAMES[stored.dtype], shape, shape[0] * stored.row_bytes))
    # Behind the arrays, as its length is that of a text, and what follows would not be aligned.
    tensors.append((OBJECTS, "U8", (objects,), objects))
    for name, (_, has) in runs.items():
        shape = (int(np.diff(as_array(has)).sum()), DIGEST)
        tensors.append((CHECKSUMS.format(name), "U8", shape, math.prod(shape)))
    entries: dict[str, object] = {"__metadata__": METADATA}
    # Data first, the largest elements foremost, so that each array is aligned for its dtype when it is mapped.
    starts, end = {}, 0
    for name, dtype, shape, nbytes in tensors:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (end, end + nbytes)}
        starts[name], end = end, end + nbytes
    # The length of the header comes first; spaces behind it align the data.
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    at = {name: len(header) + start for name, start in starts.items()}
    tables = {name: at[CHECKSUMS.format(name)] for name in runs}
    return Places(
        header, {name: at[name] for name in runs if name not in in_place}, tables, at[OBJECTS], len(header) + end
    )


def write(
    path: str,
    reader: Reader,
    runs: Mapping[str, tuple[Stored, list[Run]]],
    objects: bytes,
    progress: Progress,
    in_place: Collection[str] = (),
) -> dict[str, bytes]:
    """Write a segment so that it lasts, chunk by chunk; gives the checksums of each array's blocks.

    Of arrays in place these are all that is written.
    """
    tables = {}
    with disk.create(path) as file:
        disk.write(file.fd, places(runs, len(objects), in_place).header)
        for name, (stored, has) in runs.items():
            digests = []
            for chunk in chunks(has):
                content = bytes_of(reader.read(name, *stored.span(chunk)))
                digests.append(stored.digests(content))
                if name not in in_place:
                    disk.write(file.fd, content)
                progress.advance(len(content))
            tables[name] = b"".join(digests)
        disk.write(file.fd, objects)
        disk.write(file.fd, b"".join(tables.values()))
        disk.fsync(file.fd)
    return tables
