"""What static descriptions have in common, such as the spec of a buffer: all that they are follows from arguments."""

from __future__ import annotations

import abc
import dataclasses
import itertools
import weakref
from typing import Final

from functional_rb.base.containers import register_static

_COUNT = itertools.count()
_TOKENS: weakref.WeakKeyDictionary[Description, str] = weakref.WeakKeyDictionary()
# Descriptions that compiled programs name by their tokens.
REMEMBERED: Final[dict[str, Description]] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class Description(abc.ABC):
    """A frozen dataclass of arguments and of what is derived from these.

    Its `__post_init__` checks the arguments, puts what is derived beside them, and ends with `_seal`.
    """

    # Equal descriptions have the same, and others another, in this process: torch.compile asks whether it is so.
    token: str = dataclasses.field(init=False, repr=False)
    _hash: int = dataclasses.field(init=False, repr=False)

    @property
    @abc.abstractmethod
    def _key(self) -> tuple[object, ...]:
        """All that says which description it is: two are equal if these are."""

    def __init_subclass__(cls) -> None:
        # Compiled functions take descriptions as arguments, whichever library compiles them.
        super().__init_subclass__()
        register_static(cls)

    def _put(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _seal(self) -> None:
        self._put(_hash=hash(self._key))
        self._put(token=_TOKENS.setdefault(self, str(next(_COUNT))))

    def remember(self) -> None:
        """Keep it alive, so that it is found by its token from now on."""
        REMEMBERED.setdefault(self.token, self)

    def __eq__(self, other: object) -> bool:
        # JAX asks this at every call: identity answers at once.
        if self is other:
            return True
        return isinstance(other, type(self)) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # Hashes of strings differ from process to process, so that arguments are pickled and not the hash.
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.init)


class Described:
    """A value that carries its description as `spec`, and is no buffer: a hash map, or a forest."""


def refuse(who: str, value: object, **arguments: object) -> None:
    """Refuse arguments that only buffers have."""
    for name, x in arguments.items():
        if x is not None and x is not False:
            raise TypeError(f"{who}: a {type(value).__name__} has no use for {name}; leave it out")
