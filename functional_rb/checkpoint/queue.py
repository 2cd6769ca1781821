"""The saves of this process that go on in the background: those to one directory follow each other."""

from __future__ import annotations

import os
import threading
from typing import Protocol


class Waiting(Protocol):
    """A save that may be waited for."""

    def wait(self) -> None:
        """Wait for its end, whatever that is."""

    def lost_by_fork(self) -> Waiting | None:
        """In a forked child, which has not the thread that saves: end as failed; returns the save before it."""


_last: dict[str, Waiting] = {}
"""The last save to each directory, without links, that may still be going on."""
_turn = threading.Lock()


def enter(place: str, saving: Waiting) -> Waiting | None:
    """Be the last save to a directory; returns the one before, which is to be waited for."""
    with _turn:
        before = _last.get(place)
        _last[place] = saving
        return before


def leave(place: str, saving: Waiting) -> None:
    """Note that a save has ended, so that the next one of the directory may begin."""
    with _turn:
        if _last.get(place) is saving:
            del _last[place]


def wait_for(directory: str) -> None:
    """Wait for the saves to a directory that go on in this process."""
    with _turn:
        last = _last.get(os.path.realpath(directory))
    if last is not None:
        last.wait()


def _after_fork() -> None:
    global _turn
    _turn = threading.Lock()  # a thread that is not here may hold the old one
    for saving in list(_last.values()):
        found: Waiting | None = saving
        while found is not None:
            found = found.lost_by_fork()
    _last.clear()


os.register_at_fork(after_in_child=_after_fork)
