"""Stacked members that have different keys: finding them, and giving all of them the same keys."""

from __future__ import annotations

import dataclasses
import itertools

from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import SpecNest
from functional_rb.specs.composite import Composite, freeze, map_members
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.stacked import Stacked
from functional_rb.specs.varying import Varying


def consolidate(spec: SpecNest) -> SpecNest:
    """Give members side by side the same names: what one lacks becomes a leaf of its dtype with size 0.

    Args:
        spec: a spec, or a nest of them.

    Returns:
        The same nest. In a member that lacks a part, that part has the batch axes of the member and no elements: each
        axis behind those has size 0, and a scalar gets one axis of size 0. Where no member lacks a part, the same spec.

    Example:
        >>> from functional_rb import Composite, Unbounded
        >>> agents = Stacked([Composite(obs=Unbounded((3,))), Composite(obs=Unbounded((5,)), gps=Unbounded((2,)))])
        >>> whole = consolidate(agents)
        >>> whole[0].gps.shape, whole["gps"].shape, whole == agents, consolidate(whole) == whole
        ((0,), (2, -1), False, True)
    """
    return map_members(freeze(spec), _consolidated)


def _consolidated(leaf: SpecNest) -> SpecNest:
    if isinstance(leaf, Composite):
        return leaf.with_parts({name: consolidate(child) for name, child in leaf.items()})
    if isinstance(leaf, Varying):
        nests = {name: consolidate(getattr(leaf, name)) for name in leaf.nests}
        return dataclasses.replace(leaf, **nests)  # type: ignore[type-var]  # each kind is a dataclass
    if isinstance(leaf, Stacked):
        return Stacked(tuple(_alike([consolidate(member) for member in leaf.members])), leaf.axis)
    return leaf


def _alike(side_by_side: list[SpecNest]) -> list[SpecNest]:
    # Gives composites the names that any of them has. What is a composite only in some members stays as it is.
    if all(isinstance(one, Stacked) for one in side_by_side):
        members = iter(_alike([member for one in side_by_side for member in one.members]))
        return [Stacked(tuple(itertools.islice(members, len(one.members))), one.axis) for one in side_by_side]
    if not all(isinstance(one, Composite) for one in side_by_side):
        return side_by_side
    # Of each name the first member that has it, whose part says what is missing elsewhere.
    examples: dict[str, tuple[SpecNest, int]] = {}
    for one in side_by_side:
        for name, child in one.items():
            examples.setdefault(name, (child, len(one.batch_shape)))
    columns = {
        name: _alike([one[name] if name in one else _empty(*example, one.batch_shape) for one in side_by_side])
        for name, example in examples.items()
    }
    return [one.with_parts({name: columns[name][i] for name in columns}) for i, one in enumerate(side_by_side)]


# A part that others have, without elements: `k` is how many batch axes the example has in front.
def _empty(spec: SpecNest, k: int, batch_shape: tuple[int, ...]) -> SpecNest:
    def emptied(leaf: SpecNest) -> SpecNest:
        if isinstance(leaf, Varying):
            leaf = leaf.parts
        if isinstance(leaf, Composite):
            axes = (*batch_shape, *(0,) * (len(leaf.batch_shape) - k))
            return leaf.with_parts({name: _empty(inner, k, batch_shape) for name, inner in leaf.items()}, axes)
        if isinstance(leaf, Stacked):
            return Stacked(tuple(emptied(member) for member in leaf.members), leaf.axis - k + len(batch_shape))
        shape = (*batch_shape, *(0,) * max(len(leaf.shape) - k, 1))
        return NonTensor(shape) if isinstance(leaf, NonTensor) else ArraySpec(shape, leaf.dtype)

    return map_members(spec, emptied)
