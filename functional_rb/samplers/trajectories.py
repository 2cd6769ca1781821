"""What samplers of slices share: where trajectories begin and end, and the index of their windows."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from functional_rb import nest, ring, windows
from functional_rb.dtypes import ITEMSIZE, shown
from functional_rb.nest import Key
from functional_rb.ops import Array, Ops
from functional_rb.samplers.base import Drawn, KeptArray, SamplerBase, check_bools, need_order
from functional_rb.windows import Entries, Lanes, Rule

if TYPE_CHECKING:
    from functional_rb.buffer_spec import BufferSpec
    from functional_rb.draft import Draft
    from functional_rb.ring import Write

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
LARGEST_SETTING = 2**28


@dataclasses.dataclass(frozen=True)
class Trajectories(SamplerBase):
    """The fields that samplers of slices have in common; see `Slices`."""

    length: int
    end_keys: tuple[Key, ...] | None = None
    trajectory_key: Key | None = None
    strict_length: bool = True
    span: bool | tuple[bool, bool] = False
    period: int = 1
    batch: Literal["slices", "steps"] = "slices"
    flat: bool = False

    def __post_init__(self) -> None:
        """Check what can be known before any array exists."""
        kind = type(self).__name__
        for name in ("length", "period"):
            value = getattr(self, name)
            try:
                good = not isinstance(value, bool) and 1 <= operator.index(value) <= LARGEST_SETTING
            except TypeError:
                good = False
            if not good:
                raise ValueError(f"{kind}: expected {name} as a positive int, got {value!r}")
            object.__setattr__(self, name, operator.index(value))
        check_bools(self, "strict_length", "flat")
        given_span: Any = self.span
        span = (given_span, given_span) if isinstance(given_span, bool) else given_span
        if not isinstance(span, tuple) or len(span) != 2 or not all(isinstance(side, bool) for side in span):
            raise ValueError(f"{kind}: expected span as a bool or a pair of them (left, right), got {self.span!r}")
        object.__setattr__(self, "span", span)
        if any(span) and self.strict_length:
            raise ValueError(
                f"{kind}: span={self.span} gives slices shorter than {self.length} steps, which strict_length refuses; "
                f"give strict_length=False"
            )
        if self.batch not in ("slices", "steps"):
            raise ValueError(f"{kind}: expected batch 'slices' or 'steps', got {self.batch!r}")
        if self.end_keys is not None:
            given: Any = self.end_keys  # a single name is meant often enough
            if not isinstance(given, str | tuple | list):
                raise ValueError(f"{kind}: expected end_keys as a tuple of leaves' names, got {given!r}")
            if not given and self.trajectory_key is None:
                raise ValueError(f"{kind}: expected an end key at least, got {given!r}; or give trajectory_key=...")
            object.__setattr__(self, "end_keys", (given,) if isinstance(given, str) else tuple(given))

    @property
    def rule(self) -> Rule:
        """Which windows there are."""
        assert isinstance(self.span, tuple)
        return Rule(self.length, self.period, self.strict_length, *self.span)

    @property
    def by_trajectory(self) -> bool:
        """Whether trajectories are equally likely, rather than windows."""
        return False

    @property
    def why_nothing(self) -> str:
        """No window."""
        return f"begins a slice of {self.length} steps; add more, or give strict_length=False"

    def resolve(self, spec: BufferSpec) -> Any:
        """Find the leaves that mark ends, if none were named."""
        if self.end_keys is not None or self.trajectory_key is not None:
            return self
        for keys in USUAL_ENDS:
            if all(nest.show_key(key) in spec.names for key in keys):
                return dataclasses.replace(self, end_keys=keys)
        raise ValueError(
            f"{type(self).__name__}: the item has no leaf 'done' (nor 'next/done', nor 'terminated' with 'truncated') "
            f"that tells where trajectories end; give end_keys=(...) or trajectory_key=..., of the leaves {spec.names}"
        )

    def check(self, spec: BufferSpec) -> None:
        """Windows are read off rings, and their leaves exist."""
        need_order(spec)
        kind = type(self).__name__
        if self.length > spec.ring.length:
            raise ValueError(
                f"{kind}: a slice of {self.length} steps never fits into the {spec.ring.length} of a lane; "
                f"give a larger BufferSpec.capacity"
            )
        for key in self.end_keys or ():
            leaf = spec.leaves[nest.position(spec.names, key, kind)]
            if leaf.dtype != "bool" or math.prod(leaf.shape) != 1:
                raise ValueError(f"{kind}: end key {key!r}: expected one bool an item, got {leaf}; name another leaf")
        if self.trajectory_key is not None:
            leaf = spec.leaves[nest.position(spec.names, self.trajectory_key, kind)]
            if "int" not in leaf.dtype or math.prod(leaf.shape) != 1:
                raise ValueError(
                    f"{kind}: trajectory key {self.trajectory_key!r}: expected one integer an item, got {leaf}; "
                    f"name another leaf"
                )

    def check_rewritten(self, spec: BufferSpec, name: str) -> None:
        """Where trajectories end has been noted when their steps were added."""
        keys = [*(self.end_keys or ()), *([] if self.trajectory_key is None else [self.trajectory_key])]
        if name in [nest.show_key(key) for key in keys]:
            raise ValueError(
                f"update: leaf {name!r} tells {type(self).__name__} where trajectories end, and cannot be rewritten; "
                f"leave it out"
            )

    def check_batch(self, spec: BufferSpec, batch: int) -> None:
        """Slices are whole."""
        if self.batch == "steps" and batch % self.length:
            raise ValueError(
                f"sample: expected batch_size as a multiple of the slices' length {self.length}, as it counts steps "
                f"(batch='steps'), got {batch}"
            )

    def slices_of(self, batch: int) -> int:
        """How many slices a batch has."""
        return batch // self.length if self.batch == "steps" else batch

    def leading_shape(self, batch: int) -> tuple[int, ...]:
        """Slices, or all of their steps in a row."""
        slices = self.slices_of(batch)
        return (slices * self.length,) if self.flat else (slices, self.length)

    def kept(self, spec: BufferSpec) -> dict[str, KeptArray]:
        """The steps' ages."""
        return {AGE: KeptArray((spec.capacity,))}

    def counters(self, spec: BufferSpec) -> tuple[tuple[str, int], ...]:
        """The age of each lane's next step, and the trajectory of its newest one."""
        ages = (NEXT_AGE, spec.ring.lanes)
        if self.trajectory_key is None:
            return (ages,)
        leaf = spec.leaves[nest.position(spec.names, self.trajectory_key, type(self).__name__)]
        return ages, (NEWEST_ID, spec.ring.lanes * max(ITEMSIZE[leaf.dtype] // 4, 1))

    def note_ages(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array]) -> Entries:
        """Keep the ages of new steps; returns the entries of the index that may have changed."""
        spec = draft.spec
        lanes, n = spec.ring.lanes, write.slots.shape[0] // spec.ring.lanes
        ages, next_age = self._ages(ops, draft, write, leaves)
        # Of a batch longer than a lane only the last steps are written.
        if write.mask is None:
            new = ages[:, ages.shape[1] - n :]
        else:
            skipped = ops.maximum(write.written - n, ops.full_like(write.written, 0))
            column = skipped[:, None] + ops.arange(n, like=skipped)
            place = ops.arange(lanes, like=skipped)[:, None] * ages.shape[1] + column
            new = ops.take(ages.reshape(-1), place.reshape(-1)).reshape(lanes, n)
        new = ring.by_time(new)
        if write.live is not None:
            new = ops.where(write.live, new, ops.take(draft.kept[AGE], write.slots))
        draft.kept[AGE] = ops.set_at(draft.kept[AGE], write.slots, new)
        draft.count(next_age=next_age)
        after = Lanes(spec.ring, write.after)
        return windows.changed(ops, self.rule, after, draft.kept[AGE], n, self.by_trajectory)

    def _ages(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array]) -> tuple[Array, Array]:
        """The ages of all steps of a batch, int32 [lanes, T] in the order of writing, and the lanes' next."""
        spec, kind = draft.spec, type(self).__name__
        rows = None if write.mask is None else ring.compact(ops, spec.ring.lanes, write.mask)[0]

        def in_lanes(key: Key) -> Array:
            values = leaves[nest.position(spec.names, key, kind)].reshape(-1)
            if rows is None:
                return ring.by_lane(spec.ring.lanes, values)
            return ops.take(values, rows.reshape(-1)).reshape(rows.shape)

        marks: dict[str, Array] = {}
        for key in self.end_keys or ():
            ended = in_lanes(key)
            marks["ends"] = marks["ends"] | ended if marks else ended
        if self.trajectory_key is not None:
            marks["begins"] = self._id_changes(ops, draft, write, in_lanes(self.trajectory_key))
        return windows.step_ages(ops, draft.counters.more[NEXT_AGE], write.written, **marks)

    def _id_changes(self, ops: Ops, draft: Draft, write: Write, ids: Array) -> Array:
        """Where a step's trajectory is another than that of the step before, bool [lanes, T], for ids [lanes, T].

        The newest ids are kept, as int32 words: reading them off the storage, XLA would copy it before the next write.
        (Those of a lane without steps are 0, which tells nothing, but there the next age is 0 anyway.)
        """
        lanes = ids.shape[0]
        newest = ops.maximum(write.written - 1, ops.full_like(write.written, 0))
        newest = ops.arange(lanes, like=newest) * ids.shape[1] + newest
        kept = draft.counters.more[NEWEST_ID].reshape(-1, lanes)
        changes, after = [], []
        for k, word in enumerate(_words(ops, ids)):
            before = ops.concat([kept[k][:, None], word[:, :-1]], 1)
            changes.append(word != before)
            after.append(ops.where(write.written > 0, ops.take(word.reshape(-1), newest), kept[k]))
        draft.count(newest_id=ops.concat(after, 0))
        return changes[0] if len(changes) == 1 else changes[0] | changes[1]

    def cut(
        self,
        ops: Ops,
        draft: Draft,
        starts: Array,
        draws: Array,
        weights: Array,
        probabilities: Array,
        live: Array | None = None,
    ) -> tuple[Array, Drawn]:
        """Windows of drawn slots int32 [S], with weights and probabilities, [S] or one for all, as `Drawn` has them.

        Live, bool [S], are slots that were drawn; without it all are that begin a window.
        """
        lanes = Lanes(draft.spec.ring, draft.counters.ends)
        age, next_age = draft.kept[AGE], draft.counters.more[NEXT_AGE]
        slots, handles, *flags = windows.expand(
            ops, self.rule, lanes, age, next_age, starts, draws, live, self.by_trajectory
        )
        real = flags[0][:, 0]
        told = [ops.where(real, x, ops.full_like(x, 0)) for x in (weights, probabilities)]
        if self.flat:
            handles, flags = handles.reshape(-1), [flag.reshape(-1) for flag in flags]
        return slots.reshape(-1), Drawn(handles, *told, *flags)


def _words(ops: Ops, ids: Array) -> list[Array]:
    """Integers [lanes, T] as one int32 [lanes, T], or two."""
    itemsize = ITEMSIZE[shown(ids.dtype)]
    if itemsize < 4:
        return [ops.cast(ids, "int32")]
    words = ops.bitcast(ids[..., None], "int32")
    return [words[..., k] for k in range(itemsize // 4)]
