"""The flat and the nested form of what a buffer holds in TED: trajectories with each observation stored once.

Along a trajectory the observation in "next" of one step is that at the root of the following one. So T steps have
T + 1 observations, and both forms keep these and no more:

    flat    every leaf is one array: all lanes one after the other, each from its oldest step to its newest
    nested  these arrays, cut where trajectories end

A trajectory ends with a step that is done, and at the newest step of its lane. Names are those of TorchRL's TED2Flat:
the leaf "reward" and the flags are those of "next" (the flags at the root are False), other leaves those at the root.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.base.nest import Path
from functional_rb.base.steps import FLAGS, NEXT
from functional_rb.buffer.spec import BufferSpec
from functional_rb.structures.row_layout import STORED_AS
from functional_rb.ted.check import below, bytes_of

Array = NumpyArray
# Leaves by their path; those of bfloat16, which NumPy lacks, are uint16.
Leaves = dict[Path, Array]


class Lanes(NamedTuple):
    """Where the steps lie in the buffer."""

    length: int  # slots of each lane
    sizes: tuple[int, ...]  # how many steps each lane has
    cursors: tuple[int, ...]  # the slot of each lane, from 0 on, that its next step goes to
    axis: bool  # whether items have an axis of lanes: `BufferSpec(lanes=...)` is given

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple((cursor - size) % self.length for cursor, size in zip(self.cursors, self.sizes, strict=True))

    def slots(self) -> Array:
        """The slot of every step, int64 [N], in the order of the flat form."""
        lanes = zip(self.starts, self.sizes, strict=True)
        slots = [lane * self.length + (start + np.arange(n)) % self.length for lane, (start, n) in enumerate(lanes)]
        return np.concatenate(slots)


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """What the flat and the nested form have in common.

    Attributes:
        lanes: where the steps lie in the buffer.
        dtypes: the dtypes of the leaves by name; arrays of bfloat16, which NumPy lacks, are uint16 here.
        shared: the leaves that steps have in "next" as well, each stored once.
        reward_key: path of the reward.
        spec: the spec of the buffer; None where a file does not have it.
    """

    lanes: Lanes
    dtypes: dict[str, str]
    shared: frozenset[Path]
    reward_key: Path
    spec: BufferSpec | None

    def __len__(self) -> int:
        return sum(self.lanes.sizes)


@dataclasses.dataclass(frozen=True, eq=False)
class Flat(Form):
    """Steps in the flat form.

    Attributes:
        data: nested dicts of NumPy arrays: [N + K, *shape] of the observations, for N steps in K trajectories,
            [N, *shape] of all other leaves.
    """

    data: dict[str, Nest]

    @property
    def ends(self) -> Array:
        """Which steps are the last of their trajectory, bool [N]."""
        return ends_of(self.data["done"], self.lanes.sizes)

    @property
    def lengths(self) -> Array:
        """How many steps each trajectory has, int64 [K]."""
        return np.diff(np.flatnonzero(self.ends) + 1, prepend=0)

    def __repr__(self) -> str:
        return f"Flat({len(self)} steps in {len(self.lengths)} trajectories, {_shown(self.data)})"


@dataclasses.dataclass(frozen=True, eq=False)
class Nested(Form):
    """Steps in the nested form: a sequence of trajectories, lane by lane, the oldest first.

    Attributes:
        trajectories: nested dicts of NumPy arrays each: [T + 1, *shape] of the observations, for T steps, [T, *shape]
            of all other leaves. They are views of the flat form's arrays if they were made of these.
        empty: arrays of no trajectory, [0, *shape], which have shapes and dtypes even where there is no trajectory.
    """

    trajectories: tuple[dict[str, object], ...]
    empty: dict[str, Nest]

    def __repr__(self) -> str:
        return f"Nested({len(self)} steps in {len(self.trajectories)} trajectories, {_shown(self.empty)})"


def flat_to_nested(flat: Flat) -> Nested:
    """Cut the flat form where trajectories end; arrays are views.

    Example:
        >>> flat = steps_to_flat({("observation",): np.arange(3), ("next", "observation"): np.array([1, 2, 9]),
        ...     ("next", "done"): np.array([False, True, False])}, Lanes(4, (3,), (3,), False))
        >>> [trajectory["observation"].tolist() for trajectory in flat_to_nested(flat).trajectories]
        [[0, 1, 2], [2, 9]]
    """
    lengths = flat.lengths
    last = np.cumsum(lengths)
    leaves = leaves_of_form(flat.data)
    episodes = []
    for k, (length, stop) in enumerate(zip(lengths.tolist(), last.tolist(), strict=True)):
        rows, shared = slice(stop - length, stop), slice(stop - length + k, stop + k + 1)
        episodes.append(nest.nested({path: x[shared if path in flat.shared else rows] for path, x in leaves.items()}))
    empty = nest.nested({path: x[:0] for path, x in leaves.items()})
    return Nested(flat.lanes, flat.dtypes, flat.shared, flat.reward_key, flat.spec, tuple(episodes), empty)


def nested_to_flat(nested: Nested) -> Flat:
    # The arrays of no trajectory are joined too: they have shapes and dtypes where there is none.
    each = [leaves_of_form(trajectory) for trajectory in (nested.empty, *nested.trajectories)]
    data = nest.nested({path: np.concatenate([leaves[path] for leaves in each]) for path in each[0]})
    return Flat(nested.lanes, nested.dtypes, nested.shared, nested.reward_key, nested.spec, data)


def steps_to_flat(
    steps: Leaves,
    lanes: Lanes,
    dtypes: dict[str, str] | None = None,
    reward_key: Path = ("reward",),
    spec: BufferSpec | None = None,
    who: str = "ted.to_form",
) -> Flat:
    """The flat form of steps [N, *shape] in TED, given by path in the order of that form."""
    ends = ends_of(steps[(NEXT, "done")], lanes.sizes)
    # Flags and rewards belong to the step that led there, so the step after it has no copy of them.
    alone = [path for path in steps if path[0] == NEXT and (is_flag(path[1:]) or below(path[1:], reward_key))]
    leaves: Leaves = {}
    for path, leaf in steps.items():
        if path[0] == NEXT or (NEXT, *path) in alone:
            continue
        leaves[path] = _shared(leaf, steps[(NEXT, *path)], ends, lanes, path, who) if (NEXT, *path) in steps else leaf
    for path in alone:
        flag = steps.get(path[1:]) if is_flag(path[1:]) else None
        if flag is not None and flag.any():
            lane, step = _place(int(flag.reshape(len(flag), -1).any(1).argmax()), lanes)
            raise ValueError(
                f"{who}: leaf {nest.show(path[1:])!r}: expected False in every step, as steps begin in an episode, got "
                f"True in step {step} of lane {lane} (the oldest is 0); leave such steps out"
            )
        leaves[path[1:]] = steps[path]
    named = dtypes or {nest.show(path): x.dtype.name for path, x in leaves.items()}
    dtypes = {name: named[name] for name in map(nest.show, leaves)}
    shared = frozenset(path for path in leaves if {path, (NEXT, *path)} <= steps.keys() and (NEXT, *path) not in alone)
    return Flat(lanes, dtypes, shared, reward_key, spec, nest.nested(leaves))


def flat_to_steps(flat: Flat) -> Leaves:
    """Steps [N, *shape] in TED by path, in the order of the flat form; the inverse of `steps_to_flat`."""
    leaves = leaves_of_form(flat.data)
    ends = flat.ends
    root, following = _rows(ends), _rows(ends) + 1
    before: Leaves = {}
    after: Leaves = {}
    for path, leaf in leaves.items():
        if path in flat.shared:
            before[path], after[NEXT, *path] = leaf[root], leaf[following]
        elif is_flag(path):
            before[path], after[NEXT, *path] = np.zeros_like(leaf), leaf
        elif below(path, flat.reward_key):
            after[NEXT, *path] = leaf
        else:
            before[path] = leaf
    return before | after


def is_flag(path: Path) -> bool:
    return len(path) == 1 and path[0] in FLAGS


def ends_of(done: Array, sizes: tuple[int, ...]) -> Array:
    """Which steps are the last of their trajectory, bool [N], by flags [N] or [N, 1] of lanes one after the other."""
    ends = done.reshape(-1).copy()
    # What a lane goes on with is not there: its newest step is the last of the trajectory here.
    ends[np.cumsum([size for size in sizes if size], dtype=np.int64) - 1] = True
    return ends


def leaves_of_form(data: Mapping[str, object]) -> Leaves:
    """The arrays of nested dicts by path."""
    leaves, structure = nest.flatten(data, lambda x: isinstance(x, np.ndarray))
    return dict(zip(structure.paths, leaves, strict=True))


def kept_dtype(name: str) -> np.dtype[np.generic]:
    """The NumPy dtype that arrays of a dtype have here."""
    return np.dtype(STORED_AS.get(name, name) if name in ITEMSIZE else name)


def _rows(ends: Array) -> Array:
    # Shared leaves have one row more after every last step.
    n = len(ends)
    rows: Array = np.arange(n) + np.cumsum(ends) - ends
    return rows


def _shared(before: Array, after: Array, ends: Array, lanes: Lanes, path: Path, who: str) -> Array:
    # [N, *shape] before and after each step become [N + K, *shape] for K trajectories.
    goes_on = np.flatnonzero(~ends)
    different = (bytes_of(after[goes_on]) != bytes_of(before[goes_on + 1])).any(tuple(range(1, after.ndim + 1)))
    if different.any():
        lane, step = _place(int(goes_on[different.argmax()]), lanes)
        raise ValueError(
            f"{who}: leaf {nest.show((NEXT, *path))!r}: step {step} of lane {lane} (the oldest is 0) is not done, but "
            f"what it has is not, bit for bit, the {nest.show(path)!r} of the step after it, so that they cannot be "
            f"stored once; mark the last step of a trajectory that was cut off as truncated, and give each of several "
            f"environments a lane of its own"
        )
    rows = _rows(ends)
    joined = np.empty((len(before) + int(ends.sum()), *before.shape[1:]), before.dtype)
    joined[rows] = before
    joined[rows[ends] + 1] = after[ends]
    return joined


def _place(row: int, lanes: Lanes) -> tuple[int, int]:
    lane = int(np.searchsorted(np.cumsum(lanes.sizes), row, "right"))
    return lane, row - sum(lanes.sizes[:lane])


def _shown(data: Mapping[str, object]) -> str:
    show: Callable[[Path], str] = nest.show
    return ", ".join(f"{show(path)} {leaf.shape}" for path, leaf in leaves_of_form(data).items())
