"""Locks that a forked process finds free, with what they guard in one piece.

A fork copies the memory of a process and one of its threads. If another thread was writing to a buffer at that moment,
the copy would have a lock whose holder does not exist, and half of a write. So a fork waits for the writes under way,
which take microseconds.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_LOCKS: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_RENEWED: weakref.WeakKeyDictionary[object, Callable[[Any], object]] = weakref.WeakKeyDictionary()
# Two threads that fork at once would wait for each other's locks.
_forking = threading.Lock()
_held: list[threading.RLock] = []


def lock() -> threading.RLock:
    """A lock that every fork takes before it happens, and lets go of afterwards, in both processes."""
    rlock = threading.RLock()
    _LOCKS.add(rlock)
    return rlock


def renewed(thing: T, renew: Callable[[T], object]) -> None:
    """Call `renew(thing)` in every forked process, for as long as the thing lives."""
    _RENEWED[thing] = renew


def _before() -> None:
    _forking.acquire()
    # A list of those there are now: other threads may make locks meanwhile.
    for each in list(_LOCKS):
        each.acquire()
        _held.append(each)


def _after() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


def _in_child() -> None:
    for thing, renew in list(_RENEWED.items()):
        renew(thing)
    _after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
