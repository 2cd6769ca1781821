"""Stacks of specs that differ, such as the agents of an environment that each see and do other things."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from functional_rb.base.arrays import Nest
from functional_rb.base.dtypes import whole_number
from functional_rb.base.nest import Structure
from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import Change, Spec, SpecNest, axis_of, filled, index_parts, sizes_of, without_ellipsis
from functional_rb.specs.composite import Composite, at_path, cardinality, checked, is_path, without_elements
from functional_rb.specs.non_tensor import NonTensor


@dataclasses.dataclass(frozen=True, repr=False)
class Stacked(Spec):
    """Specs side by side along an axis, whose shapes, dtypes or keys may differ: a value is a tuple, one for each.

    Each member is stored as it is, without padding.

    Attributes:
        members: the specs, at least one, all with the same number of axes. Composites' axes are their batch axes.
        axis: where the members lie among the axes; may be given as a negative number.

    Raises:
        TypeError: if a member is no spec.
        ValueError: for no members, or such with different numbers of axes.

    Example:
        >>> from functional_rb import Composite, Unbounded
        >>> agents = Stacked([Composite(obs=Unbounded((3,))), Composite(obs=Unbounded((5,)), gps=Unbounded((2,)))])
        >>> agents[1].gps.shape, agents["obs"].shape
        ((2,), (2, -1))
    """

    arguments: ClassVar[tuple[str, ...]] = ("members", "axis")

    members: tuple[SpecNest, ...]
    axis: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.members, tuple | list):
            raise TypeError(f"Stacked: expected members as a sequence of specs, got {self.members!r:.80}")
        frozen = tuple(checked(member, f"Stacked: member {i}") for i, member in enumerate(self.members))
        object.__setattr__(self, "members", frozen)
        object.__setattr__(self, "axis", whole_number(self.axis, "Stacked: axis"))
        if not self.members:
            raise ValueError("Stacked: expected at least one member, got none")
        for i, member in enumerate(self.members):
            if not isinstance(member, Spec):
                raise TypeError(
                    f"Stacked: member {i}: expected a spec, got {member!r:.80}; name the parts: frb.Composite(...)"
                )
        counts = {len(member.axes) for member in self.members}
        if len(counts) > 1:
            raise ValueError(
                f"Stacked: expected members with the same number of axes, got {[m.axes for m in self.members]}; "
                f"write member.unsqueeze(0), say"
            )
        object.__setattr__(self, "axis", axis_of(self.axis, counts.pop() + 1, "Stacked"))

    @property
    def axes(self) -> tuple[int, ...]:
        """The members' axes, -1 where they differ, with the number of members at `axis`."""
        return self._with_count([member.axes for member in self.members])

    @property
    def leading(self) -> tuple[int, ...]:
        """The axes in front of the members, as far as the arrays of all members begin with them."""
        return self.axes[: min(self.axis, *(len(member.leading) for member in self.members))]

    def _with_count(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        common = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)]
        return (*common[: self.axis], len(self.members), *common[self.axis :])

    @property
    def shape(self) -> Nest:
        """The members' shape, -1 where they differ, with their number; of composites a dict by common name."""
        if all(isinstance(member, ArraySpec | NonTensor) for member in self.members):
            shapes = [member.shape for member in self.members]
            return self._with_count(shapes) if len({len(shape) for shape in shapes}) == 1 else tuple(shapes)
        return self._by_name("shape")

    @property
    def dtype(self) -> Nest:
        """The dtype if all members have the same, else one for each; of composites a dict by common name."""
        return self._by_name("dtype")

    @property
    def domain(self) -> Nest:
        """The domain if all members have the same, else one for each; of composites a dict by common name."""
        return self._by_name("domain")

    def _by_name(self, field: str) -> object:
        if all(isinstance(member, Composite) for member in self.members):
            return {name: getattr(self[name], field) for name in self.common}
        values = tuple(getattr(member, field) for member in self.members)
        return values[0] if all(value == values[0] for value in values) else values

    def _nest_parts(self) -> tuple[Structure, list[object]]:
        return Structure("sequence", tuple, tuple(range(len(self.members)))), list(self.members)

    @property
    def common(self) -> tuple[str, ...]:
        """The names that all members have, as composites."""
        names = [_names(member) for member in self.members]
        return tuple(name for name in names[0] if all(name in other for other in names[1:]))

    def __getitem__(self, key: object) -> SpecNest:
        """The parts of that name, or path of names, of all members; for an index, the spec that it chooses."""
        if isinstance(key, str):
            lacking = [i for i, member in enumerate(self.members) if key not in _names(member)]
            if lacking:
                raise KeyError(f"{key!r}: members {lacking} have no such part; spec.consolidate() gives them one")
            return stack([member[key] for member in self.members], self.axis)
        if is_path(key):
            return at_path(self, key)
        parts = without_ellipsis(*index_parts(self, key))
        if any(not isinstance(entry, int | np.integer | slice) or isinstance(entry, bool) for entry in parts):
            raise IndexError(
                f"Stacked has {len(self.axes)} axes to index by numbers and slices, {self.axes}, got {key!r}"
            )
        before, which, after = parts[: self.axis], parts[self.axis : self.axis + 1], parts[self.axis + 1 :]
        chosen = self.members[which[0]] if which else self.members
        if isinstance(chosen, Spec):
            return chosen[(*before, *after)] if before or after else chosen
        # Each number in front of the members takes an axis away, a slice leaves it.
        axis = self.axis - sum(not isinstance(entry, slice) for entry in before)
        return Stacked(tuple(member[(*before, *after)] if before or after else member for member in chosen), axis)

    def changed(self, k: int, change: Change) -> SpecNest:
        # k is at most the number of the axes in front of the members, the `leading` ones.
        members = tuple(member.changed(k, change) for member in self.members)
        return Stacked(members, self.axis + len(members[0].axes) - len(self.members[0].axes))

    def cardinality(self) -> int | float:
        return cardinality(self.members)

    def consolidate(self) -> Stacked:
        return Stacked(tuple(_alike([member.consolidate() for member in self.members])), self.axis)

    def without_elements(self, batch_axes: int, batch_shape: tuple[int, ...]) -> Stacked:
        members = tuple(member.without_elements(batch_axes, batch_shape) for member in self.members)
        return Stacked(members, self.axis - batch_axes + len(batch_shape))

    def expand(self, *shape: object) -> Stacked:
        sizes, axes = sizes_of(shape), self.axes
        axis = self.axis + len(sizes) - len(axes)
        if axis < self.axis or sizes[axis] not in (-1, len(self.members)):
            raise ValueError(f"expand: {axes} does not broadcast to {sizes}; there are {len(self.members)} members")
        inner = (*sizes[:axis], *sizes[axis + 1 :])
        return Stacked(tuple(member.expand(*inner) for member in self.members), axis)

    def squeeze(self, axis: int | None = None) -> SpecNest:
        # Without the members' axis the only member is left.
        axes = self.axes
        if axis is None:
            squeezed: SpecNest = self
            # From the last on, so that the positions of the others stay.
            for i in reversed([i for i, n in enumerate(axes) if n == 1]):
                squeezed = squeezed.squeeze(i)
            return squeezed
        place = axis_of(axis, len(axes), "squeeze")
        if axes[place] != 1:
            raise ValueError(f"squeeze: axis {axis} of {axes} has another size than 1")
        if place == self.axis:
            return self.members[0]
        inner = place - (place > self.axis)
        return Stacked(tuple(member.squeeze(inner) for member in self.members), self.axis - (place < self.axis))

    def unsqueeze(self, axis: int) -> Stacked:
        place = axis_of(axis, len(self.axes) + 1, "unsqueeze")
        inner = place - (place > self.axis)
        return Stacked(tuple(member.unsqueeze(inner) for member in self.members), self.axis + (place <= self.axis))

    def reshape(self, *shape: object) -> Stacked:
        """The axes before the members', and those behind, in other sizes; the members stay apart.

        Raises:
            ValueError: if the members' axis would not stay between them.
        """
        sizes, axes = sizes_of(shape), self.axes
        # Any of the new axes may be that of the members, if what lies before it and behind it fits.
        for axis, n in enumerate(sizes):
            front, back = sizes[:axis], sizes[axis + 1 :]
            ahead = filled(front, math.prod(axes[: self.axis])) is not None
            behind = all(filled(back, math.prod(member.axes[self.axis :])) is not None for member in self.members)
            if n == len(self.members) and ahead and behind:
                return Stacked(tuple(member.reshape(*front, *back) for member in self.members), axis)
        raise ValueError(
            f"reshape: {axes} has {len(self.members)} different members along axis {self.axis}, which has to stay one "
            f"axis of {sizes}"
        )


def stack(specs: Sequence[SpecNest], axis: int = 0) -> Spec:
    """Specs side by side: one spec with a further axis if they are all the same, else `Stacked`.

    Example:
        >>> from functional_rb import Unbounded
        >>> stack([Unbounded((3,)), Unbounded((3,))]), stack([Unbounded((3,)), Unbounded((5,))]).shape
        (Unbounded((2, 3)), (2, -1))
    """
    stacked = Stacked(tuple(specs), axis)
    first = stacked.members[0]
    if any(member != first for member in stacked.members):
        return stacked
    # Equal specs are one with an axis more, which is stored as one array and not as several.
    longer = first.unsqueeze(stacked.axis)
    sizes = list(longer.axes)
    sizes[stacked.axis] = len(stacked.members)
    return longer.expand(*sizes)


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
        name: _alike(
            [one[name] if name in one else without_elements(*example, one.batch_shape) for one in side_by_side]
        )
        for name, example in examples.items()
    }
    return [one.with_parts({name: columns[name][i] for name in columns}) for i, one in enumerate(side_by_side)]


def _names(spec: SpecNest) -> tuple[str, ...]:
    if isinstance(spec, Stacked):
        return spec.common
    return tuple(spec) if isinstance(spec, Composite) else ()
