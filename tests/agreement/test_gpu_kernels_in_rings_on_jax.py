"""Launches for items in rings as custom calls of JAX beside the core, to the bit: several lanes, slices, and epochs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import jax
import pytest

import functional_rb as frb
import jax_backend as rb
from tests.agreement import gpu_on_xla
from tests.agreement.jax_programs import (
    ITEM,
    agreeing,
    cuda,
)
from tests.agreement.ring_programs import CAPACITY, DRAWN, LANES, PROGRAMS, RINGS, STEPS, batch, given, of
from tests.support.backends import needs_native
from tests.support.effort import effort

pytestmark = needs_native

USUAL: Final = [
    ("donated", "slices, prioritized"),
    ("eager", "slices, of whatever is there"),
    ("scanned", "trajectories, without replacement"),
    ("scanned", "queue of windows"),
    ("donated", "newer items"),
    ("several", "without replacement"),
    ("donated", "prioritized, with a limit"),
]
CASES: Final = effort(USUAL, [(program, sampler) for program in PROGRAMS for sampler in RINGS])


@pytest.mark.parametrize(("program", "sampler"), CASES)
def test_programs(program: str, sampler: str) -> None:
    order = ("forward", "backward", "scattered")[len(program + sampler) % 3]
    told = agreeing(PROGRAMS[program], of(sampler), gpu_on_xla.using(order, blocks=4, share=3))
    expected = RINGS[sampler][1] - ({"rank_in_rings", "update"} if program == "eager" else set())
    assert {name for name, _ in told.launched} - {"finish_update"} == expected


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("sampler", RINGS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_on_a_gpu(program: str, sampler: str) -> None:
    agreeing(PROGRAMS[program], of(sampler), contextlib.nullcontext())


def by_other_keys(spec: frb.BufferSpec) -> Any:
    """Whose random words XLA makes: launches choose, and XLA reads."""
    state = rb.add(rb.init(spec), batch(0, 8))
    return rb.sample(state, jax.random.key(0, impl="rbg"), DRAWN)


def in_a_mixture(spec: frb.BufferSpec) -> Any:
    """How many items each gives is known when it is drawn, and an epoch goes on by these alone."""
    states = [rb.add(rb.init(spec), batch(k, 8)) for k in range(2)]
    beta = None if spec.sampler.single_law else 0.0  # else there are no weights
    run = jax.jit(lambda mixture, key: rb.sample(mixture, key, 8, beta=beta))
    mixture, told = frb.Mixture(states), []
    for k in range(3):
        mixture, sample = run(mixture, rb.key(k))
        told.append(jax.tree.leaves(sample))
    return mixture.states, told


OTHERS: Final = effort(
    [(by_other_keys, "without replacement"), (in_a_mixture, "without replacement"), (in_a_mixture, "in order")],
    [(program, sampler) for program in (by_other_keys, in_a_mixture) for sampler in RINGS if "ed" not in sampler[-3:]],
)


@pytest.mark.parametrize(("program", "sampler"), OTHERS)
def test_draws_of_a_kind(program: Callable[[frb.BufferSpec], Any], sampler: str) -> None:
    told = agreeing(program, of(sampler), gpu_on_xla.using("backward", blocks=4, share=3))
    launched = {name for name, _ in told.launched}
    expected = RINGS[sampler][1] - {"rank_in_rings", "update"}
    if launched & {"sample_mixture", "sample_mixed_slices"}:  # these draw and read for a mixture as a whole
        expected = expected - {"sample", "draw_slices", "read_drawn"}
    assert launched >= expected


def chosen(spec: frb.BufferSpec) -> Any:
    """By a writer, which may want a key; the last batch is larger than the buffer."""

    def added(state: frb.State, batch: Any, key: jax.Array) -> Any:
        state = rb.add(state, *batch[:2], key=key if spec.writer.words else None)
        state, sample = rb.sample(state, key, DRAWN)
        return rb.update(state, sample.indices, sample.weights * 2), jax.tree.leaves(sample)

    run, state, told = rb.jit(added), rb.init(spec), []
    for k in range(4):
        state, seen = run(state, given(k, 10 if k == 3 else STEPS), rb.key(k))
        told.append(seen)
    return state, told


@pytest.mark.parametrize("writer", effort([frb.MaxValue("x")], [frb.MaxValue("x"), frb.Reservoir()]), ids=repr)
def test_slots_that_a_writer_chooses(writer: Any) -> None:
    spec = frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized(), writer, lanes=LANES)
    told = agreeing(chosen, spec, gpu_on_xla.using("backward", blocks=4, share=3))
    assert {name for name, _ in told.launched} - {"finish_update"} == {"choose", "add_to_rings", "sample", "update"}
