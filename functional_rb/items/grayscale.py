"""Colours as one brightness."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Final

from functional_rb.base import nest
from functional_rb.base.nest import Key
from functional_rb.core.item_function import Lead
from functional_rb.items.images import Channels, ImageFunction, channels_back, channels_first
from functional_rb.items.leafwise import within
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec

# What red, green and blue add to the brightness: ITU-R BT.601, section 2.5.1.
LUMA: Final = (0.299, 0.587, 0.114)
# The weights in units of 2^-16; they add up to 1.
FIXED: Final = tuple(round(weight * 2**16) for weight in LUMA)


def luma(ops: ItemOps, x: Array) -> Array:
    """The brightness of images [..., 3 k, H, W], each three channels in turn being red, green and blue."""
    red, green, blue = x[..., 0::3, :, :], x[..., 1::3, :, :], x[..., 2::3, :, :]
    if "uint8" in str(x.dtype):
        parts = [ops.cast(channel, "int32") * weight for channel, weight in zip((red, green, blue), FIXED, strict=True)]
        return ops.cast((parts[0] + parts[1] + parts[2] + 2**15) >> 16, "uint8")
    return red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]


def check_colours(who: str, name: str, count: int) -> None:
    """Refuse images that have not three channels, or three for each of several frames."""
    if count % 3 or not count:
        raise ValueError(
            f"{who}: leaf {name!r}: expected red, green and blue, 3 channels or 3 for each frame, got {count}; "
            f"leave it out of keys"
        )


@dataclasses.dataclass(frozen=True)
class Grayscale(ImageFunction):
    """Colours as one brightness; see `grayscale`."""

    who: ClassVar[str] = "grayscale"

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        rows, columns, count = self.sizes(spec.shape)
        check_colours(self.who, name, count)
        return within(spec, self.shape(rows, columns, count // 3, spec.shape))

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: object) -> Array:
        where = self.where(tuple(x.shape[len(lead) :]))
        return channels_back(ops, luma(ops, channels_first(ops, x, where)), where)


def grayscale(keys: Key | Sequence[Key] | None = None, channels: Channels | None = None) -> Grayscale:
    """Colours as one brightness, for `frb.map_items`: `0.299 R + 0.587 G + 0.114 B` (ITU-R BT.601).

    Of stacked frames, 3 k channels, each three become one. Images of bytes stay bytes, computed in whole numbers,
    `(19595 R + 38470 G + 7471 B + 32768) >> 16`, which are the same on every device.

    Args:
        keys: the images, uint8 or float32; by default all that are, as for `to_image`.
        channels: where they have their channels, "first" or "last"; by default on their smallest axis.

    Raises:
        ValueError: where it is used, for leaves that are no images of three channels, naming them.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.grayscale(), {"pixels": frb.Bounded(0, 255, (84, 84, 3), "uint8")})
        Composite({'pixels': Bounded(0, 255, (84, 84, 1), 'uint8')})
    """
    return Grayscale(nest.checked_keys(keys, "keys", "grayscale"), channels)
