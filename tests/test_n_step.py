"""N-step returns beside walks over the episodes, as they are sampled and as they are added."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

import functional_rb as frb
from tests import walks
from tests.histories import Rng, Shapes, histories, pick, seeds
from tests.test_sampler_models import VARIANTS
from tests.walks import Kind, Leaves, Pending, Record, nested

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
            "next_keys": (("after", "s"), "dead"),
            "end_keys": ("over",),
        },
    ),
}
"""Forms of items. Where nothing is set, `n_step` finds its leaves by their usual names."""
ON_TORCH = Shapes((0, 1, 1, 2, 3, 5, 9, 20), (1, 2, 3, 7), False)
ON_JAX = Shapes((3,), (4,), True)
EXACT = [1.0, 0.5, 0.25, 0.0]
"""Discounts by which the sums of small integers are exact, in whichever order."""


def ends_of(kind: Kind) -> dict[str, Any]:
    """What samplers of slices have to be told."""
    if kind.trajectory is not None:
        return {"trajectory_key": kind.trajectory}
    return {"end_keys": kind.ends}


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
        some += [frb.Fifo, lambda: frb.Lifo(max_times_sampled=1)]
    return pick(rng, some)()


def first_step(rng: Rng, plain: frb.BufferSpec) -> int:
    """Numbers begin again below 2^31."""
    return pick(rng, [0, 0, plain.ring.limit - 2])


def tell(
    rng: Rng, variants: list[str], kind: Kind, plain: frb.BufferSpec, n: int, gamma: float, shapes: Shapes, steps: int
) -> None:
    """A history of `at="sample"`."""
    spec = dataclasses.replace(plain, transforms=frb.n_step(n, gamma, **kind.settings))
    lanes = plain.lanes or 1
    record = Record(kind, plain.ring.length, ((),) * lanes, first_step(rng, plain))

    def expected(record: Record, handle: int) -> tuple[Leaves, Leaves]:
        lane, place = record.places()[handle]
        return walks.n_step(kind, walks.window(record.live(lane), place, n), gamma)

    walks.tell(rng, variants, spec, plain, record, expected, shapes, steps)


@pytest.mark.parametrize("name", KINDS)
@histories(12)
@hypothesis.given(rng=seeds)
def test_as_they_are_sampled(name: str, rng: Rng) -> None:
    kind, lanes, length = KINDS[name], pick(rng, [None, 1, 2, 3]), pick(rng, [3, 5, 8, 13])
    sampler = random_sampler(rng, kind, lanes, length)
    plain = frb.BufferSpec(nested(kind.item), length * (lanes or 1), sampler, lanes=lanes)
    n = pick(rng, [1, 1, 2, 3, 4, 7, 20])
    tell(rng, [pick(rng, VARIANTS)], kind, plain, n, pick(rng, EXACT), ON_TORCH, 25)


SAMPLED_ON_BOTH = {
    "uniform": ("ted", frb.Uniform(), 2, 3),
    "slices": ("rows of two ends", frb.Slices(2), 2, 4),
    "by number": ("episodes by number", frb.Prioritized(), 2, 2),
}


@pytest.mark.parametrize("name", SAMPLED_ON_BOTH)
@histories(4)
@hypothesis.given(rng=seeds)
def test_as_they_are_sampled_from_one_backend_to_the_other(name: str, rng: Rng) -> None:
    kind_name, sampler, lanes, n = SAMPLED_ON_BOTH[name]
    kind = KINDS[kind_name] if name != "by number" else with_small_episodes(KINDS[kind_name])
    plain = frb.BufferSpec(nested(kind.item), 5 * lanes, sampler, lanes=lanes)
    tell(rng, ["jax", "torch"], kind, plain, n, 0.5, ON_JAX, 20)


def with_small_episodes(kind: Kind) -> Kind:
    """JAX takes no int64."""
    return dataclasses.replace(kind, item=kind.item | {"episode": frb.Unbounded((), "int32")})


def tell_added(
    rng: Rng, variants: list[str], kind: Kind, plain: frb.BufferSpec, n: int, gamma: float, shapes: Shapes, steps: int
) -> None:
    """A history of `at="add"`."""
    spec = dataclasses.replace(plain, transforms=(frb.n_step(n, gamma, at="add", **kind.settings),))
    lanes = plain.lanes or 1
    items = Record(kind, plain.ring.length, ((),) * lanes, first_step(rng, plain))
    record = Pending(n, gamma, dataclasses.replace(items), items, (0,) * lanes)

    def expected(record: Pending, handle: int) -> tuple[Leaves, Leaves]:
        step = record.items.stored(handle)
        return step.leaves, step.extras

    walks.tell(rng, variants, spec, None, record, expected, shapes, steps)


@pytest.mark.parametrize("name", KINDS)
@histories(12)
@hypothesis.given(rng=seeds)
def test_as_they_are_added(name: str, rng: Rng) -> None:
    kind, lanes, length = KINDS[name], pick(rng, [None, 1, 2, 3]), pick(rng, [3, 5, 8, 13])
    sampler = pick(rng, [frb.Uniform(), frb.Prioritized(), frb.Recency(2), frb.WithoutReplacement()])
    plain = frb.BufferSpec(nested(kind.item), length * (lanes or 1), sampler, lanes=lanes)
    n = pick(rng, [1, 1, 2, 3, 4, 7, 20])
    tell_added(rng, [pick(rng, VARIANTS)], kind, plain, n, pick(rng, EXACT), ON_TORCH, 25)


@pytest.mark.parametrize(("name", "n"), [("ted", 3), ("episodes by number", 2)])
@histories(4)
@hypothesis.given(rng=seeds)
def test_as_they_are_added_from_one_backend_to_the_other(name: str, n: int, rng: Rng) -> None:
    kind = with_small_episodes(KINDS[name]) if name != "ted" else KINDS[name]
    plain = frb.BufferSpec(nested(kind.item), 10, frb.Prioritized(), lanes=2)
    tell_added(rng, ["jax", "torch"], kind, plain, n, 0.5, ON_JAX, 20)
