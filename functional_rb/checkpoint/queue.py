"""The saves of this process that go on in the background: those to one directory follow each other."""

from __future__ import annotations

import os
import threading
from typing import Protocol


class Waiting(Protocol):
    """A save that may be waited for."""

    def wait(self) -> None:
        """Wait for its end, whatever that is."""

    def lost_by_fork(self) -> None:
        """In a forked child, which has not the thread that saves: end as failed."""


# The saves to each directory, without links, that may still be going on, in the order of their calls.
_going_on: dict[str, list[Waiting]] = {}
_turn = threading.Lock()


def enter(place: str, saving: Waiting) -> Waiting | None:
    """Be the last save to a directory; returns the one before, which is to be waited for."""
    with _turn:
        waiting = _going_on.setdefault(place, [])
        waiting.append(saving)
        return waiting[-2] if len(waiting) > 1 else None


def leave(place: str, saving: Waiting) -> None:
    """Note that a save has ended, or never began, so that the next one of the directory may begin."""
    with _turn:
        rest = [one for one in _going_on.get(place, ()) if one is not saving]
        if rest:
            _going_on[place] = rest
        else:
            _going_on.pop(place, None)


def wait_for(directory: str) -> None:
    with _turn:
        waiting = list(_going_on.get(os.path.realpath(directory), ()))
    for saving in waiting:
        saving.wait()


def _after_fork() -> None:
    global _turn
    _turn = threading.Lock()  # a thread that is not here may hold the old one
    for waiting in _going_on.values():
        for saving in waiting:
            saving.lost_by_fork()
    _going_on.clear()


os.register_at_fork(after_in_child=_after_fork)
