"""Launches for items that share frames, for returns over n steps, and for buffers that stop, as custom calls of JAX."""

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
from tests.agreement.jax_programs import agreeing, cuda, mask, priorities, stacked
from tests.support.backends import needs_native
from tests.support.effort import effort

pytestmark = needs_native
STEPS, DRAWN = 5, 6
ITEM: Final = {name: added_steps.ITEM[name] for name in ("cut", "done", "id", "image", "x")}
KEYS: Final[dict[str, Any]] = {"reward_key": "x", "terminated_key": "done"}
ADDED: Final = {"rank_in_rings", "add_to_rings"}
WAITED: Final = {"line_up", "add_waiting"}
# Of buffers, with what they launch when items are added and drawn.
KINDS: Final[dict[str, tuple[dict[str, Any], set[str]]]] = {
    "one step": ({"transforms": frb.n_step(1, 0.9, at="add", **KEYS, end_keys=("done",))}, WAITED | {"read_drawn"}),
    "several": (
        {
            "transforms": frb.n_step(4, 0.9, at="add", **KEYS, trajectory_key="id", end_keys=["done", "cut"]),
            "sampler": frb.WithoutReplacement(),
        },
        WAITED | {"keep_waiting", "read_drawn"},
    ),
    "what follows": (
        {"transforms": frb.n_step(3, 0.9, at="add", **KEYS, next_keys=["image", "id"])},
        WAITED | {"keep_waiting", "read_drawn"},
    ),
    "stops": ({"writer": frb.StopWhenFull()}, ADDED),
    "looks ahead": (
        {"transforms": frb.n_step(3, 0.9, **KEYS, next_keys=["image"], end_keys=["done", "cut"])},
        ADDED | {"read_drawn"},
    ),
    "looks one ahead": (
        {
            "transforms": frb.n_step(1, 0.9, **KEYS, trajectory_key="id", end_keys=()),
            "sampler": frb.Slices(2, trajectory_key="id", end_keys=(), strict_length=False),
        },
        ADDED | {"read_drawn"},
    ),
}
TURNED = {"obs": frb.Unbounded((2, 3), "float16"), "other": frb.Unbounded((2,), "int32")}
PAIRS = TURNED | {f"next_{name}": leaf for name, leaf in TURNED.items()}
FRAMES = (*added_steps.COMPACT[:3], (PAIRS, {"stack": {"obs": 3, "other": 2}, "axis": {"obs": -1}}))
SHARED: Final = {"compare_frames", "add_with_frames", "store_frames"}
AHEAD: Final = frb.n_step(3, 0.9, **KEYS)
DRAWS: Final[dict[str, tuple[dict[str, Any], set[str]]]] = {
    "uniform": ({"sampler": frb.Uniform()}, {"sample_frames"}),
    "prioritized": ({}, {"sample_frames"}),
    "ahead": ({"transforms": AHEAD}, {"sample", "read_drawn"}),
    "slices": ({"sampler": frb.Slices(2, strict_length=False)}, {"draw_slices", "read_drawn"}),
    "slices by priority": ({"sampler": frb.PrioritizedSlices(2, period=2)}, {"draw_slices", "read_drawn"}),
    "epochs": ({"sampler": frb.WithoutReplacement(), "transforms": AHEAD}, {"draw_epoch", "read_epoch", "read_drawn"}),
    "epochs of slices": (
        {"sampler": frb.SlicesWithoutReplacement(2, strict_length=False)},
        {"draw_epoch", "read_epoch", "read_drawn"},
    ),
}
KINDS.update(
    {
        f"frames {k}, {draws}": (
            {"item": ITEM | leaves, "compact": frb.Compact(**given, spare=2), "capacity": 8, **fields},
            SHARED | drawing,
        )
        for k, (leaves, given) in enumerate(FRAMES)
        for draws, (fields, drawing) in DRAWS.items()
    }
)


def of(kind: str, lanes: int | None) -> frb.BufferSpec:
    fields = {"item": ITEM, "capacity": 12, "sampler": frb.Prioritized(0.7), **KINDS[kind][0]}
    item = dict(sorted(fields.pop("item").items()))
    return frb.BufferSpec(item, fields.pop("capacity") * (lanes or 1), lanes=lanes, **fields)


def batch(spec: frb.BufferSpec, seed: int, steps: int = STEPS) -> Any:
    """Steps that share most of their frames."""
    made = added_steps.items(np.random.default_rng(seed), 7 * seed, steps * (spec.lanes or 1), spec)
    return {name: jnp.asarray(array) for name, array in made.items()}


def given(spec: frb.BufferSpec, k: int, steps: int = STEPS) -> Any:
    marked = mask(k, steps, *(() if spec.lanes is None else (spec.lanes,)))
    return batch(spec, k, steps), marked, priorities(k, DRAWN)


def step(state: frb.State, given: Any, key: jax.Array) -> Any:
    added, marked, numbers = given
    state, sample = rb.sample(rb.add(state, added, marked), key, DRAWN)
    if state.spec.sampler.has_priorities:
        handles = sample.indices.reshape(-1)
        state = rb.update(state, handles, jnp.resize(numbers, handles.shape))
    return state, jax.tree.leaves(sample)


def called(spec: frb.BufferSpec) -> Any:
    """One by one, then by rb.jit, which donates, with more steps than lanes have places; the older states stay."""
    states, told = [rb.init(spec)], []
    for k in range(3):
        state, sample = rb.sample(rb.add(states[-1], batch(spec, k)), rb.key(k), DRAWN)
        states.append(state)
        told.append(jax.tree.leaves(sample))
    steps = STEPS if not spec.writer.overwrites else spec.capacity // (spec.lanes or 1) + 3
    run = rb.jit(step)
    after, seen = run(rb.add(states[-1], batch(spec, 3)), given(spec, 4, steps), rb.key(4))
    return states, told, seen, run(after, given(spec, 5, steps), rb.key(5))


def scanned(spec: frb.BufferSpec) -> Any:
    """With a batch of which some steps are marked, each time."""
    turns = stacked(*(given(spec, k) for k in range(3))), rb.split(rb.key(3), 3)
    return jax.jit(lambda s, xs: lax.scan(lambda s, x: step(s, *x), s, xs))(rb.init(spec), turns)


def several(spec: frb.BufferSpec) -> Any:
    """Stacked buffers, each with its own batch."""
    states = jax.vmap(lambda _: rb.init(spec))(jnp.arange(2))
    return jax.jit(jax.vmap(step))(states, stacked(*(given(spec, k) for k in range(2))), rb.split(rb.key(0), 2))


PROGRAMS: Final = {program.__name__: program for program in (called, scanned, several)}
USUAL: Final = [
    *(("called", "several", 3), ("scanned", "stops", 3), ("several", "what follows", None), ("called", "one step", 2)),
    *(("scanned", "looks ahead", 3), ("several", "looks one ahead", None), ("called", "frames 0, prioritized", 2)),
    *(
        ("scanned", "frames 1, ahead", None),
        ("several", "frames 3, slices", None),
        ("called", "frames 1, epochs", None),
    ),
    *(("scanned", "frames 2, epochs of slices", 2), ("scanned", "frames 0, slices by priority", 2)),
]
EVERY: Final = [(program, kind, lanes) for program in PROGRAMS for kind in KINDS for lanes in (None, 2, 3)]


@pytest.mark.parametrize(("program", "kind", "lanes"), effort(USUAL, EVERY))
def test_programs(program: str, kind: str, lanes: int | None) -> None:
    order = ("forward", "backward", "scattered")[len(program + kind) % 3]
    told = agreeing(PROGRAMS[program], of(kind, lanes), gpu_on_xla.using(order, blocks=4, share=3))
    launched = {name for name, _ in told.launched}
    assert launched >= KINDS[kind][1]
    if "frames" in kind:
        assert launched - {"finish_update", "update"} == KINDS[kind][1]
    else:
        assert not launched & {"compare_frames", "rank"}


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "frames" not in kind or "frames 0" in kind])
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_on_a_gpu(program: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # XLA has its threads on a CPU take what is less than the least normal number for zero.
    monkeypatch.setattr(added_steps, "REWARDS", [x for x in added_steps.REWARDS if x == 0 or abs(x) >= 2.0**-126])
    agreeing(PROGRAMS[program], of(kind, 2), contextlib.nullcontext())
