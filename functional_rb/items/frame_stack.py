"""The last observations of a slice, joined to one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from functional_rb.base import dtypes, nest
from functional_rb.base.nest import Key, Path
from functional_rb.core.item_function import Lead, Leaves, Specs, chosen, plain
from functional_rb.items.images import channels_of
from functional_rb.items.in_slices import LONGEST, InSlices
from functional_rb.items.leafwise import Invertible, array_spec, needed_keys
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec, Bounded

Padding = Literal["repeat", "zeros"]
KINDS = ("float", "int", "bool")


@dataclasses.dataclass(frozen=True)
class FrameStack(InSlices, Invertible):
    """The last observations of a slice, joined to one; see `frame_stack`."""

    who: ClassVar[str] = "frame_stack"

    n: int
    keys: tuple[Key, ...] | None
    axis: int | None = None
    padding: Padding = "repeat"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "keys", nest.checked_keys(self.keys, "keys", self.who))
        dtypes.checked_count("frame_stack: n", self.n, 1, LONGEST)
        if self.padding not in ("repeat", "zeros"):
            raise ValueError(f"frame_stack: expected padding as 'repeat' or 'zeros', got {self.padding!r}")

    def chosen(self, leaves: Specs | Leaves, lead: int) -> Sequence[Path]:
        return chosen(leaves, self.keys, self.who, KINDS)

    def spec(self, leaves: Specs, lead: int) -> Specs:
        self.check_slices(leaves, lead)
        return leaves | {k: self._stacked(array_spec(leaves[k]), nest.show(k)) for k in self.chosen(leaves, lead)}

    def _stacked(self, spec: ArraySpec, name: str) -> ArraySpec:
        shape = spec.shape or (1,)
        if self.axis is not None and not -len(shape) <= self.axis < len(shape):
            raise ValueError(f"frame_stack: leaf {name!r}: expected an axis {self.axis}, got shape {spec.shape}")
        axis = axis_of(shape, self.axis)
        sizes = list(shape)
        sizes[axis] *= self.n
        if not isinstance(spec, Bounded):
            return plain(tuple(sizes), spec.dtype)
        low, high = (np.concatenate([spec.table(k).reshape(shape)] * self.n, axis) for k in ("low", "high"))
        if self.padding == "zeros":  # which need not lie between the bounds of the leaf
            low, high = np.minimum(low, 0), np.maximum(high, 0)
        return Bounded(low, high, tuple(sizes), spec.dtype)

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        # Gather the steps before, from the oldest on, and join them.
        batch, steps = lead
        first = self.starts(ops, leaves, lead)
        step = ops.arange(steps, like=first)[None, :]
        row = ops.arange(batch, like=first)[:, None] * steps
        stacked = {}
        for path in self.chosen(leaves, len(lead)):
            x = leaves[path]
            shape = tuple(x.shape[2:]) or (1,)
            flat, frames = x.reshape(batch * steps, *shape), []
            for back in range(self.n - 1, 0, -1):
                frame = ops.take(flat, (row + ops.maximum(step - back, first)).reshape(-1))
                if self.padding == "zeros":
                    there = (first + back <= step).reshape(-1, *(1,) * len(shape))
                    frame = ops.where(there, frame, ops.full_like(frame, 0))
                frames.append(frame)
            axis = axis_of(shape, self.axis)
            joined = ops.concat([*frames, flat], axis + 1)
            stacked[path] = joined.reshape(*lead, *joined.shape[1:])
        return leaves | stacked

    def back(self, ops: ItemOps, x: Array, before: ArraySpec, lead: Lead) -> Array:
        # The newest observation of each stack.
        axis = len(lead) + axis_of(before.shape or (1,), self.axis)
        size = x.shape[axis] // self.n
        newest = x[(*[slice(None)] * axis, slice(x.shape[axis] - size, None))]
        return newest.reshape(*lead, *before.shape)


def axis_of(shape: tuple[int, ...], axis: int | None) -> int:
    """The axis of an item's shape along which it is stacked, from 0 on."""
    if axis is None:
        return 0 if channels_of(shape) == "first" else len(shape) - 1
    return axis % len(shape)


def frame_stack(
    n: int,
    keys: Key | Sequence[Key],
    axis: int | None = None,
    *,
    padding: Padding = "repeat",
    end_keys: Key | Sequence[Key] | None = None,
    trajectory_key: Key | None = None,
) -> FrameStack:
    """Each observation of a slice joined with the n - 1 before it, the oldest first, for `frb.map_items`.

    A stack never reaches over the beginning of an episode, nor of the slice: there the first observation is repeated
    (V. Mnih et al., 2015), or zeros stand. So the first n - 1 steps of a slice that begins inside of an episode have
    less to see: leave them to `burn_in`. Of next observations the stacks are made of next observations alone. The
    inverse keeps the newest of a stack; it takes single items too, so that stacks are stored as one frame.

    Args:
        n: how many are joined.
        keys: the leaves of numbers, or containers of such.
        axis: of an item's shape; by default that of an image's channels, and the last of what is no image.
        padding: "repeat" for the first observation, or "zeros".
        end_keys: where episodes end, as for `frb.Slices`.
        trajectory_key: likewise.

    Raises:
        ValueError: for other values; where it is used, for single items, or leaves that do not fit, naming them.

    Example:
        >>> frb.items.frame_stack(4, "pixels").n
        4
    """
    ends = nest.checked_keys(end_keys, "end_keys", "frame_stack")
    return FrameStack(n, needed_keys(keys, "frame_stack"), axis, padding, end_keys=ends, trajectory_key=trajectory_key)
