"""Errors of what is kept in files, that a program may want to tell apart."""

from __future__ import annotations


class StorageFullError(OSError):
    """There is no room left for what was to be written. Nothing has been changed.

    Raised before anything is written, so the state, or the checkpoint, is as it was: make room, and call again.
    """


class StorageLayoutError(ValueError):
    """Files in a directory are those of another buffer: of another capacity, or other leaves."""


class StorageInUseError(OSError):
    """Another state, here or in another process, writes to the files of a directory."""
