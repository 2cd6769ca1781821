"""Returns over n steps that are made as items are drawn, in one native call: the core's bits, also of older states."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from functional_rb.buffer import functions
from functional_rb.native import launches
from tests.agreement import added_steps
from tests.agreement.carriers import agreeing, noting
from tests.support.backends import needs_native
from tests.support.chain_programs import outcome, peek, told
from tests.support.effort import effort
from tests.support.versions import enable_x64
from torch_backend.memory.library import TORCH

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
    n, gamma = draw(st.sampled_from([1, 2, 3, 7, 30])), draw(st.sampled_from([0.0, 0.9, 1.0]))
    # Of bfloat16 torch itself has several bits for what is no number, as infinity times 0 is.
    dtypes = st.sampled_from(["float32", "float16", *(["bfloat16"] if gamma else [])])
    item, lanes = item | {"x": frb.Unbounded((3,), draw(dtypes))}, draw(st.sampled_from([None, 1, 3]))
    sampler = draw(st.sampled_from(SAMPLERS if item.keys() == OF_AGENTS.keys() else SAMPLERS + OF_SLICES))
    ahead = looking_ahead(draw(st.sampled_from(kinds)), n, gamma, not isinstance(sampler, OF_SLICES_TYPES))
    capacity = (lanes or 1) * draw(st.sampled_from([3, 5, 9, 40]))
    if isinstance(sampler, frb.InOrder):
        lanes, capacity = None, 9
    compact = None
    if draw(st.booleans(), "frames"):
        leaves, frames = draw(st.sampled_from(added_steps.COMPACT))
        item = dict(sorted((item | leaves).items()))
        compact = frb.Compact(**frames, spare=draw(st.sampled_from([None, 0, 30])))
        if draw(st.booleans(), "all follow"):
            ahead = dataclasses.replace(ahead, next_keys=[*leaves])
    return frb.BufferSpec(item, capacity, sampler, lanes=lanes, transforms=ahead, compact=compact)


OF_SLICES_TYPES = tuple(map(type, OF_SLICES))


@hypothesis.settings(max_examples=effort(15, 3000))
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
    *told_of_samples, _ = found
    # Where each agent has ends of its own, the core adds steps, reads frames, and draws what a state remembers.
    whole = spec.known.appends and (spec.plan.frames is None or launches.reads_frames(spec))
    by_one_call = calls["sample"] + (0 if whole else calls["draw"])
    assert by_one_call == sum(len(one) > 2 for one in told_of_samples)


AHEAD = frb.n_step(2, 0.5, reward_key=["gain", "x"], terminated_key="done")


@pytest.mark.parametrize("fields", [{}, {"lanes": 2, "sampler": OF_SLICES[1]}], ids=["items", "slices"])
def test_a_state_may_be_consumed(fields: Any) -> None:
    spec, rng = frb.BufferSpec(OF_ONE, 20, transforms=AHEAD, **fields), np.random.default_rng(0)
    batch = added_steps.items(rng, 0, 30, spec)
    found, calls = agreeing(lambda: told(spec, rb.sample_(rb.add(rb.init(spec), batch), rb.key(5), 300)[1]))
    assert calls["sample_"] == 1
    assert found == told(spec, rb.sample(rb.add(rb.init(spec), batch), rb.key(5), 300)[1])


def test_nests_and_functions_of_items_have_returns() -> None:
    """Which are made by the call that draws; whoever calls the function has the rest."""
    item = {"now": {"x": frb.Unbounded(()), "done": frb.Binary()}, "next": frb.Unbounded((3,))}
    keys: Any = {"reward_key": ("now", "x"), "terminated_key": ("now", "done"), "end_keys": ("now", "done")}
    ahead, doubled = frb.n_step(3, 0.5, **keys), frb.map_items(lambda nest: {"twice": 2 * nest["now"]["x"]})
    now, ones = {"x": np.arange(9, dtype=np.float32), "done": np.arange(9) % 4 == 3}, np.ones((9, 3), np.float32)

    def sampled(*transforms: Any) -> Any:
        state = rb.add(rb.init(frb.BufferSpec(item, 6, transforms=transforms)), {"now": now, "next": ones})
        sample = rb.sample(state, rb.key(1), 8)[1]
        nest = {**sample.items} if "twice" in sample.items else sample.items["now"] | {"next": sample.items["next"]}
        return [(name, x.tolist()) for name, x in (nest | sample.extras).items()]

    nested, calls = agreeing(lambda: sampled(ahead))
    assert calls["sample"] == 1
    mapped, calls = agreeing(lambda: sampled(ahead, doubled))
    assert calls["draw"] == 1
    assert dict(mapped)["twice"] == [2 * x for x in dict(nested)["x"]]
    assert dict(mapped)["discount"] == dict(nested)["discount"]


def of_frames(**fields: Any) -> frb.BufferSpec:
    leaves, compact = added_steps.COMPACT[0]
    item = dict(sorted((OF_ONE | leaves).items()))
    return frb.BufferSpec(item, 12, transforms=AHEAD, compact=frb.Compact(**compact), **fields)


def test_frames_are_read_with_them_also_where_others_would_read_frames() -> None:
    """As beside a GPU, to which frames are sent rather than stacks of them."""
    spec = of_frames()
    state = rb.add(rb.init(spec), added_steps.items(np.random.default_rng(0), 0, 30, spec))
    (_, leaves, slots, extras, *_), others = (
        TORCH.chain.draw(state, rb.key(0), 9, 0.0, None, None, frames) for frames in (True, False)
    )
    assert slots is None
    assert [x.tolist() for x in (*leaves, *extras.values())] == [x.tolist() for x in (*others[1], *others[3].values())]


@pytest.mark.parametrize("frames", [False, True], ids=["rows", "frames"])
def test_buffers_of_jax_in_the_hosts_memory_have_them_in_one_call(
    frames: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax_backend

    host = {"storage": frb.Host()}
    spec = of_frames(**host) if frames else frb.BufferSpec(OF_ONE, 12, transforms=AHEAD, **host)
    rng = np.random.default_rng(0)
    with enable_x64(True):
        state = jax_backend.add(jax_backend.init(spec), added_steps.items(rng, 0, 30, spec))
        with frb.kernels(False):
            expected = jax_backend.sample(state, jax_backend.key(0), 9)[1]
        with noting("jax-host") as chain, monkeypatch.context() as patch:
            patch.setattr(functions, "read_selection", None)  # by which the core would read the rest
            found = jax_backend.sample(state, jax_backend.key(0), 9)[1]
    assert chain.calls["draw"] == 1
    for ours, theirs in ((found.items, expected.items), (found.extras, expected.extras)):
        assert {name: np.asarray(x).tobytes() for name, x in ours.items()} == {
            name: np.asarray(x).tobytes() for name, x in theirs.items()
        }
