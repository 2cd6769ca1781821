"""A batch while shards draw it: whom it is asked of, by which chances, and what has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.scale.ray import law
from functional_rb.scale.ray.law import Floats
from functional_rb.scale.ray.messages import Drawn, Standing


class Asked(NamedTuple):
    """A question for rows of one shard."""

    shard: int  # who is asked
    epoch: int  # of that shard, as the client knew it when it asked
    rows: int  # how many
    call: object  # what stands for the answer
    number: int = 0  # of the question to a queue
    oldest: int | None = None  # see `Client.sample`


class ShardAnswer(NamedTuple):
    """Rows that have come from one shard: the answer, and its arrays."""

    shard: int
    drawn: Drawn
    columns: list[NumpyArray]


class Draw:
    """A batch of so many rows that is asked for; for `oldest` see `Client.sample`."""

    standings: tuple[Standing, ...]  # of the shards, by which the chances were made
    chances: Floats  # float64 [K], that of each shard; 0 of those that are left out
    answers: list[ShardAnswer]  # what has come

    def __init__(self, size: int, seeds: np.random.SeedSequence, oldest: int | None) -> None:
        self.size, self.oldest = size, oldest
        self.random = np.random.Generator(np.random.Philox(seeds))  # draws the randomness of this batch
        self.questions: list[Asked] = []  # those that have no answer yet

    def restart(self, standings: Sequence[Standing]) -> None:
        self.standings = tuple(standings)
        self.chances = law.shares([standing.mass for standing in standings])
        self.answers = []

    def leave_out(self, k: int) -> int:
        """Draw no more from a shard, and drop what came from it earlier; returns how many rows that were.

        So all rows are drawn by one law, that of the shards that are left: a row that was first drawn from another of
        them stays, one that was not is drawn again among these, and c_j + c_k * c_j / (1 - c_k) = c_j / (1 - c_k).
        """
        self.chances = law.shares(np.where(np.arange(len(self.chances)) == k, 0.0, self.chances))
        gone = sum(answer.drawn.rows for answer in self.answers if answer.shard == k)
        self.answers = [answer for answer in self.answers if answer.shard != k]
        return gone

    def leasts(self) -> Floats:
        """The least chance of an item in each shard, float64 [K], as it is now known."""
        leasts = np.array([standing.least for standing in self.standings], np.float64)
        for answer in self.answers:
            leasts[answer.shard] = answer.drawn.standing.least
        return leasts
