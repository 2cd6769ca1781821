"""Reading the flat form from files that anybody may have written, whose claims are checked before memory is taken.

A few bytes can claim to be any number of rows: shapes are numbers, files have holes, HDF5 leaves out what was never
written. So rows are counted before they are read, and only as many are read as the files can hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from functional_rb.base.nest import Path, nested, show
from functional_rb.base.steps import FLAGS
from functional_rb.buffer.spec import BufferSpec
from functional_rb.convert.json import KnownError, from_json
from functional_rb.ted import sources
from functional_rb.ted.forms import Array, Flat
from functional_rb.ted.lanes import Lanes
from functional_rb.ted.padded import EXTRA, FORMAT, FileLeaf, Header
from functional_rb.ted.sources import DamagedError, Opened, Span

DONE = ("done",)
# The number of flags that are read at once.
PIECE = 1 << 22
# About the memory that the description of one lane takes.
LANE_BYTES = 256


def read(opened: Opened, reward: Path, known: Iterable[object]) -> Flat:
    """The flat form of what was opened; if TorchRL wrote it, the path of the reward counts."""
    header, source, extra = opened
    where, total = source.where, header.count * header.length
    done = source.file_leaves.get(DONE)
    if done is None or done.rows != total or done.dtype != "bool" or done.shape not in ((), (1,)):
        got = "none" if done is None else f"{done.dtype} {(done.rows, *done.shape)}"
        raise DamagedError(f"{where}: expected a leaf 'done', bool ({total},) or ({total}, 1), got {got}; not in TED")
    source.expect_held(LANE_BYTES * header.count, f"{header.count} lanes")
    lanes, reward, spec = _extra(header, extra, reward, where, known)
    done_rows = [np.empty(0, np.int64)]
    for start, stop in source.written(DONE):
        for first in range(start, stop, PIECE):
            flags = source.rows(DONE, [(first, min(first + PIECE, stop))])
            done_rows.append(first + np.flatnonzero(flags))
    rows = _Rows(header, np.array(lanes.sizes, np.int64), np.concatenate(done_rows))
    source.expect_held(rows.bytes_of(source.file_leaves), f"{len(rows.sizes)} lanes with {rows.sizes.sum()} steps")
    shared = {path for path, leaf in source.file_leaves.items() if leaf.rows != total}
    for path, file_leaf in source.file_leaves.items():
        if file_leaf.rows not in (total, rows.shared_total):
            raise DamagedError(
                f"{where}: leaf {show(path)!r}: expected {total} rows as 'done' has, or {rows.shared_total} with one "
                f"more after each trajectory, got {file_leaf.rows}; the file is damaged, or not in TED"
            )
    # The flags last, whatever order the file has them in.
    order = sorted(source.file_leaves, key=lambda path: path[0] in FLAGS)
    ordered = {path: source.rows(path, rows.spans(path in shared)) for path in order}
    dtypes = {show(path): file_leaf.dtype for path, file_leaf in source.file_leaves.items()}
    return Flat(lanes, dtypes, frozenset(shared), reward, spec, nested(ordered))


class _Rows:
    """Where in a file the steps of each lane lie."""

    def __init__(self, header: Header, sizes: Array, flags: Array) -> None:
        first = np.arange(header.count, dtype=np.int64) * header.length
        # As `Header.extra_rows` has it: shared leaves have a row more after each flag, and after the newest row.
        newest_row = first + (header.length if header.is_full else header.shift) - 1
        newest_row += header.length * (newest_row < first)  # in lanes without a step it is the last one
        doubled = np.union1d(flags, newest_row)
        lengths = header.length + np.bincount(doubled // header.length, minlength=header.count)
        lane = flags // header.length
        ended = np.bincount(lane[flags - first[lane] < sizes[lane]], minlength=header.count)
        # A lane that is not as the header says ends with its own newest step.
        newest = first + sizes - 1
        ended += (sizes > 0) & ~np.isin(newest, flags)
        # Of each lane, int64 [lanes]: its first row and how many it has, in leaves that are shared too.
        self.sizes, self._first, self._shared_first = sizes, first, np.cumsum(lengths) - lengths
        self._shared_sizes = sizes + ended
        self.shared_total = int(lengths.sum())  # the rows of a leaf that is shared

    def spans(self, shared: bool) -> list[Span]:
        first, sizes = (self._shared_first, self._shared_sizes) if shared else (self._first, self.sizes)
        some = np.flatnonzero(sizes)
        return list(zip(first[some].tolist(), (first[some] + sizes[some]).tolist(), strict=True))

    def bytes_of(self, file_leaves: Mapping[Path, FileLeaf]) -> int:
        return sum(leaf.row_bytes for leaf in file_leaves.values()) * int(self._shared_sizes.sum())


def _extra(
    header: Header, extra: str | bytes | None, reward: Path, where: str, known: Iterable[object]
) -> tuple[Lanes, Path, BufferSpec | None]:
    if extra is None:
        return header.lanes(), reward, None
    where = f"{where}: {EXTRA}"
    content: Any = sources.parsed(extra, where)  # any JSON: what does not fit raises one of the errors below
    try:
        version, sizes, cursors = content["format"], tuple(content["sizes"]), tuple(content["cursors"])
        reward, described = tuple(content["reward_key"]), content["spec"]
        fits = len(sizes) == len(cursors) == header.count and all(type(n) is int for n in (*sizes, *cursors))
        fits = fits and max(sizes) <= header.length > max(cursors) and min(sizes) >= 0 <= min(cursors)
        fits = fits and all(type(key) in (str, int) for key in reward)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{where}: {type(error).__name__}: {error}; the file is damaged") from None
    if version != FORMAT:
        raise DamagedError(f"{where}: expected format {FORMAT}, got {version!r:.40}; read it with a newer version")
    if not fits:
        raise DamagedError(f"{where}: sizes and cursors do not fit {header!s:.200}; the file is damaged")
    lanes = Lanes(header.length, sizes, cursors, axis=len(header.storage_shape) > 1)
    if described is None:
        return lanes, reward, None
    try:
        spec = from_json(json.dumps(described), known)
    except KnownError as error:
        raise KnownError(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: {error}") from None
    if not isinstance(spec, BufferSpec):
        raise DamagedError(f"{where}: expected the spec of a buffer, got {spec!r:.60}; the file is damaged")
    return lanes, reward, spec
