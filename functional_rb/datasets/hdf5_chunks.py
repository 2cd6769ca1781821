"""Rows of data sets of HDF5 that were deflated chunk by chunk, inflated by several threads: HDF5 does that by one.

Inflating takes nearly all of the time in which such a file is read. Chunks are read as they lie in the file, and
inflated by zlib, which lets other threads run meanwhile.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.extras import imported

if TYPE_CHECKING:
    from h5py import Dataset

# Bytes of rows from which on threads are worth their while.
LEAST = 2**20
THREADS = min(4, os.cpu_count() or 1)
# The number that HDF5 has for the filter.
DEFLATE = 1


def rows(dataset: Dataset, first: int, stop: int) -> NumpyArray | None:
    """Rows [first, stop) of a data set, as h5py reads them; None if they are not deflated, or too few."""
    shape = (stop - first, *dataset.shape[1:])
    if THREADS == 1 or math.prod(shape) * dataset.dtype.itemsize < LEAST or not _is_deflated(dataset):
        return None
    values, chunk = np.empty(shape, dataset.dtype), dataset.chunks
    starts = [range(first - first % chunk[0], stop, chunk[0])]
    starts += [range(0, size, step) for size, step in zip(shape[1:], chunk[1:], strict=True)]
    # HDF5 reads under a lock of its own, so that one thread reads, and the others inflate.
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: list[Future[None]] = []
        for place in itertools.product(*starts):
            if dataset.id.get_chunk_info_by_coord(place).byte_offset is None:
                return None  # it was never written: h5py knows what to read
            # The mask says which filters were left out of this chunk: deflating may have made it no smaller.
            left_out, content = dataset.id.read_direct_chunk(place)
            waiting.append(pool.submit(_put, values, first, place, chunk, content, not left_out))
            if len(waiting) > 4 * THREADS:  # so that few of them are in memory
                waiting.pop(0).result()
        for each in waiting:
            each.result()
    return values


def _is_deflated(dataset: Dataset) -> bool:
    # Whether chunks are deflated and nothing else, and hold numbers as NumPy has them.
    if dataset.chunks is None or dataset.dtype.kind not in "iuf":
        return False
    h5t, plan = imported("h5py", "datasets").h5t, dataset.id.get_create_plist()
    # Others, such as shuffling or a checksum, come before or behind it, and would have to be undone too.
    filters = [plan.get_filter(k)[0] for k in range(plan.get_nfilters())]
    return filters == [DEFLATE] and h5t.py_create(dataset.dtype).equal(dataset.id.get_type())


def _put(
    rows: NumpyArray, first: int, place: tuple[int, ...], chunk: tuple[int, ...], content: bytes, is_deflated: bool
) -> None:
    nbytes = math.prod(chunk) * rows.dtype.itemsize
    # A byte too many is enough to refuse it.
    inflated = zlib.decompressobj().decompress(content, nbytes + 1) if is_deflated else content
    if len(inflated) != nbytes:
        raise OSError(f"a chunk was expected to have {nbytes} bytes, it has {len(inflated)}")
    values = np.frombuffer(inflated, rows.dtype).reshape(chunk)
    # The first chunk may begin before the rows, and the last one of each axis end behind them.
    begin = (place[0] - first, *place[1:])
    target = tuple(slice(max(at, 0), at + size) for at, size in zip(begin, chunk, strict=True))
    room = rows[target]
    skipped = max(-begin[0], 0)
    source = (slice(skipped, skipped + room.shape[0]), *(slice(size) for size in room.shape[1:]))
    room[...] = values[source]
