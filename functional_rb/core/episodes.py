"""The place of every step in its own episode, kept as steps are added; see `episode_windows` for what it tells."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.base import nest
from functional_rb.base.dtypes import ITEMSIZE, shown
from functional_rb.base.nest import Key, Keys
from functional_rb.core import soundness
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.plan import AuxiliaryArray, Plan
from functional_rb.ops.protocol import Array, Ops
from functional_rb.specs import ArraySpec, NonTensor
from functional_rb.structures import episode_windows, ring

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Write

# int32 [capacity], how many steps of its episode came before the one in each slot.
STEP_IN_EPISODE = "step_in_episode"
# Counter int32 [lanes]: the step in its episode that each lane's next step will be.
NEXT_STEP_IN_EPISODE = "next_step_in_episode"
# Counter int32 [words * lanes]: the trajectory key of each lane's newest step, word by word.
NEWEST_ID = "newest_id"


def boundaries_for(plan: Plan, end_keys: Keys | None, trajectory_key: Key | None, who: str) -> EpisodeBoundaries:
    """Where episodes end for a transform that names these keys, or none: then as for the sampler, or as usual."""
    if end_keys is None and trajectory_key is None and plan.boundaries is not None:
        return plan.boundaries
    return EpisodeBoundaries.find(end_keys, trajectory_key, plan.names, who)


def auxiliary(plan: Plan) -> dict[str, AuxiliaryArray]:
    """The arrays that are kept if some strategy asks where episodes end."""
    return {} if plan.boundaries is None else {STEP_IN_EPISODE: AuxiliaryArray((plan.capacity,))}


def counters(plan: Plan) -> tuple[tuple[str, int], ...]:
    """The counters that are kept if some strategy asks where episodes end."""
    if plan.boundaries is None:
        return ()
    steps = (NEXT_STEP_IN_EPISODE, plan.ring.lanes)
    if plan.boundaries.trajectory_key is None:
        return (steps,)
    leaf = plan.leaves[_position(plan, plan.boundaries.trajectory_key)]
    return steps, (NEWEST_ID, plan.ring.lanes * max(ITEMSIZE[leaf.dtype] // 4, 1))


def problem(contents: Found) -> str | None:
    """Why these cannot be of such a buffer, or None: no step has less than none before it."""
    if contents.plan.boundaries is None:
        return None
    steps, following = contents.auxiliary[STEP_IN_EPISODE], contents.numbers.more[NEXT_STEP_IN_EPISODE]
    return soundness.problem_of_range(STEP_IN_EPISODE, steps, 0, ring.INT32_MAX) or soundness.problem_of_range(
        NEXT_STEP_IN_EPISODE, following, 0, ring.INT32_MAX
    )


def note(ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], batch: int) -> None:
    """Keep the steps in their episodes of a batch of so many rows that are about to be written."""
    steps, following = _steps(ops, draft, write, leaves, batch)
    new, kept = ring.for_slots(ops, write, steps), draft.auxiliary[STEP_IN_EPISODE]
    if write.live is not None:
        new = ops.where(write.live, new, ops.take(kept, write.slots))
    draft.auxiliary[STEP_IN_EPISODE] = ops.set_at(kept, write.slots, new)
    draft.count(**{NEXT_STEP_IN_EPISODE: following})


def clear(ops: Ops, draft: Draft) -> None:
    """Let the next step of each lane begin an episode."""
    draft.count(**{NEXT_STEP_IN_EPISODE: ops.full_like(draft.counters.more[NEXT_STEP_IN_EPISODE], 0)})


def ended(ops: Ops, plan: Plan, end_keys: Sequence[Key], leaves: Sequence[Array]) -> Array:
    """Which steps are marked as their episode's last, bool [rows], by leaves [rows, *shape] of which there are some."""
    flags = [leaves[_position(plan, key)] for key in end_keys]
    sizes = [math.prod(flag.shape[1:]) for flag in flags]
    ends = [flag.reshape(-1) for flag, size in zip(flags, sizes, strict=True) if size == 1]
    of_agents = [flag.reshape(flag.shape[0], size) for flag, size in zip(flags, sizes, strict=True) if size > 1]
    if of_agents:
        done = ops.cumsum(ops.cast(functools.reduce(operator.or_, of_agents), "int32"))
        ends.append(done[:, -1] == done.shape[1])
    return functools.reduce(operator.or_, ends)


# Leaves of an item, by their positions.
Placed = dict[int, ArraySpec | NonTensor]


def leaves_of(plan: Plan) -> tuple[Placed, Placed]:
    """The leaves that mark ends, and the one that tells trajectories apart, if any; of a plan with boundaries."""
    assert plan.boundaries is not None
    key = plan.boundaries.trajectory_key
    ends, trajectory = (
        {k: plan.leaves[k] for k in (_position(plan, key) for key in keys)}
        for keys in (plan.boundaries.end_keys, () if key is None else (key,))
    )
    return ends, trajectory


def _position(plan: Plan, key: Key) -> int:
    return nest.position(plan.names, key, "BufferSpec")


# The steps in their episodes of a batch, int32 [lanes, T] in the order of writing, and the lanes' next.
def _steps(ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], batch: int) -> tuple[Array, Array]:
    plan, boundaries = draft.plan, draft.plan.boundaries
    assert boundaries is not None
    lanes = plan.ring.lanes
    rows = None if write.mask is None else ring.compact(ops, lanes, write.mask)[0]

    def in_lanes(values: Array) -> Array:
        if rows is None:
            return ring.by_lane(lanes, values)
        return ops.take(values, rows.reshape(-1)).reshape(rows.shape)

    begins = ends = None
    if boundaries.trajectory_key is not None:
        ids = leaves[_position(plan, boundaries.trajectory_key)].reshape(-1)
        begins = _id_changes(ops, draft, write, in_lanes(ids))
    if boundaries.end_keys:
        ends = in_lanes(ended(ops, plan, boundaries.end_keys, leaves))
    elif begins is None:
        # Nothing marks an end, so none of the steps is one: a lane is a single trajectory.
        ends = ops.arange(batch, like=write.written).reshape(lanes, batch // lanes) < 0
    first = draft.counters.more[NEXT_STEP_IN_EPISODE]
    return episode_windows.steps_in_episodes(ops, first, write.written, begins=begins, ends=ends)


# Where a step's trajectory is another than that of the step before, bool [lanes, T], for ids [lanes, T].
#
# The newest ids are kept, as int32 words: reading them off the storage, XLA would copy it before the next write.
# (Those of a lane without steps are 0, which tells nothing, but there the next step begins an episode anyway.)
def _id_changes(ops: Ops, draft: Draft, write: Write, ids: Array) -> Array:
    lanes = ids.shape[0]
    newest = ops.maximum(write.written - 1, ops.full_like(write.written, 0))
    newest = ops.arange(lanes, like=newest) * ids.shape[1] + newest
    known = draft.counters.more[NEWEST_ID].reshape(-1, lanes)
    changes, after = [], []
    words = id_words(ops, ids)
    for k in range(words.shape[-1]):
        word = words[..., k]
        before = ops.concat([known[k][:, None], word[:, :-1]], 1)
        changes.append(word != before)
        after.append(ops.where(write.written > 0, ops.take(word.reshape(-1), newest), known[k]))
    draft.count(**{NEWEST_ID: ops.concat(after, 0)})
    return changes[0] if len(changes) == 1 else changes[0] | changes[1]


def id_words(ops: Ops, ids: Array) -> Array:
    """Integers as one int32 each, or two, along one axis more."""
    itemsize = ITEMSIZE[shown(ids.dtype)]
    # Integers of less than a word are converted, as their bits alone fill none.
    return ops.cast(ids, "int32")[..., None] if itemsize < 4 else ops.bitcast(ids[..., None], "int32")
