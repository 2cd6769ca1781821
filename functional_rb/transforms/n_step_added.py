"""n-step returns computed as steps are added: what is stored are transitions over n steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from functional_rb import layout, nest, ring
from functional_rb.kept import KeptArray
from functional_rb.ops import Array, Ops
from functional_rb.specs import ArraySpec, Binary, Unbounded
from functional_rb.trajectories import Marks
from functional_rb.transforms.base import Reader
from functional_rb.transforms.returns import NStep

if TYPE_CHECKING:
    from functional_rb.buffer_spec import BufferSpec
    from functional_rb.draft import Draft

PENDING = "n_step_pending"
"""Counter int32 [lanes]: how many steps of each lane wait for those that follow."""
WAITING = "n_step_waiting"
"""Kept arrays: the waiting steps' leaves [lanes * (n - 1), *shape], each lane's from its oldest on."""
STEPS, ORIGINAL, NONTERMINAL = "steps", "original_reward", "nonterminal"


class Line(NamedTuple):
    """Waiting and new steps of each lane in a row, S = n - 1 + T columns.

    Attributes:
        rows: int32 [lanes, S], where each lies among the rows of waiting and of new steps, one after the other.
        there: bool [lanes, S], which there are: the first of each lane.
        count: int32 [lanes], how many.
    """

    rows: Array
    there: Array
    count: Array


@dataclasses.dataclass(frozen=True)
class NStepOfAdded(NStep):
    """n-step returns computed as steps are added; see `n_step`."""

    delays = True

    def check(self, spec: BufferSpec, marks: Marks) -> None:
        """Items come later than they are added, and no longer follow on each other."""
        super().check(spec, marks)
        who = "n_step(at='add')"
        if any(other.words for other in spec.transforms):
            raise ValueError(
                f"{who}: rewards are added up before her could choose goals for them; give n_step(at='sample')"
            )
        if not spec.writer.overwrites:
            raise ValueError(
                f"{who}: a trajectory's end writes up to {self.n} items at once, which {spec.writer} may have no "
                f"room for; give n_step(at='sample'), or writer=frb.RoundRobin()"
            )
        if spec.sampler.marks is not None:
            raise ValueError(
                f"{who}: the items stored are transitions over {self.n} steps and make no slices; "
                f"give n_step(at='sample') with {type(spec.sampler).__name__}"
            )

    def columns(self, spec: BufferSpec) -> dict[str, ArraySpec]:
        """What cannot be told from the transformed leaves."""
        reward = spec.leaves[self.positions(spec).reward]
        return {
            STEPS: Unbounded((), "int32"),
            ORIGINAL: Unbounded(reward.shape, reward.dtype),
            NONTERMINAL: Binary(),
        }

    def kept(self, spec: BufferSpec) -> dict[str, KeptArray]:
        """The waiting steps."""
        rows = (spec.lanes or 1) * (self.n - 1)
        if rows == 0:
            return {}
        return {
            name: KeptArray((rows, *leaf.shape), layout.KEPT_AS.get(leaf.dtype, leaf.dtype))
            for name, leaf in self._waiting(spec)
        }

    def counters(self, spec: BufferSpec) -> tuple[tuple[str, int], ...]:
        """How many wait."""
        return ((PENDING, spec.lanes or 1),)

    def rows(self, spec: BufferSpec, batch: int) -> int:
        """All that wait may be written, and all that come."""
        return batch + (spec.lanes or 1) * (self.n - 1) if batch else 0

    def incoming(
        self, ops: Ops, draft: Draft, leaves: Sequence[Array], batch: int, mask: Array | None
    ) -> tuple[Sequence[Array], Array | None]:
        """Put new steps behind the waiting ones, and write those whose n steps, or whose trajectory, are complete."""
        spec, positions = draft.spec, self.positions(draft.spec)
        line = self._line(ops, draft, batch, mask)
        joined = self._joined(ops, draft, leaves)
        place, real, ended = self._ahead(ops, spec, joined, line)
        rows = ops.take(line.rows.reshape(-1), place)
        rewards = ops.take(joined[positions.reward], rows)
        rewards = rewards.reshape(*real.shape, *rewards.shape[1:])
        total, steps = self.fold(ops, rewards, real)
        last = ops.arange(steps.shape[0], like=rows) * self.n + steps - 1
        last_row = ops.take(rows, last)
        complete = (steps == self.n) | ops.take(ended.reshape(-1), ops.take(place, last))
        written = line.there.reshape(-1) & complete
        self._keep(ops, draft, joined, line, written.reshape(line.there.shape))
        own = line.rows.reshape(-1)
        made = [ops.take(x, last_row if k in positions.following else own) for k, x in enumerate(joined)]
        made[positions.reward] = total
        flags = {k: ops.take(joined[k], last_row) for k in (positions.terminated, *positions.truncations)}
        made += [steps, rewards[:, 0], self.nonterminal(positions, flags)]
        # Rows are in the order of time, one of each lane and then the next.
        order = ring.by_time(ops.arange(steps.shape[0], like=rows).reshape(line.rows.shape))
        return [ops.take(leaf, order) for leaf in made], ops.take(written, order)

    def reading(
        self, ops: Ops, draft: Draft, slots: Array, draws: Array | None, read: Reader
    ) -> tuple[Reader, dict[str, Array]]:
        """What was stored beside the items."""
        first = len(draft.spec.leaves) + list(draft.spec.columns).index(STEPS)
        found = read(slots[:, None], range(first, first + 3))
        return read, self.told(ops, *(found[k] for k in range(first, first + 3)))

    def _waiting(self, spec: BufferSpec) -> list[tuple[str, ArraySpec]]:
        return [(f"{WAITING}/{name}", leaf) for name, leaf in zip(spec.names, spec.leaves, strict=True)]

    def _line(self, ops: Ops, draft: Draft, batch: int, mask: Array | None) -> Line:
        pending = draft.counters.more[PENDING]
        lanes, waiting = pending.shape[0], self.n - 1
        steps = batch // lanes
        lane = ops.arange(lanes, like=pending)[:, None]
        if mask is None:
            rows, new = ops.arange(steps, like=pending)[None, :] * lanes + lane, ops.full_like(pending, steps)
        else:
            rows, new = ring.compact(ops, lanes, mask)
        column = ops.arange(waiting + steps, like=pending)[None, :] + ops.full_like(lane, 0)
        count = pending + new
        behind = column - pending[:, None]
        at = ops.minimum(ops.maximum(behind, ops.full_like(behind, 0)), ops.full_like(behind, steps - 1))
        fresh = ops.take(rows.reshape(-1), (lane * steps + at).reshape(-1)).reshape(column.shape)
        return Line(
            ops.where(behind < 0, lane * waiting + column, fresh + lanes * waiting), column < count[:, None], count
        )

    def _joined(self, ops: Ops, draft: Draft, leaves: Sequence[Array]) -> list[Array]:
        """The leaves of waiting and of new steps, one after the other."""
        if self.n == 1:
            return list(leaves)
        waiting = [
            ops.bitcast(draft.kept[name], leaf.dtype) if leaf.dtype in layout.KEPT_AS else draft.kept[name]
            for name, leaf in self._waiting(draft.spec)
        ]
        return [ops.concat(pair, 0) for pair in zip(waiting, leaves, strict=True)]

    def _ahead(self, ops: Ops, spec: BufferSpec, joined: Sequence[Array], line: Line) -> tuple[Array, Array, Array]:
        """The n columns from each one on.

        Returns:
            Their places in the line, int32 [lanes * S * n], past its end the last one; which are of the same
            trajectory, bool [lanes * S, n]; and where trajectories are known to end, bool [lanes, S].
        """
        lanes, columns = line.rows.shape
        ended = self._ended(ops, spec, joined, line)
        ends = ops.cast(ended, "int32")
        number = ops.cumsum(ends) - ends  # of the trajectory, in its lane
        ahead = ops.arange(columns, like=line.rows)[:, None] + ops.arange(self.n, like=line.rows)[None, :]
        inside = ops.minimum(ahead, ops.full_like(ahead, columns - 1)).reshape(1, -1)
        place = (ops.arange(lanes, like=line.rows)[:, None] * columns + inside).reshape(-1)
        same = ops.take(number.reshape(-1), place).reshape(lanes, columns, self.n) == number[:, :, None]
        there = ops.take(line.there.reshape(-1), place).reshape(lanes, columns, self.n)
        real = there & same & (ahead < columns)[None]
        return place, real.reshape(lanes * columns, self.n), ended

    def _ended(self, ops: Ops, spec: BufferSpec, joined: Sequence[Array], line: Line) -> Array:
        """Whether a column is known to be its trajectory's last, bool [lanes, S]."""
        rows = line.rows.reshape(-1)

        def in_line(key: nest.Key) -> Array:
            leaf = joined[nest.position(spec.names, key, "n_step")]
            return ops.take(leaf.reshape(-1), rows).reshape(line.rows.shape)

        nowhere = line.there & ~line.there
        ended = nowhere
        for key in self.end_keys or ():
            ended = ended | (in_line(key) & line.there)
        if self.trajectory_key is not None:
            ids = in_line(self.trajectory_key)
            other = (ids[:, 1:] != ids[:, :-1]) & line.there[:, 1:]
            ended = ended | ops.concat([other, nowhere[:, :1]], 1)
        return ended

    def _keep(self, ops: Ops, draft: Draft, joined: Sequence[Array], line: Line, written: Array) -> None:
        """Let the steps that were not written wait: they are the last of their lanes."""
        lanes, columns = line.rows.shape
        done = ops.cumsum(ops.cast(written, "int32"))[:, -1]
        draft.count(**{PENDING: line.count - done})
        if self.n == 1:
            return
        column = done[:, None] + ops.arange(self.n - 1, like=done)[None, :]
        column = ops.minimum(column, ops.full_like(column, columns - 1))
        place = ops.arange(lanes, like=done)[:, None] * columns + column
        rows = ops.take(line.rows.reshape(-1), place.reshape(-1))
        slots = ops.arange(rows.shape[0], like=done)
        for (name, leaf), values in zip(self._waiting(draft.spec), joined, strict=True):
            new = ops.take(values, rows)
            new = ops.bitcast(new, layout.KEPT_AS[leaf.dtype]) if leaf.dtype in layout.KEPT_AS else new
            draft.kept[name] = ops.set_at(draft.kept[name], slots, new)
