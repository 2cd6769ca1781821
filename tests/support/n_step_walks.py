"""N-step returns with random settings, beside walks over the episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import functional_rb as frb
from tests.support.histories import Rng, pick
from tests.support.worlds import Kind

SCALAR, PAIR, FLAG = frb.Unbounded(()), frb.Unbounded((2,)), frb.Binary()
ID = frb.Unbounded((), "int32")
TED: dict[str, Any] = {
    "observation": PAIR,
    "action": ID,
    "done": FLAG,
    "terminated": FLAG,
    "truncated": FLAG,
    "next/observation": PAIR,
    "next/reward": SCALAR,
    "next/done": FLAG,
    "next/terminated": FLAG,
    "next/truncated": FLAG,
}
TED_KIND = Kind(
    TED,
    {"done": "noise", "terminated": "noise", "truncated": "noise"},
    ends=("next/done",),
    reward="next/reward",
    nexts=("next/observation", "next/done", "next/terminated", "next/truncated"),
    terminated=("next/terminated", None),
)
ROW: dict[str, Any] = {"obs": PAIR, "action": ID, "reward": SCALAR, "next_obs": PAIR}
# Forms of items. Where nothing is set, `n_step` finds its leaves by their usual names.
KINDS = {
    "ted": TED_KIND,
    "pictures": dataclasses.replace(
        TED_KIND,
        item=TED
        | {"observation": frb.Unbounded((1030,), "uint8"), "next/observation": frb.Unbounded((1030,), "uint8")}
        | {"next/done": frb.Binary((1,)), "next/reward": frb.Unbounded((1,))},
    ),
    "rows": Kind(ROW | {"done": FLAG}, nexts=("next_obs", "done")),
    "rows of two rewards": Kind(ROW | {"reward": PAIR, "done": FLAG}, nexts=("next_obs", "done")),
    "rows of doubles": Kind(
        ROW | {"done": FLAG} | dict.fromkeys(["reward", "obs", "next_obs"], frb.Unbounded((2,), "float64")),
        nexts=("next_obs", "done"),
    ),
    "rows of halves": Kind(ROW | {"reward": frb.Unbounded((), "float16"), "done": FLAG}, nexts=("next_obs", "done")),
    "rewards by agent": Kind(
        {name: leaf for name, leaf in ROW.items() if name != "reward"}
        | {"reward/left": SCALAR, "reward/right/own": PAIR, "done": FLAG},
        {"reward/left": "reward", "reward/right/own": "cost"},
        rewards=("reward/left", "reward/right/own"),
        nexts=("next_obs", "done"),
    ),
    "rewards of several names": Kind(
        TED | {"next/costs/a": frb.Unbounded((), "float16"), "next/costs/b": PAIR, "cost": frb.Unbounded((2, 1))},
        TED_KIND.roles | {"next/costs/a": "cost", "next/costs/b": "cost"},
        ends=("next/done",),
        rewards=("next/costs/a", "next/costs/b", "next/reward"),
        nexts=("next/observation", "next/done", "next/terminated", "next/truncated"),
        terminated=("next/terminated", None),
        settings={"reward_key": [("next", "costs"), "next/reward"]},
    ),
    "rows with truncation": Kind(
        ROW | {"done": FLAG, "truncated": FLAG},
        nexts=("next_obs", "done", "truncated"),
        terminated=("done", "truncated"),
    ),
    "rows of two ends": Kind(
        ROW | {"terminated": FLAG, "truncated": FLAG},
        ends=("terminated", "truncated"),
        nexts=("next_obs", "terminated", "truncated"),
        terminated=("terminated", None),
    ),
    "rows of all ends": Kind(
        ROW | {"next_action": ID, "terminated": FLAG, "truncated": FLAG, "done": FLAG},
        nexts=("next_obs", "next_action", "terminated", "truncated", "done"),
        terminated=("terminated", None),
    ),
    "episodes by number": Kind(
        ROW | {"episode": frb.Unbounded((), "int64"), "terminated": FLAG},
        ends=(),
        trajectory="episode",
        nexts=("next_obs", "terminated"),
        terminated=("terminated", None),
        settings={"trajectory_key": "episode"},
    ),
    "without an end": Kind(ROW, ends=(), nexts=("next_obs",), terminated=None, settings={"end_keys": ()}),
    "flags that end nothing": Kind(
        ROW | {"done": FLAG}, ends=(), nexts=("next_obs", "done"), settings={"end_keys": ()}
    ),
    "names of one's own": Kind(
        {"s": PAIR, "r": PAIR, "after/s": PAIR, "over": FLAG, "dead": FLAG, "id": ID, "reward": SCALAR},
        {"s": "obs", "after/s": "next_obs", "r": "reward", "over": "done", "dead": "terminated", "reward": "id"},
        ends=("over",),
        reward="r",
        nexts=("after/s", "dead"),
        terminated=("dead", None),
        settings={
            "reward_key": "r",
            "terminated_key": "dead",
            "next_keys": [("after", "s"), "dead"],
            "end_keys": ("over",),
        },
    ),
}
# Discounts by which the sums of small integers are exact, in whichever order.
EXACT = [1.0, 0.5, 0.5, 0.0]


def ends_of(kind: Kind) -> dict[str, Any]:
    """What samplers of slices have to be told."""
    if kind.trajectory is not None:
        return {"trajectory_key": kind.trajectory}
    return {"end_keys": [*kind.ends]}


def random_sampler(rng: Rng, kind: Kind, lanes: int | None, length: int) -> Any:
    """Any that goes with rings."""
    slices: dict[str, Any] = {"length": int(rng.integers(1, min(4, length) + 1)), **ends_of(kind)}
    slices |= {"batch": pick(rng, ["slices", "steps"]), "flat": pick(rng, [False, True])}
    some: list[Callable[[], Any]] = [
        frb.Uniform,
        lambda: frb.Uniform(max_times_sampled=2),
        frb.Prioritized,
        lambda: frb.Prioritized(replacement=False),
        lambda: frb.Recency(2),
        frb.WithoutReplacement,
        lambda: frb.Slices(**slices, strict_length=False, span=True),
        lambda: frb.Slices(**slices, weighting="window"),
        lambda: frb.PrioritizedSlices(**slices),
        lambda: frb.SlicesWithoutReplacement(**slices, strict_length=False),
    ]
    if lanes is None:
        some += [frb.InOrder, lambda: frb.InOrder(newest_first=True, max_times_sampled=1)]
    return pick(rng, some)()


def first_step(rng: Rng, plain: frb.BufferSpec) -> int:
    """Numbers begin again below 2^31."""
    return pick(rng, [0, 0, plain.plan.ring.limit - 2])


# A letter for each step: T terminates its episode, U truncates it, B does both; the last two are still under way.
STORY = "..T.U..B.."


def rows(count: int) -> dict[str, Any]:
    """Steps 1 to so many of the story."""
    number = np.arange(1, count + 1, dtype=np.float32)
    flags = {"terminated": "TB", "truncated": "UB"}
    items = {"obs": number, "reward": number, "next_obs": number + 0.5}
    return items | {name: np.array([mark in marks for mark in STORY[:count]]) for name, marks in flags.items()}
