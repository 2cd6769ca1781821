"""Steps in TED to the flat form, and the way back."""

from __future__ import annotations

import numpy as np

from functional_rb.base import nest
from functional_rb.base.nest import Path
from functional_rb.base.steps import FLAGS, NEXT
from functional_rb.buffer.spec import BufferSpec
from functional_rb.ted.check import below, bytes_of
from functional_rb.ted.forms import Array, Flat, Leaves, ends_of, leaves_of_form
from functional_rb.ted.lanes import Lanes


def steps_to_flat(
    steps: Leaves, lanes: Lanes, dtypes: dict[str, str], reward_key: Path, spec: BufferSpec, who: str
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
    dtypes = {name: dtypes[name] for name in map(nest.show, leaves)}
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
