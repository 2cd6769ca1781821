"""Images of bytes as floats with their channels in front, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from functional_rb.base import nest
from functional_rb.base.nest import Key
from functional_rb.core.item_function import Lead
from functional_rb.items.images import Channels, ImageFunction, channels_back, channels_first, to_bytes
from functional_rb.items.leafwise import Invertible
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec, Bounded


@dataclasses.dataclass(frozen=True)
class ToImage(ImageFunction, Invertible):
    """Bytes as floats; see `to_image`."""

    who: ClassVar[str] = "to_image"
    dtypes: ClassVar[tuple[str, ...]] = ("uint8",)

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        rows, columns, count = self.sizes(spec.shape)
        return Bounded(0, 1, (count, rows, columns))

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: object) -> Array:
        where = self.where(tuple(x.shape[len(lead) :]))
        return ops.cast(channels_first(ops, x, where), "float32") / 255.0

    def back(self, ops: ItemOps, x: Array, before: ArraySpec, lead: Lead) -> Array:
        return channels_back(ops, to_bytes(ops, x * 255.0), self.where(before.shape))


def to_image(keys: Key | Sequence[Key] | None = None, channels: Channels | None = None) -> ToImage:
    """Images uint8 [H, W, C] as float32 [C, H, W] between 0 and 1, for `frb.map_items`.

    Each byte is divided by 255. Images that have their channels in front keep them there. The inverse multiplies by
    255, rounds halves to the even number, and brings what lies outside of 0 to 255 into that range; so bytes come back
    as they were.

    Args:
        keys: the images; by default all leaves uint8 of three axes of which the first or the last, the channels, is
            smaller than the other two.
        channels: where they have their channels, "first" or "last"; by default on their smallest axis.

    Raises:
        ValueError: where it is used, if there are no images, or a leaf that is named is none, naming it.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.to_image(), {"pixels": frb.Bounded(0, 255, (84, 84, 3), "uint8")})
        Composite({'pixels': Bounded(0.0, 1.0, (3, 84, 84))})
    """
    return ToImage(nest.checked_keys(keys, "keys", "to_image"), channels)
