"""One thread at a time, in the order in which they came.

A plain lock goes to the thread that asks at the right moment, most often the one that has just let it go: two threads
that add in a loop would keep one that samples waiting for hundreds of milliseconds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from functional_rb.base import forks

P = ParamSpec("P")
R = TypeVar("R")


class Turns:
    """A queue of threads, the first of which is at it.

    Example:
        >>> turns = Turns("this")
        >>> turns.take(max, 2, 3)
        3
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._holder: int | None = None
        self._renew()
        forks.renewed(self, Turns._renew)

    def take(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function once it is this thread's turn.

        Raises:
            RuntimeError: if it is this thread's turn already: it would wait for itself.
        """
        self.refuse_nested()
        ticket = threading.Lock()
        try:
            try:
                self._wait(ticket)
                self._holder = threading.get_ident()
                return function(*args, **kwargs)
            finally:
                self._leave(ticket)
        finally:  # once more, as an interrupt may have come in its midst
            self._leave(ticket)

    def refuse_nested(self) -> None:
        """Refuse what would wait for the function that this thread is in."""
        if self._holder == threading.get_ident():
            raise RuntimeError(
                f"{self._name} was used by a function that it had called, which would wait for itself; use the state "
                f"that the function is given, and return the new one"
            )

    def _wait(self, ticket: threading.Lock) -> None:
        with self._guard:
            if self._queue:
                ticket.acquire()
            self._queue.append(ticket)
            first = self._queue[0] is ticket
        if not first:
            ticket.acquire()  # until the one before lets go of it

    # Leave the queue, wherever this ticket is in it: an interrupt may have come while it waited.
    #
    # After an interrupt in its midst it may be called again, for what is left to do.
    def _leave(self, ticket: threading.Lock) -> None:
        with self._guard:
            if ticket in self._queue:
                if self._queue[0] is ticket:
                    self._holder = None
                self._queue.remove(ticket)
            if self._queue and self._queue[0].locked():  # it waits, or has waited, and does no more
                self._queue[0].release()

    # Nobody is at it: in a forked process, which has none of the other threads.
    def _renew(self) -> None:
        self._guard = threading.Lock()
        self._queue: deque[threading.Lock] = deque()
        self._holder = None
