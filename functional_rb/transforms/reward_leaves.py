"""The leaves of rewards that a transform is told of: one, several, or all of a nest, such as a dict of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from functional_rb.base import nest
from functional_rb.base.nest import Key, Path
from functional_rb.core.boundaries import USUAL_REWARDS

if TYPE_CHECKING:
    from functional_rb.core.plan import Plan

# The key of a leaf or a nest; several of them as a tuple of paths.
RewardKey = Key | tuple[Path, ...]


def checked(value: Any, who: str) -> RewardKey | None:
    """The key of a leaf or a nest, as it is; of several, in a list, or a tuple of tuples, a tuple of paths."""
    if not isinstance(value, list) and not are_several(value):
        key: RewardKey | None = value
        return key
    keys = nest.checked_keys(value, "reward_key", who) or ()
    paths = tuple((each,) if isinstance(each, str) else each for each in keys)
    if not paths or len({nest.show_key(path) for path in paths}) < len(paths):
        raise ValueError(f"{who}: expected reward_key as the key of a leaf, or a list of several, got {value!r}")
    return paths


def each_of(key: RewardKey | None) -> tuple[Key, ...]:
    if key is None:
        return ()
    return key if are_several(key) else (key,)  # type: ignore[return-value]  # `are_several` tells the type


def are_several(key: object) -> bool:
    return isinstance(key, tuple) and key != () and isinstance(key[0], tuple)


def usual(plan: Plan) -> Key | None:
    """The usual leaf of rewards, or nest of such leaves, that the item has."""
    return next((key for key in USUAL_REWARDS if nest.positions_below(plan.names, key)), None)


def positions(plan: Plan, key: RewardKey | None, who: str) -> tuple[tuple[int, ...], ...]:
    """The positions of all leaves of rewards, for each of the keys those that it names, each leaf once."""
    of_keys = tuple(
        nest.positions_below(plan.names, one) or (nest.position(plan.names, one, who),) for one in each_of(key)
    )
    named = [position for each in of_keys for position in each]
    twice = next((position for position in named if named.count(position) > 1), None)
    if twice is not None:
        raise ValueError(f"{who}: reward_key {list(each_of(key))} names leaf {plan.names[twice]!r} twice; name it once")
    return of_keys
