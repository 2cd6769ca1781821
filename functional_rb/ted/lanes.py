"""Where steps lie in a buffer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from functional_rb.base.arrays import NumpyArray as Array


class Lanes(NamedTuple):
    """The lanes of a buffer, and how far each of them is filled."""

    length: int  # slots of each lane
    sizes: tuple[int, ...]  # how many steps each lane has
    cursors: tuple[int, ...]  # the slot of each lane, from 0 on, that its next step goes to
    axis: bool  # whether items have an axis of lanes: `BufferSpec(lanes=...)` is given

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple((cursor - size) % self.length for cursor, size in zip(self.cursors, self.sizes, strict=True))

    def slots(self) -> Array:
        """The slot of every step, int64 [N], in the order of the flat form."""
        lanes = zip(self.starts, self.sizes, strict=True)
        slots = [lane * self.length + (start + np.arange(n)) % self.length for lane, (start, n) in enumerate(lanes)]
        return np.concatenate(slots)
