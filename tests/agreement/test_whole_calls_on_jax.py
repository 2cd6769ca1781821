"""Whole functions of buffers of any kind as single calls in JAX's programs for CPUs, beside the core, to the bit."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import functional_rb as frb
import jax_backend as rb
from functional_rb.buffer import checks
from tests.agreement import gpu_on_xla
from tests.agreement.jax_programs import bits, stacked
from tests.agreement.ring_programs import CALL_BY_CALL, PROGRAMS, RINGS, arrays_of, of
from tests.support.backends import needs_native
from tests.support.effort import effort

pytestmark = needs_native

CALLS: Final = {
    name: {"add_to_rings", "draw"} | ({"update_priorities"} if of(name).sampler.has_priorities else set())
    for name in RINGS
}
USUAL: Final = [
    ("donated", "slices, prioritized"),
    ("scanned", "slices, fresh ones first"),
    ("several", "trajectories, without replacement"),
    ("eager", "without replacement"),
    ("donated", "fresh items"),
]
CASES: Final = effort(USUAL, [(program, sampler) for program in PROGRAMS for sampler in CALLS])


@contextlib.contextmanager
def calls() -> Iterator[set[str]]:
    """The handlers that programs call which are compiled meanwhile, on the CPU."""
    found: set[str] = set()
    lowering = jax.ffi.ffi_lowering

    def noted(target: str, **options: Any) -> Any:
        found.add(target.removeprefix("functional_rb_"))
        return lowering(target, **options)

    with gpu_on_xla.by_the_cpu(), gpu_on_xla.found_by("noted"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.ffi, "ffi_lowering", noted)
        yield found


Program = Callable[[frb.BufferSpec], Any]


def by_the_core(program: Program, call_by_call: Program, spec: frb.BufferSpec) -> Any:
    """What the core gives over NumPy, by calls of their own: XLA takes ten times as long to compile it.

    By the program where such calls refuse what they know before (a full buffer), or keep less (of an emptied queue).
    """
    traced = isinstance(spec.sampler, frb.Queue) or isinstance(spec.writer, frb.StopWhenFull)
    with frb.kernels(False), pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "check_nonempty", lambda *_: None)  # programs draw rows of nothing, marked so
        return program(spec) if traced else call_by_call(dataclasses.replace(spec, storage=frb.Host()))


def agreeing(program: Program, spec: frb.BufferSpec, expected: Any) -> set[str]:
    """What is called by a program that gives what is expected."""
    with calls() as found:
        told = program(spec)
    assert bits(arrays_of(told)) == bits(arrays_of(expected))
    return found


@pytest.mark.parametrize(("program", "sampler"), CASES)
def test_programs(program: str, sampler: str) -> None:
    expected = CALLS[sampler] - ({"update_priorities"} if program == "eager" else set())
    spec = of(sampler)
    assert agreeing(PROGRAMS[program], spec, by_the_core(PROGRAMS[program], CALL_BY_CALL[program], spec)) == expected


# --- other kinds -----------------------------------------------------------------------------------------

KEYS: Final[dict[str, Any]] = {"reward_key": "reward", "terminated_key": "done"}
RETURNS: Final = frb.n_step(3, 0.9, **KEYS, end_keys="done", at="add")
AHEAD: Final = frb.n_step(3, 0.9, **KEYS)
LEAVES: Final = {"done": frb.Binary(()), "id": frb.Unbounded((), "int32"), "reward": frb.Unbounded(())}
STACKS: Final = {"pixels": frb.Unbounded((3, 2, 2), "uint8"), "next": {"pixels": frb.Unbounded((3, 2, 2), "uint8")}}
OTHERS: Final[dict[str, dict[str, Any]]] = {
    "steps that wait": {"transforms": RETURNS, "lanes": 2},
    "steps that wait, and epochs": {"transforms": RETURNS, "sampler": frb.WithoutReplacement()},
    "returns": {"transforms": AHEAD, "sampler": frb.Prioritized(), "lanes": 2},
    "returns of slices": {"transforms": AHEAD, "sampler": frb.Slices(2, strict_length=False)},
    "returns, and epochs": {"transforms": AHEAD, "sampler": frb.WithoutReplacement()},
    "frames": {"compact": frb.Compact(), "lanes": 2},
    "returns of frames": {"compact": frb.Compact(), "transforms": AHEAD, "sampler": frb.Prioritized(), "lanes": 2},
    "returns of frames, and epochs": {
        "compact": frb.Compact(),
        "transforms": AHEAD,
        "sampler": frb.WithoutReplacement(),
    },
    "frames of slices": {"compact": frb.Compact(), "sampler": frb.Slices(2)},
    "full": {"writer": frb.StopWhenFull(), "lanes": 2},
    "a limit": {"sampler": frb.Prioritized(max_times_sampled=2)},
    "a limit of uniform draws": {"sampler": frb.Uniform(max_times_sampled=2), "lanes": 2},
    "the earliest": {"sampler": frb.Prioritized(replacement=False), "lanes": 2},
    "in epochs": {"sampler": frb.WithoutReplacement(), "lanes": 2},
    "in turn": {"sampler": frb.WithoutReplacement(shuffle=False), "lanes": 2},
    "a queue": {"sampler": frb.Queue()},
    "newer ones": {"sampler": frb.Recency(), "lanes": 2},
    "from an end": {"sampler": frb.InOrder()},
    "from an end, with a limit": {"sampler": frb.InOrder(max_times_sampled=3, newest_first=True)},
    "chosen by chance": {"writer": frb.Reservoir(), "sampler": frb.Prioritized()},
    "chosen by rank": {"writer": frb.MaxValue("reward"), "sampler": frb.Prioritized()},
}


# Those that remember what counts of a draw.
MIXED: Final = ["a limit", "a limit of uniform draws", "in epochs", "in turn", "a queue", "from an end, with a limit"]


def items_of(spec: frb.BufferSpec, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    lead = (4,) if spec.lanes is None else (2, spec.lanes)

    def made(item: Any) -> Any:
        if isinstance(item, dict):
            return {name: made(part) for name, part in item.items()}
        return jnp.asarray(rng.integers(0, 2, (*lead, *item.shape)).astype(item.dtype))

    return made(LEAVES | STACKS if spec.compact else LEAVES)


def turn(state: frb.State, given: Any, key: jax.Array) -> Any:
    added, marked = given
    state, before = rb.sample(state, key, 2)  # of nothing at first
    state = rb.add(state, added, marked, key=key)
    state, sample = rb.sample(state, key, 4)
    if state.spec.sampler.has_priorities:
        state = rb.update(state, sample.indices, jnp.arange(4, dtype=jnp.float32))
    return state, jax.tree.leaves((before, sample))


def given(spec: frb.BufferSpec) -> list[Any]:
    marked = np.random.default_rng(0).random((6, 4)) < 0.7
    return [
        (items_of(spec, k), jnp.asarray(marked[k].reshape(-1, *((spec.lanes,) if spec.lanes else ()))))
        for k in range(6)
    ]


def life(spec: frb.BufferSpec) -> Any:
    """Donated, then scanned, then two that are stacked."""
    first, *scanned, one, other = given(spec)
    state, seen = rb.jit(turn)(rb.init(spec), first, rb.key(0))
    state, later = jax.jit(lambda s, xs: lax.scan(lambda s, x: turn(s, *x), s, xs))(
        state, (stacked(*scanned), rb.split(rb.key(1), 3))
    )
    both = stacked(state, state)
    return seen, later, jax.jit(jax.vmap(turn))(both, stacked(one, other), rb.split(rb.key(2), 2))


def turn_by_turn(spec: frb.BufferSpec) -> Any:
    """The same life, call by call."""
    first, *scanned, one, other = given(spec)
    later = []
    state, seen = turn(rb.init(spec), first, rb.key(0))
    for added, key in zip(scanned, rb.split(rb.key(1), 3), strict=True):
        state, told = turn(state, added, key)
        later.append(told)
    both = [arrays_of(turn(state, added, key)) for added, key in zip((one, other), rb.split(rb.key(2), 2), strict=True)]
    return seen, stacked(*later), stacked(*both)


@pytest.mark.parametrize("kind", effort(["a queue", "chosen by rank", "frames of slices", "returns of frames"], OTHERS))
def test_other_kinds(kind: str) -> None:
    item = LEAVES | (STACKS if "frames" in kind else {})
    spec = frb.BufferSpec(item, 12, **OTHERS[kind])
    expected = {"add_to_rings", "draw"} | ({"update_priorities"} if spec.sampler.has_priorities else set())
    expected |= {"threefry"} if spec.writer.words else set()
    assert agreeing(life, spec, by_the_core(life, turn_by_turn, spec)) == expected


@pytest.mark.parametrize("kind", effort(["a queue", "in turn"], [*MIXED]))
def test_draws_of_which_some_count(kind: str) -> None:
    """A mixture has each buffer draw a whole batch, and says how many of it count."""

    def draws(spec: frb.BufferSpec) -> Any:
        states = [rb.add(rb.init(spec), items_of(spec, k)) for k in range(2)]

        def scanned(states: Any, key: jax.Array) -> Any:
            mixture, sample = rb.sample(frb.Mixture(states, p=(0.3, 0.7), how="items"), key, 4)
            return list(mixture.buffers), jax.tree.leaves(sample)

        return jax.jit(lambda states: lax.scan(scanned, states, rb.split(rb.key(3), 5)))(states)

    spec = frb.BufferSpec(LEAVES, 12, **OTHERS[kind])
    with frb.kernels(False):  # mixtures of the host's buffers take other parts of the key
        expected = draws(spec)
    weighted = {"importance_weights"} if spec.sampler.has_priorities else set()
    assert agreeing(draws, spec, expected) - {"threefry", "barrier"} == {"add_to_rings", "draw"} | weighted
