"""What the functions of images have in common: which leaves are images, and where their channels lie."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray
from functional_rb.base.dtypes import shown
from functional_rb.base.nest import Key, Path
from functional_rb.core.item_function import Lead, Leaves, Specs, chosen
from functional_rb.items.leafwise import Leafwise
from functional_rb.ops.protocol import Array, ItemOps, Ops
from functional_rb.specs import ArraySpec, NonTensor

# Where an image has its channels: [C, H, W] or [H, W, C].
Channels = Literal["first", "last"]
DTYPES = ("uint8", "float32")
# What has random numbers of its own: each slice, or each of its steps.
Per = Literal["slice", "step"]


def channels_of(shape: Sequence[int]) -> Channels | None:
    """Where an image of this shape has its channels: the first or last of three axes, if it is the smallest.

    Example:
        >>> channels_of((84, 84, 9)), channels_of((4, 84, 84)), channels_of((84, 84)), channels_of((3, 3, 3))
        ('last', 'first', None, None)
    """
    if len(shape) != 3:
        return None
    first, middle, last = shape
    if last < min(first, middle):
        return "last"
    return "first" if first < min(middle, last) else None


@dataclasses.dataclass(frozen=True)
class ImageFunction(Leafwise):
    """A function of images."""

    kinds: ClassVar[tuple[str, ...] | None] = None
    dtypes: ClassVar[tuple[str, ...]] = DTYPES

    keys: tuple[Key, ...] | None = None  # None for all that have the shape of an image and one of `dtypes`
    channels: Channels | None = None  # where they have their channels; None if their shape says so, see `channels_of`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels not in (None, "first", "last"):
            raise ValueError(f"{self.who}: expected channels as 'first' or 'last', got {self.channels!r}")

    def chosen(self, leaves: Specs | Leaves, lead: int) -> Sequence[Path]:
        if self.keys is None:
            images = [path for path, leaf in leaves.items() if not self._problem(leaf, lead)]
            if not images:
                raise ValueError(
                    f"{self.who}: no leaf has the shape of an image, [H, W, C] or [C, H, W] with fewer channels than "
                    f"rows and columns, and a dtype of {' or '.join(self.dtypes)}; name leaves by keys=..., with "
                    f"channels='first' or 'last', of {tuple(map(nest.show, leaves))}"
                )
            return images
        paths = chosen(leaves, self.keys, self.who)
        for path in paths:
            if problem := self._problem(leaves[path], lead):
                raise ValueError(f"{self.who}: leaf {nest.show(path)!r}: {problem}")
        return paths

    def _problem(self, leaf: ArraySpec | NonTensor | BackendArray, lead: int) -> str | None:
        # Arrays, which have no domain, have the axes in front too.
        shape = tuple(leaf.shape) if hasattr(leaf, "domain") else tuple(leaf.shape[lead:])
        if shown(leaf.dtype) not in self.dtypes:
            return f"expected dtype {' or '.join(self.dtypes)}, got {shown(leaf.dtype)}; cast it first"
        if len(shape) != 3:
            return f"expected an image, [H, W, C] or [C, H, W], got shape {shape}; reshape it, or leave it out of keys"
        if self.channels is None and channels_of(shape) is None:
            return f"shape {shape} does not say which axis has the channels; give channels='first' or 'last'"
        return None

    def where(self, shape: tuple[int, ...]) -> Channels:
        """Where an image of this shape has its channels."""
        channels = self.channels or channels_of(shape)
        assert channels is not None  # as `_problem` has seen
        return channels

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Rows, columns and channels of an image."""
        a, b, c = shape
        return (b, c, a) if self.where(shape) == "first" else (a, b, c)

    def shape(self, rows: int, columns: int, count: int, like: tuple[int, ...]) -> tuple[int, int, int]:
        """The shape of an image of other sizes, with its channels where another one has them."""
        return (count, rows, columns) if self.where(like) == "first" else (rows, columns, count)


def channels_first(ops: ItemOps, x: Array, where: Channels) -> Array:
    """Images [..., C, H, W], by other strides where that can be."""
    return ops.moveaxis(x, -1, -3) if where == "last" else x


def channels_back(ops: ItemOps, x: Array, where: Channels) -> Array:
    """Images [..., C, H, W] with their channels where they were."""
    return ops.moveaxis(x, -3, -1) if where == "last" else x


def to_bytes(ops: ItemOps, x: Array) -> Array:
    """Floats as uint8: the nearest whole number, halves to the even one, between 0 and 255."""
    bounded = ops.minimum(ops.maximum(x, ops.full_like(x, 0)), ops.full_like(x, 255))
    return ops.cast(ops.rounded(bounded), "uint8")


def check_per(per: object, who: str) -> None:
    """Refuse what is no `Per`."""
    if per not in ("slice", "step"):
        raise ValueError(f"{who}: expected per as 'slice' or 'step', got {per!r}")


def drawn_per(ops: Ops, draws: Array, lead: Lead, per: Per) -> Array:
    """The words of each step, int32 [n, w], given one row for each: of slices all may have those of the first step."""
    if per == "step":
        return draws
    steps = math.prod(lead[1:])
    return repeated(ops, draws.reshape(lead[0], steps, draws.shape[1])[:, 0], steps)


def repeated(ops: Ops, x: Array, times: int) -> Array:
    """Each row of [n, ...] several times, one after the other."""
    return x if times == 1 else ops.take(x, ops.arange(x.shape[0] * times, like=x) // times)


def pair(size: object, who: str) -> tuple[int, int]:
    """Rows and columns, whole numbers from 1 on, of two numbers or of one for both."""
    both = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, tuple | list) else ()
    if len(both) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in both):
        raise ValueError(f"{who}: expected size as a number of rows and columns, or two, from 1 on, got {size!r}")
    return both[0], both[1]
