"""Buffers of every kind that native code knows, drawn by hypothesis."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st

import functional_rb as frb
from tests.agreement.added_steps import COMPACT, OF_AGENTS, WAITING, WAITING_OF_AGENTS
from tests.agreement.added_steps import ITEM as STEP

ITEM = {"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32"), "done": frb.Binary(())}
WIDE = {"image": frb.Unbounded((1040,), "uint8"), "wide": frb.Unbounded((301,), "float16")}
AHEAD = frb.n_step(3, 0.9, reward_key="x", terminated_key="done")
WRITERS = (
    *(frb.Reservoir(), frb.Reservoir(), frb.MaxValue("n")),
    *(frb.MaxValue("rank", reduction=how) for how in ("sum", "mean", "max", "min", "median")),
)
one_in_three = st.sampled_from([True, False, False])
lanes_of = st.none() | st.sampled_from([1, 2, 5, 64])
plain_or_wide = st.sampled_from([ITEM, ITEM, ITEM | WIDE])
of_items = st.sampled_from(
    [frb.Uniform(), frb.Prioritized(), frb.Prioritized(1.0, 1.0), frb.Prioritized(0.5, new_priority="ever")]
)
epochs_of_items = st.builds(frb.WithoutReplacement, drop_last=st.booleans())


@st.composite
def samplers_of_slices(draw: st.DrawFn, *trajectories: str) -> Any:
    """Of trajectories that one of some leaves tells, or of those that end at marks, or never."""
    length, strict = draw(st.integers(1, 5), "length"), draw(st.booleans(), "strict")
    marks: list[Any] = [{"end_keys": ("done",)}, {"end_keys": ()}]
    marks += [{"trajectory_key": name} for name in trajectories]
    if "run" in trajectories:
        marks += [{"trajectory_key": "run", "end_keys": ("cut",)}, {"end_keys": ["done", "cut"]}]
    settings = draw(st.sampled_from(marks)) | {"strict_length": strict, "period": draw(st.integers(1, 3))}
    span = draw(st.sampled_from([False, not strict]))
    weighting = draw(st.sampled_from(["trajectory", "window"]))
    match draw(st.sampled_from(["priority", "epochs", "plain"])):
        case "priority":
            more: Any = {"batch": draw(st.sampled_from(["slices", "steps"])), "span": (False, span)}
            priority = {
                "alpha": draw(st.sampled_from([0.6, 1.0])),
                "new_priority": draw(st.sampled_from(["live", "ever"])),
            }
            return frb.PrioritizedSlices(length, **priority, **more, **settings)
        case "epochs":
            more = {"weighting": weighting, "drop_last": draw(st.booleans()), "span": (False, span)}
            return frb.SlicesWithoutReplacement(length, flat=draw(st.booleans()), **more, **settings)
        case _:
            more = {"weighting": weighting, "flat": draw(st.booleans())}
            both_sides = (0, length - 1) if span and draw(st.booleans()) else span
            fresh_first = length % settings["period"] == 0 and draw(one_in_three, "fresh first")
            return frb.Slices(length, span=both_sides, fresh_first=fresh_first, **more, **settings)


@st.composite
def one_ring(draw: st.DrawFn) -> frb.BufferSpec:
    return frb.BufferSpec(draw(plain_or_wide), draw(st.sampled_from([1, 3, 17, 40, 300])), draw(of_items))


@st.composite
def several_rings(draw: st.DrawFn) -> frb.BufferSpec:
    lanes = draw(st.sampled_from([2, 5, 64]))
    return frb.BufferSpec(draw(plain_or_wide), lanes * draw(st.sampled_from([1, 2, 9])), draw(of_items), lanes=lanes)


@st.composite
def epochs(draw: st.DrawFn) -> frb.BufferSpec:
    lanes = draw(lanes_of)
    return frb.BufferSpec(ITEM, (lanes or 1) * draw(st.sampled_from([1, 2, 9, 40])), draw(epochs_of_items), lanes=lanes)


@st.composite
def by_position(draw: st.DrawFn) -> frb.BufferSpec:
    """Of newer items rather than older ones, of those that are taken out, from an end, and in epochs in order."""
    queues = st.builds(frb.Queue, st.none() | st.integers(1, 3))
    in_order = st.builds(frb.WithoutReplacement, st.booleans(), shuffle=st.just(False))
    ends = st.builds(frb.InOrder, st.sampled_from([None, None, 1, 3]), newest_first=st.booleans())
    sampler: Any = draw(st.builds(frb.Recency, st.integers(1, 5)) | queues | in_order | ends)
    in_one = isinstance(sampler, frb.InOrder) or (isinstance(sampler, frb.Queue) and sampler.length is None)
    lanes, writer = None if in_one else draw(st.sampled_from([None, 2, 5])), frb.RoundRobin()
    if isinstance(sampler, frb.Queue) or draw(st.booleans(), "stops"):
        writer = frb.StopWhenFull()
    item, more = draw(plain_or_wide), dict[str, Any]()
    match draw(st.sampled_from(["plain", "plain", "ahead", "frames"])):
        case "ahead":
            more["transforms"] = AHEAD
        case "frames" if writer.overwrites:
            leaves, given = draw(st.sampled_from(COMPACT))
            item, more["compact"] = dict(sorted((ITEM | leaves).items())), frb.Compact(**given)
    capacity = (lanes or 1) * draw(st.sampled_from([3, 4, 17, 40]))
    return frb.BufferSpec(item, capacity, sampler, writer, lanes=lanes, **more)


@st.composite
def slices(draw: st.DrawFn) -> frb.BufferSpec:
    lanes, (item, names) = draw(lanes_of), draw(st.sampled_from([(ITEM, ["n"]), (STEP, ["id", "run"])]))
    sampler = draw(samplers_of_slices(*names))
    return frb.BufferSpec(item, (lanes or 1) * draw(st.sampled_from([5, 9, 17])), sampler, lanes=lanes)


@st.composite
def compact(draw: st.DrawFn) -> frb.BufferSpec:
    leaves, given = draw(st.sampled_from(COMPACT))
    lanes, spare = draw(lanes_of), draw(st.sampled_from([None, 0, 30]))
    sampler = draw(of_items | epochs_of_items | samplers_of_slices("n"))
    capacity = (lanes or 1) * draw(st.sampled_from([5, 9, 40] if hasattr(sampler, "length") else [1, 2, 9, 40]))
    more: Any = {"transforms": draw(st.sampled_from([(), AHEAD])), "compact": frb.Compact(**given, spare=spare)}
    return frb.BufferSpec(dict(sorted((ITEM | leaves).items())), capacity, sampler, lanes=lanes, **more)


@st.composite
def steps(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    """Steps of one agent or of several, with the returns of these."""
    item, kinds = draw(st.sampled_from([(STEP, WAITING), (STEP | OF_AGENTS, WAITING_OF_AGENTS)]))
    x = frb.Unbounded((3,), draw(st.sampled_from(["float32", "float16", "bfloat16"])))
    return dict(sorted((item | {"x": x}).items())), draw(st.sampled_from(kinds))


@st.composite
def looking_ahead(draw: st.DrawFn) -> frb.BufferSpec:
    """Of which returns are made as items are drawn."""
    (item, added), lanes = draw(steps()), draw(lanes_of)
    of_slices = "next_each" not in item and draw(st.booleans(), "slices")
    names = "reward_key", "terminated_key", "next_keys", *(() if of_slices else ("end_keys", "trajectory_key"))
    ahead = frb.n_step(added.n, added.gamma, **{name: getattr(added, name) for name in names})
    sampler = draw(samplers_of_slices("id") if of_slices else of_items | epochs_of_items)
    capacity = (lanes or 1) * draw(st.sampled_from([5, 9, 40]))
    return frb.BufferSpec(item, capacity, sampler, lanes=lanes, transforms=ahead)


@st.composite
def waiting(draw: st.DrawFn) -> frb.BufferSpec:
    """Of which some stop when they are full, and others have steps wait."""
    (item, transform), lanes = draw(steps()), draw(lanes_of)
    if draw(one_in_three, "stops"):
        sampler = draw(of_items | epochs_of_items | samplers_of_slices("n"))
        capacity = (lanes or 1) * draw(st.sampled_from([5, 9, 40]))
        return frb.BufferSpec(ITEM, capacity, sampler, frb.StopWhenFull(), lanes=lanes)
    capacity = (lanes or 1) * draw(st.sampled_from([1, 2, 9, 40]))
    return frb.BufferSpec(item, capacity, draw(of_items | epochs_of_items), lanes=lanes, transforms=transform)


@st.composite
def limited(draw: st.DrawFn) -> frb.BufferSpec:
    """Of which no item comes more often than so many times, or than once in a batch; some wait for others, or stop."""
    apart = frb.Prioritized(replacement=False)
    sampler = draw(st.sampled_from([frb.Uniform(), frb.Prioritized(), frb.Prioritized(1.0, 1.0, "ever"), apart]))
    limits = [1, 2, 7, 2**30 - 1, *([None] * 4 if sampler is apart else [])]
    sampler = dataclasses.replace(sampler, max_times_sampled=draw(st.sampled_from(limits), "limit"))
    names: Any = {"reward_key": "gain", "terminated_key": "done"}
    ahead, late = frb.n_step(3, 0.9, **names), frb.n_step(2, 0.9, at="add", **names)
    frames = {"compact": frb.Compact(next={}, stack={"x": 3})}
    stops = {"writer": frb.StopWhenFull()}
    more: Any = draw(st.sampled_from([{}, {}, {"transforms": ahead}, {"transforms": late}, frames, stops]))
    lanes, item = draw(lanes_of), STEP if "transforms" in more else dict(sorted(ITEM.items()))
    return frb.BufferSpec(item, (lanes or 1) * draw(st.sampled_from([1, 2, 9, 40])), sampler, lanes=lanes, **more)


@st.composite
def chosen(draw: st.DrawFn) -> frb.BufferSpec:
    """Of which a writer chooses the slots."""
    lanes, writer = draw(lanes_of), draw(st.sampled_from(WRITERS))
    limit = {"max_times_sampled": draw(st.sampled_from([None, None, 2]), "limit")}
    apart = frb.Prioritized(replacement=False)
    sampler = draw(st.sampled_from([frb.Uniform(**limit), frb.Prioritized(**limit), apart]))
    item = draw(plain_or_wide) | {"rank": frb.Unbounded((5,))}
    capacity = (lanes or 1) * draw(st.sampled_from([1, 2, 9, 40, 300]))
    return frb.BufferSpec(item, capacity, sampler, writer, lanes=lanes)


@st.composite
def by_version(draw: st.DrawFn) -> frb.BufferSpec:
    """Of which stale items are drawn seldom, or never; some wait for others, or share frames, or stop."""
    lanes, more = draw(lanes_of), dict[str, Any]()
    item, keys = draw(plain_or_wide), ["n"]
    match draw(st.sampled_from(["plain", "waits", "frames", "stops"])):
        case "waits":
            (item, more["transforms"]), keys = draw(steps()), ["id", "run"]
        case "frames":
            leaves, given = draw(st.sampled_from(COMPACT))
            item, more["compact"] = dict(sorted((ITEM | leaves).items())), frb.Compact(**given, spare=0)
        case "stops":
            more["writer"] = frb.StopWhenFull()
    most, power = draw(st.sampled_from([None, 0, 2, 2**24 - 1]), "most"), draw(st.integers(0, 5), "power")
    sampler = frb.Staleness(draw(st.sampled_from(keys)), most, power)
    return frb.BufferSpec(item, (lanes or 1) * draw(st.sampled_from([1, 2, 9, 40])), sampler, lanes=lanes, **more)


KINDS = {
    made.__name__: made()
    for made in (
        *(one_ring, several_rings, epochs, by_position, slices, compact, looking_ahead, waiting, limited, chosen),
        by_version,
    )
}
