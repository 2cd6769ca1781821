"""Hindsight relabelling with random settings, and what it must tell."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import functional_rb as frb
from tests.support import stories, walks, worlds
from tests.support.backends import Backend
from tests.support.histories import Rng, Shapes
from tests.support.n_step_walks import first_step
from tests.support.stories import Story
from tests.support.worlds import Kind, Record, assert_same, by_path

SCALAR, PAIR, FLAG = frb.Unbounded(()), frb.Unbounded((2,)), frb.Binary()
GOAL, ID = frb.Unbounded((3,)), frb.Unbounded((), "int32")


@dataclasses.dataclass(frozen=True)
class Task:
    """A form of items with goals.

    Attributes:
        kind: of the items.
        achieved: the leaf of the goal that was achieved after the step.
        wanted: those of the goal that is wanted.
        settings: what `her` has to be told.
    """

    kind: Kind
    achieved: str
    wanted: tuple[str, ...]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


TASKS = {
    "ted": Task(
        Kind(
            {
                "observation": PAIR,
                "achieved_goal": GOAL,
                "desired_goal": GOAL,
                "action": ID,
                "next/observation": PAIR,
                "next/achieved_goal": GOAL,
                "next/desired_goal": GOAL,
                "next/reward": SCALAR,
                "next/done": FLAG,
                "next/terminated": FLAG,
                "next/truncated": FLAG,
            },
            ends=("next/done",),
            reward="next/reward",
            nexts=(
                *("next/observation", "next/achieved_goal", "next/desired_goal"),
                *("next/done", "next/terminated", "next/truncated"),
            ),
            terminated=("next/terminated", None),
        ),
        "next/achieved_goal",
        ("desired_goal", "next/desired_goal"),
    ),
    "rows of Gymnasium's dicts": Task(
        Kind(
            {
                "obs/observation": PAIR,
                "obs/achieved_goal": GOAL,
                "obs/desired_goal": GOAL,
                "action": ID,
                "reward": SCALAR,
                "next_obs/observation": PAIR,
                "next_obs/achieved_goal": GOAL,
                "next_obs/desired_goal": GOAL,
                "terminated": FLAG,
                "truncated": FLAG,
            },
            ends=("terminated", "truncated"),
            nexts=(
                *("next_obs/observation", "next_obs/achieved_goal", "next_obs/desired_goal"),
                *("terminated", "truncated"),
            ),
            terminated=("terminated", None),
        ),
        "next_obs/achieved_goal",
        ("obs/desired_goal", "next_obs/desired_goal"),
    ),
    "flat rows": Task(
        Kind(
            {"obs": PAIR, "desired_goal": GOAL, "action": ID, "reward": SCALAR}
            | {"next_obs": PAIR, "next_achieved_goal": GOAL, "next_desired_goal": GOAL, "done": FLAG},
            nexts=("next_obs", "next_achieved_goal", "next_desired_goal", "done"),
        ),
        "next_achieved_goal",
        ("desired_goal", "next_desired_goal"),
    ),
    "names of one's own": Task(
        Kind(
            {"s": PAIR, "to": GOAL, "at": GOAL, "r": SCALAR, "episode": ID, "next_s": PAIR, "dead": FLAG, "id": ID},
            {"to": "desired_goal", "at": "next_achieved", "r": "reward", "dead": "terminated"},
            ends=("dead",),
            trajectory="episode",
            reward="r",
            nexts=("next_s", "at"),
            terminated=("dead", None),
            settings={
                "reward_key": "r",
                "terminated_key": "dead",
                "next_keys": ["next_s", "at"],
                "end_keys": ("dead",),
                "trajectory_key": "episode",
            },
        ),
        "at",
        ("to",),
        {"achieved_key": "at", "goal_keys": ("to",), "reward_key": "r", "end_keys": ("dead",)}
        | {"trajectory_key": "episode"},
    ),
}
STRATEGIES = ["future", "final", "episode", "random"]


def how_near(achieved: Any, goal: Any) -> Any:
    """Of each backend's arrays, and NumPy's: a small whole number that tells both apart."""
    twice = goal[..., 1] + goal[..., 1]  # a number of Python times a scalar would be float64 on NumPy 1.26
    return achieved[..., 0] - twice


class Relabelled(Story):
    """The goals that came are among those of the walk, and all that follows from them is right."""

    task: Task
    strategy: str
    k: float
    reward: Any
    n: int
    gamma: float

    def check_sample(self, backend: Backend, record: Record, sample: Any) -> None:
        indices, given = backend.numpy(sample.indices), by_path(backend, sample.items)
        extras = {name: backend.numpy(x) for name, x in sample.extras.items()}
        relabelled, goal_indices = extras["relabelled"], extras["goal_indices"]
        assert (relabelled.dtype, goal_indices.dtype) == (np.bool_, np.int32)
        assert relabelled.shape == goal_indices.shape == indices.shape
        np.testing.assert_array_equal(goal_indices >= 0, relabelled)
        np.testing.assert_array_equal(goal_indices[~relabelled], -1)
        assert self.k or not relabelled.any()
        assert not relabelled[indices < 0].any()
        for row, handle in enumerate(indices.tolist()):
            if handle >= 0:
                goal = int(goal_indices[row]) if relabelled[row] else None
                leaves, told = self.expected(record, handle, goal)
                assert given.keys() == leaves.keys()
                assert extras.keys() == told.keys() | {"relabelled", "goal_indices"}
                for name, leaf in leaves.items():
                    assert_same(given[name][row], leaf, name)
                for name, leaf in told.items():
                    assert_same(extras[name][row], leaf, name)

    def expected(self, record: Record, handle: int, goal_index: int | None) -> tuple[worlds.Leaves, worlds.Leaves]:
        """The item and the extras of n steps, if a step's goal is used instead."""
        kind, task, places = self.kind, self.task, record.places
        lane, place = places[handle]
        live = record.live(lane)
        steps = walks.window(live, place, self.n or 1)
        rewards = [step.leaves[kind.reward] for step in steps]
        goal = None
        if goal_index is not None:
            goal_lane, goal_place = places[goal_index]
            if self.strategy != "random":
                assert goal_lane == lane
                assert goal_place in walks.goals(live, place, self.strategy)
            goal = record.live(goal_lane)[goal_place].leaves[task.achieved]
            if self.reward is not None:
                rewards = [np.asarray(self.reward(step.leaves[task.achieved], goal)) for step in steps]
        if self.n:
            leaves, extras = walks.n_step(kind, steps, self.gamma, rewards)
        else:
            leaves, extras = steps[0].leaves | {kind.reward: rewards[0]}, {}
        return leaves | ({} if goal is None else dict.fromkeys(task.wanted, goal)), extras


def tell(
    rng: Rng, variants: list[str], task: Task, plain: frb.BufferSpec, shapes: Shapes, steps: int, **settings: Any
) -> None:
    """A history. Settings are those of `Relabelled`."""
    reward = settings["reward"] and staticmethod(settings["reward"])
    story = type("Relabelled", (Relabelled,), {"task": task, **settings, "reward": reward})
    transforms = [frb.her(settings["strategy"], settings["k"], reward=settings["reward"], **task.settings)]
    if settings["n"]:
        transforms.append(frb.n_step(settings["n"], settings["gamma"], **task.kind.settings))
    spec = dataclasses.replace(plain, transforms=tuple(transforms))
    room = None if plain.compact is None else walks.room_for(task.kind, plain)
    record = Record(task.kind, plain.plan.ring.length, ((),) * (plain.lanes or 1), first_step(rng, plain), room)
    stories.tell(rng, variants, spec, None, record, lambda record, handle: ({}, {}), shapes, steps, story=story)
