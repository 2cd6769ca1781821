"""The arrays that samplers, writers and the like keep in a state."""

from __future__ import annotations

from typing import NamedTuple


class AuxiliaryArray(NamedTuple):
    """An array that is kept beside the storage.

    Attributes:
        shape: of it.
        dtype: its name.
        fill: what it holds at first; other numbers than 0 cost the time to write them.
    """

    shape: tuple[int, ...]
    dtype: str = "int32"
    fill: int = 0
