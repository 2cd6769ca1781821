"""Memory with any numbers in it, as others may have made it: native code stays within its arrays."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.agreement.added_steps import ITEM, items
from tests.agreement.carriers import noting, surrounded
from tests.support.backends import needs_native

pytestmark = needs_native
CAPACITY = 20
SAMPLERS = (
    *(frb.Uniform(), frb.Prioritized(), frb.Prioritized(replacement=False), frb.Prioritized(max_times_sampled=3)),
    frb.Prioritized(replacement=False, alpha=1.0, new_priority="ever", max_times_sampled=2),
    *(frb.Uniform(max_times_sampled=1), frb.WithoutReplacement(), frb.WithoutReplacement(drop_last=True)),
    *(frb.WithoutReplacement(shuffle=False), frb.WithoutReplacement(shuffle=False, drop_last=True), frb.Recency(5)),
    *(frb.Slices(3, end_keys=()), frb.PrioritizedSlices(2), frb.SlicesWithoutReplacement(2, period=2), frb.Queue(2)),
)
IN_ONE = (frb.Queue(), frb.InOrder(newest_first=True), frb.InOrder(1), frb.InOrder(3, newest_first=True))
WRITERS = (frb.Reservoir(), frb.MaxValue("id"), frb.MaxValue("x", reduction="max"))
SPECS = {
    **{
        f"{sampler}, {lanes} lanes": {"sampler": sampler, "lanes": lanes} for sampler in SAMPLERS for lanes in (None, 2)
    },
    **{f"{sampler}": {"sampler": sampler} for sampler in IN_ONE},
    **{f"{writer}": {"sampler": frb.Prioritized(), "writer": writer} for writer in WRITERS},
    "frames": {"compact": frb.Compact(next={}, stack={"x": 3}, spare=0), "sampler": frb.Prioritized()},
    "frames of slices": {
        "compact": frb.Compact(next={}, stack={"x": 3}),
        "sampler": frb.Slices(2, end_keys=()),
        "lanes": 2,
    },
    "returns": {"transforms": frb.n_step(3, 0.9, reward_key="x", terminated_key="done"), "lanes": 2},
}
EXTREMES = np.array([-(2**31), -13, -1, 0, 15, 40, 2**31 - 1], np.int32)


def forge(rng: np.random.Generator, state: Any) -> None:
    """Trees whose sums are none of their leaves; sparse sets, handles, ranks, steps in episodes and counters."""
    memory = state._version.own()
    if memory.tree is not None:
        memory.tree[:] = torch.from_numpy(rng.choice([0, 1, 1e-30, 1e30, -1, np.inf, np.nan], memory.tree.shape))
    for array in memory.auxiliary.values():
        anything = rng.integers(-(2**31), 2**31, array.shape)
        numbers = anything if rng.random() < 0.6 else rng.choice([*EXTREMES, *range(CAPACITY)], array.shape)
        array[:] = torch.from_numpy(numbers.astype(np.int32)).to(array.dtype)
    first = 6 if rng.random() < 0.5 else 0  # behind those that all buffers have
    state._counters[first:] = torch.from_numpy(rng.choice(EXTREMES, len(state._counters) - first))


@pytest.mark.parametrize("name", SPECS)
def test_arrays_that_others_have_made_are_not_written_beyond(name: str) -> None:
    takes_out = "Queue" in name
    writer = frb.StopWhenFull() if takes_out else frb.RoundRobin()
    spec, rng = frb.BufferSpec(ITEM, CAPACITY, **{"writer": writer} | SPECS[name]), np.random.default_rng(0)
    key = rb.key(0) if spec.writer.words else None
    for _ in range(10):
        state = rb.add(rb.init(spec), items(rng, 0, CAPACITY, spec), key=key)
        around = surrounded(state)
        forge(rng, state)
        with noting() as chain:
            older, refused = state, contextlib.suppress(ValueError) if takes_out else contextlib.nullcontext()
            with refused:  # where there is no room
                state = rb.add(state, items(rng, 0, int(rng.choice([2, 8, 30])), spec), key=key)
                assert chain.done == 1 or takes_out
            if spec.sampler.has_priorities:
                state = rb.update(state, torch.from_numpy(rng.choice(EXTREMES, 6)), torch.ones(6))
                assert chain.done == 2
            drawn = chain.draw(state, torch.tensor(int(rng.integers(9))), 6, 0.5, None, None, True)
            assert drawn is NotImplemented or set(drawn[1][[*ITEM].index("id")].reshape(-1).tolist()) <= set(range(7))
            assert all((x[:64] == -5).all() and (x[-64:] == -5).all() for x in around.values())
        del older
