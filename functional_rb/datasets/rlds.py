"""Datasets in RLDS, as TensorFlow Datasets stores them: `rlds:PATH`, and Open X-Embodiment's: `openx:bridge`.

A record is an episode. A step of it has an observation, the action that was taken there, and the reward of that. In the
last step nothing is done any more: its observation is what the one before has led to, its action and reward are there
to fill the row, and `is_terminal` says whether that is a terminal state. TensorFlow is not needed.
What a record has once, as `episode_metadata`, becomes `Episode.about`.

`features.json` tells what there is. A feature of a step has a name such as `steps/observation/image` in a record, which
holds its values of all steps in a row: numbers as int64 or float32, texts and compressed images as bytes.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.strict_json import Json
from functional_rb.datasets.by_rows import Path, RowReader, Whole, located
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import images, tfrecord
from functional_rb.datasets.formats.examples import Feature, example
from functional_rb.datasets.formats.json_files import json_object
from functional_rb.datasets.pieces import can_be_stored

FEATURES = "features.json"
SHARD = re.compile(r"(.+)-([^-]+)\.tfrecord-(\d{5,})-of-(\d{5,})", re.ASCII)
# The most numbers that a value in `Episode.about` has.
MOST = 1024
# The fields of an episode that parts of a step become; all others are infos.
FIELDS = {"observation": "observations", "action": "actions", "reward": "rewards"}
MARKS = ("is_first", "is_last", "is_terminal")
Last = Literal["padding", "step"]
# How deep features may lie in each other.
DEPTH = 16


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A feature."""

    # Numbers, images that are compressed, texts, or something that is not read.
    kind: Literal["tensor", "image", "text", "other"]
    shape: tuple[int | None, ...] = ()  # the shape of a value; None stands for a size that is not known
    dtype: str = "object"  # NumPy's name of the dtype; "object" for texts

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(n or 0 for n in self.shape)


class Rlds(RowReader):
    """Reads a folder of TensorFlow Datasets: file by file, in the order of the records."""

    def __init__(self, path: str, name: str, split: str, last: Last) -> None:
        shards = _shards(path, split)
        super().__init__(name, [os.path.join(path, FEATURES), *shards])
        self._last, self.facts = last, {"split": split, "last": last}
        all_features = features(self.files[0])
        # Texts and small arrays become `Episode.about`.
        self._metadata = {
            leaf: feature
            for leaf, feature in all_features.items()
            if leaf[:1] != ("steps",)
            and (feature.kind == "text" or (feature.kind == "tensor" and math.prod(feature.sizes) <= MOST))
        }
        self._features = {
            leaf[1:]: _sized(feature, leaf, shards)
            for leaf, feature in all_features.items()
            if leaf[:1] == ("steps",) and leaf[1:]
        }
        # Where each leaf that can be stored stands among the features of a step.
        self._paths: dict[Path, Path] = {}
        self.leaves = {}
        for step_path, feature in sorted(self._features.items(), key=lambda pair: pair[0][0]):
            can_be = feature.kind in ("tensor", "image") and can_be_stored(np.dtype(feature.dtype))
            if step_path == ("reward",) and not can_be:
                raise DatasetError(f"{self.files[0]}: expected numbers in steps/reward, got {feature}")
            if can_be and step_path[0] not in MARKS and (step_path[0] != "reward" or step_path == ("reward",)):
                leaf = (FIELDS[step_path[0]], *step_path[1:]) if step_path[0] in FIELDS else ("infos", *step_path)
                self._paths[leaf] = step_path
                self.leaves[leaf] = (() if step_path == ("reward",) else feature.sizes, feature.dtype)
        for field in ("observation", "action"):
            if not any(leaf[0] == FIELDS[field] for leaf in self.leaves):
                raise DatasetError(f"{self.files[0]}: expected numbers or images in steps/{field}, got none")

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        for shard in self.files[1:]:
            # Records before the first are passed over by their lengths, file by file.
            there = tfrecord.count(shard) if first else 0
            if there and first >= there:
                first -= there
                continue
            for number, record in enumerate(tfrecord.records(shard, first), first):
                where = f"{shard}, record {number}"
                yield self._episode(example(record, where), where, shard)
            first = 0

    def _episode(self, values: Mapping[str, Feature], where: str, shard: str) -> Whole:
        def decoded_rows(path: Path, first: int, stop: int) -> NumpyArray | list[str]:
            name, feature = "/".join(("steps", *path)), self._features[path]
            return decoded(feature, values.get(name, []), n, first, stop, f"{where}, {name}")

        n = self._count(values, where)
        has_mark = ("is_terminal",) in self._features
        is_terminal = has_mark and bool(decoded_rows(("is_terminal",), n - 1, n)[0])
        # The features that an episode has once, and the texts of its steps: a single text, where all have the same.
        about: Json = {}
        for path, leaf in self._metadata.items():
            name = "/".join(path)
            if len(feature := values.get(name, [])):  # which may be missing
                value = decoded(leaf, feature, 1, 0, 1, f"{where}, {name}")[0]
                about[name] = value if isinstance(value, str) else value.tolist()
        for path, leaf in self._features.items():
            if leaf.kind == "text":
                texts = decoded_rows(path, 0, n)
                about["/".join(path)] = texts[0] if len(set(texts)) == 1 else texts
        # A single row has no action that led anywhere: it is given as one step, which is dropped.
        padded = self._last == "padding" and n > 1
        return Whole(
            n - 1 if padded else n,
            lambda path, first, stop: decoded_rows(self._paths[path], first, stop),
            is_terminal and (padded or self._last == "step"),
            padded,
            shard,
            about,
        )

    def _count(self, values: Mapping[str, Feature], where: str) -> int:
        # How many steps there are, by a feature with one number for each.
        for path, leaf in self._features.items():
            if leaf.kind == "tensor" and leaf.shape == () and path[0] in (*MARKS, "reward", "discount"):
                n = len(values.get("/".join(("steps", *path)), ()))
                if n:
                    return n
        raise DatasetError(f"{where}: expected steps with is_first, is_last, is_terminal, reward or discount, got none")


def _sized(leaf: Leaf, path: Path, shards: list[str]) -> Leaf:
    # A feature whose shape is known: that of images is the one of the first image, if nothing else is told.
    if leaf.kind != "image" or None not in leaf.shape:
        return leaf
    name, where = "/".join(path), f"{shards[0]}, record 0"
    record = next(tfrecord.records(shards[0]), None)
    feature = [] if record is None else example(record, where).get(name, [])
    if not len(feature):
        raise DatasetError(f"{where}: expected images in {name}, got none")
    height, width = images.size_of(feature[0], f"{where}, {name}")
    return Leaf("image", (height, width, leaf.shape[-1] or 3), leaf.dtype)


def _shards(folder: str, split: str) -> list[str]:
    matches = [match for name in sorted(os.listdir(folder)) if (match := SHARD.fullmatch(name))]
    of_split = [match for match in matches if match[2] == split]
    names, totals = {int(match[3]): match[0] for match in of_split}, sorted({int(match[4]) for match in of_split})
    if not names:
        raise DatasetError(
            f"{folder}: expected files such as name-{split}.tfrecord-00000-of-00001, there are those of the splits "
            f"{sorted({match[2] for match in matches})}"
        )
    total = totals[-1]  # a folder may have files of two conversions
    if len(of_split) != len(names) or len(totals) > 1:
        raise DatasetError(
            f"{folder}: expected files of the split {split!r} that were written together, there are those of {totals}, "
            f"such as {of_split[0][0]} and {of_split[-1][0]}; remove those of the others"
        )
    for wrong, what in ((set(range(total)) - set(names), "missing"), (set(names) - set(range(total)), "one too many")):
        if wrong:
            shown = sorted(wrong)[:10]
            raise DatasetError(f"{folder}: expected {total} files of the split {split!r}, number {shown} is {what}")
    return [os.path.join(folder, names[k]) for k in range(total)]


def open_rlds(
    rest: str, root: str | None = None, *, split: str = "train", last: Last = "padding", prefix: str = "rlds"
) -> Rlds:
    """The reader of a split of a dataset in RLDS: its name, or the path of its folder; the newest of several versions.

    The last step of an episode is "padding", as RLDS says, whose observation is what the step before has led to; or a
    "step" like the others, of which the next observation is not known. `prefix` is that of the dataset's name.
    """
    if last not in ("padding", "step"):
        raise ValueError(f"{prefix}:{rest}: last: expected 'padding' or 'step', got {last!r}")
    path = located(prefix, rest, root, _version, f"a folder with {FEATURES}")
    return Rlds(path, f"{prefix}:{rest}", split, last)


def open_openx(rest: str, root: str | None = None, *, split: str = "train", last: Last = "padding") -> Rlds:
    return open_rlds(rest, root, split=split, last=last, prefix="openx")


def _version(place: str) -> str | None:
    # The folder with the features: this one, or the one of the newest version in it.
    if os.path.isfile(os.path.join(place, FEATURES)):
        return place
    names = os.listdir(place) if os.path.isdir(place) else []
    versions = [name for name in names if os.path.isfile(os.path.join(place, name, FEATURES))]
    numbers = {name: [int(digits) for digits in re.findall(r"\d+", name)] for name in versions}
    return os.path.join(place, max(versions, key=lambda name: (numbers[name], name))) if versions else None


def features(path: str) -> dict[Path, Leaf]:
    """The features in a file `features.json`, by their paths; those of steps begin with "steps"."""
    content = json_object(path, "features of TensorFlow Datasets")
    try:
        return dict(_leaves(content, (), path))
    except DatasetError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DatasetError(f"{path}: expected features of TensorFlow Datasets: {error!r:.200}") from None


def _leaves(node: Json, path: Path, where: str) -> Iterator[tuple[Path, Leaf]]:
    if len(path) > DEPTH:
        raise DatasetError(f"{where}: expected at most {DEPTH} features in each other")
    if "featuresDict" in node:
        for name, child in node["featuresDict"]["features"].items():
            yield from _leaves(child, (*path, name), where)
    elif "sequence" in node and path == ("steps",):
        yield from _leaves(node["sequence"]["feature"], path, where)
    else:
        yield path, _leaf(node)


def _leaf(node: Json) -> Leaf:
    if "text" in node:
        return Leaf("text")
    if "image" in node:
        tensor = node["image"]
        return Leaf("image", _shape(tensor), str(np.dtype(tensor.get("dtype", "uint8"))))
    if "classLabel" in node:
        return Leaf("tensor", (), "int64")
    if "tensor" not in node or node["tensor"].get("encoding", "none") != "none":
        return Leaf("other")
    tensor = node["tensor"]
    if tensor["dtype"] == "string":
        return Leaf("text") if not _shape(tensor) else Leaf("other")
    # NumPy has no bfloat16, and a buffer no arrays of any length.
    if tensor["dtype"] == "bfloat16" or None in _shape(tensor):
        return Leaf("other")
    return Leaf("tensor", _shape(tensor), str(np.dtype(tensor["dtype"])))


def _shape(node: Json) -> tuple[int | None, ...]:
    numbers = (int(n) for n in node.get("shape", {}).get("dimensions", ()))
    return tuple(None if n < 0 else n for n in numbers)


def decoded(leaf: Leaf, feature: Feature, n: int, first: int, stop: int, where: str) -> NumpyArray | list[str]:
    """The values of steps [first, stop), of n: an array, or a list of texts."""
    size = math.prod(leaf.sizes) if leaf.kind == "tensor" else 1
    # The values of all steps are counted: of more than that nobody could tell which belong to which step.
    if len(feature) != n * size:
        raise DatasetError(f"{where}: expected values for {n} steps, {size} for each, got {len(feature)}")
    values = feature[first * size : stop * size]
    if leaf.kind == "tensor":
        return _numbers(leaf, values, (stop - first, *leaf.sizes), where)
    if not isinstance(values, list):
        raise DatasetError(f"{where}: expected bytes, got numbers")
    if leaf.kind == "image":
        return images.decoded(values, leaf.sizes, leaf.dtype, where)
    return [bytes(text).decode("utf-8", "replace") for text in values]


def _numbers(leaf: Leaf, values: Feature, shape: tuple[int, ...], where: str) -> NumpyArray:
    dtype = np.dtype(leaf.dtype)
    if isinstance(values, list):  # also where there are no values, and so no kind
        if values:
            raise DatasetError(f"{where}: expected {dtype}, got bytes")
        return np.zeros(shape, dtype)
    if (dtype.kind == "f") != (values.dtype.kind == "f"):
        raise DatasetError(f"{where}: expected {dtype}, got {values.dtype}")
    if dtype.kind in "iu" and values.size:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if dtype != np.uint64 and (values.min() < low or values.max() > high):
            raise DatasetError(f"{where}: expected {dtype}, got numbers up to {values.max()}")
    return values.astype(dtype).reshape(shape)
