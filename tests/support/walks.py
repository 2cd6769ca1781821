"""What items are, by walks over what was recorded: the definitions, step by step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

import functional_rb as frb
from tests.support.worlds import Array, Kind, Lane, Leaves, Record, Room, Step


def room_for(kind: Kind, spec: frb.BufferSpec, pairs: Mapping[str, str | None] | None = None) -> Room:
    """As the documentation of `Compact` has it; pairs are found by their names, if not given."""
    if pairs is None:
        item = kind.item
        after = {path[5:]: path for path in item if path.startswith(("next/", "next_"))}
        pairs = {own: path for own, path in after.items() if own in item and item[own] == item[path]}
        pairs = pairs or dict.fromkeys(kind.stacks)
    length, depth = spec.plan.ring.length, kind.depth
    spare = spec.compact.spare
    share = (
        math.ceil(length / 32) + 2 * depth if spare is None else max(math.ceil(spare / spec.plan.ring.lanes), 2 * depth)
    )
    return Room(length + share, tuple(pairs.items()))


def window(lane: Lane, place: int, n: int) -> Lane:
    """The step, and those of its trajectory that come after it, n at most in all."""
    steps = [lane[place]]
    for step in lane[place + 1 :]:
        if len(steps) == n or step.episode != steps[0].episode:
            break
        steps.append(step)
    return tuple(steps)


def fold(rewards: Sequence[Array], gamma: float) -> Array:
    total = np.zeros(rewards[0].shape)
    for k, reward in enumerate(rewards):
        total = total + gamma**k * reward.astype(np.float64)
    return total.astype(rewards[0].dtype)


def n_step(kind: Kind, steps: Lane, gamma: float, rewards: Sequence[Array] | None = None) -> tuple[Leaves, Leaves]:
    """The n-step item of a window, and what comes with it."""
    given = {path: [step.leaves[path] for step in steps] for path in kind.rewards or (kind.reward,)}
    given = given if rewards is None else {kind.reward: rewards}
    leaves = steps[0].leaves | {path: fold(each, gamma) for path, each in given.items()}
    leaves |= {path: steps[-1].leaves[path] for path in kind.nexts}
    terminated = False
    if kind.terminated is not None:
        flag, but_not = kind.terminated
        terminated = bool(steps[-1].leaves[flag].all()) and not (but_not and bool(steps[-1].leaves[but_not].all()))
    extras = {
        "steps": np.int32(len(steps)),
        "discount": np.float32(gamma ** len(steps)),
        "nonterminal": np.bool_(not terminated),
    }
    extras |= {f"original_reward/{path}" if kind.rewards else "original_reward": given[path][0] for path in given}
    return leaves, {name: np.asarray(extra) for name, extra in extras.items()}


@dataclasses.dataclass(frozen=True)
class Pending:
    """Steps that wait for others, as `n_step(at="add")` keeps them; a value.

    Attributes:
        steps: all that was added.
        items: the n-step items that were complete, in order.
        waiting: for each lane, from which step on they wait.
    """

    n: int
    gamma: float
    steps: Record
    items: Record
    waiting: tuple[int, ...]

    def written(self, leaves: Leaves, mask: Array | None) -> Pending:
        steps = self.steps.written(leaves, mask)
        lanes, waiting = [], []
        for e, lane in enumerate(steps.lanes):
            items, k = list(self.items.lanes[e]), self.waiting[e]
            while k < len(lane):
                seen = window(lane, k, self.n)
                known = len(seen) == self.n or seen[-1].ended or k + len(seen) < len(lane)
                if not known:
                    break
                made, extras = n_step(steps.kind, seen, self.gamma)
                items.append(Step(made, extras=extras))
                k += 1
            lanes.append(tuple(items))
            waiting.append(k)
        return dataclasses.replace(
            self, steps=steps, items=dataclasses.replace(self.items, lanes=tuple(lanes)), waiting=tuple(waiting)
        )


def goals(lane: Lane, place: int, strategy: str) -> list[int]:
    """The places in the lane from whose steps a goal may come."""
    same = [k for k, step in enumerate(lane) if step.episode == lane[place].episode]
    if strategy == "final":
        return same[-1:]
    return [k for k in same if strategy == "episode" or k >= place]
