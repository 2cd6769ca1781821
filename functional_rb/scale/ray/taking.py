"""Batches of queues in shards: each item is given to one client, once, whatever gets lost on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from functional_rb.base.arrays import Nest
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.sample import AnySample
from functional_rb.scale.ray import blocks
from functional_rb.scale.ray.arrays import NumPyArrays
from functional_rb.scale.ray.draw import Asked, Draw, ShardAnswer
from functional_rb.scale.ray.drawing import Drawing, columns_of
from functional_rb.scale.ray.messages import Ticket
from functional_rb.scale.ray.permits import LONGEST, SHORTEST, Permits
from functional_rb.scale.ray.watch import Watch


class Taking(Drawing):
    """Takes items out of the shards of a queue, the oldest of each.

    Shards are asked for what they are known to have. What comes is kept until a whole batch is there: so a batch that
    is not complete in time loses nothing. A question whose answer is lost is asked again.
    """

    def __init__(self, watch: Watch, permits: Permits, spec: BufferSpec, arrays: NumPyArrays) -> None:
        super().__init__(watch, permits, spec, arrays)
        # Windows come one of each lane at a time, items one by one.
        self._round = spec.plan.ring.lanes
        self._numbers = [0] * len(watch.channels)
        self._open: deque[Asked] = deque()
        # Questions without an answer, to be asked again when their shard answers.
        self._again: list[Asked] = []
        # Rows that have come and were not given out yet.
        self._here: deque[ShardAnswer] = deque()

    # Shards are asked for the rows of all batches that were begun, whichever of them gets which.
    def _begun(self, draw: Draw, deadline: float, wait: bool) -> bool:
        wanted = sum(one.size for one in self._permits.begun)
        self._ask_for(wanted - self._rows_here() - self._rows_asked(), draw.oldest)
        return wait or self._rows_here() + self._rows_asked() >= wanted

    def _rows_here(self) -> int:
        return sum(answer.drawn.rows for answer in self._here)

    def _rows_asked(self, shard: int | None = None) -> int:
        return sum(asked.rows for asked in self._open if shard in (None, asked.shard))

    # Ask for rows by what the shards are known to have; whether any was asked.
    def _ask_for(self, rows: int, oldest: int | None) -> bool:
        known = [int(standing.mass) for standing in self._watch.standings]
        there = np.array([max(mass - self._rows_asked(k), 0) for k, mass in enumerate(known)])
        rows = min(rows, int(there.sum()))
        if rows <= 0:
            return False
        shares = np.diff(np.floor(np.cumsum([0, *there]) * rows / there.sum()).astype(int))
        for k in np.flatnonzero(shares).tolist():
            self._numbers[k] += 1
            count = -(-int(shares[k]) // self._round) * self._round
            self._put(Asked(k, self._watch.channels[k].epoch, count, None, self._numbers[k], oldest))
        return True

    def _put(self, asked: Asked) -> None:
        waited_for = [one.number for one in (*self._open, *self._again) if one.shard == asked.shard]
        heard = min([asked.number, *waited_for])
        ticket = Ticket(self._watch.connection, asked.epoch, asked.number, heard)
        call = self._watch.transport.call(asked.shard, "sample", 0, asked.rows, asked.oldest, ticket)
        self._open.append(asked._replace(call=call))

    def _finished(self, draw: Draw, betas: Sequence[float], deadline: float) -> list[AnySample[Nest]]:
        pause = SHORTEST
        while self._rows_here() < draw.size:
            if self._came(draw, deadline):
                pause = SHORTEST
                continue
            self._watch.transport.sleep(pause)
            pause = min(2 * pause, LONGEST)
        # The rows that came first, in their order; what is left of an answer comes first in the next batch.
        answers, missing = list[ShardAnswer](), draw.size
        while missing:
            answer = self._here.popleft()
            rows = min(answer.drawn.rows, missing)
            answers.append(answer._replace(columns=[column[:rows] for column in answer.columns]))
            if rows < answer.drawn.rows:
                rest = answer.drawn._replace(rows=answer.drawn.rows - rows)
                self._here.appendleft(ShardAnswer(answer.shard, rest, [column[rows:] for column in answer.columns]))
            missing -= rows
        leaves, named = columns_of(answers)
        real = named["mask"].reshape(draw.size, -1).any(1)
        named["probabilities"] = np.where(real, named["probabilities"], np.float32(0))
        named["weights"] = named["probabilities"].copy()
        return self._samples(answers[0], leaves, named, len(betas))

    # Take what has come, or ask for what is missing; False if there is nothing to be had at present.
    def _came(self, draw: Draw, deadline: float) -> bool:
        watch = self._watch
        if self._open:
            asked = self._open[0]
            try:
                drawn = self._answer(asked, deadline)
            except TimeoutError:  # the answer is still waited for
                raise
            except Exception:  # the shard has failed, and given nothing
                self._open.popleft()
                raise
            self._open.popleft()
            if drawn is None:
                self._again.append(asked._replace(call=None))
            elif drawn.rows:
                self._here.append(ShardAnswer(asked.shard, drawn, blocks.unpack(drawn.block)))
            return True
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
