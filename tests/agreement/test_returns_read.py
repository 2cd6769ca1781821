"""Returns over n steps that are made as items are drawn, in one native call: the core's bits, also of older states."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from tests.agreement import added_steps
from tests.agreement.carriers import agreeing, noting
from tests.support.backends import needs_native
from tests.support.chain_programs import outcome, peek, told
from tests.support.effort import effort

pytestmark = [needs_native, pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")]
OF_ONE = dict(sorted(added_steps.ITEM.items()))
OF_AGENTS = dict(sorted((added_steps.ITEM | added_steps.OF_AGENTS).items()))
SAMPLERS = (
    *(frb.Uniform(), frb.Prioritized(), frb.Prioritized(replacement=False), frb.Prioritized(max_times_sampled=3)),
    *(frb.Uniform(max_times_sampled=2), frb.WithoutReplacement(), frb.WithoutReplacement(shuffle=False)),
    *(frb.Recency(), frb.InOrder(newest_first=True), frb.InOrder(2)),
)
OF_SLICES = tuple(
    kind(3, strict_length=False) for kind in (frb.Slices, frb.PrioritizedSlices, frb.SlicesWithoutReplacement)
)


def looking_ahead(added: Any, n: int, gamma: float, ends: bool = True) -> Any:
    """The returns of a transform at adding, at sampling, over other steps."""
    names = "reward_key", "terminated_key", "next_keys", *(("end_keys", "trajectory_key") if ends else ())
    return frb.n_step(n, gamma, **{name: getattr(added, name) for name in names})


@st.composite
def specs(draw: st.DrawFn) -> frb.BufferSpec:
    item, kinds = draw(st.sampled_from([(OF_ONE, added_steps.WAITING), (OF_AGENTS, added_steps.WAITING_OF_AGENTS)]))
    dtypes = st.sampled_from(["float32", "float16", "bfloat16"])
    item, lanes = item | {"x": frb.Unbounded((3,), draw(dtypes))}, draw(st.sampled_from([None, 1, 3]))
    sampler = draw(st.sampled_from(SAMPLERS if item.keys() == OF_AGENTS.keys() else SAMPLERS + OF_SLICES))
    n, gamma = draw(st.sampled_from([1, 2, 3, 7, 30])), draw(st.sampled_from([0.0, 0.9, 1.0]))
    ahead = looking_ahead(draw(st.sampled_from(kinds)), n, gamma, not isinstance(sampler, OF_SLICES_TYPES))
    capacity = (lanes or 1) * draw(st.sampled_from([3, 5, 9, 40]))
    if isinstance(sampler, frb.InOrder):
        lanes, capacity = None, 9
    return frb.BufferSpec(item, capacity, sampler, lanes=lanes, transforms=ahead)


OF_SLICES_TYPES = tuple(map(type, OF_SLICES))


@hypothesis.settings(max_examples=effort(40, 3000))
@hypothesis.given(spec=specs(), seed=st.integers(0, 2**32 - 1))
def test_draws_give_the_cores_bits(spec: frb.BufferSpec, seed: int) -> None:
    """Around the ends of rings and of trajectories, at the cursors, of all that counters and rewards may be."""

    def life() -> list[Any]:
        rng, states, seen = np.random.default_rng(seed), [rb.init(spec)], []
        for turn in range(5):
            batch = added_steps.items(rng, 12 * turn, 12, spec)
            batch["gain"][rng.random(batch["gain"].shape) < 0.1] = np.nan
            states.append(rb.add(states[-1], batch, rng.random(batch["run"].shape) < 0.9))
            for k in (-1, 1):  # the newest, and one that is written over
                drawn, refused = outcome(rb.sample, states[k], rb.key(turn), 9)  # of a limit there may be nothing left
                seen.append(refused or told(spec, drawn[1]))
                states[k] = states[k] if refused else drawn[0]
        return [*seen, [peek(state) for state in states]]

    found, calls = agreeing(life)
    assert calls["sample"] == sum(
        not isinstance(one[0], type) or not issubclass(one[0], Exception) for one in found[:-1]
    )
