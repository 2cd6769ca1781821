"""Reading the files of checkpoints, whatever lies under their names; errors name the file."""

from __future__ import annotations

import contextlib
import os

from functional_rb.base import files
from functional_rb.base.errors import CheckpointError, CorruptCheckpointError


def open_file(path: str, stack: contextlib.ExitStack) -> tuple[int, int]:
    """A regular file's descriptor, until the stack closes, and its size.

    Raises:
        FileNotFoundError: if there is none of that name.
        CorruptCheckpointError: if it is something else, or cannot be opened.
        CheckpointError: if the process or the machine is short of something: an older checkpoint would be no better.
    """
    try:
        file, size = files.open_regular(path)
    except FileNotFoundError:
        raise
    except files.UnusableFileError as error:
        raise CorruptCheckpointError(path, error.reason) from error.__cause__
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened now: {error.strerror}; free some, and try again") from error
    return stack.enter_context(file).fd, size


def read_bytes(path: str, fd: int, size: int, at: int, count: int) -> bytes:
    """Read a count of bytes from a place in a file of a size; refused if most of these are holes."""
    if not files.holds(fd, size, count):
        raise CorruptCheckpointError(path, f"{count} bytes of it are little but holes")
    content = bytearray(count)
    read_into(path, fd, at, memoryview(content))
    return bytes(content)


def read_into(path: str, fd: int, at: int, into: memoryview) -> None:
    done = 0
    while done < len(into):
        try:
            got = os.preadv(fd, [into[done:]], at + done)
        except OSError as error:
            raise CorruptCheckpointError(path, f"cannot be read: {error.strerror}") from error
        if not got:
            raise CorruptCheckpointError(path, "it is shorter than it was")
        done += got
