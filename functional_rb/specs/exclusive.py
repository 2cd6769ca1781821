"""Stacked members that have different keys: whether there are any, and giving all of them the same keys."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import SpecNest
from functional_rb.specs.composite import Composite, freeze, map_members, members
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.stacked import Stacked
from functional_rb.specs.varying import Varying


def has_stacked(spec: SpecNest) -> bool:
    """Whether a nest of specs has members side by side that differ (`Stacked`) in it.

    Example:
        >>> from functional_rb import Unbounded
        >>> has_stacked({"agents": Stacked([Unbounded((3,)), Unbounded((5,))])}), has_stacked(Unbounded())
        (True, False)
    """
    return any(isinstance(found, Stacked) for found in _specs_in(freeze(spec)))


def _specs_in(nest: SpecNest) -> Iterator[Any]:
    for _, leaf in members(nest):
        yield leaf
        if isinstance(leaf, Composite | Varying):
            yield from _specs_in(leaf.parts)
        if isinstance(leaf, Stacked):
            yield from _specs_in(leaf.members)


def has_exclusive_keys(spec: SpecNest) -> bool:
    """Whether some members side by side have a part that others lack.

    Example:
        >>> from functional_rb import Composite, Unbounded
        >>> has_exclusive_keys(Stacked([Composite(a=Unbounded()), Composite()]))
        True
    """
    return any(isinstance(found, Stacked) and _exclusive(found.members) for found in _specs_in(freeze(spec)))


def _exclusive(side_by_side: Sequence[Any]) -> bool:
    if all(isinstance(one, Stacked) for one in side_by_side):
        return _exclusive([member for one in side_by_side for member in one.members])
    if not all(isinstance(one, Composite) for one in side_by_side):
        return False
    first = side_by_side[0]
    same = all(set(one) == set(first) for one in side_by_side)
    return not same or any(_exclusive([one[name] for one in side_by_side]) for name in first)


def consolidate(spec: SpecNest) -> Any:
    """Give members side by side the same names: what one lacks becomes a leaf of its dtype with size 0.

    Args:
        spec: a spec, or a nest of them.

    Returns:
        The same nest. In a member that lacks a part, that part has the batch axes of the member and no elements: each
        axis behind those has size 0, and a scalar gets one axis of size 0.

    Example:
        >>> from functional_rb import Composite, Unbounded
        >>> agents = Stacked([Composite(obs=Unbounded((3,))), Composite(obs=Unbounded((5,)), gps=Unbounded((2,)))])
        >>> whole = consolidate(agents)
        >>> whole[0].gps.shape, whole["gps"].shape, has_exclusive_keys(whole)
        ((0,), (2, -1), False)
    """
    return map_members(freeze(spec), _consolidated)


def _consolidated(leaf: SpecNest) -> Any:
    if isinstance(leaf, Composite):
        return leaf.with_parts({name: consolidate(part) for name, part in leaf.items()})
    if isinstance(leaf, Varying):
        nests = {name: consolidate(getattr(leaf, name)) for name in leaf.nests}
        return dataclasses.replace(leaf, **nests)  # type: ignore[type-var]  # each kind is a dataclass
    if isinstance(leaf, Stacked):
        return Stacked(tuple(_alike([consolidate(member) for member in leaf.members])), leaf.axis)
    return leaf


def _alike(side_by_side: list[Any]) -> list[Any]:
    """Composites with the names that any of them has; what is a composite only in some members is left as it is."""
    if all(isinstance(one, Stacked) for one in side_by_side):
        made = iter(_alike([member for one in side_by_side for member in one.members]))
        return [Stacked(tuple(itertools.islice(made, len(one.members))), one.axis) for one in side_by_side]
    if not all(isinstance(one, Composite) for one in side_by_side):
        return side_by_side
    examples: dict[str, tuple[Any, int]] = {}
    for one in side_by_side:
        for name, part in one.items():
            examples.setdefault(name, (part, len(one.batch_shape)))
    columns = {
        name: _alike([one[name] if name in one else _empty(*example, one.batch_shape) for one in side_by_side])
        for name, example in examples.items()
    }
    return [one.with_parts({name: columns[name][i] for name in columns}) for i, one in enumerate(side_by_side)]


def _empty(part: object, k: int, batch_shape: tuple[int, ...]) -> Any:
    """A part without elements, modelled on one that has k batch axes."""

    def emptied(leaf: Any) -> Any:
        if isinstance(leaf, Varying):
            leaf = leaf.parts
        if isinstance(leaf, Composite):
            axes = (*batch_shape, *(0,) * (len(leaf.batch_shape) - k))
            return leaf.with_parts({name: _empty(inner, k, batch_shape) for name, inner in leaf.items()}, axes)
        if isinstance(leaf, Stacked):
            return Stacked(tuple(emptied(member) for member in leaf.members), leaf.axis - k + len(batch_shape))
        shape = (*batch_shape, *(0,) * max(len(leaf.shape) - k, 1))
        return NonTensor(shape) if isinstance(leaf, NonTensor) else ArraySpec(shape, leaf.dtype)

    return map_members(part, emptied)
