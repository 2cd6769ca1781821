"""What Minari's metadata tell of a dataset: spaces, as it writes them in JSON; and images, as it stores them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb.base.extras import imported
from functional_rb.datasets.episode import Array, DatasetError
from functional_rb.datasets.formats import images
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


def space_of(text: Any, where: str) -> Any:
    """The space of Gymnasium that a text describes."""
    spaces = imported("gymnasium", "datasets: minari").spaces
    if not isinstance(text, str):
        raise DatasetError(
            f"{where}: expected a space in JSON, got {text!r:.60}; write the dataset anew with a newer minari"
        )
    try:
        return _space(spaces, json.loads(text))
    except (ValueError, TypeError, KeyError, AssertionError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DatasetError(f"{where}: expected a space in JSON, got {text:.60}: {error!r}") from None


def _space(spaces: Any, told: dict[str, Any]) -> Any:
    kind = told["type"]
    if kind == "Box":
        low, high = (np.array(told[name], told["dtype"]) for name in ("low", "high"))
        return spaces.Box(low, high, tuple(told["shape"]), np.dtype(told["dtype"]).type)
    if kind == "Discrete":
        return spaces.Discrete(told["n"], start=told["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(told["nvec"], np.dtype(told["dtype"]).type, start=told["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(told["n"])
    if kind == "Text":
        return spaces.Text(told["max_length"], min_length=told["min_length"], charset=told["charset"])
    if kind == "Dict":
        return spaces.Dict({name: _space(spaces, part) for name, part in told["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_space(spaces, part) for part in told["subspaces"]])
    raise ValueError(f"a space of type {kind!r}")


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


def decoded(encoded: Sequence[Any], space: Any, where: str) -> Array:
    """Images uint8 [n, *shape] from n files of JPEG, as bytes."""
    return images.decoded(encoded, space.shape, np.uint8, where, ("JPEG",))


def specs_of_infos(kinds: Any, narrow: bool) -> Any:
    """The specs of infos, whose shapes and dtypes stand in dicts by their names, nested."""
    if isinstance(kinds, dict):
        return {name: specs_of_infos(kind, narrow) for name, kind in kinds.items()}
    shape, dtype = kinds
    return spec_of_values(shape, dtype, narrow)
