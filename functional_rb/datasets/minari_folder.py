"""What the readers of Minari's layouts share: what the metadata tell of a folder, and which values are images."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb.base.strict_json import Json
from functional_rb.convert.common import stored_dtype
from functional_rb.convert.gymnasium import spec_of_space
from functional_rb.datasets.by_rows import RowReader, spec_of_leaves
from functional_rb.datasets.episode import StepSpec
from functional_rb.specs import Unbounded

if TYPE_CHECKING:
    from gymnasium import Space

WHO = "datasets: minari"
METADATA = "metadata.json"
# The metadata that are kept as facts of the dataset.
TOLD = ("dataset_id", "author", "algorithm_name", "code_permalink", "description", "minari_version", "eval_env_spec")
# Arrays of bytes with fewer rows or columns are no images, and so are not compressed.
LEAST_SIDE = 32


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder of Minari, and what its metadata says.

    Attributes:
        name: of the dataset.
        path: of the folder.
        metadata: all of it.
        episodes, steps: how many there are.
        observation, action: spaces of Gymnasium.
        max_length, max_edges: the most elements of a `Sequence` and so on, which spaces do not tell.
    """

    name: str
    path: str
    metadata: Json
    episodes: int
    steps: int
    observation: Space[Any]
    action: Space[Any]
    max_length: int | None
    max_edges: int | None


class Minari(RowReader):
    """Reads a dataset of Minari. The class of a layout says where the values of steps lie."""

    def __init__(self, folder: Folder, files: Sequence[str]) -> None:
        paths = [os.path.join(folder.path, METADATA), *files]
        super().__init__(folder.name, paths, episodes=folder.episodes, steps=folder.steps)
        self.folder = folder
        self.facts = {key: folder.metadata[key] for key in TOLD if key in folder.metadata}
        if any(self.is_compressed(space) for space in _leaves(folder.observation, folder.action)):
            self.facts["lossy"] = "images were compressed (JPEG) as they were recorded"

    def spec(self, narrow: bool) -> StepSpec:
        """What the spaces say; the reward is what Gymnasium's is, float64."""
        limits = self.folder.max_length, self.folder.max_edges
        observation, action = (
            spec_of_space(space, narrow, *limits, WHO, (part,))
            for part, space in (("observation", self.folder.observation), ("action", self.folder.action))
        )
        infos = {name: spec_of_leaves(leaves, narrow) for name, leaves in self.infos.items()}
        return StepSpec(observation, action, Unbounded((), stored_dtype("float64", narrow)), infos)

    def is_compressed(self, space: Any) -> bool:
        """Whether Minari takes values of a space for images, which it compresses by default."""
        shape = getattr(space, "shape", None) or ()
        return (
            bool(self.folder.metadata.get("jpeg_encoding", True))
            and type(space).__name__ == "Box"
            and len(shape) in (2, 3)
            and min(shape[:2]) >= LEAST_SIDE
            and space.dtype == np.uint8
            and not space.low.any()
            and bool((space.high == 255).all())
        )


def _leaves(*spaces: Any) -> Iterator[Space[Any]]:
    for space in spaces:
        parts = getattr(space, "spaces", None)
        if parts is None:
            yield space
        else:
            yield from _leaves(*(parts.values() if isinstance(parts, Mapping) else parts))
