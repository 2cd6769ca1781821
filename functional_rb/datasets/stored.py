"""Converted datasets as readers: what is made of a dataset, filtered, split, joined, mapped, is converted again."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from functional_rb.base import nest
from functional_rb.datasets.description import (
    ABOUT,
    EPISODE,
    EPISODES,
    Dataset,
    Description,
    directory_of,
    read_description,
)
from functional_rb.datasets.episode import Array, DatasetError, Episode, StepSpec
from functional_rb.datasets.pieces import spans, steps_of_piece
from functional_rb.datasets.reader import Counts
from functional_rb.datasets.rows import INFO
from functional_rb.ops import numpy_ops
from functional_rb.specs import Composite
from functional_rb.storage.directory import file_name, shapes
from functional_rb.structures import frame_ring, row_layout, stored_arrays
from functional_rb.ted.check import FLAGS, NEXT, as_dict, is_leaf
from functional_rb.ted.steps import ACTION, REWARD


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is known of a stored episode without reading its steps.

    Attributes:
        number: in the order of the dataset, from 0 on.
        first: the slot of its first step.
        steps: how many steps.
        total: the sum of its rewards: its return.
        terminated: whether it led to a terminal state.
        about: what the reader has told of it, its seed, say.
    """

    number: int
    first: int
    steps: int
    total: float
    terminated: bool
    about: dict[str, Any]


class Stored:
    """Reads a converted dataset; see `Reader` for the attributes.

    Attributes:
        path: its directory.
        description: of it.
    """

    def __init__(self, dataset: Dataset, chosen: Sequence[int] | None = None) -> None:
        """Open it.

        Args:
            dataset: its directory, or a state that `load` gave.
            chosen: the numbers of the episodes that are given, in their order; None for all.

        Raises:
            DatasetError: if no dataset is there.
        """
        self.path = directory_of(dataset, "datasets")
        self.description = read_description(self.path)
        self._table = np.fromfile(os.path.join(self.path, EPISODES), EPISODE, self.description.episodes)
        self._chosen = range(len(self._table)) if chosen is None else chosen
        self.name, self.facts = self.description.name, self.description.facts
        self.files = [os.path.join(self.path, name) for name in sorted(os.listdir(self.path))]
        steps = int(self._table["steps"][list(self._chosen)].sum())
        self.counts = Counts(len(self._chosen), steps, sum(map(os.path.getsize, self.files)))

    def spec(self, narrow: bool) -> StepSpec:
        """What its steps are made of, as they are stored, whatever is asked for."""
        item = self.description.item
        observation = Composite({name: item[name] for name in _observed(item)})
        infos = dict(item[INFO].items()) if INFO in item.parts else {}
        return StepSpec(observation, item[ACTION], item[NEXT][REWARD], infos, encoded=True)

    def summaries(self) -> Iterator[Summary]:
        """What is known of the episodes that are given."""
        chosen = set(self._chosen)
        with open(os.path.join(self.path, ABOUT), encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if number in chosen:
                    first, steps, total, terminated = self._table[number].tolist()
                    yield Summary(number, first, steps, total, bool(terminated), json.loads(line))

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """Those that were chosen, in their order."""
        most = steps_of_piece(self.spec(narrow=False))
        with _Arrays(self.path, self.description) as arrays, open(os.path.join(self.path, ABOUT), "rb") as lines:
            begins = [0, *itertools.accumulate(map(len, lines))]  # of lines, which are read one by one
            for number in self._chosen[first:]:
                lines.seek(begins[number])
                about = json.loads(lines.readline())
                start, steps = int(self._table["first"][number]), int(self._table["steps"][number])
                for begin, stop in spans(steps, most):
                    yield self._piece(arrays, start + begin, start + stop, start + steps, about)

    def steps_at(self, slots: Sequence[int]) -> Iterator[Episode]:
        """Single steps, by their slots, each as an episode."""
        with _Arrays(self.path, self.description) as arrays:
            for slot in slots:
                yield self._piece(arrays, slot, slot + 1, slot + 1, {})

    def _piece(self, arrays: _Arrays, first: int, stop: int, end: int, about: dict[str, Any]) -> Episode:
        steps = arrays.read(first, stop)
        after = steps[NEXT]
        return Episode(
            {name: _joined(steps[name], after[name]) for name in _observed(self.description.item)},
            steps[ACTION],
            after[REWARD],
            after["terminated"],
            after["truncated"],
            steps.get(INFO, {}),
            goes_on=stop < end,
            about=about,
            file=self.path,
        )


class _Arrays:
    """The files of a dataset, from which steps are read in their order: not mapped, so that none stays in memory."""

    def __init__(self, path: str, description: Description) -> None:
        self._plan = description.spec().plan
        self._files = {
            name: (open(os.path.join(path, file_name(name)), "rb"), shape[1:], np.dtype(dtype))  # noqa: SIM115  # closed below
            for name, (shape, dtype) in {**shapes(description.spec()), **_at(self._plan)}.items()
        }

    def __enter__(self) -> _Arrays:
        """Until the files are closed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close them."""
        for file, _, _ in self._files.values():
            file.close()

    def read(self, first: int, stop: int) -> dict[str, Any]:
        """Steps [first, stop) of one episode, in TED."""
        plan = self._plan
        wide = [self._rows(stored_arrays.wide_name(k), first, stop) for k in range(len(plan.layout.wide))]
        stored = row_layout.unpack(numpy_ops, plan.layout, self._rows(stored_arrays.ROWS, first, stop), wide)
        found = dict(zip(plan.stored, stored, strict=True))
        if plan.frames is not None:
            begin = int(self._rows(frame_ring.AT, first, first + 1)[0]) >> 1
            layout, span = plan.frames.layout, (begin, begin + stop - first + 1)
            apart = [self._rows(frame_ring.WIDE.format(k), *span) for k in range(len(layout.wide))]
            frames = row_layout.unpack(numpy_ops, layout, self._rows(frame_ring.ROWS, *span), apart)
            for stack, frame in zip(plan.frames.stacks, frames, strict=True):
                assert stack.following is not None
                found |= {stack.leaf: frame[:-1], stack.following: frame[1:]}
        steps: dict[str, Any] = nest.unflatten(plan.structure, [found[k] for k in range(len(found))], as_dict)
        return steps

    def _rows(self, name: str, first: int, stop: int) -> Array:
        file, shape, dtype = self._files[name]
        count = math.prod(shape)
        file.seek(first * count * dtype.itemsize)
        array = np.fromfile(file, dtype, (stop - first) * count)
        if len(array) < (stop - first) * count:
            raise DatasetError(f"{file.name}: rows {first} to {stop} are not there: the file is damaged")
        return array.reshape(stop - first, *shape)


def _at(plan: Any) -> dict[str, Any]:
    return {} if plan.frames is None else {frame_ring.AT: ((plan.capacity,), "int32")}


def _observed(item: Any) -> list[str]:
    """The names of what is observed."""
    return [name for name in item[NEXT].parts if name != REWARD and name not in FLAGS]


def _joined(before: Any, after: Any) -> Any:
    """The T + 1 observations of which T are the ones before steps, and T the ones after, nests of arrays."""
    first, structure = nest.flatten(before, is_leaf)
    joined = [np.concatenate([x[:1], y]) for x, y in zip(first, nest.flatten_as(structure, after), strict=True)]
    return nest.unflatten(structure, joined, as_dict)
