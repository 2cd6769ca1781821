"""A batch while shards draw it: whom it is asked of, by which chances, and what has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb.scale.ray import law
from functional_rb.scale.ray.law import Floats
from functional_rb.scale.ray.messages import Drawn, Standing


class Draw:
    """A batch that is asked for.

    Attributes:
        size: how many rows it has.
        oldest: see `Client.sample`.
        random: of this batch.
        standings: of the shards, by which the chances were made.
        chances: float64 [K], of each shard, those left out without any.
        calls: shard, rows, and what stands for their result.
        parts: what has come, by shard.
    """

    standings: tuple[Standing, ...]
    chances: Floats
    parts: list[tuple[int, Drawn]]

    def __init__(self, size: int, seeds: np.random.SeedSequence, oldest: int | None) -> None:
        """Nothing is asked for yet."""
        self.size, self.oldest = size, oldest
        self.random = np.random.Generator(np.random.Philox(seeds))
        self.calls: list[tuple[int, int, Any]] = []

    def restart(self, standings: Sequence[Standing]) -> None:
        """Begin with how the shards stand now."""
        self.standings = tuple(standings)
        self.chances = law.shares([standing.mass for standing in standings])
        self.parts = []

    def leave_out(self, k: int) -> int:
        """Draw no more from a shard; what came from it earlier goes too, and how many rows that were is returned.

        So all rows are drawn by one law, that of the shards that are left: a row that was first drawn from another of
        them stays, one that was not is drawn again among these, and c_j + c_k * c_j / (1 - c_k) = c_j / (1 - c_k).
        """
        self.chances = law.shares(np.where(np.arange(len(self.chances)) == k, 0.0, self.chances))
        gone = sum(drawn.rows for place, drawn in self.parts if place == k)
        self.parts = [(place, drawn) for place, drawn in self.parts if place != k]
        return gone

    def leasts(self) -> Floats:
        """The least chance of an item in each shard, float64 [K], as it is now known."""
        found = np.array([standing.least for standing in self.standings], np.float64)
        for k, drawn in self.parts:
            found[k] = drawn.standing.least
        return found
