"""How fast items may be added and drawn, in proportion to each other.

One limiter stands for all clients. Who wants to add or draw asks it first, and waits while it says no: so actors that
are too fast wait for the learner, and a learner that is too fast waits for the actors.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from functional_rb.base.dtypes import checked_count
from functional_rb.scale.ray.ledger import remember

# Of so many connections the last ticket is remembered.
MOST_CLIENTS = 10_000


@dataclasses.dataclass(frozen=True)
class RateLimit:
    """How many items are drawn for each that is added, over the whole life of a buffer.

    With D items drawn and I items added, D - samples_per_insert * I is kept within `error_buffer` of
    -samples_per_insert * min_size: who would leave that range waits. A batch of b items may be added or drawn only
    while all of it stays within, so the range has to be wider than the largest batches: `error_buffer` of at least
    `samples_per_insert` times the items of an add, and of at least those of a sample.

    Attributes:
        samples_per_insert: how many items are drawn for each that is added; None for no such limit.
        min_size: so many items have to be added before any is drawn.
        error_buffer: how far the number of drawn items may be from what the ratio says, either way; None for ten times
            `samples_per_insert`, or 1024 if that is more.

    Raises:
        ValueError: for a number that is out of range.

    Example:
        >>> RateLimit(samples_per_insert=8.0, min_size=1000).error_buffer
        1024.0
    """

    samples_per_insert: float | None = None
    min_size: int = 1
    error_buffer: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_size", checked_count("RateLimit.min_size", self.min_size, 1, 2**62))
        ratio, room = self.samples_per_insert, self.error_buffer
        if ratio is None:
            if room is not None:
                raise ValueError(
                    f"RateLimit.error_buffer: expected None without samples_per_insert, got {room!r}; give both"
                )
            return
        if not (math.isfinite(ratio) and ratio > 0):
            raise ValueError(f"RateLimit.samples_per_insert: expected a positive number or None, got {ratio!r}")
        room = max(10 * ratio, 1024.0) if room is None else room
        if not (math.isfinite(room) and room >= max(1.0, ratio)):
            raise ValueError(
                f"RateLimit.error_buffer: expected at least {max(1.0, ratio)}, the larger of 1 and samples_per_insert, "
                f"got {room!r}; nothing could ever be added or drawn"
            )
        object.__setattr__(self, "error_buffer", float(room))


class Answer(NamedTuple):
    """Whether something may be added or drawn."""

    granted: bool  # whether it may
    why: str = ""  # what is waited for, if not
    never: bool = False  # whether no waiting helps, as the batch alone is wider than the range


class Limiter:
    """Counts for all clients. It needs no clock and waits for nobody: who is refused asks again."""

    def __init__(self, limit: RateLimit, inserted: int = 0, sampled: int = 0) -> None:
        self.limit, self.inserted, self.sampled = limit, inserted, sampled
        self._tickets: dict[str, int] = {}

    def ask(self, client: str, ticket: int, kind: str, items: int) -> Answer:
        """Whether a client may add or draw ("insert" or "sample") so many items; if so they count as added or drawn.

        The ticket is the number of the question, which rises; one that was granted is granted again, and counts once.
        """
        if self._tickets.get(client, 0) >= ticket:
            return Answer(True)
        answer = self._judge(kind, items)
        if answer.granted:
            remember(self._tickets, client, ticket, MOST_CLIENTS)
            if kind == "insert":
                self.inserted += items
            else:
                self.sampled += items
        return answer

    def give_back(self, items: int) -> None:
        self.sampled -= items

    def _judge(self, kind: str, items: int) -> Answer:
        limit, ratio = self.limit, self.limit.samples_per_insert
        if kind == "sample" and self.inserted < limit.min_size:
            return Answer(False, f"{self._so_far}; nothing is drawn before {limit.min_size} items are added")
        if ratio is None:
            return Answer(True)
        room = limit.error_buffer or 0.0
        middle = ratio * limit.min_size
        if kind == "insert":
            ahead = ratio * (self.inserted + items) - self.sampled - middle
            if ratio * items > 2 * room:
                return Answer(False, self._too_wide("add", items, ratio * items), True)
            if ahead <= room or self.inserted < limit.min_size:
                return Answer(True)
            return Answer(False, f"{self._so_far}; with samples_per_insert={ratio} the next are added after another "
                                 f"{math.ceil(ahead - room)} are drawn: is a learner running?")  # fmt: skip
        behind = self.sampled + items - ratio * self.inserted + middle
        if items > 2 * room:
            return Answer(False, self._too_wide("sample", items, items), True)
        if behind <= room:
            return Answer(True)
        return Answer(False, f"{self._so_far}; with samples_per_insert={ratio} the next are drawn after another "
                             f"{math.ceil((behind - room) / ratio)} are added: are actors running?")  # fmt: skip

    @property
    def _so_far(self) -> str:
        return f"{self.inserted} items were added and {self.sampled} drawn"

    def _too_wide(self, function: str, items: int, needed: float) -> str:
        return (
            f"RateLimit.error_buffer: expected at least {math.ceil(needed / 2)} for {items} items in one {function}, "
            f"got {self.limit.error_buffer}; give a larger one, or smaller batches"
        )
