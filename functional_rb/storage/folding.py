"""Several undo logs since one checkpoint, which processes and saves that have failed leave behind, become one.

Of a row that several of them have, the oldest has it as it was at the checkpoint. So the log of the checkpoint itself
gets the rows that only later ones have, and these are removed once that lasts. A process that is killed
at it leaves logs that say the same; a reader finds a row in the one or in the other meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Sequence

from functional_rb.base import files
from functional_rb.base.errors import CorruptCheckpointError
from functional_rb.storage import disk, undo_log
from functional_rb.storage.undo_log import Rows, Torn


def fold(directory: str, needed: Collection[int], arrays: Sequence[Rows], prefix: str) -> None:
    """Leave one log for each of some checkpoints, and none that is older. What cannot be folded stays as it is.

    The numbers needed, at least one, are those of all checkpoints that are there or may come to be. The arrays are
    those [capacity, ...] whose rows the logs have.
    """
    there = undo_log.numbers(directory, prefix)
    paths = {number: os.path.join(directory, undo_log.name_of(number, prefix)) for number in there}
    _remove([paths[number] for number in there if number < min(needed)])
    firsts = [number for number in there if number in needed]
    for first, following in itertools.zip_longest(firsts, firsts[1:]):
        later = [number for number in there if first < number and (following is None or number < following)]
        if later:
            with contextlib.suppress(OSError, CorruptCheckpointError, files.UnusableFileError):
                _fold(paths[first], [paths[number] for number in later], arrays)


def _fold(first: str, later: list[str], arrays: Sequence[Rows]) -> None:
    torn: list[Torn] = []
    recorded, end = undo_log.recorded(first, arrays, torn)
    if not may_go_on(first, torn):
        return
    file, _ = files.open_regular(first, os.O_WRONLY)
    with file:
        try:
            disk.truncate(file.fd, end)
            _append_missing(file.fd, later, arrays, recorded)
            disk.fsync(file.fd)
        except (OSError, CorruptCheckpointError):
            disk.truncate(file.fd, end)
            raise
    _remove(later)


def _remove(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # the next process removes them
            disk.unlink(path)


def may_go_on(path: str, torn: list[Torn]) -> bool:
    """Whether records may be appended to a log: not if its end is damage, or its file another directory's too."""
    return all(end.short for end in torn) and os.stat(path).st_nlink == 1 and not os.path.islink(path)


def _append_missing(file: int, later: list[str], arrays: Sequence[Rows], recorded: Rows) -> None:
    """Append the rows that none of the logs before has.

    Raises:
        CorruptCheckpointError: for a log that is damaged, and better stays as it is.
    """
    torn: list[Torn] = []
    for path in later:
        for record in undo_log.records(path, arrays, torn):
            missing = ~recorded[record.slots]
            if missing.any():
                disk.write(file, undo_log.encoded(record.slots[missing], [rows[missing] for rows in record.rows]))
                recorded[record.slots] = True
    for end in torn:
        if not end.short:
            raise CorruptCheckpointError(end.path, end.reason)
