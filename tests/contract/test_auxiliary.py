"""The table in the documentation of `State`: who keeps which arrays and counters, against what specs plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import functional_rb as frb
from tests.support.members import ITEM, LANES, MEMBERS

IMAGES = {"image": frb.Unbounded((40, 40), "uint8"), "next_image": frb.Unbounded((40, 40), "uint8")}
STEP = {"obs": frb.Unbounded((2,)), "next_obs": frb.Unbounded((2,)), "reward": frb.Unbounded(()), "done": frb.Binary()}
GOALS = {"next_obs": {"achieved_goal": frb.Unbounded((2,))}, "desired_goal": frb.Unbounded((2,)), "done": frb.Binary()}
SPECS = {name: member.spec for name, member in MEMBERS.items()} | {
    "compact": frb.BufferSpec(STEP | IMAGES, 12, compact=frb.Compact(), lanes=LANES),
    "n-step at sampling": frb.BufferSpec(STEP, 12, transforms=frb.n_step(2, 0.9)),
    "n-step at adding": frb.BufferSpec(STEP | IMAGES, 12, transforms=frb.n_step(3, 0.9, at="add"), lanes=LANES),
    "n-step of the best": frb.BufferSpec(
        STEP, 12, writer=frb.MaxValue("reward"), transforms=frb.n_step(3, 0.9, at="add"), lanes=LANES
    ),
    "her": frb.BufferSpec(GOALS, 12, transforms=frb.her()),
    "long ids": frb.BufferSpec(ITEM | {"id": frb.Unbounded((), "int64")}, 12, frb.Slices(2, trajectory_key="id")),
}


def asks_for_ends(spec: frb.BufferSpec) -> bool:
    return any(one.boundaries is not None for one in (spec.sampler, *spec.transforms))


def is_at_adding(spec: frb.BufferSpec) -> bool:
    return any(transform.delays for transform in spec.transforms)


def shuffles(spec: frb.BufferSpec) -> bool:
    return isinstance(spec.sampler, frb.WithoutReplacement) and spec.sampler.shuffle


APPLIES: dict[str, Callable[[frb.BufferSpec], bool]] = {
    "`Compact`": lambda spec: spec.compact is not None,
    "slices, `n_step` at sampling, `her`": asks_for_ends,
    "`max_times_sampled`": lambda spec: getattr(spec.sampler, "max_times_sampled", None) is not None,
    "`Slices(fresh_first=True)`": lambda spec: getattr(spec.sampler, "fresh_first", False),
    "`PrioritizedSlices`": lambda spec: isinstance(spec.sampler, frb.PrioritizedSlices),
    "`WithoutReplacement`": shuffles,
    "`WithoutReplacement(shuffle=False)`": lambda spec: (
        isinstance(spec.sampler, frb.WithoutReplacement) and not spec.sampler.shuffle
    ),
    "`SlicesWithoutReplacement`": lambda spec: isinstance(spec.sampler, frb.SlicesWithoutReplacement),
    "`Staleness`": lambda spec: isinstance(spec.sampler, frb.Staleness),
    "`StopWhenFull`": lambda spec: isinstance(spec.writer, frb.StopWhenFull),
    "`Reservoir`": lambda spec: isinstance(spec.writer, frb.Reservoir),
    "`MaxValue`": lambda spec: isinstance(spec.writer, frb.MaxValue),
    "`n_step` at adding": is_at_adding,
}


def table() -> dict[str, tuple[str, str]]:
    """The cells of the arrays and the counters, by who keeps them."""
    rows = re.findall(r"^ *\| (.*?) \| ?(.*?) ?\| ?(.*?) ?\|$", frb.State.__doc__ or "", re.MULTILINE)
    return {who: (arrays, counters) for who, arrays, counters in rows if who != "part of the spec"}


def rows_of_tree(nodes: int) -> int:
    """Of 16 nodes each, those of all levels up to one row."""
    rows = -(-nodes // 16)
    return rows if rows == 1 else rows + rows_of_tree(rows)


def sizes_of(spec: frb.BufferSpec) -> dict[str, int]:
    ring, lanes = spec.plan.ring, spec.lanes or 1
    ids = 0
    if asks_for_ends(spec) and spec.plan.boundaries.trajectory_key is not None:
        key = spec.plan.names.index(spec.plan.boundaries.trajectory_key)
        ids = ring.lanes * (2 if spec.plan.leaves[key].dtype == "int64" else 1)
    frames = 0 if spec.plan.frames is None else ring.lanes * spec.plan.frames.room
    waiting = sum(lanes * (transform.n - 1) for transform in spec.transforms if transform.delays)
    return {
        "N": spec.capacity,
        "L": ring.lanes,
        "E": lanes,
        "1": 1,
        "16": 16,
        "ids": ids,
        "frames": frames,
        "waiting": waiting,
        "tree rows": rows_of_tree(spec.capacity),
    }


def entries(cell: str) -> dict[str, tuple[list[str], str]]:
    """Names with the words of their shapes, and their dtypes."""
    found = re.findall(r"(\S+) \[(.*?)\](?: \((\w+)\))?", cell)
    return {name: (shape.split(", "), dtype or "int32") for name, shape, dtype in found}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_state_keeps_what_its_documentation_says(spec: frb.BufferSpec) -> None:
    cells = table()
    assert cells.keys() == APPLIES.keys()
    sizes, plan = sizes_of(spec), spec.plan
    arrays: dict[str, tuple[list[str], str]] = {}
    counters: dict[str, tuple[list[str], str]] = {}
    for who, applies in APPLIES.items():
        if applies(spec):
            arrays |= entries(cells[who][0])
            counters |= entries(cells[who][1])
    expected = {name: sizes[shape[0]] for name, (shape, _) in counters.items()}
    assert dict(plan.counter_names) == {name: size for name, size in expected.items() if size}
    several = {name.removesuffix("..."): told for name, told in arrays.items() if name.endswith("...")}
    wide: list[Any] = []
    for name, array in plan.auxiliary.items():
        if name in arrays:
            shape, dtype = arrays.pop(name)
            known = tuple(sizes.get(word, plan.auxiliary[name].shape[k]) for k, word in enumerate(shape))
            assert (array.shape, array.dtype) == (known, dtype), name
            assert {word for word in shape if word not in sizes} <= {"W"}
        else:
            (shape,) = [shape for prefix, (shape, _) in several.items() if name.startswith(prefix)]
            assert array.shape == (sizes[shape[0]], 40, 40)
            wide.append(name)
    assert not {name for name in arrays if not name.endswith("...")}
    assert bool(wide) == ("image" in spec.item and bool(several))
