"""Launches for returns over n steps, and for buffers that stop when they are full, as custom calls of JAX."""

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
from tests.agreement import added_steps, gpu_on_xla
from tests.agreement.jax_programs import agreeing, cuda, mask, stacked
from tests.support.backends import needs_native
from tests.support.effort import effort

pytestmark = needs_native
STEPS, DRAWN = 5, 6
ITEM: Final = {name: added_steps.ITEM[name] for name in ("cut", "done", "id", "image", "x")}
KEYS: Final[dict[str, Any]] = {"at": "add", "reward_key": "x", "terminated_key": "done"}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "one step": {"transforms": frb.n_step(1, 0.9, **KEYS, end_keys=("done",))},
    "several": {"transforms": frb.n_step(4, 0.9, **KEYS, trajectory_key="id", end_keys=["done", "cut"])},
    "what follows": {"transforms": frb.n_step(3, 0.9, **KEYS, next_keys=["image", "id"])},
    "stops": {"writer": frb.StopWhenFull()},
    "looks ahead": {
        "transforms": frb.n_step(3, 0.9, **KEYS | {"at": "sample"}, next_keys=["image"], end_keys=["done", "cut"])
    },
    "looks one ahead": {"transforms": frb.n_step(1, 0.9, **KEYS | {"at": "sample"}, trajectory_key="id", end_keys=())},
}
MADE: Final = {
    "one step": {"line_up", "add_waiting", "read_drawn"},
    "stops": {"rank_in_rings", "add_to_rings"},
    "looks ahead": {"rank_in_rings", "add_to_rings", "read_drawn"},
    "looks one ahead": {"rank_in_rings", "add_to_rings", "read_drawn"},
}
DRAWN_OTHERWISE: Final = {
    "several": frb.WithoutReplacement(),
    "looks one ahead": frb.Slices(2, trajectory_key="id", end_keys=(), strict_length=False),
}


def of(kind: str, sampler: Any, lanes: int | None) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, 12 * (lanes or 1), sampler, lanes=lanes, **KINDS[kind])


def batch(spec: frb.BufferSpec, seed: int) -> Any:
    made = added_steps.items(np.random.default_rng(seed), 7 * seed, STEPS * (spec.lanes or 1), spec)
    return {name: jnp.asarray(array) for name, array in made.items()}


def step(state: frb.State, added: Any, marked: Any, key: jax.Array) -> Any:
    state = rb.add(state, added, marked)
    state, sample = rb.sample(state, key, DRAWN)
    return state, jax.tree.leaves(sample)


def given(spec: frb.BufferSpec, k: int) -> Any:
    return batch(spec, k), mask(k, STEPS, *(() if spec.lanes is None else (spec.lanes,)))


def donated(spec: frb.BufferSpec) -> Any:
    """By rb.jit, which donates; then once more, by which an older state stays."""
    run, state, told = rb.jit(step), rb.init(spec), []
    for k in range(4):
        state, seen = run(state, *given(spec, k), rb.key(k))
        told.append(seen)
    return state, told, jax.jit(lambda state: rb.add(state, batch(spec, 9)))(state)


def scanned(spec: frb.BufferSpec) -> Any:
    turns = *stacked(*(given(spec, k) for k in range(3))), rb.split(rb.key(3), 3)
    return jax.jit(lambda s, xs: lax.scan(lambda s, x: step(s, *x), s, xs))(rb.init(spec), turns)


def several(spec: frb.BufferSpec) -> Any:
    """Stacked buffers, each with its own batch."""
    states = jax.vmap(lambda _: rb.init(spec))(jnp.arange(2))
    return jax.jit(jax.vmap(step))(states, *stacked(*(given(spec, k) for k in range(2))), rb.split(rb.key(0), 2))


PROGRAMS: Final = {program.__name__: program for program in (donated, scanned, several)}
CASES: Final = effort(
    [
        *(("donated", "several", 3), ("scanned", "stops", 3), ("several", "what follows", None)),
        *(("donated", "one step", 2), ("scanned", "looks ahead", 3), ("several", "looks one ahead", None)),
    ],
    [(program, kind, lanes) for program in PROGRAMS for kind in KINDS for lanes in (None, 3)],
)


@pytest.mark.parametrize(("program", "kind", "lanes"), CASES)
def test_programs(program: str, kind: str, lanes: int | None) -> None:
    spec = of(kind, DRAWN_OTHERWISE.get(kind, frb.Prioritized(0.7)), lanes)
    told = agreeing(PROGRAMS[program], spec, gpu_on_xla.using("scattered", blocks=4, share=3))
    expected = MADE.get(kind, {"line_up", "add_waiting", "keep_waiting", "read_drawn"})
    made = {name for name, _ in told.launched}
    assert made >= expected
    assert not made & {"compare_frames", "rank"}


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_on_a_gpu(program: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # XLA has its threads on a CPU take what is less than the least normal number for zero.
    monkeypatch.setattr(added_steps, "REWARDS", [x for x in added_steps.REWARDS if x == 0 or abs(x) >= 2.0**-126])
    agreeing(PROGRAMS[program], of(kind, frb.Prioritized(0.7), 3), contextlib.nullcontext())
