"""Goals in hindsight: transitions are relabelled with goals that their trajectory did achieve.

M. Andrychowicz et al., "Hindsight experience replay", 2017.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args

import numpy as np

from functional_rb.base import dtypes, functions, nest
from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.base.dtypes import shown
from functional_rb.base.nest import Key, Keys
from functional_rb.core import counters
from functional_rb.core.boundaries import NO_KEYS, EpisodeBoundaries
from functional_rb.core.episodes import STEP_IN_EPISODE, boundaries_for
from functional_rb.core.strategy import Reader, Transform, need_order
from functional_rb.ops.part_kernels import call_users, replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import below
from functional_rb.structures import episode_windows, ring, row_layout
from functional_rb.structures.episode_windows import Lanes
from functional_rb.structures.ring import Ring, RingState
from functional_rb.transforms import reward_leaves
from functional_rb.transforms.reward_leaves import RewardKey

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan

Strategy = Literal["future", "final", "episode", "random"]
Reward = Callable[[BackendArray, BackendArray], Nest]
LARGEST_K = 2**20


@dataclasses.dataclass(frozen=True)
class Hindsight(Transform):
    """Hindsight relabelling; see `her`."""

    strategy: Strategy
    k: int | float
    reward: Reward | None = None
    achieved_key: Key | None = None
    goal_keys: Keys | None = None
    reward_key: RewardKey | None = None
    end_keys: Keys | None = None
    trajectory_key: Key | None = None

    order = 0
    words = 4  # two whether to relabel, two by which step

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"her: expected strategy 'future', 'final', 'episode' or 'random', got {self.strategy!r}")
        k: Any = self.k
        good = isinstance(k, int | float | np.integer | np.floating) and not isinstance(k, bool) and k >= 0
        if not good or (k > LARGEST_K and k != math.inf):
            raise ValueError(f"her: expected k as a number from 0 to {LARGEST_K}, or infinity, got {k!r}")
        # A whole number stays one: for an int the choice of items is exact, see `_chosen`.
        object.__setattr__(self, "k", int(k) if k != math.inf and k == int(k) else float(k))
        if self.reward is not None and not callable(self.reward):
            raise TypeError(f"her: expected reward as a function of (achieved, goal), got {self.reward!r}")
        object.__setattr__(self, "reward", functions.comparable(self.reward))
        object.__setattr__(self, "reward_key", reward_leaves.checked(self.reward_key, "her"))
        for name in ("goal_keys", "end_keys"):
            object.__setattr__(self, name, nest.checked_keys(getattr(self, name), name, "her"))

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        """Pickle as dataclasses are, or say what cannot be."""
        functions.check_picklable(self.reward, "BufferSpec.transforms: her(reward=...)")
        return super().__reduce_ex__(protocol)

    @property
    def boundaries(self) -> EpisodeBoundaries | None:
        """Where trajectories end; None if goals come from any item, whatever its trajectory."""
        if self.strategy == "random":
            return None
        return EpisodeBoundaries(self.end_keys or NO_KEYS, self.trajectory_key)

    def resolve(self, plan: Plan) -> Hindsight:
        if self.strategy == "random":
            boundaries = EpisodeBoundaries(self.end_keys or NO_KEYS, self.trajectory_key)
        else:
            boundaries = boundaries_for(plan, self.end_keys, self.trajectory_key, "her")
        resolved = dataclasses.replace(
            self,
            achieved_key=_achieved(plan) if self.achieved_key is None else self.achieved_key,
            goal_keys=_goals(plan) if self.goal_keys is None else self.goal_keys,
            reward_key=self.reward_key or reward_leaves.usual(plan),
            end_keys=self.end_keys if self.strategy == "random" else boundaries.end_keys_as_given,
            trajectory_key=boundaries.trajectory_key,
        )
        boundaries.check(plan.outline, "her")
        resolved.check(plan)
        return resolved

    def check(self, plan: Plan) -> None:
        need_order(plan, "her")
        if not plan.single_items:
            raise ValueError(
                f"her: relabels single transitions, and {plan.sampler} gives slices; "
                f"use frb.Uniform() or frb.Prioritized()"
            )
        achieved, goals = self._achieved(plan), self._goals(plan)
        for position in goals:
            mine, theirs = plan.leaves[position], plan.leaves[achieved]
            if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
                raise ValueError(
                    f"her: leaf {plan.names[position]!r}: expected goals like the achieved ones in "
                    f"{plan.names[achieved]!r}, {theirs}, got {mine}; name others by goal_keys or achieved_key"
                )
        if self.reward is not None and self.reward_key is None:
            raise ValueError(
                f"her: the item has no leaf 'reward' to compute anew; give reward_key=..., one of {plan.names}"
            )
        used = () if self.reward is None else (achieved, *chain(*reward_leaves.positions(plan, self.reward_key, "her")))
        for position in used:
            if position in plan.objects:
                raise ValueError(
                    f"her: leaf {plan.names[position]!r} holds Python objects, and rewards are computed of arrays; "
                    f"leave reward out, or name other leaves by achieved_key and reward_key"
                )

    def reading(
        self, ops: Ops, draft: Draft, drawn: Array, real: Array, draws: Array | None, read: Reader
    ) -> tuple[Reader, dict[str, Array]]:
        """Choose a goal for each step, and read every step with the goal of its draw."""
        assert draws is not None
        plan, achieved, slots = draft.plan, self._achieved(draft.plan), drawn[:, 0]
        # The rings as they were before the draw: a sampler that takes items out has changed the draft's.
        rings = plan.ring, draft.origin[0].ends, draft.auxiliary.get(STEP_IN_EPISODE)
        chosen, sources, handles = find_goals(ops, self.strategy, self.k, *rings, slots, real, draws)
        goals = read(sources[:, None], [achieved])[achieved]
        parts = () if self.reward is None else reward_leaves.positions(plan, self.reward_key, "her")
        rewards = [position for each in parts for position in each]

        def relabelled(steps: Array, wanted: Sequence[int]) -> dict[int, Array]:
            needed = {*wanted, achieved} if set(rewards) & set(wanted) else set(wanted)
            leaves = read(steps, sorted(needed))
            mask, goal = chosen, goals
            if steps.shape[1] > 1:
                draw = ops.arange(steps.shape[0] * steps.shape[1], like=slots) // steps.shape[1]
                mask, goal = ops.take(chosen, draw), ops.take(goals, draw)
            for position in {*self._goals(plan)} & needed:
                leaves[position] = ops.where(row_layout.along(mask, goal), goal, leaves[position])
            if {*rewards} & needed:
                new = self._rewarded(ops, plan, leaves[achieved], goal, parts)
                for position in {*rewards} & needed:
                    leaves[position] = _exchanged(ops, new[position], mask, leaves[position])
            return {k: leaves[k] for k in wanted}

        return relabelled, {"relabelled": chosen, "goal_indices": handles}

    # The rewards that the user's function gives, by the positions of their leaves.
    def _rewarded(
        self, ops: Ops, plan: Plan, achieved: Array, goal: Array, parts: tuple[tuple[int, ...], ...]
    ) -> dict[int, object]:
        assert self.reward is not None
        new = call_users(ops, self.reward, achieved, goal)
        several = reward_leaves.are_several(self.reward_key)
        if several and (not isinstance(new, tuple | list) or len(new) != len(parts)):
            got = f"{len(new)} of them" if isinstance(new, tuple | list) else type(new).__name__
            raise TypeError(
                f"her: expected reward(achieved, goal) as a tuple of {len(parts)} arrays, one for each of reward_key, "
                f"got {got}"
            )
        keys = reward_leaves.each_of(self.reward_key)
        each = zip(keys, parts, new if several else [new], strict=True)
        return {k: array for key, at, rewards in each for k, array in _by_leaf(plan, key, at, rewards).items()}

    def _achieved(self, plan: Plan) -> int:
        assert self.achieved_key is not None
        return nest.position(plan.names, self.achieved_key, "her")

    def _goals(self, plan: Plan) -> list[int]:
        return [nest.position(plan.names, key, "her") for key in self.goal_keys or ()]


@replaceable
def find_goals(
    ops: Ops,
    strategy: Strategy,
    k: int | float,
    held: Ring,
    ends: RingState,
    in_episode: Array | None,
    slots: Array,
    real: Array,
    draws: Array,
) -> tuple[Array, Array, Array]:
    """Choose which items get a goal in hindsight, and whose.

    Args:
        strategy: see `her`.
        k: goals in hindsight for each original one.
        held: the rings.
        ends: where they are.
        in_episode: the step in episode of each slot, int32 [capacity]; None where goals come from anywhere.
        slots: the slots of the items, int32 [m].
        real: which of them there are, bool [m].
        draws: int32 [m, 4] in [0, 2^31).

    Returns:
        Which items are relabelled, bool [m]; the slots of the steps whose achieved goals are taken, int32 [m]; and the
        handles of these steps, -1 for items that stay as they are.
    """
    chosen = real & _chosen(ops, k, draws[:, :2])
    sources = _sources(ops, strategy, held, ends, in_episode, slots, draws[:, 2:])
    handles = ops.where(chosen, ring.handle_of_slot(ops, held, ends, sources), ops.full_like(slots, -1))
    return chosen, sources, handles


# Which items are relabelled, bool [m] for words [m, 2]: exactly so for an int, else within 2^-53.
def _chosen(ops: Ops, k: int | float, draws: Array) -> Array:
    if isinstance(k, int):
        return below(ops, draws, ops.full_like(draws[:, 0], k + 1)) < k
    if math.isinf(k):
        return draws[:, 0] >= 0
    high, low = chance_in_words(k)
    return (draws[:, 0] < high) | ((draws[:, 0] == high) & (draws[:, 1] < low))


def chance_in_words(k: float) -> tuple[int, int]:
    """The chance k / (k + 1) in 62 bits, which two random words are compared with."""
    return divmod(int(k / (k + 1) * 2**62), 2**31)


# The slot of the step whose achieved goal is taken, int32 [m].
def _sources(
    ops: Ops, strategy: Strategy, held: Ring, ends: RingState, in_episode: Array | None, slots: Array, draws: Array
) -> Array:
    if strategy == "random":
        lane, place = ring.lane_at(ops, ends.sizes, below(ops, draws, counters.total(ops, ends.sizes)))
        return ring.item_at(ops, held, ends, lane, place)[0]
    assert in_episode is not None
    lanes = Lanes(held, ends)
    before, after = episode_windows.extent(ops, lanes, in_episode, slots)
    if strategy == "final":
        ahead = after
    elif strategy == "future":
        ahead = below(ops, draws, after + 1)
    else:
        ahead = below(ops, draws, before + after + 1) - before
    return episode_windows.shifted(ops, lanes, slots, ahead)


# What a function of rewards gives for one key, by position: an array, or for a nest a nest with the same keys.
def _by_leaf(plan: Plan, key: Key, positions: tuple[int, ...], new: Nest) -> dict[int, BackendArray]:
    name = nest.show_key(key)
    if plan.names[positions[0]] == name:
        return {positions[0]: new}
    leaves, structure = nest.flatten(new, lambda x: hasattr(x, "dtype") and not hasattr(x, "keys"))
    by_name = {f"{name}/{nest.show(path)}": leaf for path, leaf in zip(structure.paths, leaves, strict=True)}
    names = [plan.names[k] for k in positions]
    if by_name.keys() != {*names}:
        got = type(new).__name__ if structure.kind == "leaf" else f"one with the leaves {sorted(by_name)}"
        raise TypeError(f"her: expected reward(achieved, goal) as a nest with the leaves {names}, got {got}")
    return {k: by_name[plan.names[k]] for k in positions}


# Rewards anew where relabelled, [m, *shape] in the dtype and shape of the old.
def _exchanged(ops: Ops, new: BackendArray, mask: Array, old: Array) -> Array:
    if not (hasattr(new, "shape") and hasattr(new, "dtype")):
        raise TypeError(f"her: expected reward(achieved, goal) as an array, got {type(new).__name__}")
    if tuple(new.shape[:1]) != tuple(old.shape[:1]) or math.prod(new.shape) != math.prod(old.shape):
        raise ValueError(
            f"her: expected reward(achieved, goal) of shape {tuple(old.shape)}, got {tuple(new.shape)}; "
            f"reduce over the goal's last axes alone, as in (...).sum(-1)"
        )
    if dtypes.kind_of(shown(old.dtype)) in ("bool", "int") and dtypes.kind_of(shown(new.dtype)) == "float":
        raise TypeError(
            f"her: expected reward(achieved, goal) of dtype {shown(old.dtype)}, got {shown(new.dtype)}; "
            f"round it there, or change BufferSpec.item"
        )
    return ops.where(row_layout.along(mask, old), ops.cast(new.reshape(old.shape), shown(old.dtype)), old)


def her(
    strategy: Strategy = "future",
    k: float = 4,
    *,
    reward: Reward | None = None,
    achieved_key: Key | None = None,
    goal_keys: Key | Sequence[Key] | None = None,
    reward_key: Key | Sequence[Key] | None = None,
    end_keys: Key | Sequence[Key] | None = None,
    trajectory_key: Key | None = None,
) -> Hindsight:
    """Hindsight relabelling, for `BufferSpec(transforms=...)`: as if each transition were stored with k goals more.

    A transition drawn is relabelled with probability k / (k + 1): its goal becomes one that was achieved by another
    step, of its own trajectory or any, among those still stored (M. Andrychowicz et al., "Hindsight experience replay",
    2017). A sample's `extras` hold, beside each item:

    - `relabelled`: bool.
    - `goal_indices`: int32, the handle of the step that achieved the goal; -1 where not relabelled.

    Args:
        strategy: which step: "future", one from the transition itself on, each with the same chance; "final", the
            trajectory's last; "episode", any, each with the same chance; "random", any that is stored, of whichever
            trajectory, which needs no leaf that tells where these end.
        k: goals in hindsight for each original one, at least 0; also a fraction (a ratio p of relabelled items is
            k = p / (1 - p)), and infinity, for all.
        reward: `reward(achieved [m, *goal], goal [m, *goal])`, which gives the rewards [m] of relabelled transitions: a
            function on arrays of the backend that can be compiled; it stays part of the spec. What is to be pickled
            or saved takes a function of a module, or a `functools.partial` of one. None leaves rewards as they were.
            For a nest of rewards, such as a dict of agents, it gives a nest with the same keys; for a list of several,
            a tuple of what each takes.
        achieved_key: the leaf of the goal achieved after the step; by default the one named "achieved_goal" below
            "next" or "next_...", or "next_achieved_goal".
        goal_keys: all leaves of the desired goal; by default those named "desired_goal" and "next_desired_goal".
        reward_key: the leaf of rewards, a nest of nothing but such leaves, or a list of several; by default
            "next/reward" or "reward".
        end_keys: where trajectories end, as for `Slices`; by default as the sampler has it, or as usual.
        trajectory_key: an integer leaf that is another in every trajectory, as for `Slices`; by default as the sampler
            has it, or none.

    Raises:
        TypeError: if `reward` is no function; from `sample`, if it gives no array, another nest than that of the
            rewards, or floats for integer rewards.
        ValueError: for numbers out of range, leaves that the item lacks or that do not fit, or a sampler or writer that
            does not.

    Example:
        >>> goal = frb.Unbounded((2,))
        >>> item = {"obs": {"desired_goal": goal}, "next_obs": {"achieved_goal": goal}, "done": frb.Binary(())}
        >>> frb.BufferSpec(item, 100, transforms=her("final", k=4)).transforms[0].goal_keys
        [('obs', 'desired_goal')]
    """
    # Keys in any form: `Hindsight` brings them to the one that it keeps.
    keys: Any = {"goal_keys": goal_keys, "reward_key": reward_key, "end_keys": end_keys}
    return Hindsight(strategy, k, reward, achieved_key, trajectory_key=trajectory_key, **keys)


def _achieved(plan: Plan) -> Key:
    paths = [path for path in plan.structure.paths if path]
    keys = [path for path in paths if path[-1] == "next_achieved_goal"]
    keys += [path for path in paths if path[-1] == "achieved_goal" and str(path[0]).startswith("next")]
    if len(keys) != 1:
        raise ValueError(
            f"her: expected one leaf 'achieved_goal' below 'next...', got {[nest.show_key(key) for key in keys]}; "
            f"give achieved_key=..., one of {plan.names}"
        )
    return keys[0]


def _goals(plan: Plan) -> Keys | None:
    keys = tuple(path for path in plan.structure.paths if path and path[-1] in ("desired_goal", "next_desired_goal"))
    if not keys:
        raise ValueError(f"her: the item has no leaf 'desired_goal'; give goal_keys=[...], of the leaves {plan.names}")
    return nest.checked_keys([*keys], "goal_keys", "her")
