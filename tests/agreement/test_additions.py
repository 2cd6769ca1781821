"""The kernel that adds to rings: the core's bits of what random programs seldom meet; older states stay."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.agreement.added_steps import COMPACT, ITEM, KEYS, OF_AGENTS, STACK, WAITING, WAITING_OF_AGENTS, items
from tests.agreement.carriers import agreeing, frame_cursors, noting
from tests.support.backends import needs_native
from tests.support.chain_programs import check_books, outcome, peek, told

pytestmark = needs_native
LOSING: dict[str, Any] = {
    "windows": frb.Slices(3, strict_length=False, span=True, end_keys=("done",)),
    "trajectories": frb.Slices(3, strict_length=False, span=True, period=2, weighting="trajectory", end_keys=("done",)),
    "fresh windows": frb.Slices(3, strict_length=False, fresh_first=True, end_keys=("done",)),
    "by priority": frb.PrioritizedSlices(3, strict_length=False, end_keys=("done",)),
    "windows once": frb.SlicesWithoutReplacement(3, strict_length=False, weighting="window", end_keys=("done",)),
    "trajectories once": frb.SlicesWithoutReplacement(3, strict_length=False, end_keys=("done",)),
    "items once": frb.WithoutReplacement(),
}


@pytest.mark.parametrize("name", LOSING)
def test_where_many_items_lose_their_frames_the_kernel_gives_the_cores_bits(name: str) -> None:
    """So few frames have room that few steps are left; then windows begin at other steps than the lanes' newest."""
    leaves, given = COMPACT[0]
    spec = frb.BufferSpec(ITEM | leaves, 24, LOSING[name], lanes=2, compact=frb.Compact(**given, spare=0))

    def life() -> list[Any]:
        rng, states, samples = np.random.default_rng(0), [rb.init(spec)], []
        for turn in range(20):
            states.append(rb.add(states[-1], items(rng, 10 * turn, 2 * int(rng.choice([1, 1, 2, 5])), spec)))
            if rb.can_sample(states[-1], 3):
                after, sample = rb.sample(states[-1], rb.key(3), 3)
                states, samples = [*states[-2:], after], [*samples, told(spec, sample)]
            samples += [peek(state) for state in states[-3:]]
        return [{int(rb.size(state)) for state in states}, samples]

    assert agreeing(life)[1]["add"] == 20


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_sums_of_rewards_of_two_bytes_are_rounded_as_the_core_rounds_them(dtype: str, gamma: float) -> None:
    """Of any two numbers, subnormal ones and those between which sums lie halfway among them.

    Infinities too, whose sums may be NaN: of bfloat16 torch itself has several bits for that.
    """
    item = {"x": frb.Unbounded((64,), dtype), "done": frb.Binary()}
    spec = frb.BufferSpec(item, 512, transforms=frb.n_step(2, gamma, at="add", **KEYS, end_keys=()))
    bits = np.random.default_rng(0).integers(-(2**15), 2**15, (512, 64)).astype(np.int16)
    numbers = torch.from_numpy(bits).view(getattr(torch, dtype))
    numbers = torch.where(numbers.isfinite(), numbers, torch.ones_like(numbers))
    if dtype == "float16":
        numbers[::3, ::2], numbers[1::3, ::2] = torch.inf, -torch.inf
    batch = {"x": numbers, "done": torch.zeros(512) > 0}
    assert agreeing(lambda: peek(rb.add(rb.init(spec), batch)))[1]["add"] == 1


@pytest.mark.parametrize(
    "beside",
    [(), (np.array([True, False, True]),), (None, np.ones(3, np.float32)), (None, np.ones((3, 1), np.float32))],
)
def test_a_step_of_all_lanes_comes_without_an_axis_of_steps(beside: Any) -> None:
    spec = frb.BufferSpec(ITEM, 12, frb.PrioritizedSlices(2, end_keys=("done",)), lanes=3)
    batch = {name: x[0] for name, x in items(np.random.default_rng(0), 0, 3, spec).items()}
    assert agreeing(lambda: peek(rb.add(rb.init(spec), batch, *beside)))[1]["add"] == 1


OTHERS: dict[str, Any] = {
    "agents": {"transforms": frb.n_step(2, 0.9, reward_key="x", terminated_key="both", end_keys=["both"])},
    "short ids": {"sampler": frb.Slices(2, trajectory_key="short")},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_buffers_are_left_to_the_core(name: str) -> None:
    item = {"both": frb.Binary((2,)), "x": frb.Unbounded((2,)), "short": frb.Unbounded((), "int16")}
    batch = {name: torch.zeros((4, *leaf.shape), dtype=getattr(torch, leaf.dtype)) for name, leaf in item.items()}
    with noting() as chain:
        rb.add(rb.init(frb.BufferSpec(item, 6, **OTHERS[name])), batch)
    assert chain.calls["add"] == 0


@pytest.mark.parametrize("native", [True, False])
def test_what_is_kept_for_older_versions_is_bounded_also_as_writes_get_larger(native: bool) -> None:
    """A write that saves more than the oldest version gives up: several get copies of their own then."""
    spec, rng, stored = frb.BufferSpec(ITEM, 15, frb.Uniform(), lanes=3), np.random.default_rng(0), 0
    alive = [rb.init(spec)]
    with frb.kernels(native):
        for rows in (3, 3, 3, 3, 27, 150):
            alive = [*alive, rb.add(alive[-1], items(rng, stored, rows, spec))][-4:]
            stored += rows
            check_books(alive[-1])


@pytest.mark.parametrize("lanes", [None, 2])
def test_what_does_not_fit_into_a_full_buffer_is_refused_in_the_cores_words(lanes: int | None, tmp_path: Path) -> None:
    spec = frb.BufferSpec(ITEM, 8, frb.Prioritized(), frb.StopWhenFull(), lanes=lanes)
    rng, paths = np.random.default_rng(0), itertools.count()
    most, more, one = (items(rng, 0, n, spec) for n in (6, 4, lanes or 1))
    mask = np.arange(4).reshape(more["done"].shape) < 2
    of_last_lane = np.zeros_like(mask)
    of_last_lane[..., -1] = True
    refused: list[Any] = [(), (~mask | mask,), *([(of_last_lane,)] if lanes else [])]

    def life() -> list[Any]:
        saved = rb.init(spec)
        frb.save(saved, tmp_path / str(next(paths)))
        state = rb.add(saved, most)
        before = peek(state)
        said = [outcome(rb.add, state, more, *beside)[1] for beside in refused]
        assert peek(state) == before
        full = rb.add(state, more, mask)
        return [said, outcome(rb.add_, full, one)[1], peek(full), full._save_history is None]

    (said, (_, at_once), _, forgotten), calls = agreeing(life)
    assert calls["add"] == 2
    assert said[0][0] is ValueError
    assert "do not fit into the room for" in said[0][1]
    assert "do not fit into the room for 0" in at_once
    assert not forgotten


@pytest.mark.parametrize("lanes", [None, 2])
def test_steps_wait_also_where_items_are_validated_masked_and_added_to_older_states(
    lanes: int | None, tmp_path: Path
) -> None:
    item = ITEM | {"level": frb.Bounded(0, 9, (), "int32")}
    spec = frb.BufferSpec(item, 8, frb.Prioritized(), lanes=lanes, transforms=WAITING[1])
    rng, paths = np.random.default_rng(0), itertools.count()
    given = [items(rng, 6 * k, 6, frb.BufferSpec(ITEM, 8, lanes=lanes)) for k in range(4)]
    masks = [rng.random(batch["done"].shape) < 0.6 for batch in given]
    for batch in given:
        batch["level"] = np.full(batch["done"].shape, 3, np.int32)
    wrong = given[0] | {"level": given[0]["level"] + np.arange(6, dtype=np.int32).reshape(masks[0].shape) * 2}

    def life() -> list[Any]:
        saved = rb.init(spec)
        frb.save(saved, tmp_path / str(next(paths)))
        oldest = rb.add(saved, given[0], masks[0])
        newer = rb.add(rb.add(oldest, given[1]), given[2], masks[2], validate=True)
        branch = rb.add(oldest, given[3], masks[3])
        refused = outcome(functools.partial(rb.add, validate=True), branch, wrong)[1]
        checked = rb.add(branch, wrong, wrong["level"] < 10, validate=True)
        states = oldest, newer, branch, checked
        assert all(state._save_history for state in states)
        return [refused, [(peek(state), int(rb.size(state))) for state in states]]

    (refused, _), calls = agreeing(life)
    assert calls["add"] >= 3
    assert "level" in refused[1]


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize("transform", WAITING_OF_AGENTS)
def test_steps_of_agents_wait_until_each_is_done(transform: Any, lanes: int | None) -> None:
    item = dict(sorted((ITEM | OF_AGENTS).items()))
    spec = frb.BufferSpec(item, 40 * (lanes or 1), frb.Prioritized(), lanes=lanes, transforms=transform)

    def life() -> list[Any]:
        rng, states = np.random.default_rng(0), [rb.init(spec)]
        for k in range(8):
            batch = items(rng, 12 * k, 12, spec)
            states.append(rb.add(states[-1], batch, rng.random(batch["id"].shape) < 0.8))
        return [peek(state) for state in states]

    assert agreeing(life)[1]["add"] == 8


@pytest.mark.parametrize("k", range(len(COMPACT)))
@pytest.mark.parametrize("lanes", [None, 2])
def test_frames_are_shared_as_the_core_shares_them_also_as_their_numbers_begin_anew(k: int, lanes: int | None) -> None:
    leaves, given = COMPACT[k]
    item = dict(sorted((ITEM | leaves).items()))
    spec = frb.BufferSpec(item, 16, frb.Prioritized(), lanes=lanes, compact=frb.Compact(**given, spare=4))

    def life() -> list[Any]:
        rng, alive, seen = np.random.default_rng(k), [rb.init(spec)], []
        alive[0]._counters[frame_cursors(spec)] = spec.plan.frames.limit - 2
        for turn in range(20):
            batch = items(rng, 2 * turn, int(rng.choice([2, 2, 4, 10])), spec)
            mask = rng.random(batch["done"].shape) < 0.7 if turn % 3 == 0 else None
            alive = [*alive, rb.add(alive[-1], batch, mask)][-3:]
            if turn == 10:  # their numbers have just begun anew, behind frames that are there
                alive[-1]._counters[frame_cursors(spec)] = 1
            seen.append([peek(state) for state in alive])
        return seen

    assert agreeing(life)[1]["add"] == 20


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize("paired", [False, True])
def test_a_step_is_compared_with_frames_whose_numbers_had_not_begun_anew(paired: bool, lanes: int | None) -> None:
    """Those before number 0, which lie at the end of a lane's room, say whether a batch begins with shared frames."""
    item = STACK | ({"next_obs": STACK["obs"]} if paired else {})
    spec = frb.BufferSpec(item, 16, lanes=lanes, compact=frb.Compact(stack={"obs": 3}, spare=4))
    lead, cursors, alone = (1, *([lanes] if lanes else [])), frame_cursors(spec), 4 if paired else 3

    def step(*numbers: int) -> dict[str, Any]:
        shown = np.repeat(np.array(numbers, np.uint8), 2).reshape(4, 2)
        return {name: np.tile(stack, (*lead, 1, 1)) for name, stack in zip(item, (shown[:3], shown[1:]), strict=False)}

    for cursor, changed in itertools.product(range(alone - 1), [None, *range(alone - 1)]):
        following = [2, 3, 4, 5]
        if changed is not None:
            following[changed] = 9

        def life(cursor: int = cursor, following: list[int] = following) -> list[Any]:
            state = rb.init(spec)
            state._counters[cursors] = spec.plan.frames.limit - alone + cursor
            first = rb.add(state, step(1, 2, 3, 4))
            second = rb.add(first, step(*following))
            return [first._counters[cursors].tolist(), second._counters[cursors].tolist(), peek(second)]

        (first, second, _), calls = agreeing(life)
        assert calls["add"] == 2
        assert first == [cursor] * (lanes or 1)
        assert second == [cursor + (1 if changed is None else alone)] * (lanes or 1)


@pytest.mark.parametrize(("shape", "axis"), [((3, 4), -1), ((2, 5), -1), ((4, 6), 0)], ids=["words", "pieces", "whole"])
@pytest.mark.parametrize("together", [False, True])
def test_stacks_share_frames_only_where_all_their_bytes_are_the_same(
    shape: tuple[int, int], axis: int, together: bool
) -> None:
    depth = shape[axis]
    spec = frb.BufferSpec(
        {"obs": frb.Unbounded(shape, "uint8")}, 9, compact=frb.Compact(next={}, stack=depth, axis=axis)
    )
    first = np.arange(1, 1 + shape[0] * shape[1], dtype=np.uint8).reshape(shape)
    for changed in np.ndindex(*shape):
        second = np.roll(first, -1, axis)
        second[changed] ^= 128
        steps = np.stack([first, second])

        def life(steps: np.ndarray = steps) -> list[Any]:
            state = rb.init(spec)
            for batch in [steps] if together else [steps[:1], steps[1:]]:
                state = rb.add(state, {"obs": batch})
            return [state._counters[frame_cursors(spec)].tolist(), peek(state)]

        (frames, _), calls = agreeing(life)
        assert calls["add"] == 2 - together
        assert frames == [depth + (1 if changed[axis] == depth - 1 else depth)]


def test_the_whole_tree_knows_of_items_that_lose_their_frames() -> None:
    """Also those of its nodes under which no new item lies."""
    image = frb.Unbounded((2,), "uint8")
    spec = frb.BufferSpec({"obs": image, "next_obs": image}, 600, frb.Prioritized(), compact=frb.Compact(spare=0))
    numbers = np.repeat(np.arange(661)[:, None] % 250, 2, 1).astype(np.uint8)
    shared = {"obs": numbers[:600], "next_obs": numbers[1:601]}
    alone = {"obs": numbers[600:660], "next_obs": numbers[:60] ^ 1}

    def life() -> list[Any]:
        older = rb.add(rb.init(spec), shared, None, np.ones(600, np.float32))
        newer = rb.add(older, alone, None, np.ones(60, np.float32))
        assert rb.size(newer) < 560
        return [peek(newer), peek(older)]

    assert agreeing(life)[1]["add"] == 2
