"""Users' functions that are part of a spec: equal where they do the same, refused where nothing can tell them."""

from __future__ import annotations

import functools
import pickle
import sys
from types import FrameType
from typing import Any

BY_CONTENT = ("cloudpickle", "dill")
"""Modules that pickle functions by their code."""
REMEDY = (
    "define it by def at the top of a module, or give functools.partial of such a function, or an instance of a frozen "
    "dataclass with __call__"
)


class Partial(functools.partial):  # type: ignore[type-arg]  # of anything
    """A `functools.partial` that equals another of the same function and arguments, as specs that have it must.

    Example:
        >>> comparable(functools.partial(pow, 2)) == comparable(functools.partial(pow, 2))
        True
    """

    def __eq__(self, other: object) -> bool:
        """Whether both call the same."""
        return isinstance(other, Partial) and self._told == other._told

    def __hash__(self) -> int:
        """Of what it calls."""
        return hash(self._told)

    @property
    def _told(self) -> tuple[Any, ...]:
        return self.func, self.args, tuple(sorted(self.keywords.items()))


def comparable(function: Any) -> Any:
    """The function; a partial one so that it is compared by what it calls, if its arguments can be."""
    if not isinstance(function, functools.partial) or isinstance(function, Partial):
        return function
    made = Partial(function.func, *function.args, **function.keywords)
    try:
        hash(made)
    except TypeError:
        return function
    return made


def check_picklable(function: Any, where: str) -> None:
    """Refuse what the pickle module cannot tell, where the pickle module would not say what for.

    Raises:
        PicklingError: saying where the function is given, and the remedy.
    """
    try:
        pickle.dumps(function)
    except Exception as error:
        if not _by_content():
            message = f"{where}: the function {function!r} cannot be pickled ({error}); {REMEDY}"
            raise pickle.PicklingError(message) from None


def _by_content() -> bool:
    """Whether one of those is at work that can pickle any function: they call the pickle module themselves."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if any(name in frame.f_globals.get("__name__", "") for name in BY_CONTENT):
            return True
        frame = frame.f_back
    return False
