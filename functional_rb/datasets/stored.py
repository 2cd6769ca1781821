"""Converted datasets as readers: what is made of a dataset, filtered, split, joined, mapped, is converted again."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.steps import ACTION, FLAGS, NEXT, REWARD
from functional_rb.base.strict_json import Json
from functional_rb.datasets.description import ABOUT, Description, about_of, spec_of, table_of
from functional_rb.datasets.episode import DatasetError, Episode, StepSpec
from functional_rb.datasets.pieces import spans, steps_of_piece
from functional_rb.datasets.rows import INFO
from functional_rb.ops import numpy_ops
from functional_rb.specs import Composite
from functional_rb.storage.directory import file_name, shapes
from functional_rb.structures import frame_ring, row_layout, stored_arrays

# Short episodes are read so many times fewer steps at a time than a piece may have.
BLOCKS = 8
# Episodes that are not wanted are read over if they have so many times fewer steps than that.
GAPS = 16


class Stored:
    """Reads a converted dataset; see `Reader` for the attributes."""

    def __init__(self, description: Description, chosen: Sequence[int] | None = None) -> None:
        """Open a dataset; of the episodes with the numbers `chosen`, in their order, or of all if that is None."""
        self.path, self.description = description.path, description
        self._table = table_of(description)
        self._chosen = range(len(self._table)) if chosen is None else chosen
        self.name, self.facts = description.name, description.facts
        self.files = [os.path.join(self.path, name) for name in sorted(os.listdir(self.path))]
        steps = int(self._table["steps"][list(self._chosen)].sum())
        nbytes = sum(map(os.path.getsize, self.files))
        self.counts = {"episodes": len(self._chosen), "steps": steps, "bytes": nbytes}

    def spec(self, narrow: bool) -> StepSpec:
        # `narrow` changes nothing: the steps were narrowed, or not, when they were converted.
        item = self.description.item
        observation = Composite({name: item[name] for name in _observed(item)})
        infos = dict(item[INFO].items()) if INFO in item.parts else {}
        return StepSpec(observation, item[ACTION], item[NEXT][REWARD], infos, encoded=True)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        with open(os.path.join(self.path, ABOUT), "rb") as lines:
            # Episodes may be chosen in any order: so lines are read one by one from where they begin.
            begins = [0, *itertools.accumulate(map(len, lines))]
            about, of = {}, -1
            for piece in self.pieces(first):
                if piece.number != of:
                    of = piece.number
                    lines.seek(begins[of])
                    about = about_of(self.description, of, lines.readline())
                yield self._episode(piece, about)

    def pieces(self, first: int = 0) -> Iterator[Piece]:
        """The steps of the episodes that were chosen, from one on, as arrays apart."""
        most = steps_of_piece(self.spec(narrow=False))
        room = max(most // BLOCKS, 1)
        numbers = list(self._chosen)[first:]
        begins = self._table["first"][numbers].tolist()
        ends = (self._table["first"] + self._table["steps"])[numbers].tolist()
        with contextlib.closing(_Arrays(self.path, self.description)) as arrays:
            for k, number in enumerate(numbers):
                for begin, stop in spans(ends[k] - begins[k], most):
                    begin, stop = begins[k] + begin, begins[k] + stop
                    if not arrays.hold(begin, stop):
                        # Short episodes that lie close to each other are read at once.
                        until, after = stop, k + 1
                        while stop == ends[k] and after < len(numbers) and ends[after] - begin <= room:
                            if not 0 <= begins[after] - until <= room // GAPS:
                                break
                            until, after = ends[after], after + 1
                        arrays.read(begin, until)
                    yield Piece(number, stop < ends[k], arrays.parts(begin, stop))

    def steps_at(self, slots: Sequence[int]) -> Iterator[Episode]:
        """Single steps, by their slots, each as an episode."""
        with contextlib.closing(_Arrays(self.path, self.description)) as arrays:
            for slot in slots:
                arrays.read(slot, slot + 1)
                yield self._episode(Piece(-1, False, arrays.parts(slot, slot + 1)), {})

    def _episode(self, piece: Piece, about: Json) -> Episode:
        fields = {field: nest.unflatten(*flattened) for field, flattened in piece.parts.items()}
        return Episode(**fields, goes_on=piece.goes_on, about=about, file=self.path)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Some steps of a stored episode."""

    number: int  # the episode's number
    goes_on: bool  # whether the next piece is of the same episode
    # For each field of an `Episode`: its structure, and the leaves [n, *shape], of observations [n + 1, *shape].
    parts: dict[str, tuple[nest.Structure, list[NumpyArray]]]


class _Arrays:
    """The files of a dataset, read some steps at a time: not mapped, so that none stays in memory."""

    def __init__(self, path: str, description: Description) -> None:
        spec = spec_of(description)
        self._plan = spec.plan
        kinds: dict[str, tuple[tuple[int, ...], str]] = dict(shapes(spec))
        if self._plan.frames is not None:
            kinds[frame_ring.AT] = (self._plan.capacity,), "int32"
        self._files = {
            name: (open(os.path.join(path, file_name(name)), "rb"), shape[1:], np.dtype(dtype))  # noqa: SIM115  # closed below
            for name, (shape, dtype) in kinds.items()
        }
        self._first = self._stop = 0  # the steps that are held
        self._leaves: dict[int, NumpyArray] = {}
        self._frames: dict[int, tuple[NumpyArray, int]] = {}  # by leaf, with how many frames later the leaf is
        self._at = np.zeros(0, np.int64)  # the place of each step's observation among the frames
        names = _observed(description.item)
        of = nest.unflatten(self._plan.structure, range(len(self._plan.structure.paths)))
        after = of[NEXT]
        fields = {"observations": {name: of[name] for name in names}, "actions": of[ACTION], "rewards": after[REWARD]}
        fields |= {"terminated": after["terminated"], "truncated": after["truncated"], "infos": of.get(INFO, {})}
        self._fields = {field: nest.flatten(tree, lambda leaf: isinstance(leaf, int)) for field, tree in fields.items()}
        self._after = nest.flatten_as(self._fields["observations"][1], {name: after[name] for name in names})

    def close(self) -> None:
        for file, _shape, _dtype in self._files.values():
            file.close()

    def hold(self, first: int, stop: int) -> bool:
        return self._first <= first and stop <= self._stop

    def read(self, first: int, stop: int) -> None:
        plan = self._plan
        wide = [self._rows(stored_arrays.wide_name(k), first, stop) for k in range(len(plan.layout.wide))]
        stored = row_layout.unpack(numpy_ops.OPS, plan.layout, self._rows(stored_arrays.ROWS, first, stop), wide)
        self._leaves = dict(zip(plan.stored, stored, strict=True))
        if plan.frames is not None:
            # A place is doubled there, and in a dataset frames lie in the order of their steps.
            at = self._rows(frame_ring.AT, first, stop).astype(np.int64) >> 1
            layout, span = plan.frames.layout, (int(at[0]), int(at[-1]) + 2)
            apart = [self._rows(frame_ring.WIDE.format(k), *span) for k in range(len(layout.wide))]
            frames = row_layout.unpack(numpy_ops.OPS, layout, self._rows(frame_ring.ROWS, *span), apart)
            for stack, frame in zip(plan.frames.stacks, frames, strict=True):
                assert stack.following is not None
                self._frames |= {stack.leaf: (frame, 0), stack.following: (frame, 1)}
            self._at = at - at[0]
        self._first, self._stop = first, stop

    def parts(self, first: int, stop: int) -> dict[str, tuple[nest.Structure, list[NumpyArray]]]:
        """Steps [first, stop) of one episode, which are held; see `Piece`."""
        here = slice(first - self._first, stop - self._first)
        others = {
            field: (structure, [self._values(leaf, here) for leaf in leaves])
            for field, (leaves, structure) in self._fields.items()
            if field != "observations"
        }
        leaves, structure = self._fields["observations"]
        observations = []
        for before, after in zip(leaves, self._after, strict=True):
            if before in self._frames:
                observations.append(self._values(before, here, more=1))
            else:
                begins = self._leaves[before][here.start : here.start + 1]
                observations.append(np.concatenate([begins, self._leaves[after][here]]))
        return {"observations": (structure, observations), **others}

    def _values(self, leaf: int, here: slice, more: int = 0) -> NumpyArray:
        # The values of a leaf in some steps; of a frame so many more too.
        if leaf in self._leaves:
            return self._leaves[leaf][here]
        frames, later = self._frames[leaf]
        begin = int(self._at[here.start]) + later
        return frames[begin : begin + here.stop - here.start + more]

    def _rows(self, name: str, first: int, stop: int) -> NumpyArray:
        file, shape, dtype = self._files[name]
        count = math.prod(shape)
        file.seek(first * count * dtype.itemsize)
        # Not mapped: pages of files much larger than the memory would push out what others need.
        array = np.fromfile(file, dtype, (stop - first) * count)
        if len(array) < (stop - first) * count:
            raise DatasetError(f"{file.name}: rows {first} to {stop} are not there: the file is damaged")
        return array.reshape(stop - first, *shape)


def _observed(item: Composite) -> list[str]:
    return [name for name in item[NEXT].parts if name != REWARD and name not in FLAGS]
