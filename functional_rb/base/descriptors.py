"""Open files that have an owner: none stays open because an interrupt came before somebody could close it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable


class Descriptor:
    """An open file or directory, which is closed at the latest when nobody refers to this any more.

    Of a plain number nobody knows any more where an interrupt comes between opening and whatever closes it.

    Attributes:
        fd: the number; -1 once it is closed.
    """

    _held: list[int] | tuple[()] = ()  # an interrupt may come before the first line below, and `__del__` then
    _closing = staticmethod(os.close)  # what dies as the interpreter ends finds no modules any more

    def __init__(self, opening: Callable[..., int], *args: object) -> None:
        """Open and keep what a call with these arguments gives, such as of `os.open` or `os.dup`."""
        held: list[int] = []
        self._held = held
        # One call opens and keeps, amid which no interrupt comes: Python looks for them where a call ends.
        held.extend(itertools.starmap(opening, [args]))

    @property
    def fd(self) -> int:
        return self._held[0] if self._held else -1

    def close(self) -> None:
        if self._held:
            list(map(self._closing, map(self._held.pop, [0])))  # one call too

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
