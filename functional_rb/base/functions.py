"""Users' functions that are part of a spec: compared by what they call, refused where they cannot be pickled."""

from __future__ import annotations

import functools
import pickle
import sys
from types import FrameType

# Modules that pickle functions by their code.
BY_CONTENT = ("cloudpickle", "dill")
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
        return isinstance(other, Partial) and self._call == other._call

    def __hash__(self) -> int:
        return hash(self._call)

    @property
    def _call(self) -> tuple[object, ...]:
        return self.func, self.args, tuple(sorted(self.keywords.items()))


def comparable(function: object) -> object:
    """The function itself; of a partial one a `Partial`, if its arguments can be compared."""
    if not isinstance(function, functools.partial) or isinstance(function, Partial):
        return function
    partial = Partial(function.func, *function.args, **function.keywords)
    try:
        hash(partial)
    except TypeError:
        return function
    return partial


def check_picklable(function: object, where: str) -> None:
    """Refuse a function that cannot be pickled, as the pickle module would not say where it was given."""
    try:
        pickle.dumps(function)
    except Exception as error:
        if not _by_content():
            message = f"{where}: the function {function!r} cannot be pickled ({error}); {REMEDY}"
            raise pickle.PicklingError(message) from None


# Whether a caller is one of the modules that can pickle any function: they call the pickle module themselves.
def _by_content() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if any(name in frame.f_globals.get("__name__", "") for name in BY_CONTENT):
            return True
        frame = frame.f_back
    return False
