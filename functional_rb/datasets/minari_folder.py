"""What the readers of Minari's layouts share: what the metadata tell of a folder, and which values are images."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from functional_rb.datasets.pieces import spec_of_values

# Arrays of bytes with fewer rows or columns are no images, and so are not compressed.
LEAST_SIDE = 32


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder of Minari, and what its metadata says.

    Attributes:
        path: of the folder.
        episodes: how many there are.
        observation, action: spaces of Gymnasium.
        jpeg: whether images are compressed.
        max_length, max_edges: the most elements of a `Sequence` and so on, which spaces do not tell.
    """

    path: str
    episodes: int
    observation: Any
    action: Any
    jpeg: bool
    max_length: int | None
    max_edges: int | None


def is_image(space: Any) -> bool:
    """Whether Minari takes values of a space for images, which it compresses unless it is told not to."""
    shape = getattr(space, "shape", None) or ()
    return (
        type(space).__name__ == "Box"
        and len(shape) in (2, 3)
        and min(shape[:2]) >= LEAST_SIDE
        and space.dtype == np.uint8
        and not space.low.any()
        and bool((space.high == 255).all())
    )


def specs_of_infos(kinds: Any, narrow: bool) -> Any:
    """The specs of infos, whose shapes and dtypes stand in dicts by their names, nested."""
    if isinstance(kinds, dict):
        return {name: specs_of_infos(kind, narrow) for name, kind in kinds.items()}
    shape, dtype = kinds
    return spec_of_values(shape, dtype, narrow)
