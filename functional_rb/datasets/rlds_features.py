"""What `features.json` tells of a dataset of TensorFlow Datasets, and values decoded as it says.

A feature of a step has a name such as `steps/observation/image` in a record, which holds its values of all steps in a
row: numbers as int64 or float32, texts and compressed images as bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from functional_rb.base import files, strict_json
from functional_rb.datasets.episode import Array, DatasetError
from functional_rb.datasets.formats import images
from functional_rb.datasets.formats.examples import Feature

Path: TypeAlias = tuple[str, ...]
# How deep features may lie in each other.
DEPTH = 16


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A feature.

    Attributes:
        kind: numbers, images that are compressed, texts, or something that is not read.
        shape: of a value; None stands for a number that is not known.
        dtype: of NumPy; "object" for texts.
    """

    kind: Literal["tensor", "image", "text", "other"]
    shape: tuple[int | None, ...] = ()
    dtype: str = "object"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, once it is known."""
        return tuple(n or 0 for n in self.shape)


def features(path: str) -> dict[Path, Leaf]:
    """The features in a file `features.json`, by their paths; those of steps begin with "steps"."""
    try:
        content = strict_json.parse(files.read_text(path))
        return dict(_leaves(content, (), path))
    except DatasetError:
        raise
    except (files.UnusableFileError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{path}: expected features of TensorFlow Datasets in JSON: {error!r:.200}") from None


def _leaves(node: Mapping[str, Any], path: Path, where: str) -> Iterator[tuple[Path, Leaf]]:
    if len(path) > DEPTH:
        raise DatasetError(f"{where}: expected at most {DEPTH} features in each other")
    if "featuresDict" in node:
        for name, part in node["featuresDict"]["features"].items():
            yield from _leaves(part, (*path, name), where)
    elif "sequence" in node and path == ("steps",):
        yield from _leaves(node["sequence"]["feature"], path, where)
    else:
        yield path, _leaf(node)


def _leaf(node: Mapping[str, Any]) -> Leaf:
    if "text" in node:
        return Leaf("text")
    if "image" in node:
        told = node["image"]
        return Leaf("image", _shape(told), str(np.dtype(told.get("dtype", "uint8"))))
    if "classLabel" in node:
        return Leaf("tensor", (), "int64")
    if "tensor" not in node or node["tensor"].get("encoding", "none") != "none":
        return Leaf("other")
    told = node["tensor"]
    if told["dtype"] == "string":
        return Leaf("text") if not _shape(told) else Leaf("other")
    if told["dtype"] == "bfloat16" or None in _shape(told):
        return Leaf("other")
    return Leaf("tensor", _shape(told), str(np.dtype(told["dtype"])))


def _shape(told: Mapping[str, Any]) -> tuple[int | None, ...]:
    numbers = (int(n) for n in told.get("shape", {}).get("dimensions", ()))
    return tuple(None if n < 0 else n for n in numbers)


def decoded(leaf: Leaf, feature: Feature, first: int, stop: int, where: str) -> Any:
    """The values of steps [first, stop): an array, or a list of texts."""
    size = math.prod(leaf.sizes) if leaf.kind == "tensor" else 1
    part = feature[first * size : stop * size]
    if len(part) != (stop - first) * size:
        raise DatasetError(f"{where}: expected values for {stop} steps, {size} for each, got {len(feature)}")
    if leaf.kind == "tensor":
        return _numbers(leaf, part, (stop - first, *leaf.sizes), where)
    if not isinstance(part, list):
        raise DatasetError(f"{where}: expected bytes, got numbers")
    if leaf.kind == "image":
        return images.decoded(part, leaf.sizes, leaf.dtype, where)
    return [bytes(text).decode("utf-8", "replace") for text in part]


def _numbers(leaf: Leaf, part: Any, shape: tuple[Any, ...], where: str) -> Array:
    dtype = np.dtype(leaf.dtype)
    if isinstance(part, list):  # also of no values at all, of which nobody can tell the kind
        if part:
            raise DatasetError(f"{where}: expected {dtype}, got bytes")
        return np.zeros(shape, dtype)
    if (dtype.kind == "f") != (part.dtype.kind == "f"):
        raise DatasetError(f"{where}: expected {dtype}, got {part.dtype}")
    if dtype.kind in "iu" and part.size:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if dtype != np.uint64 and (part.min() < low or part.max() > high):
            raise DatasetError(f"{where}: expected {dtype}, got numbers up to {part.max()}")
    return part.astype(dtype).reshape(shape)
