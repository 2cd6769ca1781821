"""Random brightness, contrast, saturation and hue."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from functional_rb.base import nest
from functional_rb.base.nest import Key
from functional_rb.core.item_function import Lead
from functional_rb.items.grayscale import check_colours, luma
from functional_rb.items.images import (
    Channels,
    ImageFunction,
    Per,
    channels_back,
    channels_first,
    check_per,
    drawn_per,
)
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.ops.random_bits import fraction
from functional_rb.specs import ArraySpec, Bounded


@dataclasses.dataclass(frozen=True)
class ColorJitter(ImageFunction):
    """Random brightness, contrast, saturation and hue; see `color_jitter`."""

    who: ClassVar[str] = "color_jitter"
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    per: Per = "slice"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("brightness", "contrast", "saturation", "hue"):
            most, value = (0.5 if name == "hue" else math.inf), getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= most or value == math.inf:
                raise ValueError(f"color_jitter: expected {name} as a number from 0 to {most}, got {value!r}")
        check_per(self.per, self.who)

    @property
    def words(self) -> int:
        return 4

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        count = self.sizes(spec.shape)[2]
        if self.saturation or self.hue or self.contrast:
            check_colours(self.who, name, count)
        return Bounded(0, 1, spec.shape)

    def common(self, ops: ItemOps, arrays: Sequence[Array], lead: Lead, draws: Array | None) -> list[Array]:
        # Numbers in [0, 1) for each of the four, [n, 1, 1, 1, 1].
        assert draws is not None
        draws = drawn_per(ops, draws, lead, self.per)
        return [fraction(ops, draws[:, k]).reshape(-1, 1, 1, 1, 1) for k in range(4)]

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: list[Array]) -> Array:
        shape = tuple(x.shape[len(lead) :])
        where, (rows, columns, count) = self.where(shape), self.sizes(shape)
        # Frames that were stacked along the channels are changed alike, but each has a mean brightness of its own.
        frames = (count // 3, 3) if count % 3 == 0 else (count, 1)
        images = channels_first(ops, x, where).reshape(math.prod(lead), *frames, rows, columns)
        if self.brightness:
            images = _between(ops, images * _factor(common[0], self.brightness))
        if self.contrast:
            pixels = luma(ops, images).reshape(*images.shape[:2], rows * columns)
            mean = (ops.total(pixels) / float(rows * columns)).reshape(*images.shape[:2], 1, 1, 1)
            images = _blended(ops, images, mean, _factor(common[1], self.contrast))
        if self.saturation:
            images = _blended(ops, images, luma(ops, images), _factor(common[2], self.saturation))
        if self.hue:
            images = _turned(ops, images, (common[3] * 2.0 - 1.0) * self.hue)
        return channels_back(ops, images.reshape(*lead, count, rows, columns), where)


# Uniform between `max(0, 1 - strength)` and `1 + strength`, of numbers in [0, 1).
def _factor(u: Array, strength: float) -> Array:
    low = max(0.0, 1.0 - strength)
    return u * (1.0 + strength - low) + low


def _between(ops: ItemOps, x: Array) -> Array:
    return ops.minimum(ops.maximum(x, ops.full_like(x, 0)), ops.full_like(x, 1))


def _blended(ops: ItemOps, x: Array, other: Array, factor: Array) -> Array:
    return _between(ops, x * factor + other * (1.0 - factor))


# Colours [n, k, 3, H, W] with their hue turned by a share [n, 1, 1, 1, 1] of the circle, from -1/2 to 1/2.
def _turned(ops: ItemOps, x: Array, by: Array) -> Array:
    red, green, blue = x[:, :, 0:1], x[:, :, 1:2], x[:, :, 2:3]
    value = ops.maximum(ops.maximum(red, green), blue)
    width = value - ops.minimum(ops.minimum(red, green), blue)
    # Grey has no hue, and any will do, as it is multiplied by a width of zero below.
    safe = ops.where(width > 0, width, ops.full_like(width, 1))
    of_blue = (red - green) / safe + 4.0
    of_green = (blue - red) / safe + 2.0
    # In sixths of the circle, from -1 to 5.
    hue = ops.where(value == red, (green - blue) / safe, ops.where(value == green, of_green, of_blue))
    parts = []
    for n in (5.0, 3.0, 1.0):
        k = hue + by * 6.0 + n
        k = ops.where(k < 0, k + 6.0, k)
        for _ in range(2):
            k = ops.where(k >= 6, k - 6.0, k)
        rise = ops.minimum(ops.minimum(k, 4.0 - k), ops.full_like(k, 1))
        parts.append(value - width * ops.maximum(rise, ops.full_like(k, 0)))
    return ops.concat(parts, 2)


def color_jitter(
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
    keys: Key | Sequence[Key] | None = None,
    *,
    per: Per = "slice",
    channels: Channels | None = None,
) -> ColorJitter:
    """Random brightness, contrast, saturation and hue of images between 0 and 1, for `frb.map_items`.

    In this order, each result brought between 0 and 1, and what is 0 left out:

    - brightness b: `x f`, f uniform in [max(0, 1 - b), 1 + b).
    - contrast c: `x f + m (1 - f)`, f uniform in [max(0, 1 - c), 1 + c), m the mean over all pixels of the image's
      brightness, `0.299 R + 0.587 G + 0.114 B`.
    - saturation s: `x f + y (1 - f)`, f uniform in [max(0, 1 - s), 1 + s), y the pixel's brightness.
    - hue h: the hue of HSV turned by u of its circle, u uniform in [-h, h), with V and S as they were (A. R. Smith,
      "Color gamut transform pairs", 1978).

    All images of an item change alike, and so do the frames of a stack of 3 k channels, but for m, which each frame has
    of its own. Random numbers are multiples of 2^-24.

    Args:
        brightness, contrast, saturation: how much, from 0 on.
        hue: how much, from 0 to 1/2.
        keys: the images, float32 (see `to_image`); by default all that are.
        per: of slices, whether all steps change alike, "slice", or each by itself, "step".
        channels: where images have their channels, "first" or "last"; by default on their smallest axis.

    Raises:
        ValueError: for other numbers; where it is used, for leaves that are no images, or have no colours, naming them.

    Example:
        >>> frb.items.color_jitter(0.4, 0.4, 0.4, 0.1).words
        4
    """
    images = nest.checked_keys(keys, "keys", "color_jitter")
    return ColorJitter(images, channels, brightness, contrast, saturation, hue, per)
