"""Undo logs: what rows of mapped files held when a checkpoint was made, kept from the moment they are overwritten.

A buffer whose files lie in its checkpoint's directory is not copied when it is saved. Training goes on writing to the
same files, so each row that belongs to the checkpoint is appended to a log before it is overwritten for the first
time. The files as they are now, with the logs since the checkpoint taken back, the newest first, are the rows of then.

A log is `undo-<number>.bin` (of frames `undo-frames-<number>.bin`): records one after the other, each in one append. A
process that is killed leaves at most a part of the last record, which its checksum tells, and then the rows that it
would have kept were not yet overwritten. The next process goes on with that log: a row is once in the logs since a
checkpoint, which so never take more room than the rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from functional_rb.base import files
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.checksum import digest
from functional_rb.base.errors import FULL, CorruptCheckpointError, StorageFullError
from functional_rb.storage import disk
from functional_rb.storage.reading import open_file, read_bytes

Rows = NumpyArray

# Bytes before a record's slots: the checksum of what follows the head (16), how many rows it has (8), how many bytes
# of all arrays a row has (8), and the checksum of these three (8).
HEAD = 40
# About so many bytes are put into one record.
CHUNK = 2**24
# What the names of the logs begin with, those of rows and wide arrays, and those of frames.
ITEMS, FRAMES = "undo", "undo-frames"
# The names of logs, as `name_of` writes them.
_NAME = re.compile(rf"({ITEMS}|{FRAMES})-([0-9]{{8}}|[1-9][0-9]{{8,17}})\.bin", re.ASCII)


def name_of(number: int, prefix: str = ITEMS) -> str:
    return f"{prefix}-{number:08d}.bin"


def numbers(directory: str, prefix: str = ITEMS) -> list[int]:
    """The logs in a directory, oldest first; files of other names are none, `undo-9.bin` too."""
    matches = (_NAME.fullmatch(name) for name in os.listdir(directory))
    return sorted(int(match[2]) for match in matches if match and match[1] == prefix)


@dataclasses.dataclass(frozen=True)
class Earlier:
    """What the logs of processes before this one have, since the same checkpoint."""

    recorded: Rows  # bool [capacity], the rows that they have
    # Where the whole records end in the file of the log that is gone on with; None for a new one.
    end: int | None = None


class UndoLog:
    """The log that is being written, in a directory, for the checkpoint of a number, to which it rolls back."""

    def __init__(
        self,
        directory: str,
        number: int,
        arrays: Sequence[Rows],
        in_use: Rows,
        older: UndoLog | None = None,
        prefix: str = ITEMS,
        earlier: Earlier | None = None,
    ) -> None:
        """Begin a log of mapped arrays [capacity, ...], or go on with one.

        Rows in use, bool [capacity], belong to the checkpoint that is being made; those of the checkpoint before are
        kept on by the older log. What the earlier logs have need not be kept any more.

        Raises:
            CheckpointWriteError: if the file cannot be made.
            StorageFullError: if there is no room for it.
        """
        self.directory, self.number = directory, number
        self._arrays = [_as_bytes(array) for array in arrays]
        # An older checkpoint has rows that this one has no more, and they may be overwritten only now.
        self._of_checkpoints: Rows = in_use if older is None else in_use | older._of_checkpoints
        self._needed = self._of_checkpoints.copy() if earlier is None else self._of_checkpoints & ~earlier.recorded
        self._left = int(np.count_nonzero(self._needed))
        self._path = os.path.join(directory, name_of(number, prefix))
        self._end = 0 if earlier is None or earlier.end is None else earlier.end
        with disk.typed(self._path):
            # Not exclusive: what a killed save has begun, nobody refers to.
            self._file = files.open_own(self._path, os.O_WRONLY)
            if os.fstat(self._file.fd).st_size != self._end:
                disk.truncate(self._file.fd, self._end)

    def before_write(self, slots: Rows) -> None:
        """Keep what lies in rows that are about to be overwritten: slots integers [n] in bounds, which may come twice.

        Raises:
            StorageFullError: if there is no room for it; nothing has been overwritten then.
        """
        if not self._left:
            return
        fresh = slots[self._needed[slots]]
        if not fresh.size:
            return
        fresh = np.unique(fresh).astype(np.int64)
        row = max(sum(array.shape[1] for array in self._arrays), 1)
        step = max(CHUNK // row, 1)
        for first in range(0, fresh.size, step):
            self._append(fresh[first : first + step])
        # Only now: there might have been no room for them.
        self._needed[fresh] = False
        self._left -= fresh.size

    def before_all(self) -> None:
        """Keep all that checkpoints need: everything is about to be overwritten. Errors as `before_write`'s."""
        self.before_write(np.flatnonzero(self._needed))

    def _append(self, slots: Rows) -> None:
        content = memoryview(encoded(slots, [array[slots] for array in self._arrays]))
        done = 0
        try:
            while done < len(content):
                done += os.pwrite(self._file.fd, content[done:], self._end + done)
            self._end += done
        except BaseException as error:  # an interrupt too: a part of a record must not lie before the next one
            os.ftruncate(self._file.fd, self._end)
            if isinstance(error, OSError):
                raise self._refused(error, slots.size) from error
            raise

    def _refused(self, error: OSError, rows: int) -> OSError:
        needed = f"what the last checkpoint still needs of {rows} rows"
        if error.errno not in FULL:
            return type(error)(
                error.errno, f"{error.strerror}: {needed} cannot be kept; nothing was written", self._path
            )
        return StorageFullError(
            errno.ENOSPC,
            f"{error.strerror}: no room for {needed}; nothing was written: make room (df; quota; ulimit -f), or save "
            f"with keep=1, and call again",
            self._path,
        )

    def close(self) -> None:
        """Write no more. What lies in the file stays."""
        self._file.close()
        self._left = 0


class Logs:
    """The logs of a buffer's files that are being written, of one number: for items, and for frames if it has some."""

    def __init__(self, items: UndoLog, frames: UndoLog | None) -> None:
        self.number, self.items, self.frames = items.number, items, frames
        self._all = [items] if frames is None else [items, frames]

    def before_items(self, slots: Rows) -> None:
        self.items.before_write(slots)

    def before_frames(self, places: Rows) -> None:
        if self.frames is not None:
            self.frames.before_write(places)

    def before_all(self) -> None:
        for log in self._all:
            log.before_all()

    def close(self) -> None:
        for log in self._all:
            log.close()


def _as_bytes(array: Rows) -> Rows:
    flat = array.reshape(array.shape[0], -1)
    return flat.view(np.uint8) if flat.shape[1] else np.empty((array.shape[0], 0), np.uint8)


def encoded(slots: Rows, rows: Sequence[Rows]) -> bytes:
    """A record: slots int64 [n], and of each array its rows uint8 [n, bytes of a row]."""
    body = b"".join([slots.tobytes(), *(array.tobytes() for array in rows)])
    return _head(slots.size, sum(array.shape[1] for array in rows), digest(body)) + body


def _head(n: int, row: int, checksum: bytes) -> bytes:
    head = checksum + np.array([n, row], np.int64).tobytes()
    return head + digest(head)[:8]


@dataclasses.dataclass(frozen=True)
class Record:
    """Some rows as they were."""

    slots: Rows  # int64 [n], distinct
    rows: tuple[Rows, ...]  # of each array uint8 [n, bytes of a row]


@dataclasses.dataclass(frozen=True)
class Torn:
    """The end of a log, which is no whole record."""

    path: str  # of the log
    at: int  # where the record begins, in bytes
    short: bool  # whether the file ends before it does, which is what a kill leaves

    @property
    def reason(self) -> str:
        """What is wrong with the log."""
        what = "is cut short" if self.short else "is not the one that its checksum tells"
        return f"its last record, at byte {self.at}, {what}"


def records(path: str, arrays: Sequence[Rows], torn: list[Torn] | None = None) -> Iterator[Record]:
    """The whole records of a log, oldest first; `torn` gets the end of the log, if that is no whole record.

    Raises:
        CorruptCheckpointError: if something lies behind a record that is not whole, as no kill leaves it, or a record
            does not fit the arrays; or if it is no file that can be read.
    """
    widths = [_as_bytes(array).shape[1] for array in arrays]
    capacity, row = arrays[0].shape[0], sum(widths)
    torn = [] if torn is None else torn
    with contextlib.ExitStack() as stack:
        file, size = open_file(path, stack)
        for at, n, checksum in _heads(path, file, size, row, capacity, torn):
            content = read_bytes(path, file, size, at + HEAD, n * (8 + row))
            if digest(content) != checksum:
                if at + HEAD + len(content) < size:
                    raise CorruptCheckpointError(path, f"the record at byte {at} is not what its checksum tells")
                torn.append(Torn(path, at, False))  # a machine that lost its power may leave the end of a file so
                return
            slots = _slots(path, at, content, n, capacity)
            starts = 8 * n + n * np.cumsum([0, *widths])
            kept = (
                np.frombuffer(content, np.uint8, n * width, start) for start, width in zip(starts, widths, strict=False)
            )
            yield Record(slots, tuple(rows.reshape(n, -1) if rows.size else rows.reshape(n, 0) for rows in kept))


def recorded(path: str, arrays: Sequence[Rows], torn: list[Torn]) -> tuple[Rows, int]:
    """Which rows a log has, bool [capacity], and where its whole records end. Their content is not read.

    The arguments, and the errors that are raised, are those of `records`.
    """
    capacity, row = arrays[0].shape[0], sum(_as_bytes(array).shape[1] for array in arrays)
    in_log, end = np.zeros(capacity, bool), 0
    with contextlib.ExitStack() as stack:
        file, size = open_file(path, stack)
        for at, n, checksum in _heads(path, file, size, row, capacity, torn):
            stop = at + HEAD + n * (8 + row)
            # A kill tears the last record alone, so the content of the others need not be read.
            if stop == size and digest(read_bytes(path, file, size, at + HEAD, stop - at - HEAD)) != checksum:
                torn.append(Torn(path, at, False))
                break
            in_log[_slots(path, at, read_bytes(path, file, size, at + HEAD, 8 * n), n, capacity)] = True
            end = stop
    return in_log, end


# Where each whole record begins, how many rows it has, and the checksum of its body.
def _heads(
    path: str, file: int, size: int, row: int, capacity: int, torn: list[Torn]
) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < size:
        if at + HEAD > size:
            torn.append(Torn(path, at, True))
            return
        head = read_bytes(path, file, size, at, HEAD)
        n, recorded = (int(x) for x in np.frombuffer(head, np.int64, 2, 16))
        if head != _head(n, recorded, head[:16]) or recorded != row or not 0 < n <= capacity:
            raise CorruptCheckpointError(path, f"at byte {at} there is no record of rows of {row} bytes")
        end = at + HEAD + n * (8 + row)
        if end > size:  # the process was killed while it appended this one
            torn.append(Torn(path, at, True))
            return
        yield at, n, head[:16]
        at = end


def _slots(path: str, at: int, content: bytes, n: int, capacity: int) -> Rows:
    slots = np.frombuffer(content, np.int64, n)
    if int(slots.min()) < 0 or int(slots.max()) >= capacity:
        raise CorruptCheckpointError(path, f"the record at byte {at} names rows beyond {capacity}")
    return slots


def roll_back(
    directory: str,
    number: int,
    arrays: Sequence[Rows],
    prefix: str = ITEMS,
    wanted: Sequence[Rows] | None = None,
    room: Callable[[Rows], None] | None = None,
) -> list[Torn]:
    """Make rows those of a checkpoint again, by its log and all since, the newest first.

    The arrays lie in the mapped files now, or are copies of them that were taken before. Of each only the rows that are
    wanted, bool [capacity], are written; None for all. Before, room is made for the slots of each record.

    Returns:
        The ends of logs that are no whole records. If the rows are not those of the checkpoint then, it is for these.

    Raises:
        CorruptCheckpointError: for a log that is not what was written.
    """
    views = [_as_bytes(array) for array in arrays]
    while True:
        there, torn = [log for log in numbers(directory, prefix) if log >= number], list[Torn]()
        try:
            for later in reversed(there):
                for record in records(os.path.join(directory, name_of(later, prefix)), arrays, torn):
                    if room is not None:
                        room(record.slots)
                    for k, (view, rows) in enumerate(zip(views, record.rows, strict=True)):
                        chosen = slice(None) if wanted is None else wanted[k][record.slots]
                        view[record.slots[chosen]] = rows[chosen]
            return torn
        except FileNotFoundError:  # one was folded meanwhile: what it had is in an older one
            if set(there) <= set(numbers(directory, prefix)):
                raise
