"""TransferQueue's samplers that draw by this library's laws. Its controller takes one, and asks it for each batch.

What a row belongs to, who made it and what it is worth stands in its tags, TransferQueue's "custom_meta". With a batch
the tags of its rows come back, and with them, of this draw, `PROBABILITY` and `WEIGHT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functional_rb.base import extras
from functional_rb.base.dtypes import checked_count
from functional_rb.samplers import Groups, Prioritized
from functional_rb.scale.transfer_queue.law import PROBABILITY, WEIGHT, Law, seed_of

WHO = "transfer_queue"
extras.imported("transfer_queue", WHO)  # whose error tells what to install

from transfer_queue.sampler import BaseSampler  # noqa: E402  # after the remedy for those who have it not


class LawSampler(BaseSampler):  # type: ignore[misc]  # it has no types
    """Draws by a law. `sampling_config` of `get_meta` may have "version", from which age is counted, and "beta".

    With "dp_rank" and "batch_index" there (and "task_name", if several tasks have them), all that ask for the same two
    get the same batch. A draw follows from the seed, how many were made before, and what is ready.
    """

    def __init__(self, law: Law, consume: bool, seed: int = 0) -> None:
        """Take a law.

        Args:
            law: by which is drawn.
            consume: whether a row is given to each task once; else it stays, and may be drawn again.
            seed: of all draws.
        """
        super().__init__()
        self.law, self.consume = law, consume
        self.seed = checked_count("seed", seed, 0, 2**63 - 1)
        self._draws = 0

    def sample(
        self,
        ready_indexes: list[int],
        batch_size: int,
        *args: object,
        partition: Any = None,
        partition_id: str | None = None,
        task_name: str = "",
        dp_rank: int | None = None,
        batch_index: int | None = None,
        version: int | None = None,
        beta: float | None = None,
        **kwargs: object,
    ) -> tuple[list[int], list[int]]:
        """Draw rows, as the controller asks: of those that are there whole, and that the task has not consumed.

        Returns the numbers of the rows drawn, none if too few can be, and those never to be asked about again by this
        task: what was drawn, if the sampler consumes, and what has become too old. What is not named here is not looked
        at.
        """
        if partition is None:
            raise TypeError(
                f"{type(self).__name__}: expected the partition, whose custom_meta has the tags of rows, got none; use "
                f"TransferQueue 0.1.11 or newer"
            )
        name = partition.partition_id if partition_id is None else partition_id
        tags: Mapping[int, Mapping[str, object]] = partition.custom_meta
        earlier = self._states.get(name, {}).get(task_name, {}).get(dp_rank, {}).get(batch_index)
        if earlier is not None:
            return self._tagged(partition, *earlier)
        seed = seed_of(self.seed, self._draws)
        drawn = self.law.draw([tags.get(k, {}) for k in ready_indexes], batch_size, seed, version, beta)
        if not drawn.rows:
            return [], []
        self._draws += 1
        rows = [ready_indexes[k] for k in drawn.rows]
        chances = dict(zip(rows, zip(drawn.probabilities.tolist(), drawn.weights.tolist(), strict=True), strict=True))
        done = [ready_indexes[k] for k in drawn.stale] + (rows if self.consume else [])
        if dp_rank is not None:
            self._states.setdefault(name, {}).setdefault(task_name, {}).setdefault(dp_rank, {})
            self._states[name][task_name][dp_rank][batch_index] = rows, done, chances
        return self._tagged(partition, rows, done, chances)

    # A draw, whose chances are written into the tags of its rows; those of another draw may stand there since.
    @staticmethod
    def _tagged(
        partition: Any, rows: list[int], done: list[int], chances: Mapping[int, tuple[float, float]]
    ) -> tuple[list[int], list[int]]:
        tags = partition.custom_meta
        partition.set_custom_meta({k: {**tags.get(k, {}), PROBABILITY: p, WEIGHT: w} for k, (p, w) in chances.items()})
        return rows, done

    def save_checkpoint(self) -> dict[str, Any]:
        """What TransferQueue saves of it: what was given to which rank, and how many draws were made."""
        return {**super().save_checkpoint(), "draws": self._draws}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""
        super().load_checkpoint(state)
        self._draws = int(state["draws"])


class GroupSampler(LawSampler):
    """Whole groups, such as the replies to a prompt: each group that has enough rows ready is equally likely.

    It is `frb.Groups` with `interleaved=True`: none comes twice in a batch, and its rows come one behind the other,
    wherever they are stored and whenever they came. Of a larger group those `per_group` come that follow each other
    from any row on; the others stay.

    Example:
        >>> GroupSampler(8, group_tag="uid", max_staleness=2).law.sampler.per_group
        8
    """

    def __init__(
        self,
        per_group: int,
        *,
        group_tag: str = "uid",
        version_tag: str = "version",
        max_staleness: int | None = None,
        consume: bool = True,
        seed: int = 0,
    ) -> None:
        """Take what tells groups apart.

        Args:
            per_group: how many rows of each group; a batch size is a multiple of it.
            group_tag: see `Law`; rows without it wait.
            version_tag: see `Law`.
            max_staleness: a group is given up as soon as one of its rows is older than so many versions; None for
                never.
            consume: see `LawSampler`.
            seed: see `LawSampler`.
        """
        groups = Groups(per_group, group_key="group", interleaved=True)
        law = Law(groups, group_tag, version_tag=version_tag, max_staleness=max_staleness)
        super().__init__(law, consume, seed)


class PrioritizedSampler(LawSampler):
    """Rows in proportion to a power of their priorities, with importance weights: `frb.Prioritized`.

    Example:
        >>> PrioritizedSampler(alpha=0.6, beta=0.4, consume=True).law.sampler.replacement
        False
    """

    def __init__(
        self,
        alpha: float = 0.6,
        beta: float = 0.4,
        *,
        priority_tag: str = "priority",
        version_tag: str = "version",
        max_staleness: int | None = None,
        consume: bool = False,
        replacement: bool | None = None,
        seed: int = 0,
    ) -> None:
        """Take how far priorities count.

        Args:
            alpha: see `frb.Prioritized`; 0 draws all alike.
            beta: see `frb.Prioritized`.
            priority_tag: see `Law`.
            version_tag: see `Law`.
            max_staleness: rows that are older than so many versions are not drawn; None for no limit.
            consume: see `LawSampler`.
            replacement: whether a row may come several times in a batch, by default if rows stay.
            seed: see `LawSampler`.

        Raises:
            ValueError: for settings out of range, or rows that are consumed, but may come twice.
        """
        twice = not consume if replacement is None else replacement
        if consume and twice:
            raise ValueError(
                "PrioritizedSampler: expected replacement=False where rows are consumed, got True; leave it out, or "
                "give consume=False"
            )
        sampler = Prioritized(alpha, beta, replacement=twice)
        law = Law(sampler, priority_tag=priority_tag, version_tag=version_tag, max_staleness=max_staleness)
        super().__init__(law, consume, seed)
