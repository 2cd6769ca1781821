"""Steps in TED as lists: what buffers of them hold, and what the forms of `ted` have of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np

import functional_rb as frb
from functional_rb.ted.forms import Flat, Nested
from tests.support.backends import Backend

GOES_ON, TERMINATED, TRUNCATED, BOTH = range(4)


@dataclasses.dataclass(frozen=True)
class Step:
    """Of a naive model: the numbers of the observations before and after, of the action, and how it ended."""

    before: int
    action: int
    after: int
    end: int = GOES_ON


@dataclasses.dataclass(frozen=True)
class Case:
    """A buffer to fill: `lanes` None, or a number; the steps of each lane, by the time at which they are added."""

    length: int
    lanes: int | None
    flags: tuple[int, ...]
    added: tuple[tuple[Step | None, ...], ...]
    half: bool = True  # whether there is a leaf of bfloat16

    @property
    def spec(self) -> frb.BufferSpec:
        flags = {name: frb.Binary(self.flags) for name in ("done", "terminated", "truncated")}
        half = {"half": frb.Unbounded((), "bfloat16")} if self.half else {}
        seen = {"observation": frb.Unbounded((2,)), "more": {**half, "image": frb.Unbounded((3,), "uint8")}}
        item = {
            **seen,
            "action": frb.Unbounded((1,), "int32"),
            "mask": frb.Binary((2,)),
            **flags,
            "next": {**seen, "reward": frb.Unbounded(()), **flags},
        }
        return frb.BufferSpec(item, capacity=self.length * (self.lanes or 1), lanes=self.lanes)

    @property
    def held(self) -> list[list[Step]]:
        """What each lane holds: its newest steps."""
        of_lanes = zip(*self.added, strict=True) if self.added else [()] * (self.lanes or 1)
        return [[step for step in steps if step is not None][-self.length :] for steps in of_lanes]

    def batch(self) -> tuple[dict[str, Any], np.ndarray]:
        steps = [step or Step(0, 0, 0) for row in self.added for step in row]
        mask = np.array([step is not None for row in self.added for step in row])
        lead = (len(self.added),) if self.lanes is None else (len(self.added), self.lanes)
        made = arrays(steps, self.flags, self.half)
        return shaped(made, lead), mask.reshape(lead)

    def filled(self, backend: Backend) -> Any:
        state = backend.init(self.spec)
        if not self.added:
            return state
        items, mask = self.batch()
        whole = bool(mask.all())
        return backend.add(state, backend.tree(items), None if whole else backend.array(mask))


def observations(numbers: list[int], half: bool = True) -> dict[str, Any]:
    k = np.array(numbers, np.int64).reshape(-1)
    bits = (k * 40503 % 65536).astype(np.uint16)  # all sorts of them, NaNs too
    more = {"image": ((k[:, None] + np.arange(3)) % 256).astype(np.uint8)}
    if half:
        more["half"] = bits.view(ml_dtypes.bfloat16)
    return {"observation": np.stack([k, -k], 1).astype(np.float32), "more": more}


def rest(steps: list[Step], flags: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The leaves at the root, and those in "next", that are no observations."""
    actions = np.array([step.action for step in steps], np.int32).reshape(-1)
    ends = np.array([step.end for step in steps], np.int32).reshape(-1, *flags)
    told = {"done": ends != GOES_ON, "terminated": ends & TERMINATED != 0, "truncated": ends & TRUNCATED != 0}
    root = {"action": actions[:, None], "mask": np.stack([actions % 2 == 0, actions % 3 == 0], 1)}
    return root, {"reward": actions.astype(np.float32) / 3, **told}


def arrays(steps: list[Step], flags: tuple[int, ...], half: bool = True) -> dict[str, Any]:
    """Steps in TED."""
    root, after = rest(steps, flags)
    false = {name: np.zeros_like(after["done"]) for name in ("done", "terminated", "truncated")}
    following = {**observations([step.after for step in steps], half), **after}
    return {**observations([step.before for step in steps], half), **root, **false, "next": following}


def shaped(nest: Any, lead: tuple[int, ...]) -> Any:
    if isinstance(nest, dict):
        return {key: shaped(value, lead) for key, value in nest.items()}
    return nest.reshape(*lead, *nest.shape[1:])


def trajectories(case: Case) -> list[list[Step]]:
    found: list[list[Step]] = []
    for lane in case.held:
        goes_on = False
        for step in lane:
            if not goes_on:
                found.append([])
            found[-1].append(step)
            goes_on = step.end == GOES_ON
    return found


def trajectory(steps: list[Step], flags: tuple[int, ...], half: bool = True) -> dict[str, Any]:
    root, after = rest(steps, flags)
    return {**observations([step.before for step in steps] + [steps[-1].after], half), **root, **after}


def bits(x: Any) -> Any:
    """Of arrays; bfloat16 as uint16."""
    if isinstance(x, dict):
        return {str(key): bits(value) for key, value in x.items()}
    x = np.asarray(x)
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x


def same(got: Any, expected: Any) -> None:
    """Equal nests, bit for bit."""
    got, expected = bits(got), bits(expected)
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            same(got[key], expected[key])
    else:
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert got.tobytes() == expected.tobytes()


def host(backend: Backend, nest: Any) -> Any:
    return {k: host(backend, v) for k, v in nest.items()} if isinstance(nest, dict) else backend.numpy(nest)


def fixed(ends: list[int], length: int, lanes: int | None = None, skipped: tuple[tuple[int, int], ...] = ()) -> Case:
    """Steps that end as told, the same in every lane, but for some (time, lane)."""
    columns = []
    for k in range(lanes or 1):
        number, column = 100 * k, []
        for time, end in enumerate(ends):
            skip = (time, k) in skipped
            column.append(None if skip else Step(number, 100 * k + time, number + 1, end))
            number += 0 if skip else 1 if end == GOES_ON else 2
        columns.append(column)
    return Case(length, lanes, (1,), tuple(zip(*columns, strict=True)))


def same_form(got: Flat | Nested, expected: Flat | Nested) -> None:
    assert type(got) is type(expected)
    assert (got.lanes, got.dtypes, got.spec) == (expected.lanes, expected.dtypes, expected.spec)
    assert got.shared == expected.shared
    if isinstance(got, Flat) and isinstance(expected, Flat):
        same(got.data, expected.data)
    elif isinstance(got, Nested) and isinstance(expected, Nested):
        assert len(got.trajectories) == len(expected.trajectories)
        for own, other in zip(got.trajectories, expected.trajectories, strict=True):
            same(own, other)
        same(got.empty, expected.empty)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    length = draw(st.integers(1, 6))
    lanes = draw(st.sampled_from([None, 1, 3]))
    flags = draw(st.sampled_from([(), (1,)]))
    times = draw(st.integers(0, 2 * length + 2))
    ragged = draw(st.booleans())
    columns = [draw(lane(times, ragged, 1000 * k)) for k in range(lanes or 1)]
    return Case(length, lanes, flags, tuple(zip(*columns, strict=True)))


@st.composite
def lane(draw: st.DrawFn, times: int, ragged: bool, first: int) -> list[Step | None]:
    """Steps of one lane, some times left out."""
    steps: list[Step | None] = []
    number = first
    for time in range(times):
        if ragged and draw(st.booleans()):
            steps.append(None)
            continue
        end = draw(st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATED, TRUNCATED, BOTH]))
        steps.append(Step(number, first + time, number + 1, end))
        number += 1 if end == GOES_ON else 2
    return steps


EDGES = {
    "empty": fixed([], 4),
    "one step": fixed([GOES_ON], 4),
    "one step that ends": fixed([BOTH], 4),
    "full, nothing overwritten": fixed([GOES_ON, TERMINATED, GOES_ON, GOES_ON], 4),
    "wrapped, cut at both ends": fixed([GOES_ON, GOES_ON, TRUNCATED, GOES_ON, TERMINATED, GOES_ON], 4),
    "a slot": fixed([GOES_ON, GOES_ON, TERMINATED], 1),
    "lanes": fixed([GOES_ON, TERMINATED, GOES_ON], 2, lanes=2),
    "lanes, filled unlike": fixed([GOES_ON, TERMINATED, GOES_ON], 2, lanes=2, skipped=((0, 1), (2, 1))),
}
