"""Stacks of specs that differ, such as the agents of an environment that each see and do other things."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from functional_rb.base.dtypes import whole_number
from functional_rb.base.nest import Structure
from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import Change, Spec, SpecNest, filled, index_parts, sizes_of, without_ellipsis
from functional_rb.specs.composite import Composite, checked, is_path
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

    members: tuple[Any, ...]
    axis: int = 0

    def __post_init__(self) -> None:
        """Freeze the members and count the axis from the front."""
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
        count = counts.pop() + 1
        if not -count <= self.axis < count:
            raise ValueError(f"Stacked: there is no axis {self.axis} among {count}")
        object.__setattr__(self, "axis", self.axis % count)

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
    def shape(self) -> Any:
        """The members' shape, -1 where they differ, with their number; of composites a dict by common name."""
        if all(isinstance(member, ArraySpec | NonTensor) for member in self.members):
            shapes = [member.shape for member in self.members]
            return self._with_count(shapes) if len({len(shape) for shape in shapes}) == 1 else tuple(shapes)
        return self._by_name("shape")

    @property
    def dtype(self) -> Any:
        """The dtype if all members have the same, else one for each; of composites a dict by common name."""
        return self._by_name("dtype")

    @property
    def domain(self) -> Any:
        """The domain if all members have the same, else one for each; of composites a dict by common name."""
        return self._by_name("domain")

    def _by_name(self, field: str) -> object:
        if all(isinstance(member, Composite) for member in self.members):
            return {name: getattr(self[name], field) for name in self.common}
        found = tuple(getattr(member, field) for member in self.members)
        return found[0] if all(one == found[0] for one in found) else found

    def _nest_parts(self) -> tuple[Structure, list[object]]:
        """The members, for `base.nest.parts_of`."""
        return Structure("sequence", tuple, tuple(range(len(self.members)))), list(self.members)

    @property
    def common(self) -> tuple[str, ...]:
        """The names that all members have, as composites."""
        names = [_names(member) for member in self.members]
        return tuple(name for name in names[0] if all(name in other for other in names[1:]))

    def __getitem__(self, key: Any) -> Any:
        """The parts of that name, or path of names, of all members; for an index, the spec that it chooses."""
        if isinstance(key, str):
            lacking = [i for i, member in enumerate(self.members) if key not in _names(member)]
            if lacking:
                raise KeyError(
                    f"{key!r}: members {lacking} have no such part; frb.specs.consolidate(spec) gives them one"
                )
            return stack([member[key] for member in self.members], self.axis)
        if is_path(key):
            return functools.reduce(operator.getitem, key, self)
        parts = without_ellipsis(*index_parts(self, key))
        if any(not isinstance(part, int | np.integer | slice) or isinstance(part, bool) for part in parts):
            raise IndexError(
                f"Stacked has {len(self.axes)} axes to index by numbers and slices, {self.axes}, got {key!r}"
            )
        before, which, after = parts[: self.axis], parts[self.axis : self.axis + 1], parts[self.axis + 1 :]
        chosen = self.members[which[0]] if which else self.members
        if isinstance(chosen, Spec):
            return chosen[(*before, *after)] if before or after else chosen
        axis = self.axis - sum(not isinstance(part, slice) for part in before)
        return Stacked(tuple(member[(*before, *after)] if before or after else member for member in chosen), axis)

    def changed(self, k: int, change: Change) -> Any:
        """The same change to every member: k is at most the number of axes in front of them, the `leading` ones."""
        made = tuple(member.changed(k, change) for member in self.members)
        return Stacked(made, self.axis + len(made[0].axes) - len(self.members[0].axes))

    def expand(self, *shape: object) -> Stacked:
        """Repeat along new leading axes, and along the axes of size 1; -1 keeps one."""
        given, axes = sizes_of(shape), self.axes
        axis = self.axis + len(given) - len(axes)
        if axis < self.axis or given[axis] not in (-1, len(self.members)):
            raise ValueError(f"expand: {axes} does not broadcast to {given}; there are {len(self.members)} members")
        inner = (*given[:axis], *given[axis + 1 :])
        return Stacked(tuple(member.expand(*inner) for member in self.members), axis)

    def squeeze(self, axis: int | None = None) -> Any:
        """The spec without one axis of size 1, or without all; without the members' axis it is the only member."""
        axes = self.axes
        if axis is None:
            made: Any = self
            for i in reversed([i for i, n in enumerate(axes) if n == 1]):
                made = made.squeeze(i)
            return made
        place = axis % len(axes) if -len(axes) <= axis < len(axes) else None
        if place is None or axes[place] != 1:
            raise ValueError(f"squeeze: axis {axis} of {axes} is none of size 1")
        if place == self.axis:
            return self.members[0]
        inner = place - (place > self.axis)
        return Stacked(tuple(member.squeeze(inner) for member in self.members), self.axis - (place < self.axis))

    def unsqueeze(self, axis: int) -> Stacked:
        """The spec with a new axis of size 1."""
        count = len(self.axes) + 1
        if not -count <= axis < count:
            raise ValueError(f"unsqueeze: there is no axis {axis} among {count}")
        place = axis % count
        inner = place - (place > self.axis)
        return Stacked(tuple(member.unsqueeze(inner) for member in self.members), self.axis + (place <= self.axis))

    def reshape(self, *shape: Any) -> Stacked:
        """The axes before the members', and those behind, in other sizes; the members stay apart.

        Raises:
            ValueError: if the members' axis would not stay between them.
        """
        given, axes = sizes_of(shape), self.axes
        for axis, n in enumerate(given):
            front, back = given[:axis], given[axis + 1 :]
            ahead = filled(front, math.prod(axes[: self.axis])) is not None
            behind = all(filled(back, math.prod(member.axes[self.axis :])) is not None for member in self.members)
            if n == len(self.members) and ahead and behind:
                return Stacked(tuple(member.reshape(*front, *back) for member in self.members), axis)
        raise ValueError(
            f"reshape: {axes} has {len(self.members)} different members along axis {self.axis}, which has to stay one "
            f"axis of {given}"
        )


def stack(specs: Sequence[object], axis: int = 0) -> Stacked:
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
    longer = first.unsqueeze(stacked.axis)
    sizes = list(longer.axes)
    sizes[stacked.axis] = len(stacked.members)
    return longer.expand(*sizes)


def _names(spec: SpecNest) -> tuple[str, ...]:
    if isinstance(spec, Stacked):
        return spec.common
    return tuple(spec) if isinstance(spec, Composite) else ()
