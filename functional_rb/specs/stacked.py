"""Members that differ, side by side: the agents of an environment, say, of which each sees and does other things."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import Change, Spec, sizes_of
from functional_rb.specs.composite import Composite, freeze, map_members
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
        >>> agents[1].gps.shape, agents["obs"].shape, has_exclusive_keys(agents)
        ((2,), (2, -1), True)
    """

    arguments: ClassVar[tuple[str, ...]] = ("members", "axis")

    members: tuple[Any, ...]
    axis: int = 0

    def __post_init__(self) -> None:
        """Freeze the members and count the axis from the front."""
        object.__setattr__(self, "members", tuple(freeze(member) for member in self.members))
        if not self.members:
            raise ValueError("Stacked: expected at least one member, got none")
        for i, member in enumerate(self.members):
            if not isinstance(member, Spec):
                raise TypeError(
                    f"Stacked: member {i}: expected a spec such as frb.Unbounded(shape), got {member!r:.80}"
                )
        counts = {len(member.axes) for member in self.members}
        if len(counts) > 1:
            raise ValueError(
                f"Stacked: expected members with the same number of axes, got {[m.axes for m in self.members]}"
            )
        count = counts.pop() + 1
        if not -count <= self.axis < count:
            raise ValueError(f"Stacked: there is no axis {self.axis} among {count}")
        object.__setattr__(self, "axis", self.axis % count)

    @property
    def axes(self) -> tuple[int, ...]:
        """The members' axes and their number; -1 where they differ."""
        return self._with_count([member.axes for member in self.members])

    def _with_count(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        common = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)]
        return (*common[: self.axis], len(self.members), *common[self.axis :])

    @property
    def shape(self) -> Any:
        """The members' shapes with their number, -1 where they differ; of composites by name, for what all have."""
        if all(isinstance(member, ArraySpec | NonTensor) for member in self.members):
            shapes = [member.shape for member in self.members]
            return self._with_count(shapes) if len({len(shape) for shape in shapes}) == 1 else tuple(shapes)
        return self._by_name("shape")

    @property
    def dtype(self) -> Any:
        """The dtype, if all have the same, else one for each; of composites by name, for what all have."""
        return self._by_name("dtype")

    @property
    def domain(self) -> Any:
        """The domain, likewise."""
        return self._by_name("domain")

    def _by_name(self, field: str) -> Any:
        if all(isinstance(member, Composite) for member in self.members):
            return {name: getattr(self[name], field) for name in self.common}
        told = tuple(getattr(member, field) for member in self.members)
        return told[0] if all(one == told[0] for one in told) else told

    @property
    def common(self) -> tuple[str, ...]:
        """The names that all members have, as composites."""
        names: list[tuple[str, ...]] = [tuple(m) if isinstance(m, Composite) else () for m in self.members]
        return tuple(name for name in names[0] if all(name in other for other in names[1:]))

    def __getitem__(self, key: Any) -> Any:
        """The part of that name (or path of names) of all members; else of an index of the axes, what it chooses."""
        if isinstance(key, str):
            lacking = [i for i, m in enumerate(self.members) if not isinstance(m, Composite) or key not in m]
            if lacking:
                raise KeyError(f"{key!r}: members {lacking} have no such part; frb.consolidate(spec) gives them one")
            return stack([member[key] for member in self.members], self.axis)
        if isinstance(key, tuple) and key and isinstance(key[0], str):
            found: Any = self
            for name in key:
                found = found[name]
            return found
        parts = key if isinstance(key, tuple) else (key,)
        if any(part is Ellipsis for part in parts):
            at = next(i for i, part in enumerate(parts) if part is Ellipsis)
            parts = (*parts[:at], *[slice(None)] * (len(self.axes) - len(parts) + 1), *parts[at + 1 :])
        if any(not isinstance(part, int | np.integer | slice) for part in parts) or len(parts) > len(self.axes):
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
        """The same change to every member, if it is one of the axes in front of them."""
        if k > self.axis:
            raise ValueError(
                f"Stacked: only the {self.axis} axes in front of the members can be changed, as those differ; "
                f"change the members: Stacked([... for member in spec.members])"
            )
        members = tuple(member.changed(k, change) for member in self.members)
        return Stacked(members, self.axis + len(members[0].axes) - len(self.members[0].axes))

    def expand(self, *shape: Any) -> Stacked:
        """Repeat along new leading axes, and along the axes of size 1; -1 keeps one."""
        given, axes = sizes_of(shape), self.axes
        axis = self.axis + len(given) - len(axes)
        if axis < self.axis or given[axis] not in (-1, len(self.members)):
            raise ValueError(f"expand: {axes} does not broadcast to {given}; there are {len(self.members)} members")
        inner = (*given[:axis], *given[axis + 1 :])
        return Stacked(tuple(member.expand(*inner) for member in self.members), axis)

    def squeeze(self, axis: int | None = None) -> Any:
        """Without an axis of size 1, or without all of them; the only member, if it is the members' axis."""
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
        """With a new axis of size 1."""
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
        ahead = int(np.prod(axes[: self.axis]))
        for axis, n in enumerate(given):
            if n == len(self.members) and -1 not in given[:axis] and int(np.prod(given[:axis])) == ahead:
                inner = (*given[:axis], *given[axis + 1 :])
                return Stacked(tuple(member.reshape(*inner) for member in self.members), axis)
        raise ValueError(
            f"reshape: {axes} has {len(self.members)} different members along axis {self.axis}, which has to stay one "
            f"axis of {given}"
        )

    def defaults(self) -> dict[str, Any]:
        """The members lie in front."""
        return {"axis": 0}


def stack(specs: Sequence[Any], axis: int = 0) -> Any:
    """Specs side by side: one spec with a further axis if they are all the same, else `Stacked`.

    Example:
        >>> from functional_rb import Unbounded
        >>> stack([Unbounded((3,)), Unbounded((3,))]), stack([Unbounded((3,)), Unbounded((5,))]).shape
        (Unbounded((2, 3)), (2, -1))
    """
    stacked = Stacked(tuple(specs), axis)
    first = stacked.members[0]
    if any(member != first for member in stacked.members) or _has(first, Stacked):
        return stacked
    longer = first.unsqueeze(stacked.axis)
    sizes = list(longer.axes)
    sizes[stacked.axis] = len(stacked.members)
    return longer.expand(*sizes)


def has_stacked(spec: Any) -> bool:
    """Whether a nest of specs has members side by side that differ (`Stacked`) in it.

    Example:
        >>> from functional_rb import Unbounded
        >>> has_stacked({"agents": Stacked([Unbounded((3,)), Unbounded((5,))])}), has_stacked(Unbounded())
        (True, False)
    """
    return _has(freeze(spec), Stacked)


def _has(spec: Any, kind: type) -> bool:
    found = []
    map_members(spec, lambda leaf: found.append(isinstance(leaf, kind) or any(_has(p, kind) for p in _below(leaf))))
    return any(found)


def _below(leaf: Any) -> tuple[Any, ...]:
    """What a spec has inside that are specs."""
    if isinstance(leaf, Composite):
        return tuple(leaf.values())
    return leaf.members if isinstance(leaf, Stacked) else ()


def has_exclusive_keys(spec: Any) -> bool:
    """Whether some members side by side have a part that others lack.

    Example:
        >>> from functional_rb import Composite, Unbounded
        >>> has_exclusive_keys(Stacked([Composite(a=Unbounded()), Composite()]))
        True
    """
    found = []

    def look(leaf: Any) -> None:
        if isinstance(leaf, Stacked):
            names = [frozenset(m) if isinstance(m, Composite) else frozenset() for m in leaf.members]
            found.append(len(set(names)) > 1)
        for part in _below(leaf):
            map_members(part, look)

    map_members(freeze(spec), look)
    return any(found)


def consolidate(spec: Any) -> Any:
    """Give members side by side the same names: what one lacks becomes a leaf of its dtype with size 0.

    Args:
        spec: a spec, or a nest of them.

    Returns:
        The same nest; a part that only some members have has, in the others, the batch axes of that member and no
        elements: each axis behind those has size 0, and a scalar has one of size 0.

    Example:
        >>> from functional_rb import Composite, Unbounded
        >>> agents = Stacked([Composite(obs=Unbounded((3,))), Composite(obs=Unbounded((5,)), gps=Unbounded((2,)))])
        >>> whole = consolidate(agents)
        >>> whole[0].gps.shape, whole["gps"].shape, has_exclusive_keys(whole)
        ((0,), (2, -1), False)
    """
    return map_members(freeze(spec), _consolidated)


def _consolidated(leaf: Any) -> Any:
    if isinstance(leaf, Composite):
        return leaf.with_parts({name: consolidate(part) for name, part in leaf.items()})
    if not isinstance(leaf, Stacked):
        return leaf
    members = [consolidate(member) for member in leaf.members]
    if not all(isinstance(member, Composite) for member in members):
        return Stacked(tuple(members), leaf.axis)
    examples = {name: (part, len(m.batch_shape)) for m in reversed(members) for name, part in m.items()}
    filled = [
        m.with_parts({name: m[name] if name in m else _empty(*examples[name], m.batch_shape) for name in examples})
        for m in members
    ]
    # Once more: a part that all have may now be one whose own parts some lack.
    made = [
        m.with_parts({name: _agreed([other[name] for other in filled])[i] for name in examples})
        for i, m in enumerate(filled)
    ]
    return Stacked(tuple(made), leaf.axis)


def _agreed(parts: list[Any]) -> list[Any]:
    """Composites under one name of several members, each with the names of all."""
    if not all(isinstance(part, Composite) for part in parts):
        return parts
    together = _consolidated(Stacked(tuple(parts)))
    return list(together.members)


def _empty(part: Any, k: int, batch_shape: tuple[int, ...]) -> Any:
    """A part without elements, in place of one that has k batch axes."""

    def emptied(leaf: Any) -> Any:
        if isinstance(leaf, Composite):
            return leaf.with_parts({n: _empty(p, k, batch_shape) for n, p in leaf.items()}, batch_shape)
        if isinstance(leaf, Stacked):
            return Stacked(tuple(emptied(member) for member in leaf.members), leaf.axis)
        inner = len(leaf.shape) - k
        shape = (*batch_shape, *(0,) * max(inner, 1))
        return NonTensor(shape) if isinstance(leaf, NonTensor) else ArraySpec(shape, leaf.dtype)

    return map_members(part, emptied)
