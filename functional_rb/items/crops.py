"""Pieces of images: from the middle, from a random place, or shifted by a few pixels (DrQ)."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from functional_rb.base import dtypes, nest
from functional_rb.base.nest import Key
from functional_rb.core.item_function import Lead
from functional_rb.items.images import Channels, ImageFunction, Per, check_per, drawn_per, pair, repeated
from functional_rb.items.leafwise import within
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, ItemOps, Ops
from functional_rb.ops.random_bits import below
from functional_rb.specs import ArraySpec

# Images that are only moved about may have any of these dtypes.
MOVED = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")


@replaceable
def windows(ops: Ops, images: Array, top: Array, left: Array, size: tuple[int, int]) -> Array:
    """A window of each image, [n, H, W, k] to [n, *size, k]; what lies outside of an image is as the pixel at its edge.

    The first row and column of each, int32 [n], may be negative.
    """
    count, height, width, each = images.shape

    def between(first: Array, length: int, limit: int) -> Array:
        place = first[:, None] + ops.arange(length, like=first)[None, :]
        return ops.minimum(ops.maximum(place, ops.full_like(place, 0)), ops.full_like(place, limit - 1))

    row = ops.arange(count, like=top)[:, None] * height + between(top, size[0], height)
    pixel = row[:, :, None] * width + between(left, size[1], width)[:, None, :]
    shape = (count * height * width,) if each == 1 else (count * height * width, each)
    return ops.take(images.reshape(shape), pixel.reshape(-1)).reshape(count, *size, each)


# The first row and column of each window, int32 [n], by the size of the images.
Corners = dict[tuple[int, int], tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class Windows(ImageFunction):
    """A window of each image, in the same place for all leaves of an item that have the same size."""

    dtypes: ClassVar[tuple[str, ...]] = MOVED

    @abc.abstractmethod
    def window(self, rows: int, columns: int) -> tuple[int, int]:
        """The sizes of a window of an image of these sizes."""

    @abc.abstractmethod
    def corner(self, ops: ItemOps, words: Array, rows: int, columns: int) -> tuple[Array, Array]:
        """The first row and column of each window, int32 [n], for words int32 [n, w]."""

    def common(self, ops: ItemOps, arrays: Sequence[Array], lead: Lead, draws: Array | None) -> Corners:
        # The first row and column of each window, for images of so many rows and columns.
        words, corners = draws, {}
        for x in arrays:
            rows, columns, _ = self.sizes(tuple(x.shape[len(lead) :]))
            if words is None:  # the middle needs none, but an array that says how many windows there are
                words = ops.arange(math.prod(lead), like=x)[:, None]
            if (rows, columns) not in corners:
                corners[rows, columns] = self.corner(ops, words, rows, columns)
        return corners

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        rows, columns, count = self.sizes(spec.shape)
        return within(spec, self.shape(*self.window(rows, columns), count, spec.shape))

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: Corners) -> Array:
        shape = tuple(x.shape[len(lead) :])
        (rows, columns, count), n = self.sizes(shape), math.prod(lead)
        size, (top, left) = self.window(rows, columns), common[rows, columns]
        if self.where(shape) == "first":
            # Each channel is an image of its own: pixels are gathered where they lie, without moving the axis.
            corners = repeated(ops, top, count), repeated(ops, left, count)
            cut = windows(ops, x.reshape(n * count, rows, columns, 1), *corners, size)
        else:
            cut = windows(ops, x.reshape(n, rows, columns, count), top, left, size)
        return cut.reshape(*lead, *self.shape(*size, count, shape))


@dataclasses.dataclass(frozen=True)
class Crop(Windows):
    """Pieces of a given size."""

    size: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", pair(self.size, self.who))

    def window(self, rows: int, columns: int) -> tuple[int, int]:
        return self.size

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        rows, columns, _ = self.sizes(spec.shape)
        if self.size[0] > rows or self.size[1] > columns:
            raise ValueError(
                f"{self.who}: leaf {name!r}: expected an image of at least {self.size[0]} x {self.size[1]} pixels, got "
                f"{rows} x {columns}; give a smaller size, or resize it first"
            )
        return super().leaf_spec(spec, name)


@dataclasses.dataclass(frozen=True)
class CenterCrop(Crop):
    """The middle of images; see `crop`."""

    who: ClassVar[str] = "crop"

    def corner(self, ops: ItemOps, words: Array, rows: int, columns: int) -> tuple[Array, Array]:
        # Half of what is left over, rounded down.
        over = (rows - self.size[0]) // 2, (columns - self.size[1]) // 2
        return ops.full_like(words[:, 0], over[0]), ops.full_like(words[:, 0], over[1])


@dataclasses.dataclass(frozen=True)
class RandomWindows(Windows):
    """Windows in random places, every one of some being equally likely."""

    per: Per = "slice"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_per(self.per, self.who)

    @property
    def words(self) -> int:
        # Two random words: one number below how many places there are.
        return 2

    def common(self, ops: ItemOps, arrays: Sequence[Array], lead: Lead, draws: Array | None) -> Corners:
        # Of each step by its own words, or of its slice.
        assert draws is not None
        return super().common(ops, arrays, lead, drawn_per(ops, draws, lead, self.per))

    @abc.abstractmethod
    def places(self, rows: int, columns: int) -> tuple[int, int, int]:
        """How many first rows and first columns a window may have, and the least of them."""

    def corner(self, ops: ItemOps, words: Array, rows: int, columns: int) -> tuple[Array, Array]:
        down, across, least = self.places(rows, columns)
        place = below(ops, words, ops.full_like(words[:, 0], down * across))
        return place // across + least, place % across + least


@dataclasses.dataclass(frozen=True)
class RandomCrop(RandomWindows, Crop):
    """A random piece of images; see `crop`."""

    who: ClassVar[str] = "crop"

    def places(self, rows: int, columns: int) -> tuple[int, int, int]:
        # From where pieces are whole.
        return rows - self.size[0] + 1, columns - self.size[1] + 1, 0


@dataclasses.dataclass(frozen=True)
class RandomShift(RandomWindows):
    """Images shifted by a few pixels; see `random_shift`."""

    who: ClassVar[str] = "random_shift"

    pad: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        dtypes.checked_count("random_shift: pad", self.pad, 0, 2**14)

    def window(self, rows: int, columns: int) -> tuple[int, int]:
        return rows, columns

    def places(self, rows: int, columns: int) -> tuple[int, int, int]:
        # So many pixels up or down, and to either side.
        return 2 * self.pad + 1, 2 * self.pad + 1, -self.pad


def crop(
    size: int | tuple[int, int],
    keys: Key | Sequence[Key] | None = None,
    *,
    at: Literal["center", "random"] = "center",
    per: Per = "slice",
    channels: Channels | None = None,
) -> CenterCrop | RandomCrop:
    """A piece of images, for `frb.map_items`: the middle, or a random one.

    In the middle, of an odd number of pixels left over more stay away behind it. At random, every place where the piece
    is whole is equally likely. All images of an item are cut in the same place: observation and next observation stay
    alike. Where they should not, there is one function for each:
    `frb.items.compose(crop(64, "obs", at="random"), crop(64, "next_obs", at="random"))`.

    Args:
        size: rows and columns, or one number for both.
        keys: the images, of any real dtype; by default all that are, as for `to_image`.
        at: which piece, "center" or "random".
        per: of random pieces of slices, whether all steps are cut in the same place, "slice", or each in its own,
            "step".
        channels: where they have their channels, "first" or "last"; by default on their smallest axis.

    Raises:
        ValueError: for another place; where it is used, for leaves that are no images, or smaller ones, naming them.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.crop(64), {"pixels": frb.Bounded(0, 255, (84, 84, 3), "uint8")})
        Composite({'pixels': Bounded(0, 255, (64, 64, 3), 'uint8')})
        >>> frb.items.crop(64, at="random").words
        2
    """
    images = nest.checked_keys(keys, "keys", "crop")
    if at == "center":
        return CenterCrop(images, channels, pair(size, "crop"))
    if at != "random":
        raise ValueError(f"crop: expected at as 'center' or 'random', got {at!r}")
    return RandomCrop(keys=images, channels=channels, size=pair(size, "crop"), per=per)


def random_shift(
    pad: int = 4, keys: Key | Sequence[Key] | None = None, *, per: Per = "slice", channels: Channels | None = None
) -> RandomShift:
    """Images shifted by up to `pad` whole pixels, for `frb.map_items`; what comes in is as the pixel at the edge.

    The augmentation of DrQ (I. Kostrikov, D. Yarats and R. Fergus, "Image augmentation is all you need", 2021): images
    are padded by their edges, and a piece of their size is cut out at random. Each of the (2 pad + 1)^2 shifts is
    equally likely. All images of an item are shifted alike, so that observation and next observation stay alike. Where
    they should not, there is one function for each:
    `frb.items.compose(random_shift(4, "obs"), random_shift(4, "next_obs"))`.

    Args:
        pad: the most pixels up, down, and to either side.
        keys: the images, of any real dtype; by default all that are, as for `to_image`.
        per: of slices, whether all steps are shifted alike, "slice", or each by itself, "step".
        channels: where they have their channels, "first" or "last"; by default on their smallest axis.

    Raises:
        ValueError: where it is used, for leaves that are no images, naming them.

    Example:
        >>> frb.items.random_shift(4).words
        2
    """
    return RandomShift(nest.checked_keys(keys, "keys", "random_shift"), channels, per, pad)
