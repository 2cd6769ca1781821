"""Forms in files: a directory of memory-mapped leaves, or a file of HDF5, by what the path ends with."""

from __future__ import annotations

from contextlib import AbstractContextManager

from functional_rb.ted import hdf5, memmaps
from functional_rb.ted.padded import WHO, Padded
from functional_rb.ted.sources import Opened

SUFFIXES = (".h5", ".hdf5")
"""What names of files of HDF5 end with."""


def write(padded: Padded, path: str, compression: str | None, nested: bool) -> None:
    if path.endswith(SUFFIXES):
        hdf5.write(padded, path, compression)
    elif compression is None:
        memmaps.write(padded, path, nested)
    else:
        raise ValueError(f"{WHO}: compression is of files of HDF5, and {path!r} does not end with .h5 or .hdf5")


def opened(path: str, who: str) -> AbstractContextManager[Opened]:
    return hdf5.opened(path, who) if path.endswith(SUFFIXES) else memmaps.opened(path, who)
