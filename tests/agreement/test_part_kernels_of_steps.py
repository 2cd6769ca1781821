"""Kernels of steps, windows, returns and priorities return the same bits as the core does, on both backends."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jax_backend.arrays.ops as jax_ops
import torch_backend.arrays.ops as torch_ops
import torch_backend.arrays.random as torch_random
from functional_rb.ops import random_bits
from functional_rb.samplers import importance as powers
from functional_rb.structures import episode_windows
from functional_rb.structures import ring as ring_of
from functional_rb.structures.episode_windows import Lanes, Rule
from functional_rb.structures.ring import Ring, RingState
from functional_rb.transforms import returns
from functional_rb.transforms import step_queue as lines
from tests.support.effort import effort
from tests.support.part_kernels import (
    Jax,
    Numpy,
    Operations,
    QuickJax,
    Torch,
    assert_same_parts,
    custom_calls,
    forms,
    jax_by_kernels,
    random_values,
    torch_by_kernels,
)
from torch_backend.kernels import cpu_kernels as torch_kernels

Numbers = np.ndarray[Any, Any]


@pytest.fixture(params=[Jax, Torch, Operations, Numpy], ids=["jax", "torch", "operations", "numpy"])
def on(request: pytest.FixtureRequest) -> Any:
    return request.param


def both(on: Any, function: Callable[..., Any], rounded: bool = False) -> Callable[..., Any]:
    """A function of `ops` and arrays as one of NumPy arrays, on which kernel and core are compared.

    On torch by strided arrays too. On JAX as users compile it, if anything is rounded in it.
    """
    plain, native = forms(QuickJax if on is Jax and not rounded else on, function)

    def compare(*args: Any) -> None:
        arrays = jax.tree.map(on.array, args)
        expected = plain(*arrays)
        assert_same_parts(on, native(*arrays), expected)
        if on is Torch:
            turned = [x if isinstance(x, Written) else jax.tree.map(strided, x) for x in arrays]  # but what is stored
            assert_same_parts(on, native(*turned), expected)

    return compare


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same numbers in another order of the axes, or with others between them."""
    return x.T.contiguous().T if x.ndim == 2 else x.repeat_interleave(2, 0)[::2] if x.ndim else x


def random_ends(rng: np.random.Generator, ring: Ring) -> RingState:
    """Lanes that are empty, partly filled, just full, long full, or about to begin with their first handles again."""
    sizes = rng.choice([0, 1, ring.length // 2, ring.length - 1, ring.length], ring.lanes).astype(np.int32)
    turned = rng.integers(0, ring.limit - ring.length, ring.lanes)
    turned = np.where(rng.random(ring.lanes) < 0.3, ring.limit - rng.integers(1, 4, ring.lanes), turned)
    full = rng.choice([ring.length, 0], ring.lanes) + turned
    return RingState(np.where(sizes < ring.length, sizes, full % ring.limit).astype(np.int32), sizes)


# With the steps of a batch, for each lane.
RINGS = [(Ring(1), 3), (Ring(12), 5), (Ring(12), 12), (Ring(12), 40), (Ring(12, 3), 5), (Ring(15, 5), 1)]


@pytest.mark.parametrize(("ring", "steps"), RINGS)
@pytest.mark.parametrize("masked", [False, True])
def test_plan_write(on: Any, ring: Ring, steps: int, masked: bool) -> None:
    rng = np.random.default_rng(steps)
    batch = steps * ring.lanes
    compare = both(on, lambda ops, ends, mask: ring_of.plan_write(ops, ring, ends, batch, mask))
    for likely in [0.0, 0.2, 0.5, 0.9, 1.0] * 4:
        compare(random_ends(rng, ring), rng.random(batch) < likely if masked else None)


@pytest.mark.parametrize("which", ["begins", "ends", "both"])
@pytest.mark.parametrize(("lanes", "steps"), [(1, 1), (1, 20), (3, 7)])
def test_steps_in_episodes(on: Any, which: str, lanes: int, steps: int) -> None:
    rng = np.random.default_rng(steps)

    def numbers(ops: Any, next_in_episode: Any, written: Any, begins: Any, ends: Any) -> Any:
        return episode_windows.steps_in_episodes(ops, next_in_episode, written, begins=begins, ends=ends)

    compare = both(on, numbers)
    for likely in [0.0, 0.1, 0.5, 1.0] * 4:
        begins, ends = rng.random((2, lanes, steps)) < likely
        next_in_episode = rng.choice([0, 5, episode_windows.LONGEST - 3, episode_windows.LONGEST - 1], lanes).astype(
            np.int32
        )
        written = rng.choice([0, 1, steps], lanes).astype(np.int32)
        compare(next_in_episode, written, None if which == "ends" else begins, None if which == "begins" else ends)


class Written(NamedTuple):
    """What a buffer keeps of trajectories: see `windows`."""

    ends: RingState
    in_episode: Any
    next_in_episode: Any


def written_at_random(rng: np.random.Generator, ring: Ring) -> Written:
    """Lanes with steps of random trajectories, at any turn of their rings."""
    ends, lanes = random_ends(rng, ring), ring.lanes
    likely = rng.choice([0.0, 0.1, 0.3, 1.0])
    steps = rng.random((lanes, 3 * ring.length)) < likely
    lived = torch.full((lanes,), steps.shape[1], dtype=torch.int32)
    zeros = torch.zeros(lanes, dtype=torch.int32)
    new, next_in_episode = episode_windows.steps_in_episodes(torch_ops, zeros, lived, ends=torch.from_numpy(steps))
    in_episode = np.zeros(ring.capacity, np.int32)
    for e, (cursor, size) in enumerate(zip(*ends, strict=True)):
        back = np.arange(1, size + 1)
        in_episode[e * ring.length + (int(cursor) - back) % ring.length] = new.numpy()[e, -back]
    return Written(ends, in_episode, np.where(ends.sizes > 0, next_in_episode.numpy(), 0).astype(np.int32))


RULES = [
    (Rule(4, 1, True, 0, 0), Ring(300)),
    (Rule(3, 2, False, 0, 0), Ring(60, 3)),
    (Rule(4, 3, False, 3, 0), Ring(10)),
    (Rule(5, 2, False, 3, 1), Ring(18, 2)),
    (Rule(2, 1, False, 0, 1), Ring(40, 4)),
    (Rule(1, 1, False, 0, 0), Ring(1)),
]


def index_and_slices(rule: Rule, ring: Ring, by_trajectory: bool) -> Callable[..., Any]:
    """All that is read of an index, as a function of `ops` and arrays."""

    def read(ops: Any, written: Written, slots: Any, draws: Any, live: Any) -> Any:
        lanes, in_episode = Lanes(ring, written.ends), written.in_episode
        at = lanes, in_episode, written.next_in_episode, slots, draws
        return (
            episode_windows.changed(ops, rule, lanes, in_episode, min(3, ring.length), by_trajectory),
            episode_windows.weights_at(ops, rule, lanes, in_episode, slots),
            [episode_windows.expand(ops, rule, *at, counting, by_trajectory) for counting in (live, None)],
        )

    return read


def to_draw_from(rng: np.random.Generator, ring: Ring) -> tuple[Written, Numbers, Numbers, Numbers]:
    """Every slot: also where no window begins, where nothing is stored, and where the slot does not count."""
    draws = rng.integers(0, 2**31, (ring.capacity, 2)).astype(np.int32)
    draws[::5] = 2**31 - 1
    return (
        written_at_random(rng, ring),
        np.arange(ring.capacity, dtype=np.int32),
        draws,
        rng.random(ring.capacity) < 0.8,
    )


@pytest.mark.parametrize(
    ("on", "rule", "ring", "by_trajectory"),
    [
        (on, rule, ring, by)
        for on in (Jax, Torch)
        for k, (rule, ring) in enumerate(RULES)
        for by in (False, True)
        # Each rule in one of the two ways on JAX, as it takes a second to compile; and not all of them.
        if on is Torch or (by == bool(k % 2) and k in effort((1, 2, 3, 4), range(len(RULES))))
    ],
    indirect=["on"],
)
def test_index_and_slices(on: Any, rule: Rule, ring: Ring, by_trajectory: bool) -> None:
    rng = np.random.default_rng(rule.length)
    compare = both(on, index_and_slices(rule, ring, by_trajectory))
    for _ in range(12):
        compare(*to_draw_from(rng, ring))


def test_no_slots_at_all(on: Any) -> None:
    rule, ring = RULES[1]
    written, *drawn = to_draw_from(np.random.default_rng(0), ring)
    both(on, index_and_slices(rule, ring, True))(written, *(x[:0] for x in drawn))


def check_vmapped(function: Callable[..., Any], several: list[Any], calls: set[str]) -> None:
    """Under `vmap`, by these kernels, a function gives what it gives of each by itself."""
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *several)
    program = jax.jit(jax.vmap(jax_by_kernels(function))).lower(*stacked).compile()
    assert custom_calls(program.as_text()) == calls
    found, alone = program(*stacked), jax.jit(functools.partial(function, jax_ops))
    for k, args in enumerate(several):
        assert_same_parts(Jax, jax.tree.map(lambda x, k=k: x[k], found), alone(*jax.tree.map(jnp.asarray, args)))


def test_windows_under_vmap() -> None:
    rule, ring = RULES[3]
    rng = np.random.default_rng(1)
    several = [to_draw_from(rng, ring) for _ in range(3)]
    check_vmapped(index_and_slices(rule, ring, True), several, {"changed", "expand", "weights_at"})


def test_some_of_these_windows_are_drawn() -> None:
    """So that the test above has compared more than padding."""
    rng = np.random.default_rng(0)
    for rule, ring in RULES:
        counts = []
        for _ in range(20):
            written = jax.tree.map(torch.from_numpy, written_at_random(rng, ring))
            slots = torch.arange(ring.capacity, dtype=torch.int32)
            counts.append(
                episode_windows.weights_at(torch_ops, rule, Lanes(ring, written.ends), written.in_episode, slots)
            )
        found = torch.cat(counts)
        assert 0 < (found > 0).sum() < found.numel()


def around(ring: Ring, n: int) -> Callable[..., Any]:
    """What follows on slots, and how far their trajectories go, as a function of `ops` and arrays."""

    def look(ops: Any, written: Written, slots: Any) -> Any:
        lanes, in_episode = Lanes(ring, written.ends), written.in_episode
        lane, back = episode_windows.step_at(ops, lanes, slots)
        stored = back <= ops.take(lanes.size, lane)
        before, after = episode_windows.extent(ops, lanes, in_episode, slots)
        none = ops.full_like(before, -1)  # that of an empty slot has no meaning
        extent = ops.where(stored, before, none), ops.where(stored, after, none)
        return episode_windows.following(ops, lanes, in_episode, slots, n), extent

    return look


AROUND = [(Ring(1), 2), (Ring(12), 5), (Ring(300), 1), (Ring(15, 5), 7), (Ring(60, 3), 3)]


@pytest.mark.parametrize(
    ("on", "ring", "n"),
    [(on, *one) for on in (Jax, Torch, Numpy) for one in (effort(AROUND[1:4:2], AROUND) if on is Jax else AROUND)],
    indirect=["on"],
)
def test_following_and_extent(on: Any, ring: Ring, n: int) -> None:
    rng = np.random.default_rng(n)
    compare = both(on, around(ring, n))
    for _ in range(15):
        compare(written_at_random(rng, ring), rng.permutation(ring.capacity).astype(np.int32))
    compare(written_at_random(rng, ring), np.zeros(0, np.int32))


def test_some_of_these_trajectories_go_on() -> None:
    """So that the test above has compared more than single steps."""
    rng = np.random.default_rng(0)
    ring, n = AROUND[4]
    seen = set()
    for _ in range(20):
        written = jax.tree.map(torch.from_numpy, written_at_random(rng, ring))
        slots = torch.arange(ring.capacity, dtype=torch.int32)
        (_, real), (before, after) = around(ring, n)(torch_ops, written, slots)
        seen |= set(real.sum(1).tolist()) | set((before + after).tolist())
    assert {0, 1, 2, 3, 19} <= seen | {0}
    assert len(seen) > 10


def rewards_of_steps(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> tuple[Numbers, Numbers]:
    """Rewards [m, n, ...] of many sizes, zeros of both signs and infinities, and which of them there are."""
    m, n = shape[:2]
    rewards = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)
    rewards = np.where(rng.random(shape) < 0.2, rng.choice([0.0, -0.0, np.inf], shape), rewards)
    return rewards.astype(dtype), np.arange(n) < rng.integers(1, n + 1, m)[:, None]


@pytest.mark.parametrize("shape", [(400, 5), (200, 3, 2), (60, 2, 1, 3), (50, 1), (0, 4), (7, 3, 0)])
def test_fold(on: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    for gamma in effort((0.99,), (0.99, 1.0, 0.0)) if on is Jax else (0.99, 1.0, 0.0):
        compare = both(on, lambda ops, rewards, real, gamma=gamma: returns.fold(ops, rewards, real, gamma), True)
        compare(*rewards_of_steps(rng, shape, "float32"))


def test_fold_of_other_dtypes() -> None:
    rng = np.random.default_rng(0)
    for on, dtype in [(Torch, "float64"), (Torch, "float16"), (Jax, "float16")]:
        compare = both(on, lambda ops, rewards, real: returns.fold(ops, rewards, real, 0.9), True)
        compare(*rewards_of_steps(rng, (300, 4, 2), dtype))


def test_rewards_rounded_once_would_differ() -> None:
    """So that the tests above tell a product rounded before the sum from one that is not."""
    rewards, real = rewards_of_steps(np.random.default_rng(0), (400, 2), "float32")
    rewards = np.where(np.isfinite(rewards), rewards, 0)
    total, _ = torch_by_kernels(returns.fold)(torch.from_numpy(rewards), torch.from_numpy(real), 0.99)
    term = np.where(real[:, 1], rewards[:, 1].astype(np.float64) * np.float32(0.99), 0)
    once = (rewards[:, 0].astype(np.float64) + term).astype(np.float32)
    assert 0 < (once != total.numpy()).sum() < 200


@pytest.mark.parametrize(
    ("on", "lanes", "steps", "n", "masked", "words"),
    [
        (on, *shape, masked, words)
        for on in (Jax, Torch)
        for k, shape in enumerate([(1, 1, 1), (1, 6, 3), (3, 1, 3), (2, 5, 4), (3, 2, 6)])
        for masked in (False, True)
        for words in (0, 1, 2)
        # On JAX half of them, or those that differ in what is given: each is compiled.
        if on is Torch or ((k + words) % 2 == masked and k in effort((3, 4), range(5)))
    ],
    indirect=["on"],
)
def test_plan_line(on: Any, lanes: int, steps: int, n: int, masked: bool, words: int) -> None:
    rng = np.random.default_rng(n)
    rows = lanes * (steps + n - 1)
    compare = both(on, lambda ops, *args: lines.plan_line(ops, *args, n))
    for likely in [0.0, 0.2, 0.5, 1.0] * 4:
        pending = rng.integers(0, n, lanes).astype(np.int32)
        ended = rng.random(lanes * steps) < (likely if words == 0 else 0.2)
        ids = (rng.random((rows, words)) < likely).astype(np.int32) if words else None
        mask = rng.random(lanes * steps) < rng.choice([0.0, 0.5, 1.0]) if masked else None
        compare(pending, ended, ids, mask)


def test_transforms_under_vmap() -> None:
    ring, n = AROUND[4]
    rng = np.random.default_rng(1)

    def all_of_them(ops: Any, written: Written, slots: Any, rewards: Any, real: Any, ended: Any) -> Any:
        line = lines.plan_line(ops, written.ends.sizes % n, ended, None, None, n)
        return around(ring, n)(ops, written, slots), returns.fold(ops, rewards, real, 0.9), line

    several = []
    for _ in range(3):
        slots = rng.permutation(ring.capacity).astype(np.int32)
        rewards = rewards_of_steps(rng, (20, n), "float32")
        several.append((written_at_random(rng, ring), slots, *rewards, rng.random(ring.lanes * 4) < 0.3))
    check_vmapped(all_of_them, several, {"extent", "fold_float32", "following", "plan_line"})


def test_below(on: Any) -> None:
    rng = np.random.default_rng(0)
    compare = both(on, random_bits.below)
    draws = rng.integers(0, 2**31, (300, 2)).astype(np.int32)
    draws[::7] = rng.choice([0, 2**31 - 1], draws[::7].shape)
    numbers = rng.choice([0, 1, 2, 1000, 2**31 - 1], 300).astype(np.int32)
    compare(draws, numbers)
    for n in (0, 3, 2**31 - 1):
        compare(draws, np.int32(n))
    compare(draws[:1], numbers[:1])
    compare(draws[:0], numbers[:0])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_stored_value(on: Any, alpha: float) -> None:
    rng = np.random.default_rng(0)
    special = np.array([0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.int32)
    bits = np.concatenate([special, special | -(2**31), rng.integers(0, 2**31, 500).astype(np.int32)])
    both(on, lambda ops, priorities: powers.stored_value(ops, priorities, alpha), True)(bits.view(np.float32))


def test_updated_values(on: Any) -> None:
    """Slots that come once, several times and all the time, live or not, with priorities that are good or not."""
    rng = np.random.default_rng(0)
    compare = both(on, lambda ops, *args: powers.updated_values(ops, *args, 0.6), True)
    for slots, good in itertools.product((2**31 - 1, 50, 3, 1), (1.0, 0.5, 0.0)):
        bad = rng.choice([np.nan, -1.0, np.inf], 200)
        priorities = np.where(rng.random(200) < good, rng.choice([0.0, 1e-40, 0.3, 7.0, 1e30], 200), bad)
        for n in (200,) if on is Jax else (200, 1):
            live = rng.random(n) < rng.choice([0.0, 0.5, 1.0])
            compare(rng.integers(0, slots, n).astype(np.int32), live, priorities[:n].astype(np.float32))


def test_importance_weights(on: Any) -> None:
    rng = np.random.default_rng(0)
    compare = both(on, lambda ops, values, smallest, beta: powers.importance_weights(ops, values, smallest, beta), True)
    for beta in (0.0, 0.4, 1.0, 7.5, np.nan, -1.0, 1e9):
        values = random_values(rng, 300)
        values = values[values > 0][:200]
        compare(values, values.min(), np.float32(beta))


def test_draws_on_torch() -> None:
    for seed in range(20):
        key = torch_random.key(seed)
        assert torch.equal(torch_kernels.draws(key, 7, 5), torch_random.draws(key, 7, 5))
    assert torch_kernels.draws(key, 0, 5).shape == (0, 5)
