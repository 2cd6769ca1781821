"""The checkpoints that a state succeeds, as far as it knows them, where a backend's states have an identity.

Counters cannot tell a state's successor from its sibling, made from an older state by other items. So a save gives
the state a *stamp*, a random number that goes into the checkpoint too, and every state made from it inherits the stamp,
with how many rows have been added since. A state that has the stamp of a checkpoint differs from it by those adds.
"""

from __future__ import annotations

from typing import NamedTuple

# The number of last saves that are known: one for each of the places that are saved to in turn.
REMEMBERED = 4


class SaveHistory(NamedTuple):
    """The saves that a state succeeds, without any rewritten row since.

    Attributes:
        added: how many rows have been added, those that a mask left out included.
        stamps: of each save its stamp, and how many had been added then, the newest last.

    Example:
        >>> NEW.saved("a").after(3).saved("b").after(4).since("a")
        7
    """

    added: int
    stamps: tuple[tuple[str, int], ...]

    def after(self, rows: int) -> SaveHistory:
        """The save history of a state to which so many rows have been added."""
        return SaveHistory(self.added + rows, self.stamps)

    def saved(self, stamp: str) -> SaveHistory:
        """The save history of a state that is saved with a stamp."""
        return SaveHistory(self.added, (*self.stamps[1 - REMEMBERED :], (stamp, self.added)))

    def since(self, stamp: str) -> int | None:
        """At most so many rows were added since that save; None if the state does not succeed it."""
        return next((self.added - then for known, then in self.stamps if known == stamp), None)


# The save history of a state that was never saved.
NEW = SaveHistory(0, ())
