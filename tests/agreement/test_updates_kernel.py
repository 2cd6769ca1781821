"""The kernel of updates: the core's bits, of all rings, rules and handles, and nothing else in a program."""

from __future__ import annotations

import re
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.buffer import functions
from functional_rb.core import counters
from functional_rb.core.draft import Arrays
from functional_rb.ops import numpy_ops
from tests.agreement.carriers import LIBRARIES, noting
from tests.support.backends import needs_native
from tests.support.chain_programs import Noting
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.xla_options import AS_USERS
from torch_backend.memory.library import TORCH

ITEM = {"done": frb.Binary(), "id": frb.Unbounded((), "int32")}
MORE = {**ITEM, "image": frb.Unbounded((1030,), "uint8"), "reward": frb.Unbounded((2,))}
RETURNS = {"reward_key": "reward", "terminated_key": "done", "end_keys": ("done",)}
BAD = (float("nan"), float("inf"), -1.0)


@st.composite
def specs(draw: st.DrawFn) -> frb.BufferSpec:
    length, lanes = draw(st.integers(1, 5), "length"), draw(st.sampled_from([None, 2, 3]), "lanes")
    settings = {"alpha": draw(st.sampled_from([0.6, 1.0])), "new_priority": draw(st.sampled_from(["live", "ever"]))}
    kind = draw(st.sampled_from(["slices by priority", "by priority", "slices", "epochs", "items"]), "kind")
    if kind == "slices":
        sampler: Any = frb.Slices(length, strict_length=False, end_keys=("done",))
    elif kind in ("epochs", "items"):
        sampler = frb.WithoutReplacement() if kind == "epochs" else frb.Uniform()
    elif kind == "slices by priority":
        strict, period = draw(st.booleans(), "strict"), draw(st.integers(1, 3), "period")
        span = (False, True) if not strict and draw(st.booleans(), "span") else False
        rule = {"strict_length": strict, "period": period, "span": span, "end_keys": ("done",)}
        sampler = frb.PrioritizedSlices(length, **rule, **settings)
    else:
        sampler = frb.Prioritized(replacement=lanes is not None, **settings)
    transforms = [frb.n_step(2, 0.9, **RETURNS)] + (
        [] if "slices" in kind else [frb.n_step(3, 0.9, at="add", **RETURNS)]
    )
    more: dict[str, Any] = {"transforms": draw(st.sampled_from([(), *transforms]), "transforms")}
    item = MORE
    if not more["transforms"] and draw(st.booleans(), "frames"):
        item = dict(sorted({**MORE, "frames": frb.Unbounded((2, 3), "uint8")}.items()))
        more["compact"] = frb.Compact(next={}, stack={"frames": 2})
    return frb.BufferSpec(item, draw(st.sampled_from([5, 6, 40]), "steps") * (lanes or 1), sampler, lanes=lanes, **more)


def items(rng: np.random.Generator, n: int, lanes: int | None) -> dict[str, Any]:
    """Steps [n] or [n // lanes, lanes], a trajectory ending at three of ten."""
    made = {"done": rng.random(n) < 0.3, "id": np.arange(n, dtype=np.int32)}
    return {name: x if lanes is None else x.reshape(-1, lanes) for name, x in made.items()}


def with_more(rng: np.random.Generator, given: dict[str, Any], spec: frb.BufferSpec) -> dict[str, Any]:
    """Items that have an image and rewards, too, and frames if there are such."""
    lead = given["id"].shape
    image = rng.integers(256, size=(*lead, 1030), dtype=np.uint8)
    frames = rng.integers(2, size=(*lead, 2, 3), dtype=np.uint8)
    made = {**given, "frames": frames, "image": image, "reward": rng.random((*lead, 2), np.float32)}
    return {name: made[name] for name in spec.item if name in made}


def arrays_of(on: Any, state: Any) -> list[bytes]:
    """All that a state is made of."""
    return [np.asarray(x).tobytes() for x in (*on.memory_of(state).arrays, state._counters)]


def some_handles(spec: frb.BufferSpec, vector: Any, rng: np.random.Generator, n: int) -> np.ndarray:
    """Of items that are there, some of them several times, and of such as are not."""
    state = Arrays(None, (), None, np.asarray(vector), {})
    there = functions.newest(numpy_ops, state, spec, spec.plan.ring.length).reshape(-1)
    gone = np.array([-1, -2, 2**31 - 1, spec.capacity, (2**31 - 1) // spec.capacity * spec.capacity], np.int32)
    return np.where(rng.random(n) < 0.8, rng.choice(there, n), rng.choice([*gone, *(there - spec.capacity)], n))


@hypothesis.settings(max_examples=effort(60, 1000))
@hypothesis.given(data=st.data())
def test_the_kernel_gives_the_cores_bits(data: st.DataObject) -> None:
    """Whole histories, of lanes whose handles begin anew; the state before is found again behind each update."""
    on, spec = data.draw(st.sampled_from(LIBRARIES), "library"), data.draw(specs(), "spec")
    rng, lanes = np.random.default_rng(data.draw(st.integers(0, 99), "seed")), spec.lanes or 1
    assert spec.known.rewrites
    assert spec.known.updates == spec.sampler.has_priorities
    state = on.init(spec)
    first = counters.CURSOR if spec.lanes is None else counters.BASE
    behind = data.draw(st.sampled_from([0, 1, 4]), "behind")
    state._counters[first : first + lanes] = (spec.plan.ring.limit - behind) % spec.plan.ring.limit
    for _ in range(data.draw(st.integers(1, 4), "steps")):
        n = lanes * data.draw(st.integers(1, 9), "rows")
        mask = rng.random(n) < 0.7 if data.draw(st.booleans(), "masked") else None
        mask = mask if mask is None or spec.lanes is None else mask.reshape(-1, lanes)
        state = on.add(state, with_more(rng, items(rng, n, spec.lanes), spec), mask)
        if int(np.asarray(state._counters[counters.SIZE])) == 0 and lanes == 1:
            continue
        batch = data.draw(st.sampled_from([1, 4, 60]), "batch")
        handles = some_handles(spec, state._counters, rng, batch).astype(np.int32)
        given: list[Any] = [None, {}]
        if spec.sampler.has_priorities and data.draw(st.booleans(), "priorities"):
            given[0] = rng.choice([0.0, 1e-40, 0.3, 7.0, 1e30, *BAD], batch).astype(np.float32)
        names = data.draw(st.sets(st.sampled_from(["id", "image", "reward"]), min_size=int(given[0] is None)), "leaves")
        rewritten = with_more(rng, {"id": np.arange(batch, dtype=np.int32) - 99}, spec)
        given[1] = {name: rewritten[name] for name in sorted(names)} or None
        before, after = arrays_of(on, state), []
        for use in (True, False):
            with frb.kernels(use):
                with noting(on) as chain:
                    following = on.update(state, handles, *given)
                assert chain.done == use
            after.append(arrays_of(on, following))
            assert arrays_of(on, state) == before
        assert after[0] == after[1]
        state = following


def filled_on_jax(sampler: Any, capacity: int, writer: Any = None) -> frb.State:
    """With what has been drawn once where that is counted."""
    spec = frb.BufferSpec(ITEM, capacity, sampler, writer or frb.RoundRobin(), lanes=2)
    key = jax_backend.key(0) if spec.writer.words else None
    state = jax_backend.add(jax_backend.init(spec), items(np.random.default_rng(0), 40, 2), key=key)
    return jax_backend.sample(state, jax_backend.key(0), 20)[0] if sampler.remembers else state


SAMPLERS = {
    "slices": frb.PrioritizedSlices(3, strict_length=False, end_keys=("done",)),
    "items": frb.Prioritized(),
    "a limit": frb.Prioritized(max_times_sampled=1),
}
WRITERS = {"a reservoir": frb.Reservoir(), "the best": frb.MaxValue("id")}
ONE_STEP = [(sampler, None) for sampler in SAMPLERS.values()] + [(SAMPLERS["items"], x) for x in WRITERS.values()]


def bits(state: frb.State) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(state)]


@needs_native
@pytest.mark.parametrize(("sampler", "writer"), ONE_STEP, ids=[*SAMPLERS, *WRITERS])
def test_on_jax_an_update_is_one_step(sampler: Any, writer: Any) -> None:
    """In a program that takes the state over nothing is copied, sorted or scattered, whatever the capacity."""
    rng, programs = np.random.default_rng(1), []
    handles = rng.integers(-2, 60, 30).astype(np.int32)
    priorities = rng.choice([0.0, 0.3, 7.0, *BAD], 30).astype(np.float32)
    for capacity in (32, 4096):
        state = filled_on_jax(sampler, capacity, writer)
        program = jax.jit(jax_backend.update, donate_argnums=0).lower(state, handles, priorities).compile(AS_USERS)
        text = program.as_text()
        assert re.findall(r"custom_call_target=\"functional_rb_(\w+)\"", text) == ["update_priorities"]
        assert big_copies(text, state.counters.size) == []
        programs.append(re.findall(r" = .*?\s([a-z-]+)\(", text[text.index("ENTRY") :]))
        held = sum(x.nbytes for x in jax.tree.leaves(state))
        assert program.memory_analysis().alias_size_in_bytes >= held
        with frb.kernels(False):
            expected = bits(jax_backend.update(state, handles, priorities))
        assert bits(jax_backend.update(state, handles, priorities)) == expected
        assert bits(program(state, handles, priorities)) == expected
    assert programs[0] == programs[1]
    assert set(programs[0]) <= {"parameter", "constant", "custom-call", "get-tuple-element", "tuple"}


@needs_native
def test_on_jax_an_update_that_no_kernel_does_whole_takes_part_kernels() -> None:
    writer = frb.MaxValue("reward", reduction="median")
    state = jax_backend.init(frb.BufferSpec(MORE, 32, frb.Prioritized(), writer))
    traced = str(jax.make_jaxpr(jax_backend.update)(state, np.arange(3), np.ones(3, np.float32)))
    assert set(re.findall(r"name='(\w+)'", traced)) == {"updated_values", "set_leaves"}


def test_a_stack_of_buffers_is_updated_in_one_call() -> None:
    one = filled_on_jax(SAMPLERS["slices"], 32)
    states = jax.tree.map(lambda x: jnp.stack([x, x]), one)
    handles, priorities = jnp.array([[0, 1, 1], [3, 40, -1]]), jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    found = jax.jit(jax.vmap(jax_backend.update))(states, handles, priorities)
    for k in range(2):
        alone = jax_backend.update(one, handles[k], priorities[k])
        assert bits(jax.tree.map(lambda x, k=k: x[k], found)) == bits(alone)


@needs_native
def test_which_buffers_the_kernel_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Noting(TORCH.chain)
    monkeypatch.setattr(TORCH, "chain", chain)
    sampler, limited = frb.PrioritizedSlices(2, end_keys=("done",)), frb.Prioritized(max_times_sampled=3)
    known = [
        (frb.BufferSpec(ITEM, 6, sampler), 4),
        (frb.BufferSpec(ITEM, 6, frb.Prioritized(replacement=False)), 4),
        (frb.BufferSpec(ITEM, 6, limited), 4),
        (frb.BufferSpec(ITEM, 6, frb.Prioritized(), frb.Reservoir()), 4),
        (frb.BufferSpec(ITEM, 6, frb.Prioritized(), frb.MaxValue("id")), 2),  # whose items are ranked anew
    ]
    rb = torch_backend
    for spec, expected in known:
        chain.calls.clear()
        key = rb.key(0) if spec.writer.words else None
        state = rb.add(rb.init(spec), items(np.random.default_rng(0), 6, None), key=key)
        state = rb.update(state, np.arange(3), np.ones(3, np.float32))
        state = rb.update_(state, np.arange(3), np.ones(3, np.float32))
        with frb.kernels(False):
            state = rb.update(state, np.arange(3), np.ones(3, np.float32))
        state = rb.update(state, np.arange(3), items={"id": np.arange(3, dtype=np.int32)})
        rb.update(state, np.arange(3), np.ones(3, np.float32), {"id": np.arange(3, dtype=np.int32)})
        assert chain.calls["update"] + chain.calls["update_"] == expected, spec.sampler
