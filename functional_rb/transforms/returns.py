"""What both ways of n-step returns share: which leaves are what, and how rewards are added up.

    R_t = sum_{k < m} gamma^k r_{t+k},    target = R_t + gamma^m V(s_{t+m}) unless step t + m - 1 terminated

where m is n, or less at the end of a trajectory (R. S. Sutton, A. G. Barto, "Reinforcement Learning", 2018, chapter 7).
With rewards and flags of agents each has its own m. Of several leaves of rewards each is added up by itself.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional_rb.base import nest
from functional_rb.base.dtypes import ITEMSIZE, shown
from functional_rb.base.nest import Key, Keys
from functional_rb.core.boundaries import USUAL_REWARDS, EpisodeBoundaries
from functional_rb.core.episodes import boundaries_for
from functional_rb.core.strategy import Reader, Transform
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.specs import ArraySpec, Binary, Unbounded
from functional_rb.structures import row_layout
from functional_rb.transforms import reward_leaves
from functional_rb.transforms.reward_leaves import RewardKey

if TYPE_CHECKING:
    from functional_rb.core.plan import Plan

LARGEST_N = 1024
USUAL_TERMINATED: tuple[Key, ...] = (("next", "terminated"), "terminated", ("next", "done"), "done")
# Entries of a sample beside the items.
STEPS, DISCOUNT, ORIGINAL, NONTERMINAL = "steps", "discount", "original_reward", "nonterminal"
FLAGS = ("done", "terminated", "truncated")


class Positions(NamedTuple):
    """Which leaves are what, by position."""

    rewards: tuple[int, ...]  # the rewards, of which there is one at least
    # Marks a step after which there is nothing to bootstrap from; none where no trajectory ever ends.
    terminated: tuple[int, ...]
    truncations: tuple[int, ...]  # where `terminated` marks truncations too, the leaf that tells them apart; else empty
    following: tuple[int, ...]  # the leaves that come from the last of the n steps
    agents: tuple[int, ...] = ()  # the shape of rewards and flags, where each agent has flags of its own; else ()
    ends: tuple[int, ...] = ()  # then the leaves that say when an agent is done; any of them does


class StepReturns(NamedTuple):
    """The rewards, and the other entries of a sample, of items over n steps."""

    steps: Array  # int32 [m], how many they are; of agents [m, *agents]
    originals: tuple[Array, ...]  # the rewards [m, *shape] of the first of them, leaf by leaf
    nonterminal: Array  # bool in the shape of the steps, whether there is something to bootstrap from after the last


@dataclasses.dataclass(frozen=True)
class NStep(Transform):
    """What both ways of n-step returns share; see `n_step`."""

    n: int
    gamma: float
    reward_key: RewardKey | None = None
    terminated_key: Key | None = None
    next_keys: Keys | None = None
    end_keys: Keys | None = None
    trajectory_key: Key | None = None

    positions: Positions = dataclasses.field(init=False, repr=False, compare=False)  # once it is resolved

    order = 1

    def __post_init__(self) -> None:
        try:
            good = not isinstance(self.n, bool) and 1 <= operator.index(self.n) <= LARGEST_N
        except TypeError:
            good = False
        if not good:
            raise ValueError(f"n_step: expected n as an int from 1 to {LARGEST_N}, got {self.n!r}")
        object.__setattr__(self, "n", operator.index(self.n))
        gamma: object = self.gamma
        if isinstance(gamma, bool) or not isinstance(gamma, (int, float, np.floating)) or not 0 <= gamma <= 1:
            raise ValueError(f"n_step: expected gamma as a number from 0 to 1, got {gamma!r}")
        object.__setattr__(self, "gamma", float(gamma))
        object.__setattr__(self, "reward_key", reward_leaves.checked(self.reward_key, "n_step"))
        for name in ("next_keys", "end_keys"):
            object.__setattr__(self, name, nest.checked_keys(getattr(self, name), name, "n_step"))

    def resolve(self, plan: Plan) -> NStep:
        boundaries = boundaries_for(plan, self.end_keys, self.trajectory_key, "n_step")
        resolved = dataclasses.replace(
            self,
            reward_key=self.reward_key or _known(reward_leaves.usual(plan), USUAL_REWARDS, plan, "reward_key"),
            terminated_key=self._terminated(plan, boundaries),
            end_keys=boundaries.end_keys_as_given,
            trajectory_key=boundaries.trajectory_key,
        )
        object.__setattr__(resolved, "positions", resolved._positions(plan))
        resolved.check(plan, boundaries)
        return resolved

    # The leaf that says where there is nothing to bootstrap from; where nothing ever ends there need be none.
    def _terminated(self, plan: Plan, boundaries: EpisodeBoundaries) -> Key | None:
        usual = next((key for key in USUAL_TERMINATED if nest.show_key(key) in plan.names), None)
        endless = boundaries.end_keys_as_given == () and usual is None
        if self.terminated_key is not None or endless:
            return self.terminated_key
        return _known(usual, USUAL_TERMINATED, plan, "terminated_key")

    def check(self, plan: Plan, boundaries: EpisodeBoundaries) -> None:
        positions = self.positions
        boundaries.check(plan.outline, "n_step", positions.agents)
        for position in positions.rewards:
            reward = plan.leaves[position]
            if "float" not in reward.dtype:
                raise ValueError(
                    f"n_step: leaf {plan.names[position]!r}: expected rewards of a float dtype, got {reward}; "
                    f"change BufferSpec.item, or name another leaf by reward_key=..."
                )
        shapes = [shape for shape in (plan.leaves[k].shape for k in positions.rewards) if math.prod(shape) > 1]
        for position in (*positions.terminated, *positions.truncations):
            flag = plan.leaves[position]
            if flag.dtype != "bool" or (math.prod(flag.shape) != 1 and flag.shape != positions.agents):
                several = f", or one for each reward, {shapes[0]}" if shapes else ""
                raise ValueError(
                    f"n_step: leaf {plan.names[position]!r}: expected one bool an item{several}, got {flag.dtype} "
                    f"of shape {flag.shape}; name another leaf by terminated_key=..."
                )

    def _positions(self, plan: Plan) -> Positions:
        names = plan.names
        rewards = tuple(k for each in reward_leaves.positions(plan, self.reward_key, "n_step") for k in each)
        terminated: tuple[int, ...] = ()
        truncations: tuple[int, ...] = ()
        agents: tuple[int, ...] = ()
        ends: tuple[int, ...] = ()
        if self.terminated_key is not None:
            terminated = (nest.position(names, self.terminated_key, "n_step"),)
            *parent, last = names[terminated[0]].split("/")
            beside = "/".join([*parent, "truncated"])
            truncations = (names.index(beside),) if last == "done" and beside in names else ()
            agents, ends = _agents(plan, rewards, terminated[0])
        if self.next_keys is not None:
            following = tuple(nest.position(names, key, "n_step") for key in self.next_keys)
        else:
            following = tuple(k for k, path in enumerate(plan.structure.paths) if _follows(path, plan))
        following = tuple(k for k in following if k not in rewards)
        return Positions(rewards, terminated, truncations, following, agents, ends)

    def original_names(self, plan: Plan) -> list[str]:
        """How a sample's entries with the rewards of single steps are called, leaf by leaf.

        Where `reward_key` is a leaf's, there is one; else each is called by its leaf.
        """
        names = [plan.names[k] for k in self.positions.rewards]
        keys = reward_leaves.each_of(self.reward_key)
        one = not reward_leaves.are_several(self.reward_key) and names == [nest.show_key(keys[0])]
        return [ORIGINAL] if one else [f"{ORIGINAL}/{name}" for name in names]

    def told(self, plan: Plan) -> dict[str, ArraySpec]:
        """The entries of a sample beside the items, as specs, in the order in which kernels take them."""
        agents, rewards = self.positions.agents, [plan.leaves[k] for k in self.positions.rewards]
        originals = [Unbounded(leaf.shape, leaf.dtype) for leaf in rewards]
        return {
            STEPS: Unbounded(agents, "int32"),
            **dict(zip(self.original_names(plan), originals, strict=True)),
            NONTERMINAL: Binary(agents),
            DISCOUNT: Unbounded(agents, "float32"),
        }

    def info(self, ops: Ops, plan: Plan, returns: StepReturns) -> dict[str, Array]:
        """The entries of a sample beside the items; the discount of k steps is gamma^k."""
        steps = returns.steps
        powers = ops.floats([self.gamma**k for k in range(self.n + 1)], like=steps)
        discount = ops.take(powers, steps.reshape(-1)).reshape(steps.shape)
        return dict(zip(self.told(plan), (steps, *returns.originals, returns.nonterminal, discount), strict=True))

    def over(
        self, ops: Ops, plan: Plan, first: Array, window: Array, real: Array, read: Reader
    ) -> tuple[dict[int, Array], StepReturns]:
        """Items over n steps.

        Args:
            plan: the plan of the buffer.
            first: int32 [m, 1], where each step lies: the first column of the window.
            window: int32 [m, n], where each step and those after it lie.
            real: bool [m, n], which of them there are, in the same trajectory: the first of each row.
            read: reads leaves from there.

        Returns:
            The leaves [m, *shape], by position, and the other entries of a sample.
        """
        positions = self.positions
        if positions.agents:
            return self._over_agents(ops, plan, first, window, real, read)
        seen = read(window, positions.rewards)
        rewards = {k: seen[k].reshape(*window.shape, *seen[k].shape[1:]) for k in positions.rewards}
        sums = {k: fold(ops, leaf, real, self.gamma) for k, leaf in rewards.items()}
        steps = sums[positions.rewards[0]][1]
        last = ops.take(window.reshape(-1), ops.arange(window.shape[0], like=window) * self.n + steps - 1)
        leaves = read(last[:, None], [*positions.following, *positions.terminated, *positions.truncations])
        nonterminal = self._nonterminal(leaves).reshape(-1) if positions.terminated else steps > 0
        leaves |= read(first, self._rest(plan)) | {k: total for k, (total, _) in sums.items()}
        return leaves, StepReturns(steps, tuple(leaf[:, 0] for leaf in rewards.values()), nonterminal)

    # The leaves that are those of the first of the n steps.
    def _rest(self, plan: Plan) -> list[int]:
        changed = {*self.positions.rewards, *self.positions.following}
        return [k for k in range(len(plan.leaves)) if k not in changed]

    # What `over` returns where an agent that is done collects no more rewards, while others go on.
    #
    # What follows comes for each agent from its own last step, in leaves that begin with the agents' axes; the other
    # leaves come from the last step of all. Rewards in the agents' shape are added up for each agent, others, such as
    # those of a team, over the steps of all.
    def _over_agents(
        self, ops: Ops, plan: Plan, first: Array, window: Array, real: Array, read: Reader
    ) -> tuple[dict[int, Array], StepReturns]:
        positions, agents = self.positions, self.positions.agents
        flags = [*positions.terminated, *positions.truncations]
        seen = read(window, sorted({*positions.rewards, *positions.ends, *positions.following, *flags}))
        (m, n), count = window.shape, math.prod(agents)
        # Each agent of each item has a line of n steps; the steps lie in the order [m, n, agents].
        line = ops.arange(m * count, like=window)
        begin = line // count * (n * count) + line % count
        along = (begin[:, None] + ops.arange(n, like=window) * count).reshape(-1)

        def in_lines(leaf: Array) -> Array:
            return ops.take(leaf.reshape(-1), along).reshape(m * count, n)

        done = ops.cast(functools.reduce(operator.or_, [in_lines(seen[k]) for k in positions.ends]), "int32")
        there = ops.take(real, line // count) & (ops.cumsum(done) - done == 0)
        totals, originals = {}, []
        for k in positions.rewards:
            rewards = seen[k].reshape(m, n, *seen[k].shape[1:])
            originals.append(rewards[:, 0])
            if rewards.shape[2:] != agents:
                totals[k] = fold(ops, rewards, real, self.gamma)[0]
                continue
            total, steps = fold(ops, in_lines(rewards), there, self.gamma)
            totals[k] = total.reshape(m, *agents)
        last = begin + (steps - 1) * count
        steps_of_all = ops.cumsum(ops.cast(real, "int32"))[:, -1]
        # Of rows in which there is no step, as a batch may have, the first place is read.
        steps_of_all = ops.maximum(steps_of_all, ops.full_like(steps_of_all, 1))
        last_of_all = ops.arange(m, like=window) * n + steps_of_all - 1

        def after(leaf: Array) -> Array:
            shape = leaf.shape[1:]
            if shape[: len(agents)] != agents:
                return ops.take(leaf, last_of_all)
            return ops.take(leaf.reshape(m * n * count, *shape[len(agents) :]), last).reshape(m, *shape)

        leaves = {k: after(seen[k]) for k in (*positions.following, *flags)}
        nonterminal = self._nonterminal(leaves)
        leaves |= read(first, self._rest(plan)) | totals
        return leaves, StepReturns(steps.reshape(m, *agents), tuple(originals), nonterminal)

    # Whether there is something to bootstrap from after the last of the n steps, in the shape of the flags.
    def _nonterminal(self, leaves: Mapping[int, Array]) -> Array:
        terminated = leaves[self.positions.terminated[0]]
        for truncated in self.positions.truncations:
            terminated = terminated & ~leaves[truncated].reshape(terminated.shape)
        return ~terminated


def fold(ops: Ops, rewards: Array, real: Array, gamma: float) -> tuple[Array, Array]:
    """Add rewards [m, n, *shape] up over the steps that there are, the first of each row of bool [m, n].

    Returns R [m, *shape], and the steps int32 [m], at least 1.
    """
    dtype = shown(rewards.dtype)
    if ITEMSIZE[dtype] < 4:  # then the sum is computed in float32
        total, steps = fold(ops, ops.cast(rewards, "float32"), real, gamma)
        return ops.cast(total, dtype), steps
    return fold_floats(ops, rewards, real, gamma)


@replaceable
def fold_floats(ops: Ops, rewards: Array, real: Array, gamma: float) -> tuple[Array, Array]:
    """What `fold` returns for rewards of float32 or float64."""
    total, steps = rewards[:, 0], ops.full_like(ops.cast(real[:, 0], "int32"), 1)
    for k in range(1, real.shape[1]):
        there = real[:, k]
        # Compilers would round the product and the sum as one. A selection keeps them from it, but only by what each
        # product is: XLA has moved one by `there` alone out of its loop over an item's rewards.
        term = rewards[:, k] * gamma**k
        total = total + ops.where(row_layout.along(there, term) & (term != 0), term, ops.full_like(term, 0))
        steps = steps + ops.cast(there, "int32")
    return total, steps


# The shape of rewards and flags of agents, and the leaves that say when one is done; if that is what they are.
def _agents(plan: Plan, rewards: tuple[int, ...], terminated: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = plan.leaves[terminated].shape
    if math.prod(shape) <= 1 or all(plan.leaves[k].shape != shape for k in rewards):
        return (), ()
    *parent, _ = plan.names[terminated].split("/")
    beside = [plan.names.index(name) for name in ("/".join([*parent, flag]) for flag in FLAGS) if name in plan.names]
    ends = {k for k in beside if plan.leaves[k].shape == shape and plan.leaves[k].dtype == "bool"}
    return shape, tuple(sorted({terminated, *ends}))


def _known(key: Key | None, usual: tuple[Key, ...], plan: Plan, field: str) -> Key:
    if key is not None:
        return key
    shown_keys = list(map(nest.show_key, usual))
    raise ValueError(f"n_step: the item has none of the leaves {shown_keys}; give {field}=..., one of {plan.names}")


def _follows(path: nest.Path, plan: Plan) -> bool:
    first = str(path[0]) if path else ""
    if first == "next" or first.startswith("next_"):
        return True
    return path != () and path[-1] in FLAGS and not any(str(other[0]) == "next" for other in plan.structure.paths)
