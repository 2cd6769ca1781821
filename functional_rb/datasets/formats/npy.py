"""Arrays in the formats of NumPy, `.npy` and `.npz`: numbers only, and never more memory than asked for."""

from __future__ import annotations

import contextlib
import errno
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Literal

import numpy as np
from numpy.lib import format as npy_format

from functional_rb.base.arrays import NumpyArray
from functional_rb.datasets.episode import DatasetError, expecting
from functional_rb.datasets.formats import streams
from functional_rb.datasets.formats.streams import Inflated, read_exactly

# Characters that the header of an array may have.
HEADER = 10_000
# Bytes that an array may have which is read at once.
MOST = 2**31
# How `numpy.savez` packs arrays. What is packed by other methods `zipfile` unpacks without a limit.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class NpyStream:
    """An array in a stream, which is read forward, row by row; `at` rows of it have been read."""

    def __init__(self, stream: IO[bytes] | Inflated, where: str, objects: bool = False) -> None:
        """Read the header; of an array of objects, where they are allowed, the pickle begins where the header ends."""
        self._stream, self._where, self.at = stream, where, 0
        try:
            version = npy_format.read_magic(stream)
            read = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}[version]
            # NumPy's own reader takes the header for a literal, and evaluates nothing.
            self.shape, self._fortran, self.dtype = read(stream, max_header_size=HEADER)
        except DatasetError:
            raise
        # TokenError: of headers that Python 2 may have written.
        except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, tokenize.TokenError) as error:
            raise DatasetError(f"{where}: expected an array as numpy.save writes it: {error!r:.200}") from None
        if self.dtype.hasobject and not objects:
            raise DatasetError(f"{where}: an array of objects is a pickle, which may run any code; expected numbers")
        if any(type(n) is not int or n < 0 for n in self.shape):
            raise DatasetError(f"{where}: expected the shape of an array, got {self.shape!r:.200}")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, n: int) -> NumpyArray:
        """The next rows, at most so many: [n, *shape[1:]]."""
        if self._fortran and len(self.shape) > 1:
            raise DatasetError(f"{self._where}: expected an array in rows (order C), got columns (Fortran's)")
        n = min(n, self.shape[0] - self.at)
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        content = read_exactly(self._stream, n * row, f"{self._where}, rows {self.at} to {self.at + n}")
        self.at += n
        return _of(content, self.dtype, (n, *self.shape[1:]), "C", self._where)

    def whole(self, most: int = MOST) -> NumpyArray:
        if self.nbytes > most:
            raise DatasetError(
                f"{self._where}: expected at most {most} bytes, the array {self.shape} claims {self.nbytes}"
            )
        content = read_exactly(self._stream, self.nbytes, self._where)
        return _of(content, self.dtype, self.shape, "F" if self._fortran else "C", self._where)


def _of(
    content: bytes, dtype: np.dtype[np.generic], shape: tuple[int, ...], order: Literal["C", "F"], where: str
) -> NumpyArray:
    if dtype.itemsize == 0:
        raise DatasetError(f"{where}: expected values with a size, got dtype {dtype}")
    flat = np.frombuffer(content, dtype) if content else np.zeros(0, dtype)
    return flat.reshape(shape, order=order)


class Npz:
    """The arrays in a file of `.npz`, by name, each read when it is asked for."""

    def __init__(self, file: zipfile.ZipFile, path: str) -> None:
        self._file, self._path = file, path
        self.names = tuple(name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy"))

    @contextlib.contextmanager
    def stream(self, name: str) -> Iterator[NpyStream]:
        where = f"{self._path}, {name!r}"
        if name not in self.names:
            raise DatasetError(f"{where}: there is no such array, expected some of {sorted(self.names)[:20]}")
        method = self._file.getinfo(f"{name}.npy").compress_type
        if method not in METHODS:
            raise DatasetError(
                f"{where}: expected what numpy.savez writes, got method {method} of compression; refused"
            )
        try:
            with self._file.open(f"{name}.npy") as stream:
                yield NpyStream(stream, where)
        # RuntimeError: it has a password; NotImplementedError: so it says of patches and strong encryption;
        # UnicodeError: of the name that stands beside the array.
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, UnicodeError) as error:
            raise DatasetError(f"{where}: the file is damaged: {error}; fetch it again") from None
        except OSError as error:
            if error.errno != errno.EINVAL:  # the system's answer to a seek before the begin of the file
                raise
            raise DatasetError(f"{where}: the file is damaged: {error}; fetch it again") from None

    def read(self, name: str, most: int = MOST) -> NumpyArray:
        with self.stream(name) as array:
            return array.whole(most)


@contextlib.contextmanager
def opened(path: str) -> Iterator[Npz]:
    with streams.opened(path) as content:
        # NotImplementedError: of a newer version of zip; UnicodeError: of names.
        errors = zipfile.BadZipFile, NotImplementedError, UnicodeError, OSError
        with expecting(f"{path}: expected a file of .npz", *errors):
            file = zipfile.ZipFile(content)
        with file:
            yield Npz(file, path)
