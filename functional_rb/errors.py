"""What can go wrong with files, by type. All else is a `ValueError` or `TypeError`."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint could not be written or read. What was there before is as it was."""


class NoCheckpointError(CheckpointError):
    """A directory holds no checkpoint."""


class CorruptCheckpointError(CheckpointError):
    """A file of a checkpoint is not what was written: cut, changed, or gone.

    Attributes:
        file: its path.
        reason: what is wrong with it.
    """

    def __init__(self, file: str, reason: str) -> None:
        """Name the file."""
        super().__init__(
            f"{file}: {reason}; give frb.load(..., fall_back=True) for the newest checkpoint there that is whole"
        )
        self.file, self.reason = file, reason


class CheckpointWriteError(CheckpointError, OSError):
    """The system refused to write a checkpoint: a directory that is read-only, a device that fails.

    Attributes:
        errno: the system's number, as for every `OSError`.
        filename: the path.
    """

    def __str__(self) -> str:
        """Name the file and the remedy."""
        return f"{super().__str__()}; {self.remedy}"

    remedy = "give a directory that can be written; the checkpoints there are as they were"


class StorageFullError(CheckpointWriteError):
    """There is no room left on the device, or within the quota."""

    remedy = "free some room or give another device; what was there before is as it was"
