"""Goals in hindsight by a kernel for GPUs: emulated in several orders, beside the core to the bit, on both backends."""

from __future__ import annotations

import math
from typing import Any, Final

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch
from jax import lax

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.ops import numpy_ops
from functional_rb.structures.ring import Ring, RingState
from functional_rb.transforms.her import Strategy, chance_in_words, find_goals
from tests.agreement import gpu_on_xla
from tests.agreement.jax_programs import bits, cuda, otherwise
from tests.support import emulated_gpu
from tests.support.backends import needs_native
from tests.support.effort import effort
from torch_backend.kernels import launches

pytestmark = [needs_native, pytest.mark.usefixtures("tensors_of_the_cpu")]
FIND: Final = launches.TABLE[find_goals]
STRATEGIES: Final = "future", "final", "episode", "random"
GOAL: Final = frb.Unbounded((2,))
ITEM: Final = {
    "obs": {"desired_goal": GOAL},
    "next_obs": {"achieved_goal": GOAL, "desired_goal": GOAL},
    "reward": frb.Unbounded(()),
    "done": frb.Binary(()),
}


def rings(rng: np.random.Generator, lanes: int, length: int) -> tuple[Ring, RingState, np.ndarray]:
    """Lanes that have gone round or not, and the steps in their episodes of what they hold."""
    ring = Ring(lanes * length, lanes)
    cursors = rng.choice([0, 1, length - 1, length, 3 * length + 1, ring.limit - 1], lanes)
    sizes = np.where(cursors < length, np.minimum(cursors, length), rng.integers(1, length + 1, lanes))
    steps = np.zeros((lanes, length), np.int32)
    for lane in range(lanes):
        step = int(rng.integers(0, 3))
        for back in range(int(sizes[lane]), 0, -1):
            steps[lane, (cursors[lane] - back) % length] = step
            step = 0 if rng.random() < 0.3 else step + 1
    return ring, RingState(cursors.astype(np.int32), sizes.astype(np.int32)), steps.reshape(-1)


def live(rng: np.random.Generator, ring: Ring, ends: RingState, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Slots of stored items, and which of them are meant to be there: none where nothing is stored."""
    lane = rng.choice(np.flatnonzero(ends.sizes), count) if ends.sizes.any() else np.zeros(count, int)
    back = 1 + rng.integers(0, 2**31, count) % np.maximum(ends.sizes[lane], 1)
    slots = lane * ring.length + (ends.cursors[lane] - back) % ring.length
    return slots.astype(np.int32), (rng.random(count) < 0.8) & ends.sizes.any()


@pytest.mark.parametrize("strategy", STRATEGIES)
@hypothesis.settings(max_examples=effort(12, 500))
@hypothesis.given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.sampled_from([1, 5, 64]),
    st.sampled_from([0, 1, 4, 0.25, 2.5, math.inf]),
)
def test_goals_are_those_of_the_core(strategy: Strategy, seed: int, lanes: int, length: int, k: float) -> None:
    rng = np.random.default_rng(seed)
    ring, ends, in_episode = rings(rng, lanes, length)
    slots, real = live(rng, ring, ends, 40)
    draws = rng.integers(0, 2**31, (40, 4)).astype(np.int32)
    if not isinstance(k, int) and k < math.inf:  # at the border of those that are chosen
        high, low = chance_in_words(k)
        draws[:12, :2] = [(high, low - 1), (high, low), (high, low + 1)] * 4
    expected = find_goals(numpy_ops.OPS, strategy, k, ring, ends, in_episode, slots, real, draws)
    given = None if strategy == "random" else torch.from_numpy(in_episode)
    with emulated_gpu.using(rng.choice([*emulated_gpu.ORDERS]), 3) as emulated:
        tensors = (torch.from_numpy(x) for x in (slots, real, draws))
        found = FIND(strategy, k, ring, RingState(*map(torch.from_numpy, ends)), given, *tensors)
    assert [name for name, _ in emulated.launched] == ["find_goals"]
    assert [x.tolist() for x in found[::2]] == [x.tolist() for x in expected[::2]]
    assert found[1][found[0]].tolist() == expected[1][expected[0]].tolist()


@pytest.mark.parametrize("wild", [-(2**31), -1, 6, 2**30, 2**31 - 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_lie_in_the_buffer_whatever_others_have_made_of_its_numbers(strategy: Strategy, wild: int) -> None:
    ring, rng, given = Ring(10, 2), np.random.default_rng(0), torch.tensor
    draws = torch.from_numpy(rng.integers(0, 2**31, (40, 4)).astype(np.int32))
    slots, real = given(rng.integers(-3, 14, 40), dtype=torch.int32), given([True] * 40)
    numbers = [
        given([wild, 3], dtype=torch.int32),
        given([7, wild], dtype=torch.int32),
        given([wild, 2, wild, 4, 0] * 2),
    ]
    for kept in range(3):  # each is what it should be once, beside others that are wild
        ends, steps = [*numbers[:2]], numbers[2].int()
        if kept < 2:
            ends[kept] = given([7, 3], dtype=torch.int32)
        else:
            steps = given([0, 1, 2, 3, 4] * 2).int()
        with emulated_gpu.using("scattered", 3):
            found = FIND(strategy, math.inf, ring, RingState(*ends), steps, slots, real, draws)
        assert ((found[1] >= 0) & (found[1] < ring.capacity)).all()
        assert (found[2] % ring.capacity == found[1]).all()


def near(achieved: Any, goal: Any) -> Any:
    return ((achieved - goal) ** 2).sum(-1)


def filled(rb: Any, strategy: Strategy, **more: Any) -> Any:
    transforms = [frb.her(strategy, 4, reward=near), *more.pop("transforms", ())]
    spec, rng = frb.BufferSpec(ITEM, 60, transforms=transforms, **more), np.random.default_rng(0)
    lead = (25,) if spec.lanes is None else (25, spec.lanes)
    batch = {
        "obs": {"desired_goal": rng.random((*lead, 2), np.float32)},
        "next_obs": {name: rng.random((*lead, 2), np.float32) for name in ITEM["next_obs"]},
        "reward": rng.random(lead, np.float32),
        "done": rng.random(lead) < 0.2,
    }
    return rb.add(rb.init(spec), batch)


CASES: Final[dict[str, dict[str, Any]]] = {
    "future": {},
    "episode": {"sampler": frb.Prioritized(), "lanes": 3},
    "final": {"transforms": [frb.n_step(3, gamma=0.5)]},
    "random": {"lanes": 2},
}


def sampled(rb: Any, state: Any, key: Any) -> Any:
    state, sample = rb.sample(state, key, 16)
    return state, (sample.items, sample.indices, sample.extras)


@pytest.mark.parametrize("strategy", CASES)
def test_samples_of_torch(strategy: Strategy) -> None:
    rb, state = torch_backend, filled(torch_backend, strategy, **CASES[strategy])
    expected = sampled(rb, state, rb.key(1))[1]
    with emulated_gpu.using("scattered", 2) as emulated:
        found = sampled(rb, filled(rb, strategy, **CASES[strategy]), rb.key(1))[1]
    leaves = [torch.utils._pytree.tree_leaves(each) for each in (found, expected)]
    assert [x.numpy().tobytes() for x in leaves[0]] == [x.numpy().tobytes() for x in leaves[1]]
    assert [name for name, _ in emulated.launched].count("find_goals") == 1


def test_a_mixture_takes_three_launches_for_each_buffer_beside_its_own() -> None:
    def mixed() -> frb.Mixture:
        states = [filled(torch_backend, strategy, **CASES[strategy]) for strategy in ("future", "episode")]
        return frb.Mixture(states, [0.4, 0.6], how="items")

    def drawn(mixture: Any) -> list[bytes]:
        found = sampled(torch_backend, mixture, torch_backend.key(1))[1]
        return [x.numpy().tobytes() for x in torch.utils._pytree.tree_leaves(found)]

    expected = drawn(mixed())
    with emulated_gpu.using("scattered", 2) as emulated:
        mixture = mixed()
        emulated.note()
        before = len(emulated.launched)
        assert drawn(mixture) == expected
    each = ["sample", "find_goals", "read_drawn", "place_rows"]
    assert sorted(name for name, _ in emulated.launched[before:]) == sorted(["share_rows", *each * 2])


def in_a_scan(strategy: Strategy) -> Any:
    state = filled(jax_backend, strategy, **CASES[strategy])
    keys = jax_backend.split(jax_backend.key(2), 3)
    return bits(jax.jit(lambda state: lax.scan(lambda *given: sampled(jax_backend, *given), state, keys)[1])(state))


@pytest.mark.parametrize("strategy", effort(["episode"], [*CASES]))
def test_programs_of_jax(strategy: Strategy) -> None:
    with otherwise():
        expected = in_a_scan(strategy)
    with gpu_on_xla.using("scattered", blocks=4, share=3) as emulated:
        assert in_a_scan(strategy) == expected
    assert [name for name, _ in emulated.launched].count("find_goals") == 3


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("strategy", CASES)
def test_programs_of_jax_on_a_gpu(strategy: Strategy) -> None:
    with otherwise():
        expected = in_a_scan(strategy)
    assert in_a_scan(strategy) == expected
