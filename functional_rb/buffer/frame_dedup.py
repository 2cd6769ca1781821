"""How a user asks for compact storage, and which leaves of an item that means; `core/frame_store.py` carries it out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from functional_rb.base import nest
from functional_rb.base.dtypes import whole_number
from functional_rb.base.nest import Key
from functional_rb.structures.frame_ring import Chain, Stack, most_frames
from functional_rb.writers.round_robin import RoundRobin

if TYPE_CHECKING:
    from functional_rb.core.plan import Plan
    from functional_rb.writers.base import WriterBase

WHO = "BufferSpec.compact"
# A mapping whose keys are leaves' names, as a tuple that can be hashed.
ByName = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Compact:
    """Observations are stored once, though a step has them twice: as its own, and as the next one of the step before.

    What is sampled is what was added, bit for bit, as from the plain layout. A step shares the next observation of the
    step before it in its lane if the bytes are the same, whatever the flags say; else both are stored. Stacks of the
    last k frames are rebuilt from single frames, which steps share too. T steps of a trajectory take T + 1
    observations, with stacks T + k frames. There is room for `capacity` of them and some to spare: where trajectories
    are short, the room may be used up before the capacity is, and then the oldest items go earlier, the sizes shrink.
    `BufferSpec(compact=Compact())`; the writer is `RoundRobin` (or `Immutable`).

    Attributes:
        next: which leaf is the next value of which, {next_key: key}. By default each leaf below "next" belongs to the
            one of the same path without it, and each `next_X` to `X`, where shape and dtype are the same. With none
            ({}, or none found) stacks alone are rebuilt.
        stack: how many frames the paired leaves (without pairs, all leaves) are stacks of, along `axis`, the newest
            last; leaves without an axis of that size there are no stacks. Or {key: k}, for the leaves that are.
        axis: of the stacks; or {key: axis}, 0 for the others. Stacks along axis 0 are read as they lie; others are put
            together after that, on torch without a copy, as strided views.
        spare: how many observations beyond the capacity there is room for, in all lanes together: by default a 32nd of
            it and two stacks for each lane, which have at least so much.

    Raises:
        TypeError: if a field is of a wrong kind.
        ValueError: from `BufferSpec`, if there is nothing to compact, a leaf is unknown or named twice, a pair is of
            two shapes or dtypes, an axis has another size than the stack, some stacks are paired and some are not, or
            the writer is another one.

    Example:
        >>> Compact(next={"next_obs": "obs"}, stack=4, axis=-1).next
        (('next_obs', 'obs'),)
    """

    next: Mapping[Key, Key] | ByName | None = None
    stack: int | Mapping[Key, int] | ByName = 1
    axis: int | Mapping[Key, int] | ByName = 0
    spare: int | None = None

    def __post_init__(self) -> None:
        if self.next is not None:
            pairs = _by_name("next", self.next)
            object.__setattr__(self, "next", tuple((name, nest.show_key(key)) for name, key in pairs))
        object.__setattr__(self, "stack", _ints("stack", self.stack, 1))
        object.__setattr__(self, "axis", _ints("axis", self.axis, None))
        if self.spare is not None:
            object.__setattr__(self, "spare", _int("spare", self.spare, 0))

    def chain(self, plan: Plan, writer: WriterBase) -> Chain:
        """The chain of frames for the item of a spec."""
        if not isinstance(writer, RoundRobin):
            raise ValueError(
                f"{WHO}: frames are shared by items that follow each other and go in their order, and {writer} "
                f"does not keep that; use writer=frb.RoundRobin() (and a sampler for it), or leave compact out"
            )
        pairs = self._pairs(plan)
        stacks = self._stacks(plan, pairs)
        for k in {*pairs, *pairs.values(), *stacks} & {*plan.objects}:
            raise ValueError(
                f"{WHO}: leaf {plan.names[k]!r} holds Python objects, which are neither compared nor shared; "
                f"leave it out of next and stack"
            )
        frames = tuple(
            Stack.of(plan.structure.paths[k], plan.leaves[k], k, pairs.get(k), *stacks.get(k, (1, 0)))
            for k in sorted({*pairs, *stacks})
        )
        return Chain(frames, plan.ring, self._room(plan, max(stack.depth for stack in frames)))

    # The position of each paired leaf's next value, by its own.
    def _pairs(self, plan: Plan) -> dict[int, int]:
        if self.next is None:
            candidates = _find_pairs(plan)
        else:
            at = {name: nest.position(plan.names, name, WHO) for pair in _items(self.next) for name in pair}
            candidates = [(at[following], at[current]) for following, current in _items(self.next)]
        pairs: dict[int, int] = {}
        used: set[int] = set()
        for following, current in candidates:
            for k in (following, current):
                if k in used or following == current:
                    raise ValueError(f"{WHO}: leaf {plan.names[k]!r} is in two pairs; name pairs by next={{...}}")
            used |= {following, current}
            ours, theirs = plan.leaves[current], plan.leaves[following]
            if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
                raise ValueError(
                    f"{WHO}: leaf {plan.names[following]!r}: expected shape {ours.shape} and dtype {ours.dtype} as "
                    f"leaf {plan.names[current]!r} has, got {theirs.shape} and {theirs.dtype}; leave the pair out of "
                    f"next"
                )
            pairs[current] = following
        return pairs

    # How many frames each stack is of, and along which axis, by the leaf's position.
    def _stacks(self, plan: Plan, pairs: dict[int, int]) -> dict[int, tuple[int, int]]:
        if isinstance(self.stack, int):
            candidates = sorted(pairs) if pairs else [k for k in range(len(plan.leaves)) if k not in plan.objects]
            stacks: dict[int, tuple[int, int]] = {}
            for k in candidates:
                axis, shape = self._axis_of(plan, k), plan.leaves[k].shape
                if self.stack != 1 and -len(shape) <= axis < len(shape) and shape[axis] == self.stack:
                    stacks[k] = self.stack, axis
            if self.stack > 1 and not stacks:
                names = [plan.names[k] for k in candidates]
                raise ValueError(
                    f"{WHO}: none of the leaves {names} is a stack: expected {self.stack} frames along axis "
                    f"{self.axis}; give the axis, and name the leaves by stack={{key: {self.stack}}}"
                )
        else:
            stacks = self._named_stacks(plan, pairs)
        if not pairs and not stacks:
            raise ValueError(
                f"{WHO}: there is nothing to compact: none of the leaves {list(plan.names)} is the next value of "
                f"another of the same shape and dtype (next/X or next_X, of X); name pairs by next={{next_key: key}}, "
                f"stacks by stack={{key: k}}, or leave compact out"
            )
        return stacks

    def _named_stacks(self, plan: Plan, pairs: dict[int, int]) -> dict[int, tuple[int, int]]:
        stacks: dict[int, tuple[int, int]] = {}
        for name, depth in _items(self.stack):
            k = nest.position(plan.names, name, WHO)
            if pairs and k not in pairs:
                raise ValueError(
                    f"{WHO}: leaf {name!r}: expected a stack that has a next value, as other leaves have, got one "
                    f"without; name it by next={{next_key: {name!r}}}, or give next={{}} and compact the stacks alone"
                )
            axis, shape = self._axis_of(plan, k), plan.leaves[k].shape
            if depth > 1 and not (-len(shape) <= axis < len(shape) and shape[axis] == depth):
                raise ValueError(
                    f"{WHO}: leaf {name!r}: expected {depth} frames along axis {axis}, got shape {shape}; "
                    f"give the axis of the stack, or its size"
                )
            if depth > 1:
                stacks[k] = depth, axis
        return stacks

    def _axis_of(self, plan: Plan, k: int) -> int:
        if isinstance(self.axis, int):
            return self.axis
        axes = {nest.position(plan.names, name, WHO): axis for name, axis in _items(self.axis)}
        return int(axes.get(k, 0))

    def _room(self, plan: Plan, depth: int) -> int:
        ring = plan.ring
        spare = -(-ring.length // 32) + 2 * depth if self.spare is None else -(-self.spare // ring.lanes)
        # A step takes two stacks at most, which have to find room beside one frame for each item.
        room = ring.length + max(spare, 2 * depth)
        if room > most_frames(ring.lanes):
            raise ValueError(
                f"{WHO}: expected room for at most {most_frames(ring.lanes)} observations a lane, got {room}; "
                f"use several buffers, or more lanes"
            )
        return room


# The positions of leaves that by name are next values, each with that of the leaf of the same shape and dtype.
def _find_pairs(plan: Plan) -> list[tuple[int, int]]:
    paths = {path: k for k, path in enumerate(plan.structure.paths)}
    pairs = []
    for path, following in paths.items():
        if path[:1] == ("next",):
            current = paths.get(path[1:])
        elif path and isinstance(path[0], str) and path[0].startswith("next_"):
            current = paths.get((path[0].removeprefix("next_"), *path[1:]))
        else:
            continue
        if current is None or not {current, following}.isdisjoint(plan.objects):
            continue
        ours, theirs = plan.leaves[current], plan.leaves[following]
        if (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype):
            pairs.append((following, current))
    return pairs


# The pairs that `__post_init__` has made of a mapping.
def _items(field: Any) -> ByName:
    pairs: ByName = field
    return pairs


# A mapping, or the pairs of one, by leaves' names.
def _by_name(field: str, mapping: object) -> ByName:
    pairs = tuple(mapping.items()) if isinstance(mapping, Mapping) else mapping
    if not isinstance(pairs, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise TypeError(f"Compact.{field}: expected a mapping from keys of leaves, got {mapping!r}")
    named = tuple((nest.show_key(key), value) for key, value in pairs)
    if len({name for name, _ in named}) < len(named):
        raise ValueError(f"Compact.{field}: expected each leaf once, got {mapping!r}")
    return tuple(sorted(named, key=lambda pair: pair[0]))  # equal ones, whatever order they came in


def _ints(field: str, setting: object, least: int | None) -> int | ByName:
    if isinstance(setting, Mapping | tuple) and setting:
        return tuple((name, _int(field, value, least)) for name, value in _by_name(field, setting))
    if isinstance(setting, Mapping | tuple):
        return least or 0  # for no leaf: as if none were given
    return _int(field, setting, least)


def _int(field: str, setting: object, least: int | None) -> int:
    number = whole_number(setting, f"Compact.{field}", "an int")
    if least is not None and number < least:
        raise ValueError(f"Compact.{field}: expected at least {least}, got {number}")
    return number
