"""Steps on their way into files: many episodes are gathered in memory as they will lie there, and written at once.

Each leaf is copied once, from where the reader has it to its place in the rows. The memory is used again and again, so
that it stays in the processor's cache.

Of a step the observations may be stored once for it and for the step before, as `Compact` has them, with its flags: an
episode of T steps has T + 1 frames, one after the other, and `frame_at` says where the one of each step lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.nest import Path
from functional_rb.base.steps import FLAGS, NEXT
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.datasets.rows import Form, Steps
from functional_rb.storage.directory import shapes
from functional_rb.structures import frame_ring, stored_arrays
from functional_rb.structures.row_layout import Layout, kept_dtype

# Bytes that are gathered, about; more where a piece of an episode has more.
ROOM = 2**21


def bytes_of_rows(form: Form) -> dict[str, int]:
    """How many bytes a row of each file has that steps are written to, by the name of its array."""
    sizes = {
        name: math.prod(shape[1:]) * np.dtype(dtype).itemsize for name, (shape, dtype) in shapes(form.spec).items()
    }
    return sizes | dict.fromkeys((STEP_IN_EPISODE, *((frame_ring.AT,) if form.compact else ())), 4)


class Stage:
    """Memory for some steps, of which `nbytes` are gathered there."""

    def __init__(self, form: Form) -> None:
        nbytes = bytes_of_rows(form)
        self._form, self.nbytes, self._steps, self._frames = form, 0, 0, 0
        self._frame_bytes = sum(size for name, size in nbytes.items() if _is_frames(name))
        self._step_bytes = sum(nbytes.values()) - self._frame_bytes
        # The number of steps follows from the bytes of a step, so that rows of any width take about as much memory.
        steps = max(1, ROOM // sum(nbytes.values()))
        self._make(steps, 2 * steps)  # an episode of one step has two frames

    def has_room(self, steps: Steps) -> bool:
        """Whether there is room for some steps more, beside those that are there."""
        # An episode has one frame more than it has steps.
        return self._steps + steps.length <= self._room[0] and self._frames + steps.length < self._room[1]

    def put(self, steps: Steps, at: int, frames: int) -> int:
        """Gather some steps, for which there is room, or nothing is there; gives how many frames there are more.

        The first of them is at the place `at` in its episode, and before them there are so many frames.
        """
        n, again = steps.length, int(steps.goes_on)  # then the first frame is the last one of the piece before
        if not self.has_room(steps):
            self._make(max(n, self._room[0]), max(n + 1, self._room[1]))
        span = slice(self._steps, self._steps + n)
        more = n + 1 - again if self._frame_columns else 0
        of_frames = slice(self._frames, self._frames + more)
        self._steps, self._frames = span.stop, of_frames.stop
        for path, leaf in steps.observations.items():
            # Stored once, an observation follows the one before; else it stands in two columns, shifted by a step.
            if path in self._frame_columns:
                self._frame_columns[path][of_frames] = leaf[again : n + 1]
            else:
                self._columns[path][span] = leaf[:n]
                self._columns[NEXT, *path][span] = leaf[1 : n + 1]
            # An observation that is not known repeats the one before: learners do not look behind an end.
            if not steps.observed:
                self._last(path)[...] = leaf[n - 1]
        for path, leaf in steps.others.items():
            self._columns[path][span] = leaf[:n]
        for flag in ("terminated", "truncated"):
            if getattr(steps, flag):
                self._last((flag,))[...] = self._last(("done",))[...] = True
        np.add(self._counting[:n], at, out=self.arrays[STEP_IN_EPISODE][span])
        if more:
            # The lowest bit of a place in the ring of frames says whether the next observation lies apart: never here.
            np.add(2 * self._counting[:n], 2 * (frames - again), out=self.arrays[frame_ring.AT][span])
        self.nbytes += n * self._step_bytes + more * self._frame_bytes
        return more

    def _last(self, path: Path) -> NumpyArray:
        # The place of an observation, or a flag, that the last step led to.
        if path in self._frame_columns:
            return self._frame_columns[path][self._frames - 1, ...]
        return self._columns[NEXT, *path][self._steps - 1, ...]

    def empty(self) -> Iterator[tuple[str, NumpyArray]]:
        """What is gathered, by the name of its array, to be written before anything is gathered again."""
        for name, array in self.arrays.items():
            yield name, array[: self._frames if _is_frames(name) else self._steps]
        # Flags are written where they are true alone, so that what is gathered next finds them false.
        for flag in FLAGS:
            if (flag,) in self._frame_columns:
                self._frame_columns[(flag,)][: self._frames] = False
            else:
                self._columns[NEXT, flag][: self._steps] = False
        self.nbytes = self._steps = self._frames = 0

    def _make(self, steps: int, frames: int) -> None:
        form, plan = self._form, self._form.spec.plan
        self._room = steps, frames
        self.arrays = {
            name: np.zeros((frames if _is_frames(name) else steps, *shape[1:]), dtype)
            for name, (shape, dtype) in shapes(form.spec).items()
        }
        for name in bytes_of_rows(form).keys() - self.arrays.keys():
            self.arrays[name] = np.zeros(steps, np.int32)
        self._counting = np.arange(steps, dtype=np.int32)
        wide = [self.arrays[stored_arrays.wide_name(k)] for k in range(len(plan.layout.wide))]
        columns = _columns(plan.layout, self.arrays[stored_arrays.ROWS], wide)
        self._columns: dict[Path, NumpyArray] = {form.paths[k]: x for k, x in zip(plan.stored, columns, strict=True)}
        self._frame_columns: dict[Path, NumpyArray] = {}
        if plan.frames is not None:
            layout = plan.frames.layout
            wide = [self.arrays[frame_ring.WIDE.format(k)] for k in range(len(layout.wide))]
            columns = _columns(layout, self.arrays[frame_ring.ROWS], wide)
            stacks = zip(plan.frames.stacks, columns, strict=True)
            self._frame_columns = {form.paths[stack.leaf]: x for stack, x in stacks}


def _is_frames(name: str) -> bool:
    # Whether an array has a row for each frame, rather than for each step.
    return name.startswith(frame_ring.ROWS)


# A leaf has no memory of its own: it is a view with the strides of the rows that it lies in, so that what is written to
# it lies where files have it.
def _columns(layout: Layout, rows: NumpyArray, wide: list[NumpyArray]) -> list[NumpyArray]:
    # The leaves [n, *shape] where they lie in rows int32 [n, row_words] and in the wide arrays.
    columns = []
    for leaf in layout.leaves:
        dtype, inner = kept_dtype(leaf.dtype), np.empty(leaf.shape, kept_dtype(leaf.dtype)).strides
        if leaf.wide is not None:
            columns.append(wide[leaf.wide].view(dtype))
        else:
            strides = (rows.strides[0], *inner)
            columns.append(np.ndarray((len(rows), *leaf.shape), dtype, rows, leaf.offset or 0, strides))
    return columns
