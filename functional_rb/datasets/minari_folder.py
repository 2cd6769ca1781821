"""What the readers of Minari's layouts share: what the metadata say, the spaces among it, and what is an image."""

from __future__ import annotations

import abc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb.base import nest
from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.convert.gymnasium import space_of_spec, spec_of_space
from functional_rb.convert.json import from_json
from functional_rb.datasets.by_rows import Path, RowReader
from functional_rb.datasets.episode import DatasetError
from functional_rb.specs import ArraySpec
from functional_rb.specs.base import SpecNest
from functional_rb.specs.rows import is_unit

if TYPE_CHECKING:
    from gymnasium import Space

WHO = "datasets: minari"
METADATA = "metadata.json"
# The specs of what our own export has written: several have the same space, and infos have none.
SPECS = "functional_rb_specs"
# The metadata that are kept as facts of the dataset.
FACTS = ("dataset_id", "author", "algorithm_name", "code_permalink", "description", "minari_version", "eval_env_spec")
# Arrays of bytes with fewer rows or columns are no images, and so are not compressed.
LEAST_SIDE = 32


class Minari(RowReader):
    """Reads a dataset of Minari. The class of a layout says where the values of steps lie."""

    def __init__(self, name: str, path: str, metadata: Json, limits: tuple[int | None, int | None]) -> None:
        where = os.path.join(path, METADATA)
        # How long a sequence may be, and how large a graph: no space tells it, so `open_minari` is given it.
        self.path, self.metadata, self._limits = path, metadata, limits
        counts: dict[str, int] = {}
        for what in ("episodes", "steps"):
            number = metadata.get(f"total_{what}")
            if not isinstance(number, int) or number < 0:
                raise DatasetError(f"{where}: total_{what}: expected how many there are, got {number!r}")
            counts[what] = number
        # By the paths of observations and actions: the values of each are a nest of their own.
        self.spaces = {
            (f"{field}s",): _space_of(metadata.get(f"{field}_space"), f"{where}: {field}_space")
            for field in ("observation", "action")
        }
        # Gymnasium's rewards are float64.
        self.leaves = {**dict.fromkeys(self.spaces, ((), object)), ("rewards",): ((), np.float64)}
        super().__init__(name, [where, *self.tables(counts["episodes"])], **counts)
        self._exported = _exported(metadata.get(SPECS))
        self.facts = {key: metadata[key] for key in FACTS if key in metadata}
        if any(self.is_compressed(space) for space in _leaves(*self.spaces.values())):
            self.facts["lossy"] = "images were compressed (JPEG) as they were recorded"

    @abc.abstractmethod
    def tables(self, episodes: int) -> Sequence[str]:
        """The files beside the metadata, in which so many episodes lie."""

    def spec_of(self, path: Path, narrow: bool) -> SpecNest:
        if path not in self.spaces:
            return self._as_exported(path, super().spec_of(path, narrow))
        told = spec_of_space(self.spaces[path], narrow, *self._limits, WHO, (path[0].removesuffix("s"),))
        leaves, structure = nest.flatten(told, is_unit)
        places = [(*path, *inner) for inner in structure.paths]
        return nest.unflatten(structure, list(map(self._as_exported, places, leaves)))

    def _as_exported(self, path: nest.Path, told: SpecNest) -> SpecNest:
        # The spec that was exported, if it says the same of arrays as what is told by a space, or by an info's array.
        spec = self._exported.get(path)
        if not isinstance(spec, ArraySpec) or not isinstance(told, ArraySpec):
            return told
        is_same = (spec.shape, spec.dtype) == (told.shape, told.dtype)
        return spec if is_same and (path[0] == "infos" or _have_one_space(spec, told)) else told

    def is_compressed(self, space: Any) -> bool:
        """Whether Minari takes values of a space for images, which it compresses by default."""
        shape = getattr(space, "shape", None) or ()
        return (
            bool(self.metadata.get("jpeg_encoding", True))
            and type(space).__name__ == "Box"
            and len(shape) in (2, 3)
            and min(shape[:2]) >= LEAST_SIDE
            and space.dtype == np.uint8
            and not space.low.any()
            and bool((space.high == 255).all())
        )


def _exported(text: object) -> dict[nest.Path, SpecNest]:
    # By the paths of leaves. Without them, as in what a later version has written, the spaces tell enough.
    if not isinstance(text, str):
        return {}
    try:
        leaves, structure = nest.flatten(from_json(text), is_unit)
    except ValueError:
        return {}
    return dict(zip(structure.paths, leaves, strict=True))


def _have_one_space(spec: ArraySpec, other: ArraySpec) -> bool:
    try:
        return bool(space_of_spec(spec, WHO) == space_of_spec(other, WHO))
    except (ValueError, TypeError):  # a spec that no space has, which no export of ours has written
        return False


def _leaves(*spaces: Any) -> Iterator[Space[Any]]:
    for space in spaces:
        parts = getattr(space, "spaces", None)
        if parts is None:
            yield space
        else:
            yield from _leaves(*(parts.values() if isinstance(parts, Mapping) else parts))


def _space_of(text: object, where: str) -> Space[Any]:
    spaces = imported("gymnasium", WHO).spaces
    if not isinstance(text, str):
        raise DatasetError(f"{where}: expected a space in JSON, got {text!r:.60}; write it anew with a newer minari")
    try:
        return _space(spaces, json.loads(text))
    except (ValueError, TypeError, KeyError, AssertionError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DatasetError(f"{where}: expected a space in JSON, got {text:.60}: {error!r}") from None


def _space(spaces: ModuleType, node: Json) -> Space[Any]:
    kind = node["type"]
    if kind == "Box":
        low, high = (np.array(node[name], node["dtype"]) for name in ("low", "high"))
        return spaces.Box(low, high, tuple(node["shape"]), np.dtype(node["dtype"]).type)
    if kind == "Discrete":
        return spaces.Discrete(node["n"], start=node["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(node["nvec"], np.dtype(node["dtype"]).type, start=node["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(node["n"])
    if kind == "Text":
        return spaces.Text(node["max_length"], min_length=node["min_length"], charset=node["charset"])
    if kind == "Dict":
        return spaces.Dict({name: _space(spaces, subspace) for name, subspace in node["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_space(spaces, subspace) for subspace in node["subspaces"]])
    raise ValueError(f"a space of type {kind!r}")
