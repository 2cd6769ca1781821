"""What is read of files: their leaves, and errors that name what is damaged."""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from functional_rb.base import files, strict_json
from functional_rb.base.arrays import NumpyArray as Array
from functional_rb.base.containers import DEEPEST
from functional_rb.base.nest import Path, show
from functional_rb.convert.json import KnownError
from functional_rb.ted.padded import FileLeaf, Header

# An upper limit on numbers of rows: no file has so many.
LARGEST = 1 << 62

# Rows from the first to before the second.
Span = tuple[int, int]


class DamagedError(ValueError):
    """A file is not as it was written; the message names it."""


class Source(abc.ABC):
    """The leaves in a file, or in a directory of files."""

    where: str  # the name of the file or directory
    file_leaves: Mapping[Path, FileLeaf]  # the leaves, by path

    @abc.abstractmethod
    def rows(self, path: Path, spans: Sequence[Span]) -> Array:
        """Some rows of a leaf, [n, *shape]."""

    @abc.abstractmethod
    def written(self, path: Path) -> Iterator[Span]:
        """The rows of a leaf outside of which it is zero."""

    @abc.abstractmethod
    def holds(self, claimed: int) -> bool:
        """Whether the source may be believed to have so many bytes, see `files.holds`."""

    def expect_held(self, nbytes: int, what: str) -> None:
        """Refuse a claim of more bytes than the source can hold."""
        if not self.holds(nbytes):
            raise DamagedError(f"{self.where}: it tells of {what}, {nbytes} bytes, and holds next to nothing; damaged")


class Opened(NamedTuple):
    """A file, or a directory of files, that is read."""

    header: Header  # its numbers fit each other
    source: Source
    extra: str | bytes | None  # the text of JSON beside the leaves; None if TorchRL wrote them


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Turn the errors that a damaged file leads to into one that says so."""
    # h5py and NumPy raise errors of many kinds for bytes that make no sense. A missing file, too little memory, or too
    # many open files, is no damage.
    try:
        yield
    except (DamagedError, KnownError, FileNotFoundError):
        raise
    except files.UnusableFileError as error:
        raise DamagedError(str(error)) from error
    except OSError as error:
        if error.errno in files.SHORTAGES:
            raise
        raise DamagedError(f"{where}: cannot be read: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedError(f"{where}: damaged: {type(error).__name__}: {error}") from error


def parsed(text: str | bytes, where: str) -> object:
    try:
        return strict_json.parse(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: expected JSON: {error}; the file is damaged") from None


def checked(header: Header, where: str) -> Header:
    """A header, after a check that its numbers fit each other."""
    shape = header.storage_shape
    if not shape or not all(type(n) is int and 0 < n < LARGEST for n in shape) or math.prod(shape) >= LARGEST:
        raise DamagedError(f"{where}: expected the shape of a storage, got {shape!s:.80}; the file is damaged")
    low = -header.length if header.is_full else 0
    if type(header.shift) is not int or not low <= header.shift <= header.length:
        raise DamagedError(f"{where}: expected a shift of {low} to {header.length}, got {header.shift!r:.40}; damaged")
    return header


def check_flags(values: Array, path: Path, where: str) -> Array:
    """Bools as they were read, after a check that each byte is 0 or 1."""
    if values.dtype == np.bool_ and values.size and int(values.view(np.uint8).max()) > 1:
        raise DamagedError(f"{where}: leaf {show(path)!r}: expected 0 or 1 for each bool; the file is damaged")
    return values


def check_depth(path: Path, where: str) -> None:
    """Refuse nests that are deeper than those of any buffer."""
    if len(path) > DEEPEST:
        raise DamagedError(f"{where}: nests in nests, more than {DEEPEST} deep; the file is damaged")
