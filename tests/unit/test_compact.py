"""Which leaves are stored as frames, how much room there is for them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import functional_rb as frb
from tests.support.frame_stacks import chain_of

X, Y = frb.Unbounded((4, 3)), frb.Unbounded((3, 4))


DONE = frb.Binary(())


PAIR = {"obs": X, "next_obs": X, "done": DONE}


STACK = {"obs": X, "reward": frb.Unbounded(())}


def pairs(item: Any, compact: frb.Compact | None = None) -> dict[str, str | None]:
    spec = frb.BufferSpec(item, 8, compact=compact or frb.Compact())
    assert spec.plan.frames is not None
    following = [None if k.following is None else spec.plan.names[k.following] for k in spec.plan.frames.stacks]
    return dict(zip([spec.plan.names[k.leaf] for k in spec.plan.frames.stacks], following, strict=True))


def test_next_values_are_found_by_name() -> None:
    ted = {"obs": {"a": X, "b": Y}, "done": DONE, "next": {"obs": {"a": X, "b": Y}, "reward": X, "done": DONE}}
    assert pairs(ted) == {"obs/a": "next/obs/a", "obs/b": "next/obs/b", "done": "next/done"}
    assert pairs(PAIR | {"next_done": DONE, "next_reward": X}) == {"obs": "next_obs", "done": "next_done"}
    assert pairs({"o": {"a": X}, "next_o": {"a": X}}) == {"o/a": "next_o/a"}
    # Of another shape or dtype it is no next value.
    assert pairs(PAIR | {"a": X, "next_a": Y, "b": X, "next_b": frb.Unbounded((4, 3), "int32")}) == {"obs": "next_obs"}
    assert pairs({"s": X, "s_": X}, frb.Compact(next={"s_": "s"})) == {"s": "s_"}
    assert pairs(ted, frb.Compact(next={("next", "done"): "done"})) == {"done": "next/done"}


def test_stacks_are_found_by_their_axis() -> None:
    (stack,) = chain_of(PAIR, frb.Compact(stack=4)).stacks
    assert (stack.depth, stack.axis, stack.shape) == (4, 0, (3,))
    (stack,) = chain_of(PAIR, frb.Compact(stack=3, axis=-1)).stacks
    assert (stack.depth, stack.axis, stack.shape) == (3, 1, (4,))
    both = chain_of(PAIR | {"y": X, "next_y": X}, frb.Compact(stack={"obs": 4, "y": 3}, axis={"y": 1}))
    assert [(stack.depth, stack.axis) for stack in both.stacks] == [(4, 0), (3, 1)]
    assert (both.depth, both.most, both.paired) == (4, 8, True)
    # Without pairs, the stacks alone.
    alone = chain_of(STACK, frb.Compact(stack=4))
    assert [stack.following for stack in alone.stacks] == [None]
    assert alone.most == 4
    assert pairs(PAIR, frb.Compact(next={}, stack={"obs": 4})) == {"obs": None}


def test_room_is_divided_among_lanes() -> None:
    assert chain_of(PAIR, frb.Compact(), 640).room == 640 + 20 + 2
    assert chain_of(PAIR, frb.Compact(), 640, lanes=4).room == 160 + 5 + 2
    assert chain_of(PAIR, frb.Compact(spare=41), 640, lanes=4).room == 160 + 11
    assert chain_of(PAIR, frb.Compact(spare=0, stack=4), 640, lanes=4).room == 160 + 8
    chain = chain_of(PAIR, frb.Compact(spare=41), 640, lanes=4)
    assert chain.limit % chain.room == 0
    assert 2 * chain.limit + 1 < 2**31


WRONG: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "nothing": ({"obs": X, "reward": X}, {}, ValueError, r"nothing to compact: none of the leaves \['obs', 'reward'\]"),
    "unknown": (PAIR, {"next": {"next_state": "obs"}}, ValueError, "no leaf 'next_state'; name one of"),
    "unequal": (
        PAIR | {"y": Y},
        {"next": {"y": "obs"}},
        ValueError,
        r"leaf 'y': expected shape \(4, 3\) .* got \(3, 4\)",
    ),
    "twice": (PAIR | {"y": X}, {"next": {"y": "obs", "next_obs": "obs"}}, ValueError, "'obs' is in two pairs"),
    "of itself": (PAIR, {"next": {"obs": "obs"}}, ValueError, "'obs' is in two pairs"),
    "no such axis": (PAIR, {"stack": 5}, ValueError, r"none of the leaves \['obs'\] is a stack: expected 5 frames"),
    "another axis": (
        PAIR,
        {"stack": {"obs": 3}},
        ValueError,
        r"'obs': expected 3 frames along axis 0, got shape \(4, 3\)",
    ),
    "axis beyond": (PAIR, {"stack": {"obs": 3}, "axis": 2}, ValueError, "'obs': expected 3 frames along axis 2"),
    "unknown stack": (PAIR, {"stack": {"x": 3}}, ValueError, "no leaf 'x'"),
    "mixed": (
        PAIR | {"y": X},
        {"stack": {"obs": 4, "y": 4}},
        ValueError,
        "'y': expected a stack that has a next value",
    ),
    "too large": (PAIR, {"spare": 2**30}, ValueError, "room for at most 268435456 observations a lane"),
    "no mapping": (PAIR, {"next": "next_obs"}, TypeError, "Compact.next: expected a mapping"),
    "no number": (PAIR, {"stack": 1.5}, TypeError, "Compact.stack: expected an int, got 1.5"),
    "no stack": (PAIR, {"stack": 0}, ValueError, "Compact.stack: expected at least 1, got 0"),
    "negative": (PAIR, {"spare": -1}, ValueError, "Compact.spare: expected at least 0, got -1"),
    "a name twice": (PAIR, {"stack": (("obs", 4), ("obs", 4))}, ValueError, "Compact.stack: expected each leaf once"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_compacted_is_refused(name: str) -> None:
    item, settings, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        frb.BufferSpec(item, 8, compact=frb.Compact(**settings))


def test_other_members_are_refused() -> None:
    with pytest.raises(ValueError, match=r"BufferSpec.compact: .* use writer=frb.RoundRobin\(\)"):
        frb.BufferSpec(PAIR, 8, compact=frb.Compact(), writer=frb.Reservoir())
    with pytest.raises(ValueError, match=r"BufferSpec.compact: .* StopWhenFull\(\) does not keep that"):
        frb.BufferSpec(PAIR, 8, frb.Queue(), compact=frb.Compact())
    with pytest.raises(TypeError, match=r"BufferSpec.compact: expected an instance such as frb.Compact\(\), got True"):
        frb.BufferSpec(PAIR, 8, compact=True)  # type: ignore[arg-type]  # that is the point


def test_settings_can_be_hashed_and_compared() -> None:
    one = frb.Compact(next={("next", "obs"): "obs"}, stack={"obs": 4}, axis={"obs": -1}, spare=3)
    again = frb.Compact(one.next, one.stack, one.axis, one.spare)
    assert one == again
    assert hash(one) == hash(again)
    assert frb.BufferSpec(PAIR, 8, compact=frb.Compact()) != frb.BufferSpec(PAIR, 8)
    assert frb.BufferSpec(PAIR, 8, compact=frb.Compact()) == frb.BufferSpec(PAIR, 8, compact=frb.Compact())
