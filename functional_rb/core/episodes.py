"""Where trajectories begin and end, and the age of every step in its own; see `windows` for what ages are."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.base import nest
from functional_rb.base.dtypes import ITEMSIZE, shown
from functional_rb.base.nest import Key
from functional_rb.core import soundness
from functional_rb.core.auxiliary import AuxiliaryArray
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import episode_windows, ring

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Write

AGE = "age"
"""int32 [capacity], how many steps of its trajectory came before the one in each slot."""
NEXT_AGE = "next_age"
"""Counter int32 [lanes]: the age of each lane's next step."""
NEWEST_ID = "newest_id"
"""Counter int32 [words * lanes]: the trajectory key of each lane's newest step, word by word."""
USUAL_ENDS: tuple[tuple[Key, ...], ...] = (
    (("next", "done"),),
    ("done",),
    (("next", "terminated"), ("next", "truncated")),
    ("terminated", "truncated"),
)


@dataclasses.dataclass(frozen=True)
class EpisodeBoundaries:
    """The leaves of an item that tell where trajectories begin and end.

    Attributes:
        end_keys: paths of bool leaves that mark a trajectory's last step; any of them does. Of those that have several
            bools, one for each agent, they do once each agent is done.
        trajectory_key: path of an integer leaf that is another in every trajectory than in the one before. Without
            either a lane is one trajectory that never ends.
    """

    end_keys: tuple[Key, ...] = ()
    trajectory_key: Key | None = None

    @classmethod
    def find(
        cls, end_keys: tuple[Key, ...] | None, trajectory_key: Key | None, names: Sequence[str], who: str
    ) -> EpisodeBoundaries:
        """The keys given, `end_keys=()` for none; where nothing is given, the usual ends among the leaves' names."""
        if end_keys is not None or trajectory_key is not None:
            return cls(end_keys or (), trajectory_key)
        for keys in USUAL_ENDS:
            if all(nest.show_key(key) in names for key in keys):
                return cls(keys)
        raise ValueError(
            f"{who}: the item has no leaf 'done' (nor 'next/done', nor 'terminated' with 'truncated') "
            f"that tells where trajectories end; give end_keys=(...) or trajectory_key=..., of the leaves {names}; "
            f"or end_keys=(), if they never end"
        )

    @property
    def told_ends(self) -> tuple[Key, ...] | None:
        """The end keys as samplers and transforms are told them: None where only a trajectory key was meant."""
        return self.end_keys or (None if self.trajectory_key is not None else ())

    @property
    def names(self) -> frozenset[str]:
        """The leaves' names."""
        return frozenset(nest.show_key(key) for key in (*self.end_keys, self.trajectory_key) if key is not None)

    def check(self, plan: Plan, who: str, agents: tuple[int, ...] = ()) -> None:
        """Refuse leaves that do not exist or cannot tell; ends may have one bool for each agent, in this shape."""
        for key in self.end_keys:
            leaf = plan.leaves[nest.position(plan.names, key, who)]
            if leaf.dtype != "bool" or (math.prod(leaf.shape) != 1 and leaf.shape != agents):
                raise ValueError(
                    f"{who}: end key {key!r}: expected one bool an item, got {leaf.dtype} of shape {leaf.shape}; "
                    f"name another leaf"
                )
        if self.trajectory_key is not None:
            leaf = plan.leaves[nest.position(plan.names, self.trajectory_key, who)]
            if "int" not in leaf.dtype or math.prod(leaf.shape) != 1:
                raise ValueError(
                    f"{who}: trajectory key {self.trajectory_key!r}: expected one integer an item, "
                    f"got {leaf.dtype} of shape {leaf.shape}; "
                    f"name another leaf"
                )

    def check_rewritten(self, who: str, name: str) -> None:
        """Refuse to let `update` exchange one: where trajectories end has been noted when their steps were added."""
        if name in self.names:
            raise ValueError(
                f"update: leaf {name!r} tells {who} where trajectories end, and cannot be rewritten; leave it out"
            )

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """The steps' ages."""
        return {AGE: AuxiliaryArray((plan.capacity,))}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """The age of each lane's next step, and the trajectory of its newest one."""
        ages = (NEXT_AGE, plan.ring.lanes)
        if self.trajectory_key is None:
            return (ages,)
        leaf = plan.leaves[nest.position(plan.names, self.trajectory_key, "BufferSpec")]
        return ages, (NEWEST_ID, plan.ring.lanes * max(ITEMSIZE[leaf.dtype] // 4, 1))

    def problem(self, found: Found) -> str | None:
        """No step has less than none before it."""
        most = ring.INT32_MAX
        ages = soundness.problem_of_range(AGE, found.auxiliary[AGE], 0, most)
        return ages or soundness.problem_of_range(NEXT_AGE, found.numbers.more[NEXT_AGE], 0, most)

    def note(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], batch: int) -> None:
        """Keep the ages of a batch of so many rows about to be written."""
        ages, next_age = self._ages(ops, draft, write, leaves, batch)
        new = ring.for_slots(ops, write, ages)
        if write.live is not None:
            new = ops.where(write.live, new, ops.take(draft.auxiliary[AGE], write.slots))
        draft.auxiliary[AGE] = ops.set_at(draft.auxiliary[AGE], write.slots, new)
        draft.count(next_age=next_age)

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """The next step of each lane begins a trajectory."""
        draft.count(next_age=ops.full_like(draft.counters.more[NEXT_AGE], 0))

    def ended(self, ops: Ops, plan: Plan, leaves: Sequence[Array]) -> Array:
        """Which steps are marked as their trajectory's last, bool [rows], by leaves [rows, *shape]; there are some."""
        marks = [leaves[nest.position(plan.names, key, "BufferSpec")] for key in self.end_keys]
        sizes = [math.prod(mark.shape[1:]) for mark in marks]
        ends = [mark.reshape(-1) for mark, size in zip(marks, sizes, strict=True) if size == 1]
        of_agents = [mark.reshape(mark.shape[0], size) for mark, size in zip(marks, sizes, strict=True) if size > 1]
        if of_agents:
            done = ops.cumsum(ops.cast(functools.reduce(operator.or_, of_agents), "int32"))
            ends.append(done[:, -1] == done.shape[1])
        return functools.reduce(operator.or_, ends)

    def _ages(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], batch: int) -> tuple[Array, Array]:
        """The ages of all steps of a batch, int32 [lanes, T] in the order of writing, and the lanes' next."""
        plan = draft.plan
        rows = None if write.mask is None else ring.compact(ops, plan.ring.lanes, write.mask)[0]

        def in_lanes(values: Array) -> Array:
            if rows is None:
                return ring.by_lane(plan.ring.lanes, values)
            return ops.take(values, rows.reshape(-1)).reshape(rows.shape)

        marks: dict[str, Array] = {}
        if self.end_keys:
            marks["ends"] = in_lanes(self.ended(ops, plan, leaves))
        if self.trajectory_key is not None:
            ids = leaves[nest.position(plan.names, self.trajectory_key, "BufferSpec")].reshape(-1)
            marks["begins"] = _id_changes(ops, draft, write, in_lanes(ids))
        if not marks:
            lanes = plan.ring.lanes
            marks["ends"] = ops.arange(batch, like=write.written).reshape(lanes, batch // lanes) < 0
        return episode_windows.step_ages(ops, draft.counters.more[NEXT_AGE], write.written, **marks)


def boundaries_for(
    plan: Plan, end_keys: tuple[Key, ...] | None, trajectory_key: Key | None, who: str
) -> EpisodeBoundaries:
    """Where episodes end for a transform that names these keys, or none: then as for the sampler, or as usual."""
    if end_keys is None and trajectory_key is None and plan.boundaries is not None:
        return plan.boundaries
    return EpisodeBoundaries.find(end_keys, trajectory_key, plan.names, who)


def _id_changes(ops: Ops, draft: Draft, write: Write, ids: Array) -> Array:
    """Where a step's trajectory is another than that of the step before, bool [lanes, T], for ids [lanes, T].

    The newest ids are kept, as int32 words: reading them off the storage, XLA would copy it before the next write.
    (Those of a lane without steps are 0, which tells nothing, but there the next age is 0 anyway.)
    """
    lanes = ids.shape[0]
    newest = ops.maximum(write.written - 1, ops.full_like(write.written, 0))
    newest = ops.arange(lanes, like=newest) * ids.shape[1] + newest
    auxiliary = draft.counters.more[NEWEST_ID].reshape(-1, lanes)
    changes, after = [], []
    words = id_words(ops, ids)
    for k in range(words.shape[-1]):
        word = words[..., k]
        before = ops.concat([auxiliary[k][:, None], word[:, :-1]], 1)
        changes.append(word != before)
        after.append(ops.where(write.written > 0, ops.take(word.reshape(-1), newest), auxiliary[k]))
    draft.count(newest_id=ops.concat(after, 0))
    return changes[0] if len(changes) == 1 else changes[0] | changes[1]


def id_words(ops: Ops, ids: Array) -> Array:
    """Integers as one int32 each, or two, along one axis more."""
    itemsize = ITEMSIZE[shown(ids.dtype)]
    return ops.cast(ids, "int32")[..., None] if itemsize < 4 else ops.bitcast(ids[..., None], "int32")
