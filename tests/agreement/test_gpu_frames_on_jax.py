"""Launches for items that share frames as custom calls of JAX beside the core, to the bit."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import functional_rb as frb
import jax_backend as rb
from tests.agreement import gpu_on_xla
from tests.agreement.added_steps import COMPACT, observations
from tests.agreement.jax_programs import agreeing, cuda, mask, priorities, stacked
from tests.support.backends import needs_native
from tests.support.effort import effort

pytestmark = needs_native
STEPS, DRAWN = 5, 6
TURNED = {"obs": frb.Unbounded((2, 3), "float16"), "other": frb.Unbounded((2,), "int32")}
PAIRS = TURNED | {f"next_{name}": leaf for name, leaf in TURNED.items()}
KINDS = (*COMPACT[:3], (PAIRS, {"stack": {"obs": 3, "other": 2}, "axis": {"obs": -1}}))
ADDED: Final = {"compare_frames", "add_with_frames", "store_frames"}
AHEAD: Final = frb.n_step(3, 0.9, reward_key="gain", terminated_key="done")
DRAWS: Final[dict[str, tuple[dict[str, Any], set[str]]]] = {
    "uniform": ({}, {"sample_frames"}),
    "prioritized": ({"sampler": frb.Prioritized(0.7)}, {"sample_frames"}),
    "looking ahead": ({"sampler": frb.Prioritized(0.7), "transforms": AHEAD}, {"sample", "read_drawn"}),
    "slices": ({"sampler": frb.Slices(2, strict_length=False)}, {"draw_slices", "read_drawn"}),
    "slices by priority": ({"sampler": frb.PrioritizedSlices(2, period=2)}, {"draw_slices", "read_drawn"}),
    "epochs": ({"sampler": frb.WithoutReplacement(), "transforms": AHEAD}, {"draw_epoch", "read_epoch", "read_drawn"}),
    "epochs of slices": (
        {"sampler": frb.SlicesWithoutReplacement(2, strict_length=False)},
        {"draw_epoch", "read_epoch", "read_drawn"},
    ),
}


def of(k: int, draws: str, lanes: int | None) -> frb.BufferSpec:
    leaves, given = KINDS[k]
    item = {"done": frb.Binary(()), "n": frb.Unbounded((), "int32"), "wide": frb.Unbounded((1100,), "uint8")}
    more: dict[str, Any] = {"lanes": lanes, "compact": frb.Compact(**given, spare=2)} | DRAWS[draws][0]
    return frb.BufferSpec(
        dict(sorted((item | {"gain": frb.Unbounded((2,))} | leaves).items())), 8 * (lanes or 1), **more
    )


def batch(spec: frb.BufferSpec, seed: int, steps: int = STEPS) -> Any:
    """Steps that share most of their frames."""
    rng, lanes, frames = np.random.default_rng(seed), spec.lanes or 1, spec.plan.frames
    assert frames is not None
    rows, lead = steps * lanes, (steps,) if spec.lanes is None else (steps, spec.lanes)
    made = {name: rng.integers(0, 2, (rows, *leaf.shape)) for name, leaf in spec.item.items()}
    made |= observations(rng, rows, frames, spec.plan.names)
    return {
        name: jnp.asarray(made[name].reshape(*lead, *leaf.shape)).astype(leaf.dtype) for name, leaf in spec.item.items()
    }


def given(spec: frb.BufferSpec, k: int, steps: int = STEPS) -> Any:
    lead = (steps,) if spec.lanes is None else (steps, spec.lanes)
    return batch(spec, k, steps), mask(k, *lead), priorities(k, DRAWN)


def step(state: frb.State, given: Any, key: jax.Array) -> Any:
    added, marked, numbers = given
    state, sample = rb.sample(rb.add(state, added, marked), key, DRAWN)
    if state.spec.sampler.has_priorities:
        handles = sample.indices.reshape(-1)
        state = rb.update(state, handles, jnp.resize(numbers, handles.shape))
    return state, jax.tree.leaves(sample)


def called(spec: frb.BufferSpec) -> Any:
    """One by one, the last by rb.jit, which donates, with more steps than lanes have places; the older states stay."""
    states, told = [rb.init(spec)], []
    for k in range(3):
        state, sample = rb.sample(rb.add(states[-1], batch(spec, k)), rb.key(k), DRAWN)
        states.append(state)
        told.append(jax.tree.leaves(sample))
    return states, told, rb.jit(step)(rb.add(states[-1], batch(spec, 3)), given(spec, 4, 11), rb.key(4))


def scanned(spec: frb.BufferSpec) -> Any:
    """With a batch of which some steps are marked, each time."""
    turns = stacked(*(given(spec, k) for k in range(3))), rb.split(rb.key(3), 3)
    return jax.jit(lambda s, xs: lax.scan(lambda s, x: step(s, *x), s, xs))(rb.init(spec), turns)


def several(spec: frb.BufferSpec) -> Any:
    """Stacked buffers, each with its own batch."""
    states = jax.vmap(lambda _: rb.init(spec))(jnp.arange(2))
    return jax.jit(jax.vmap(step))(states, stacked(*(given(spec, k) for k in range(2))), rb.split(rb.key(0), 2))


PROGRAMS: Final = {program.__name__: program for program in (called, scanned, several)}
CASES: Final = effort(
    [
        *(("called", 0, "prioritized", 2), ("scanned", 1, "looking ahead", None), ("several", 3, "slices", None)),
        *(
            ("scanned", 2, "epochs of slices", 2),
            ("called", 1, "epochs", None),
            ("scanned", 0, "slices by priority", 2),
        ),
    ],
    [(program, k, d, lanes) for program in PROGRAMS for k in range(len(KINDS)) for d in DRAWS for lanes in (None, 2)],
)


@pytest.mark.parametrize(("program", "k", "draws", "lanes"), CASES)
def test_programs(program: str, k: int, draws: str, lanes: int | None) -> None:
    order = ("forward", "backward", "scattered")[k % 3]
    told = agreeing(PROGRAMS[program], of(k, draws, lanes), gpu_on_xla.using(order, blocks=4, share=3))
    assert {name for name, _ in told.launched} - {"finish_update", "update"} == ADDED | DRAWS[draws][1]


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_on_a_gpu(program: str, draws: str) -> None:
    agreeing(PROGRAMS[program], of(0, draws, 2), contextlib.nullcontext())
