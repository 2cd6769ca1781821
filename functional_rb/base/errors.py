"""The errors about files, and the warnings. Every other error is a `ValueError` or `TypeError`."""

from __future__ import annotations

import errno
from typing import Final

# The system's numbers for no room: on the disk, in the quota, or under the limit on the size of a file.
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# The system's numbers for too many open files, in the process or on the machine.
MANY: Final = (errno.EMFILE, errno.ENFILE)
LIMIT: Final = "close some files, or raise the limit (ulimit -n), and call again"


class LargeCopyWarning(UserWarning):
    """A call has copied much of a buffer, where a function that consumes the state would have written in place."""


class ConsumedError(RuntimeError):
    """A state's memory has passed on to another state. Users know it as a `RuntimeError`."""


def consumed() -> ConsumedError:
    """The error for a state whose memory has passed on to another state."""
    return ConsumedError(
        "this state was consumed by an in-place function (add_, sample_, update_, clear_), or by one that it "
        "was donated to (rb.jit); go on with what that returned, or use add, sample and update, which leave "
        "states as they are"
    )


class StorageFullError(OSError):
    """There is no room left for what was to be written. Nothing has been changed.

    Raised before anything is written, so the state, or the checkpoint, is as it was: make room, and call again.
    """


class StorageInUseError(OSError):
    """Another state, here or in another process, writes to the files of a directory."""


class CheckpointError(Exception):
    """A checkpoint could not be written or read. What was there before is as it was."""


# Users catch it as one of the two.
class NoCheckpointError(CheckpointError, FileNotFoundError):
    """A directory holds no checkpoint."""


class CorruptCheckpointError(CheckpointError):
    """A file of a checkpoint is not what was written: cut, changed, or gone.

    Attributes:
        file: its path.
        reason: what is wrong with it.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(
            f"{file}: {reason}; give frb.load(..., frb.checkpoint.LoadOptions(fall_back=True)) for the "
            f"newest checkpoint there that is whole"
        )
        self.file, self.reason = file, reason


# Users catch it as one of the two; errors are told apart by `errno`.
class CheckpointWriteError(CheckpointError, OSError):
    """The system refused to write a checkpoint: a directory that is read-only, a device that fails, too many files.

    Attributes:
        errno: the system's number, as for every `OSError`.
        filename: the path.
    """

    def __str__(self) -> str:
        return f"{super().__str__()}; {LIMIT if self.errno in MANY else self.remedy}"

    remedy = "give a directory that can be written; the checkpoints there are as they were"


# Users catch it as one of the two.
class CheckpointFullError(CheckpointWriteError, StorageFullError):
    """There is no room left for a checkpoint on the device, within the quota, or under the limit on a file's size."""

    remedy = "free some room (df; quota; ulimit -f) or give another device; what was there before is as it was"


__all__ = [
    "CheckpointError",
    "CorruptCheckpointError",
    "LargeCopyWarning",
    "StorageFullError",
    "StorageInUseError",
]
__dir__ = __all__.copy
