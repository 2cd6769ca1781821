"""The kernel that adds to rings: the core's bits, of all lanes, samplers and marks of episodes; older states stay."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend
from functional_rb.core import counters, save_history
from functional_rb.core.episodes import NEXT_STEP_IN_EPISODE
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.storage.host_state import ENGINE
from functional_rb.structures import frame_ring
from functional_rb.structures.episode_windows import LONGEST
from tests.agreement.added_steps import (
    COMPACT,
    ITEM,
    KEYS,
    OF_AGENTS,
    STACK,
    WAITING,
    WAITING_OF_AGENTS,
    items,
)
from tests.agreement.carriers import LIBRARIES, OnTorch, noting, told
from tests.support.backends import needs_native
from tests.support.chain_programs import as_tensor, check_books, outcome, peek
from tests.support.effort import effort

RETURNS = frb.n_step(2, 0.9, **KEYS)
PRIORITIES = np.array([0.0, 1e-40, 0.3, 7.0, 1e30, np.nan, np.inf, -1.0], np.float32)
MARKS: tuple[dict[str, Any], ...] = (
    {"end_keys": ()},
    {"end_keys": ("done",)},
    {"end_keys": ["done", "cut"]},
    {"trajectory_key": "id"},
    {"trajectory_key": "run"},
    {"trajectory_key": "run", "end_keys": ("cut",)},
)


@st.composite
def samplers(draw: st.DrawFn) -> Any:
    """With how many slots a lane may have."""
    priorities = {"alpha": draw(st.sampled_from([0.6, 1.0])), "new_priority": draw(st.sampled_from(["live", "ever"]))}
    kinds = "slices", "slices by priority", "epochs", "items by priority", "items", "slices", "slices once"
    kind = draw(st.sampled_from(kinds))
    if kind == "items":
        return frb.Uniform(draw(st.sampled_from([None, 2]), "limit")), [1, 2, 5, 17]
    if kind == "items by priority":
        limit, again = draw(st.sampled_from([None, 2]), "limit"), draw(st.booleans(), "replacement")
        return frb.Prioritized(max_times_sampled=limit, replacement=again, **priorities), [1, 2, 5, 40]
    if kind == "epochs":
        drop_last, shuffle = draw(st.booleans(), "drop last"), draw(st.booleans(), "shuffle")
        return frb.WithoutReplacement(drop_last, shuffle), [1, 2, 5, 17]
    length, strict = draw(st.integers(1, 5), "length"), draw(st.booleans(), "strict")
    rule: dict[str, Any] = {"strict_length": strict, "period": draw(st.integers(1, 3)), **draw(st.sampled_from(MARKS))}
    rule |= {"batch": draw(st.sampled_from(["slices", "steps"])), "flat": draw(st.booleans())}
    left, right = (0, 0) if strict else (draw(st.sampled_from([0, length - 1])), draw(st.sampled_from([0, length - 1])))
    if kind == "slices by priority":
        return frb.PrioritizedSlices(length, span=(False, right), **rule, **priorities), [5, 6, 40]
    weighting = draw(st.sampled_from(["trajectory", "window"]))
    if kind == "slices once":
        span, drop_last = (left if weighting == "trajectory" else 0, right), draw(st.booleans(), "drop last")
        made = frb.SlicesWithoutReplacement(length, span=span, weighting=weighting, drop_last=drop_last, **rule)
        return made, [5, 6, 40]
    return frb.Slices(length, span=(left, right), weighting=weighting, **rule), [5, 6, 40]


@st.composite
def specs(draw: st.DrawFn, floats: Sequence[str]) -> frb.BufferSpec:
    """With rewards of some of these dtypes."""
    (sampler, sizes), lanes = draw(samplers(), "sampler"), draw(st.sampled_from([None, None, 1, 2, 3]), "lanes")
    transforms = draw(st.sampled_from([(), (), RETURNS]), "transforms")
    item, more, waits = ITEM, dict[str, Any](), not isinstance(sampler, Trajectories)
    kind = draw(st.sampled_from(["usual", "compact", "stops", *(["waiting"] if waits else [])]), "kind")
    if kind == "waiting":
        transforms = draw(st.sampled_from(WAITING), "waiting")
        item = ITEM | ({"truncated": frb.Binary()} if draw(st.booleans(), "truncations") else {})
        item |= {"x": frb.Unbounded((3,), draw(st.sampled_from(floats), "dtype"))}
        if draw(st.booleans(), "agents"):
            transforms, item = draw(st.sampled_from(WAITING_OF_AGENTS), "of agents"), ITEM | OF_AGENTS
    if kind == "compact":
        leaves, given = draw(st.sampled_from(COMPACT), "compact")
        item, more = ITEM | leaves, {"compact": frb.Compact(**given, spare=draw(st.sampled_from([None, 0, 30])))}
    more |= {"writer": frb.StopWhenFull()} if kind == "stops" else {}
    capacity = draw(st.sampled_from(sizes)) * (lanes or 1)
    item = dict(sorted(item.items()))
    return frb.BufferSpec(item, capacity, sampler, lanes=lanes, transforms=transforms, **more)


def add(on: Any, state: Any, batch: Any, mask: Any, priorities: Any, in_place: bool) -> Any:
    if on is OnTorch:
        batch = {name: as_tensor(leaf) for name, leaf in batch.items()}
        return (torch_backend.add_ if in_place else torch_backend.add)(state, batch, mask, priorities)
    n = batch["id"].size
    leaves = [x.reshape(n, *leaf.shape) for x, leaf in zip(batch.values(), state.spec.plan.leaves, strict=True)]
    beside = [None if x is None else x.reshape(n) for x in (mask, priorities)]
    return ENGINE.add(state, leaves, n, *beside, None, consume=in_place)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@hypothesis.settings(max_examples=effort(150, 3000))
@hypothesis.given(data=st.data())
def test_the_kernel_gives_the_cores_bits_and_older_versions_stay(data: st.DataObject) -> None:
    """Whole histories, of lanes that go on by different numbers of steps and whose handles begin anew; of branches."""
    on = data.draw(st.sampled_from(LIBRARIES), "library")
    spec = data.draw(specs(["float32", "float16", "bfloat16"]), "spec")
    assert spec.known.appends
    rng, lanes, stored = np.random.default_rng(data.draw(st.integers(0, 99), "seed")), spec.lanes or 1, 0
    first = counters.CURSOR if lanes == 1 else counters.BASE
    pair, behind = (on.init(spec), on.init(spec)), data.draw(st.sampled_from([0, 1, 4]), "behind")
    for state in pair:
        state._counters[first : first + lanes] = (spec.plan.ring.limit - behind) % spec.plan.ring.limit
        if spec.plan.frames is not None:
            frame = counters.place(spec.plan, frame_ring.CURSOR)
            state._counters[frame : frame + lanes] = (spec.plan.frames.limit - behind) % spec.plan.frames.limit
        following = counters.place(spec.plan, NEXT_STEP_IN_EPISODE)
        if behind == 1 and following is not None:  # an episode that is about to get too long
            state._counters[following] = LONGEST - 3
    alive = [(*pair, peek(pair[0]))]
    for _ in range(data.draw(st.integers(1, 9), "steps")):
        at = data.draw(st.sampled_from([len(alive) - 1, *range(len(alive))]), "which")
        n = lanes * data.draw(st.sampled_from([1, 1, 1, 2, 4, 9, 50]), "rows")
        batch, stored = items(rng, stored, n, spec), stored + n
        lead = batch["id"].shape
        mask = rng.random(lead) < 0.7 if data.draw(st.booleans(), "masked") else None
        priorities = None
        if not spec.writer.overwrites and not has_room(alive[at][0], n if mask is None else mask):
            continue
        delays = any(transform.delays for transform in spec.transforms)
        if spec.sampler.has_priorities and not delays and data.draw(st.booleans(), "with priorities"):
            priorities = rng.choice(PRIORITIES, lead)
        in_place = data.draw(st.booleans(), "in place") and len(alive) == 1
        if data.draw(st.booleans(), "without copies"):  # then older states are found from what was saved
            alive[at:] = [alive[at]]
        made = []
        for k, use in enumerate((True, False)):
            with noting(on) as chain, frb.kernels(use):
                made.append(add(on, alive[at][k], batch, mask, priorities, in_place))
                assert chain.done == use, chain.calls
        if data.draw(st.booleans(), "draw"):
            made = drawn(on, made, data.draw(st.sampled_from([1, 2, 9]), "draws"))
        if in_place:
            alive = []
        alive = [*alive, (*made, peek(made[0]))][-4:]
        for native, plain, bits in alive:
            assert peek(native) == peek(plain) == bits
            check_books(native)
    for native, plain, _ in data.draw(st.permutations(alive), "order"):
        assert [np.asarray(x).tobytes() for x in on.memory_of(native).arrays] == [
            np.asarray(x).tobytes() for x in on.memory_of(plain).arrays
        ]


LOSING: dict[str, Any] = {
    "windows": frb.Slices(3, strict_length=False, span=True, end_keys=("done",)),
    "trajectories": frb.Slices(3, strict_length=False, span=True, period=2, weighting="trajectory", end_keys=("done",)),
    "by priority": frb.PrioritizedSlices(3, strict_length=False, end_keys=("done",)),
    "windows once": frb.SlicesWithoutReplacement(3, strict_length=False, weighting="window", end_keys=("done",)),
    "trajectories once": frb.SlicesWithoutReplacement(3, strict_length=False, end_keys=("done",)),
    "items once": frb.WithoutReplacement(),
}


@needs_native
@pytest.mark.parametrize("name", LOSING)
def test_where_many_items_lose_their_frames_the_kernel_gives_the_cores_bits(name: str) -> None:
    """So few frames have room that few steps are left; then windows begin at other steps than the lanes' newest."""
    leaves, given = COMPACT[0]
    spec = frb.BufferSpec(ITEM | leaves, 24, LOSING[name], lanes=2, compact=frb.Compact(**given, spare=0))
    states, sizes = [OnTorch.init(spec)] * 2, set()
    rng, stored = np.random.default_rng(0), 0
    for _ in range(20):
        n = 2 * int(rng.choice([1, 1, 2, 5]))
        batch, stored = items(rng, stored, n, spec), stored + n
        older, before = states[0], peek(states[0])
        for k, use in enumerate((True, False)):
            with frb.kernels(use), noting(OnTorch) as chain:
                states[k] = add(OnTorch, states[k], batch, None, None, False)
                assert chain.done == use
        assert peek(states[0]) == peek(states[1])
        assert peek(older) == before
        sizes |= set(counters.read(spec.plan, np.asarray(states[0]._counters)).ends.sizes.tolist())
        states = drawn(OnTorch, states, 3)
    assert len(sizes) > 3


def has_room(state: Any, wanted: Any) -> bool:
    """Whether each lane of a buffer has room for so many rows, or for those that a mask marks."""
    ring = state.spec.plan.ring
    rows = wanted // ring.lanes if isinstance(wanted, int) else wanted.reshape(-1, ring.lanes).sum(0)
    sizes = counters.read(state.spec.plan, np.asarray(state._counters)).ends.sizes
    return bool((rows <= ring.length - sizes).all())


def drawn(on: Any, states: list[Any], draws: int) -> list[Any]:
    """The states after a draw by the kernel and by the core, which is the same of both."""
    spec, found = states[0].spec, []
    size = spec.sampler.length * draws if getattr(spec.sampler, "batch", "") == "steps" else draws
    try:
        for state, use in zip(states, (True, False), strict=True):
            with frb.kernels(use):
                after, *parts = on.sample(state, 3, size)
            found.append((after, told(parts)))
    except ValueError:
        return states
    assert found[0][1] == found[1][1]
    return [after for after, _ in found]


@needs_native
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_sums_of_rewards_of_two_bytes_are_rounded_as_the_core_rounds_them(dtype: str, gamma: float) -> None:
    """Of any two numbers, subnormal ones and those between which sums lie halfway among them.

    Infinities too, whose sums may be NaN: of bfloat16 torch itself has several bits for that.
    """
    item = {"x": frb.Unbounded((64,), dtype), "done": frb.Binary()}
    transform = frb.n_step(2, gamma, at="add", **KEYS, end_keys=())
    spec, rng, made = frb.BufferSpec(item, 512, transforms=transform), np.random.default_rng(0), []
    numbers = torch.from_numpy(rng.integers(-(2**15), 2**15, (512, 64)).astype(np.int16)).view(getattr(torch, dtype))
    numbers = torch.where(numbers.isfinite(), numbers, torch.ones_like(numbers))
    if dtype == "float16":
        numbers[::3, ::2], numbers[1::3, ::2] = torch.inf, -torch.inf
    for use in (True, False):
        with frb.kernels(use), noting(OnTorch) as chain:
            made.append(
                torch_backend.add(OnTorch.init(spec), {"x": numbers, "done": torch.zeros(512, dtype=torch.bool)})
            )
            assert chain.done == use
    assert peek(made[0]) == peek(made[1])


def one_step(spec: frb.BufferSpec) -> dict[str, Any]:
    return items(np.random.default_rng(0), 0, spec.lanes or 1, spec)


def test_a_step_of_all_lanes_comes_without_an_axis_of_steps() -> None:
    spec = frb.BufferSpec(ITEM, 12, frb.PrioritizedSlices(2, end_keys=("done",)), lanes=3)
    batch = {name: x[0] for name, x in one_step(spec).items()}
    for beside in (
        (),
        (np.array([True, False, True]),),
        (None, np.ones(3, np.float32)),
        (None, np.ones((3, 1), np.float32)),
    ):
        states = []
        for use in (True, False):
            with noting(OnTorch) as chain, frb.kernels(use):
                states.append(torch_backend.add(torch_backend.init(spec), batch, *beside))
                assert chain.calls["add"] == chain.done == use
        assert peek(states[0]) == peek(states[1])


OTHERS: dict[str, Any] = {
    "agents": {"transforms": frb.n_step(2, 0.9, reward_key="each", terminated_key="both", end_keys=["both"])},
    "short ids": {"sampler": frb.Slices(2, trajectory_key="short")},
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_other_buffers_are_left_to_the_core(name: str) -> None:
    item = ITEM | {"both": frb.Binary((2,)), "each": frb.Unbounded((2,)), "short": frb.Unbounded((), "int16")}
    item |= {"next_x": frb.Unbounded((3,))}
    assert not frb.BufferSpec(item, 6, **OTHERS[name]).known.appends


@needs_native
@pytest.mark.parametrize(
    "sampler",
    [
        frb.WithoutReplacement(),
        frb.Slices(3, end_keys=()),
        frb.PrioritizedSlices(2),
        frb.SlicesWithoutReplacement(2, period=2),
    ],
)
def test_arrays_that_others_have_made_are_not_written_beyond(sampler: Any) -> None:
    """Any numbers as counters, steps in episodes and a sparse set: something is stored, and nothing is broken."""
    spec, rng = frb.BufferSpec(ITEM, 14, sampler, lanes=2), np.random.default_rng(0)
    state = OnTorch.init(spec)
    memory = OnTorch.memory_of(state)
    around = {name: torch.full((142, *x.shape[1:]), -5, dtype=x.dtype) for name, x in memory.auxiliary.items()}
    memory.auxiliary = {name: x[64:78] for name, x in around.items()}
    memory.take(memory.by_name)
    with noting(OnTorch) as chain:
        for _ in range(20):
            for x in (*memory.auxiliary.values(), state._counters):
                numbers = (
                    rng.integers(-(2**31), 2**31, x.shape) if rng.random() < 0.7 else rng.integers(-1, 15, x.shape)
                )
                x[:] = torch.from_numpy(numbers.astype(np.int32)).to(x.dtype)
            state = torch_backend.add(state, items(rng, 0, int(rng.choice([2, 8, 30])), spec))
            assert all((x[:64] == -5).all() and (x[78:] == -5).all() for x in around.values())
    assert chain.done == 20


@pytest.mark.parametrize("native", [True, False])
def test_what_is_kept_for_older_versions_is_bounded_also_as_writes_get_larger(native: bool) -> None:
    """A write that saves more than the oldest version gives up: several get copies of their own then."""
    spec, rng, stored = frb.BufferSpec(ITEM, 15, frb.Uniform(), lanes=3), np.random.default_rng(0), 0
    alive = [torch_backend.init(spec)]
    with frb.kernels(native):
        for rows in (3, 3, 3, 3, 27, 150):
            alive = [*alive, torch_backend.add(alive[-1], items(rng, stored, rows, spec))][-4:]
            stored += rows
            check_books(alive[-1])


@pytest.mark.parametrize("lanes", [None, 2])
def test_what_does_not_fit_into_a_full_buffer_is_refused_in_the_cores_words(lanes: int | None) -> None:
    spec = frb.BufferSpec(ITEM, 8, frb.Prioritized(), frb.StopWhenFull(), lanes=lanes)
    rng, said = np.random.default_rng(0), []
    most, more = items(rng, 0, 6, spec), items(rng, 6, 4, spec)
    mask = np.arange(4).reshape(more["done"].shape) < 2
    of_last_lane = np.zeros_like(mask)
    of_last_lane[..., -1] = True
    refused: list[Any] = [(), (~mask | mask,), *([(of_last_lane,)] if lanes else [])]
    for use in (True, False):
        with noting(OnTorch) as chain, frb.kernels(use):
            saved = torch_backend.init(spec)
            saved.remember(save_history.NEW.saved("stamp"))
            state = torch_backend.add(saved, most)
            before = peek(state)
            said.append([outcome(torch_backend.add, state, more, *beside)[1] for beside in refused])
            assert peek(state) == before
            full = torch_backend.add(state, more, mask)
            said[-1].append(outcome(torch_backend.add_, full, one_step(spec))[1])
            assert chain.calls["add"] == 2 * use
            said[-1].append((peek(full), full._save_history))
    assert said[0] == said[1]
    (kind, words), *_, (_, at_once), _ = said[0]
    assert kind is ValueError
    assert "do not fit into the room for" in words
    assert "do not fit into the room for 0" in at_once


@pytest.mark.parametrize("lanes", [None, 2])
def test_steps_wait_also_where_items_are_validated_masked_and_added_to_older_states(lanes: int | None) -> None:
    item = ITEM | {"level": frb.Bounded(0, 9, (), "int32")}
    spec = frb.BufferSpec(item, 8, frb.Prioritized(), lanes=lanes, transforms=WAITING[1])
    rng, found = np.random.default_rng(0), []
    given = [items(rng, 6 * k, 6, frb.BufferSpec(ITEM, 8, lanes=lanes)) for k in range(4)]
    masks = [rng.random(batch["done"].shape) < 0.6 for batch in given]
    for batch in given:
        batch["level"] = np.full(batch["done"].shape, 3, np.int32)
    wrong = given[0] | {"level": given[0]["level"] + np.arange(6, dtype=np.int32).reshape(masks[0].shape) * 2}
    for use in (True, False):
        with noting(OnTorch) as chain, frb.kernels(use):
            saved = torch_backend.init(spec)
            saved.remember(save_history.NEW.saved("stamp"))
            oldest = torch_backend.add(saved, given[0], masks[0])
            newer = torch_backend.add(torch_backend.add(oldest, given[1]), given[2], masks[2], validate=True)
            branch = torch_backend.add(oldest, given[3], masks[3])
            assert chain.calls["add"] >= 3 * use
            refused = outcome(functools.partial(torch_backend.add, validate=True), branch, wrong)[1]
            checked = torch_backend.add(branch, wrong, wrong["level"] < 10, validate=True)
            states = oldest, newer, branch, checked
            found.append([(peek(state), state._save_history, torch_backend.size(state)) for state in states])
            found[-1].append(refused)
    assert found[0] == found[1]
    assert "level" in found[0][-1][1]


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize("transform", WAITING_OF_AGENTS)
def test_steps_of_agents_wait_until_each_is_done(transform: Any, lanes: int | None) -> None:
    item = dict(sorted((ITEM | OF_AGENTS).items()))
    spec = frb.BufferSpec(item, 40 * (lanes or 1), frb.Prioritized(), lanes=lanes, transforms=transform)
    rng, found = np.random.default_rng(0), []
    given = [items(rng, 12 * k, 12, spec) for k in range(8)]
    masks = [rng.random(batch["id"].shape) < 0.8 for batch in given]
    for use in (True, False):
        with noting(OnTorch) as chain, frb.kernels(use):
            states = [torch_backend.init(spec)]
            for batch, mask in zip(given, masks, strict=True):
                states.append(torch_backend.add(states[-1], batch, mask))
            assert chain.calls["add"] == 8 * use
            found.append([peek(state) for state in states])
    assert found[0] == found[1]


@pytest.mark.parametrize("k", range(len(COMPACT)))
@pytest.mark.parametrize("lanes", [None, 2])
def test_frames_are_shared_as_the_core_shares_them_also_as_their_numbers_begin_anew(k: int, lanes: int | None) -> None:
    leaves, given = COMPACT[k]
    item, rng = dict(sorted((ITEM | leaves).items())), np.random.default_rng(k)
    spec = frb.BufferSpec(item, 16, frb.Prioritized(), lanes=lanes, compact=frb.Compact(**given, spare=4))
    frames, at = spec.plan.frames, counters.place(spec.plan, frame_ring.CURSOR)
    assert frames is not None
    assert at is not None
    pair = [torch_backend.init(spec) for _ in range(2)]
    for state in pair:
        state._counters[at : at + frames.items.lanes] = frames.limit - 2
    alive: list[tuple[Any, Any, list[bytes]]] = []
    for turn in range(20):
        n = int(rng.choice([2, 2, 4, 10]))
        batch, mask = items(rng, 2 * turn, n, spec), None
        if turn % 3 == 0:
            mask = rng.random(batch["done"].shape) < 0.7
        for j, use in enumerate((True, False)):
            with noting(OnTorch) as chain, frb.kernels(use):
                pair[j] = torch_backend.add(pair[j], batch, mask)
                assert chain.done == use
        if turn == 10:  # their numbers have just begun anew, behind frames that are there
            for state in pair:
                state._counters[at : at + frames.items.lanes] = 1
        alive = [*alive, (*pair, peek(pair[0]))][-3:]
        for native, plain, bits in alive:
            assert peek(native) == peek(plain) == bits


@pytest.mark.parametrize("lanes", [None, 2])
@pytest.mark.parametrize("paired", [False, True])
def test_a_step_is_compared_with_frames_whose_numbers_had_not_begun_anew(paired: bool, lanes: int | None) -> None:
    """Those before number 0, which lie at the end of a lane's room, say whether a batch begins with shared frames."""
    item = STACK | ({"next_obs": STACK["obs"]} if paired else {})
    spec = frb.BufferSpec(item, 16, lanes=lanes, compact=frb.Compact(stack={"obs": 3}, spare=4))
    frames, at = spec.plan.frames, counters.place(spec.plan, frame_ring.CURSOR)
    assert frames is not None
    assert at is not None
    lead, cursors = (1, *([lanes] if lanes else [])), slice(at, at + (lanes or 1))

    def step(*numbers: int) -> dict[str, Any]:
        shown = np.repeat(np.array(numbers, np.uint8), 2).reshape(4, 2)
        return {name: np.tile(stack, (*lead, 1, 1)) for name, stack in zip(item, (shown[:3], shown[1:]), strict=False)}

    looked_at = range(3 if paired else 2)
    for cursor, changed in itertools.product(looked_at, [None, *looked_at]):
        following, found = [2, 3, 4, 5], []
        if changed is not None:
            following[changed] = 9
        for use in (True, False):
            with noting(OnTorch) as chain, frb.kernels(use):
                state = torch_backend.init(spec)
                state._counters[cursors] = frames.limit - (4 if paired else 3) + cursor
                state = torch_backend.add(state, step(1, 2, 3, 4))
                assert state._counters[cursors].tolist() == [cursor] * (lanes or 1)
                state = torch_backend.add(state, step(*following))
                assert chain.calls["add"] == 2 * use
            alone = 4 if paired else 3
            assert state._counters[cursors].tolist() == [cursor + (1 if changed is None else alone)] * (lanes or 1)
            found.append(peek(state))
        assert found[0] == found[1]


@pytest.mark.parametrize(("shape", "axis"), [((3, 4), -1), ((2, 5), -1), ((4, 6), 0)], ids=["words", "pieces", "whole"])
@pytest.mark.parametrize("together", [False, True])
def test_stacks_share_frames_only_where_all_their_bytes_are_the_same(
    shape: tuple[int, int], axis: int, together: bool
) -> None:
    depth = shape[axis]
    item = {"obs": frb.Unbounded(shape, "uint8")}
    spec = frb.BufferSpec(item, 9, compact=frb.Compact(next={}, stack=depth, axis=axis))
    first = np.arange(1, 1 + shape[0] * shape[1], dtype=np.uint8).reshape(shape)
    at = counters.place(spec.plan, frame_ring.CURSOR)
    assert at is not None
    for changed in np.ndindex(*shape):
        second, found = np.roll(first, -1, axis), []
        second[changed] ^= 128
        steps = np.stack([first, second])
        for use in (True, False):
            with noting(OnTorch) as chain, frb.kernels(use):
                state = torch_backend.init(spec)
                for batch in [steps] if together else [steps[:1], steps[1:]]:
                    state = torch_backend.add(state, {"obs": batch})
                assert bool(chain.calls["add"]) == use
            found.append(peek(state))
            assert state._counters[at] == depth + (1 if changed[axis] == depth - 1 else depth)
        assert found[0] == found[1]


def test_the_whole_tree_knows_of_items_that_lose_their_frames() -> None:
    """Also those of its nodes under which no new item lies."""
    image = frb.Unbounded((2,), "uint8")
    spec = frb.BufferSpec({"obs": image, "next_obs": image}, 600, frb.Prioritized(), compact=frb.Compact(spare=0))
    numbers, found = np.repeat(np.arange(661)[:, None] % 250, 2, 1).astype(np.uint8), []
    shared = {"obs": numbers[:600], "next_obs": numbers[1:601]}
    alone = {"obs": numbers[600:660], "next_obs": numbers[:60] ^ 1}
    for use in (True, False):
        with noting(OnTorch) as chain, frb.kernels(use):
            older = torch_backend.add(torch_backend.init(spec), shared, None, np.ones(600, np.float32))
            newer = torch_backend.add(older, alone, None, np.ones(60, np.float32))
            assert chain.calls["add"] == 2 * use
            assert torch_backend.size(newer) < 560
            found.append([peek(newer), peek(older)])
    assert found[0] == found[1]
