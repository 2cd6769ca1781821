"""Samplers of slices with random settings, and the items of their trajectories."""

from __future__ import annotations

from typing import Any

import functional_rb as frb
from tests.support.histories import STEP, Rng, pick

EPISODES = STEP | {"episode": frb.Unbounded((), "int32")}
OTHER_EPISODES = [STEP | {"episode": frb.Unbounded((1,), dtype)} for dtype in ("uint8", "int64")]
TWO_ENDS = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,)), "terminated": frb.Binary((1,))}


TWO_ENDS |= {"truncated": frb.Binary()}


ENDLESS = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,))}
WIDE = STEP | {"image": frb.Unbounded((1030,), "uint8")}
TO_THE_RIGHT = [(True, False), (False, False), (False, (False, True))]
# Whether slices have a strict length, and where they may reach out.
TO_THE_LEFT = [(False, (True, False)), (False, True)]


def random_spec(rng: Rng, kind: str) -> frb.BufferSpec:
    """Few slots, so that episodes are longer and shorter than they are."""
    lanes, length = pick(rng, [None, 1, 2, 3]), pick(rng, [3, 5, 8, 13])
    weighting = pick(rng, ["trajectory", "window"])
    lefts = kind == "with" or (kind == "without" and weighting == "trajectory")
    strict, span = pick(rng, TO_THE_RIGHT + TO_THE_LEFT * lefts)
    item = pick(rng, [STEP, STEP, WIDE, TWO_ENDS, EPISODES, ENDLESS, *OTHER_EPISODES])
    settings: dict[str, Any] = {
        "length": int(rng.integers(1, min(4, length) + 1)),
        "strict_length": strict,
        "span": span,
        "period": pick(rng, [1, 1, 2, 3]),
        "batch": pick(rng, ["slices", "steps"]),
        "flat": pick(rng, [False, True]),
    }
    if "episode" in item:
        settings |= {"trajectory_key": "episode", "end_keys": pick(rng, [None, ("done",)])}
    if item is ENDLESS:
        settings |= {"end_keys": ()}
    sampler: Any
    if kind == "prioritized":
        alpha, beta, new_priority = pick(rng, [0.0, 0.6, 1.0]), pick(rng, [0.0, 0.4, 1.0]), pick(rng, ["live", "ever"])
        sampler = frb.PrioritizedSlices(**settings, alpha=alpha, beta=beta, new_priority=new_priority)
    elif kind == "without":
        sampler = frb.SlicesWithoutReplacement(**settings, weighting=weighting, drop_last=pick(rng, [False, True]))
    else:
        fresh_first = settings["length"] % settings["period"] == 0 and pick(rng, [False, False, True])
        sampler = frb.Slices(**settings, weighting=weighting, fresh_first=fresh_first)
    return frb.BufferSpec(item, length * (lanes or 1), sampler, lanes=lanes)
