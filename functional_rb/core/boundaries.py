"""The leaves of an item that tell where episodes begin and end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from functional_rb.base import nest
from functional_rb.base.nest import Key, Keys
from functional_rb.specs.values import Outline

USUAL_ENDS: tuple[Keys, ...] = (
    Keys([("next", "done")]),
    Keys(["done"]),
    Keys([("next", "terminated"), ("next", "truncated")]),
    Keys(["terminated", "truncated"]),
)
NO_KEYS = Keys()
USUAL_REWARDS: tuple[Key, ...] = (("next", "reward"), "reward")


@dataclasses.dataclass(frozen=True)
class EpisodeBoundaries:
    """The leaves of an item that tell where episodes (trajectories) begin and end.

    Attributes:
        end_keys: paths of bool leaves that mark a trajectory's last step; any of them does. Of those that have several
            bools, one for each agent, they do once each agent is done.
        trajectory_key: path of an integer leaf that is another in every trajectory than in the one before. Without
            either a lane is one trajectory that never ends.
    """

    end_keys: Keys = NO_KEYS
    trajectory_key: Key | None = None

    @classmethod
    def find(
        cls, end_keys: Keys | None, trajectory_key: Key | None, names: Sequence[str], who: str
    ) -> EpisodeBoundaries:
        """The keys given, `end_keys=()` for none; where nothing is given, the usual ends among the leaves' names."""
        if end_keys is not None or trajectory_key is not None:
            return cls(end_keys or NO_KEYS, trajectory_key)
        for keys in USUAL_ENDS:
            if all(nest.show_key(key) in names for key in keys):
                return cls(keys)
        raise ValueError(
            f"{who}: the item has no leaf 'done' (nor 'next/done', nor 'terminated' with 'truncated') "
            f"that tells where trajectories end; give end_keys=[...] or trajectory_key=..., of the leaves {names}; "
            f"or end_keys=(), if they never end"
        )

    @property
    def end_keys_as_given(self) -> Keys | None:
        """The end keys as the fields of samplers and transforms have them: None where only a trajectory key is."""
        return self.end_keys or (None if self.trajectory_key is not None else NO_KEYS)

    @property
    def names(self) -> frozenset[str]:
        """The names of the leaves that mark the boundaries."""
        return frozenset(nest.show_key(key) for key in (*self.end_keys, self.trajectory_key) if key is not None)

    def check(self, outline: Outline, who: str, agents: tuple[int, ...] = ()) -> None:
        """Refuse leaves that do not exist or cannot tell; ends may have one bool for each agent, in this shape."""
        for key in self.end_keys:
            leaf = outline.leaves[nest.position(outline.names, key, who)]
            if leaf.dtype != "bool" or (math.prod(leaf.shape) != 1 and leaf.shape != agents):
                raise ValueError(
                    f"{who}: end key {key!r}: expected one bool an item, got {leaf.dtype} of shape {leaf.shape}; "
                    f"name another leaf"
                )
        if self.trajectory_key is not None:
            leaf = outline.leaves[nest.position(outline.names, self.trajectory_key, who)]
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
