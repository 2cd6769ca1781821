"""Batches of queues in shards: each item is given to one client, once, whatever gets lost on the way."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample
from functional_rb.scale.ray import blocks
from functional_rb.scale.ray.arrays import NumPyArrays
from functional_rb.scale.ray.blocks import Array
from functional_rb.scale.ray.draw import Draw
from functional_rb.scale.ray.drawing import Drawing, aligned
from functional_rb.scale.ray.messages import Drawn, Ticket
from functional_rb.scale.ray.permits import LONGEST, SHORTEST, Permits
from functional_rb.scale.ray.transport import ShardDiedError
from functional_rb.scale.ray.watch import Watch


class Asked(NamedTuple):
    """A question for items of one shard."""

    shard: int
    epoch: int
    number: int
    rows: int
    oldest: int | None
    call: Any


class Part(NamedTuple):
    """Rows that have come from one shard and were not given out yet."""

    shard: int
    drawn: Drawn
    columns: list[Array]


class Taking(Drawing):
    """Takes items out of the shards of a queue, the oldest of each.

    Shards are asked for what they are known to have. What comes is kept until a whole batch is there: so a batch that
    is not complete in time loses nothing. A question whose answer is lost is asked again.
    """

    def __init__(self, watch: Watch, permits: Permits, spec: BufferSpec, arrays: NumPyArrays) -> None:
        """Of the client that has the watch."""
        super().__init__(watch, permits, spec, arrays)
        # Windows come one of each lane at a time, items one by one.
        self._round = spec.plan.ring.lanes
        self._numbers = [0] * len(watch.channels)
        self._open: deque[Asked] = deque()
        # Questions without an answer, to be asked again when their shard answers.
        self._again: list[Asked] = []
        self._here: deque[Part] = deque()
        # Batches that were begun and not finished; of an iterator that was left early they are gone with it.
        self._begun: weakref.WeakSet[Draw] = weakref.WeakSet()

    def begin(self, draw: Draw, deadline: float, exact: bool = False, wait: bool = True) -> bool:
        """Ask shards for what they have, up to the rows of all batches that were begun.

        False if there is nothing, and nothing may be waited for.
        """
        if not self._permits.ask("sample", draw.size, deadline, "sample", wait):
            return False
        self._watch.poll()
        self._watch.post()
        if exact:
            self._watch.ask_all(deadline)
        self._begun.add(draw)
        self._ask_for(self._rows_wanted() - self._rows_here() - self._rows_asked(), draw.oldest)
        if not wait and self._rows_here() + self._rows_asked() < self._rows_wanted():
            self._give_up(draw)
            return False
        return True

    def finish(self, draw: Draw, betas: Sequence[float], deadline: float) -> list[AnySample[Any]]:
        """Wait until a whole batch is there."""
        pause = SHORTEST
        try:
            while self._rows_here() < draw.size:
                if self._came(draw, deadline):
                    pause = SHORTEST
                    continue
                self._watch.transport.sleep(pause)
                pause = min(2 * pause, LONGEST)
        except Exception:
            self._give_up(draw)
            raise
        self._begun.discard(draw)
        return self._given(draw.size, len(betas))

    def _give_up(self, draw: Draw) -> None:
        self._begun.discard(draw)
        self._permits.give_back(draw.size)

    def _rows_wanted(self) -> int:
        return sum(draw.size for draw in self._begun)

    def _rows_here(self) -> int:
        return sum(part.drawn.rows for part in self._here)

    def _rows_asked(self, shard: int | None = None) -> int:
        return sum(asked.rows for asked in self._open if shard in (None, asked.shard))

    # ---------------------------------------------------------------- questions

    def _ask_for(self, rows: int, oldest: int | None) -> bool:
        """Ask for rows by what the shards are known to have; whether any was asked."""
        known = [int(standing.mass) for standing in self._watch.standings]
        there = np.array([max(mass - self._rows_asked(k), 0) for k, mass in enumerate(known)])
        rows = min(rows, int(there.sum()))
        if rows <= 0:
            return False
        shares = np.diff(np.floor(np.cumsum([0, *there]) * rows / there.sum()).astype(int))
        for k in np.flatnonzero(shares).tolist():
            self._numbers[k] += 1
            count = -(-int(shares[k]) // self._round) * self._round
            self._put(Asked(k, self._watch.channels[k].epoch, self._numbers[k], count, oldest, None))
        return True

    def _put(self, asked: Asked) -> None:
        waited_for = [one.number for one in (*self._open, *self._again) if one.shard == asked.shard]
        heard = min([asked.number, *waited_for])
        ticket = Ticket(self._watch.connection, asked.epoch, asked.number, heard)
        call = self._watch.transport.call(asked.shard, "sample", 0, asked.rows, asked.oldest, ticket)
        self._open.append(asked._replace(call=call))

    def _came(self, draw: Draw, deadline: float) -> bool:
        """Take what has come, or ask for what is missing; False if there is nothing to be had at present."""
        if self._open:
            return self._take_answer(deadline)
        watch = self._watch
        watch.poll()
        again, self._again = self._again, []
        for asked in again:
            channel = watch.channels[asked.shard]
            if not channel.alive:
                self._again.append(asked)
            elif channel.epoch == asked.epoch:  # else it has died, and what it gave is noted there
                self._put(asked)
        if self._open or self._ask_for(draw.size - self._rows_here(), draw.oldest):
            return True
        watch.ask_behind_own(deadline)
        if self._ask_for(draw.size - self._rows_here(), draw.oldest):
            return True
        if watch.is_late(deadline):
            raise TimeoutError(
                f"sample: waited {watch.options.timeout} s for {draw.size} items of the queue, of which "
                f"{self._rows_here()} have come, and are kept for the next call; {watch.stores()}: are actors adding?"
            )
        return False

    def _take_answer(self, deadline: float) -> bool:
        """Take the oldest answer."""
        asked, watch = self._open[0], self._watch
        try:
            drawn: Drawn = watch.transport.result(asked.call, watch.left(deadline))
        except ShardDiedError:
            self._open.popleft()
            self._again.append(asked._replace(call=None))
            if watch.channels[asked.shard].epoch == asked.epoch:  # else it was a life of which the end is known
                watch.died(asked.shard)
            return True
        except TimeoutError:
            raise TimeoutError(
                f"sample: waited for shard {asked.shard} to give {asked.rows} items; it is alive, but behind: start "
                f"more shards"
            ) from None
        except Exception:  # the shard has failed, and given nothing
            self._open.popleft()
            raise
        self._open.popleft()
        if drawn.rows:
            self._here.append(Part(asked.shard, drawn, blocks.unpack(drawn.block)))
        channel = watch.channels[asked.shard]
        if channel.alive and channel.epoch == asked.epoch:
            watch.hear(asked.shard, drawn.standing)
        return True

    # ---------------------------------------------------------------- answers

    def _given(self, size: int, batches: int) -> list[AnySample[Any]]:
        """Samples of the rows that came first, in their order."""
        parts, missing = [], size
        while missing:
            part = self._here.popleft()
            rows = min(part.drawn.rows, missing)
            parts.append(part._replace(columns=[column[:rows] for column in part.columns]))
            if rows < part.drawn.rows:
                rest = part.drawn._replace(rows=part.drawn.rows - rows)
                self._here.appendleft(Part(part.shard, rest, [column[rows:] for column in part.columns]))
            missing -= rows
        first = parts[0].drawn
        columns = [aligned(arrays) for arrays in zip(*(part.columns for part in parts), strict=True)]
        names = (*first.names, *first.extras)
        leaves, named = columns[: -len(names)], dict(zip(names, columns[-len(names) :], strict=True))
        real = named["mask"].reshape(size, -1).any(1)
        named["probabilities"] = np.where(real, named["probabilities"], np.float32(0))
        if self._structure is None:
            self._structure = self._described(parts[0].shard)
        samples = []
        for at in np.split(np.arange(size), batches):
            these = {name: array[at] for name, array in named.items()}
            these["weights"] = these["probabilities"].copy()
            samples.append(self._as_sample([leaf[at] for leaf in leaves], these, first.extras))
        return samples
