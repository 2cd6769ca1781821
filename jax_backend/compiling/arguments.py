"""Arguments of a call, those apart that an option of `jax.jit` names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

# Static arguments by position or name, each with its type, as 1 and True are equal.
Static = tuple[tuple[int | str, type, object], ...]


def parameters_of(function: Callable[..., object]) -> Sequence[inspect.Parameter]:
    """Those of a function; none where Python cannot tell."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return ()


class Given(NamedTuple):
    """The arguments of a call."""

    args: tuple[object, ...]  # those by position that are not static
    kwargs: dict[str, object]  # those by name that are not static
    places: tuple[int, ...]  # the positions of `args` among all
    static: Static  # the others

    def together(self, args: Sequence[object], kwargs: dict[str, object]) -> tuple[list[object], dict[str, object]]:
        """Others in place of those that are not static, and the static ones: by position, and by name."""
        by_place = dict(zip(self.places, args, strict=True))
        by_place |= {where: x for where, _, x in self.static if isinstance(where, int)}
        named = {where: x for where, _, x in self.static if isinstance(where, str)}
        return [by_place[k] for k in range(len(by_place))], kwargs | named


class Chosen(NamedTuple):
    """Which arguments an option names, by position (from the end if negative), and by name."""

    numbers: frozenset[int]
    names: frozenset[str]

    @classmethod
    def of(
        cls,
        parameters: Sequence[inspect.Parameter],
        numbers: int | Sequence[int] | None,
        names: str | Sequence[str] | None,
    ) -> Self:
        """What an option says: where only positions are given, or only names, the others follow, as for JAX."""
        wanted = frozenset((numbers,) if isinstance(numbers, int) else numbers or ())
        named = frozenset((names,) if isinstance(names, str) else names or ())
        either = [(k, p.name) for k, p in enumerate(parameters) if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        if names is None:
            named = frozenset(name for k, name in either if k in wanted)
        if numbers is None:
            wanted = frozenset(k for k, name in either if name in named)
        return cls(wanted, named)

    def has(self, place: int, count: int) -> bool:
        """Whether it names the argument at a position among `count`."""
        return place in self.numbers or place - count in self.numbers

    def sort(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Given:
        """Arguments, with those apart that it names: the static ones."""
        count = len(args)
        places = tuple(range(count))
        if not self.numbers and not self.names:
            return Given(args, kwargs, places, ())
        apart = [(k, type(args[k]), args[k]) for k in places if self.has(k, count)]
        named = [(name, type(kwargs[name]), kwargs[name]) for name in sorted(self.names & kwargs.keys())]
        places = tuple(k for k in places if not self.has(k, count))
        rest = {name: x for name, x in kwargs.items() if name not in self.names}
        return Given(tuple(args[k] for k in places), rest, places, (*apart, *named))
