"""The same steps of a buffer's life, taken through the public functions of any variant with the same draws."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

import functional_rb as frb
from jax_backend.compiling import compile
from tests.support import backends, lives
from tests.support.backends import Backend
from tests.support.members import BATCH, LANES
from torch_backend.arrays import random as torch_random

STEPS = 6


class Inputs(NamedTuple):
    """What one step is given, as NumPy arrays; rows [BATCH], of lanes [BATCH // LANES, LANES]."""

    items: dict[str, np.ndarray]
    mask: np.ndarray
    # For `update`, one for each of three steps of the slices at most.
    priorities: np.ndarray
    notes: np.ndarray


class Seen(NamedTuple):
    """What one step gave."""

    sample: Any
    got: Any
    live: Any
    numbers: Any


def items_from(start: int) -> dict[str, np.ndarray]:
    """Items whose leaves tell their number."""
    number = np.arange(start, start + BATCH, dtype=np.int32)
    x = np.stack([number, -number], 1).astype(np.float32)
    return {"id": number, "x": x, "done": number % 7 == 3, "episode": number // 5, "note": np.zeros(BATCH, np.float32)}


def inputs(spec: frb.BufferSpec) -> Iterator[Inputs]:
    """The first step fills, the others leave some rows out."""
    rng = np.random.default_rng(spec.capacity)
    drawn = np.prod(spec.sampler.leading_shape(BATCH))
    for k in range(STEPS):
        mask = rng.random(BATCH) < (0.7 if k else 2)
        priorities = rng.integers(1, 9, drawn).astype(np.float32)
        priorities[:2] = 0, np.nan
        made = Inputs(items_from(BATCH * k), mask, priorities, rng.random(drawn).astype(np.float32))
        yield in_lanes(made) if spec.lanes else made


def in_lanes(flat: Inputs) -> Inputs:
    lead = (BATCH // LANES, LANES)
    items = {name: leaf.reshape(*lead, *leaf.shape[1:]) for name, leaf in flat.items.items()}
    return flat._replace(items=items, mask=flat.mask.reshape(lead))


def begin(backend: Backend, spec: frb.BufferSpec) -> Any:
    """Empty, unless it is a dataset."""
    if not isinstance(spec.writer, frb.Immutable):
        return backend.rb.init(spec)
    return backend.rb.init(spec, items=backend.tree(items_from(1)))


def step(backend: Backend, state: Any, given: Inputs, keys: tuple[Any, Any], look: bool = True) -> tuple[Any, Seen]:
    """Add, sample, set priorities and rewrite a leaf, read by handle (if told to look)."""
    spec = state.spec
    dataset = isinstance(spec.writer, frb.Immutable)
    if not dataset:
        state = backend.add(state, given.items, given.mask, key=keys[0])
    state, sample = backend.sample(state, keys[1], BATCH)
    handles = sample.indices.reshape(-1)
    live = backend.rb.is_live(state, handles) if look else None
    got = backend.rb.get(state, handles) if look else None
    priorities = given.priorities if spec.sampler.has_priorities else None
    state = backend.update(state, handles, priorities, None if dataset else {"note": given.notes})
    rb = backend.rb
    numbers = [rb.size(state), *rb.counts(state)]
    return state, Seen(sample, got, live, numbers)


def keys(backend: Backend, k: int) -> tuple[Any, Any]:
    """Keys that give the same draws on both backends, see `same_draws`."""
    if backend.library == "jax":
        return jax.random.key(2 * k), jax.random.key(2 * k + 1)
    return torch.tensor(2 * k), torch.tensor(2 * k + 1)


def jax_draws(key: Any, batch: int, words: int, wanted: Any = None) -> Any:
    """What torch draws by the same small number, all of it, whether all is wanted or not."""
    table = [torch_random.draws(torch.tensor(seed), batch, words).numpy() for seed in range(2 * STEPS)]
    return jnp.asarray(np.stack(table))[jax.random.key_data(key)[-1]]


def same_draws(monkeypatch: Any) -> None:
    """Let JAX draw as torch does.

    What is compiled meanwhile keeps that: so it is used with specs only that no other test has.
    """
    monkeypatch.setattr(compile, "draws", jax_draws)
    # Of others kernels make the words themselves.
    monkeypatch.setattr(compile, "_parts_of", lambda key: ("a key of torch's", key))


def leaves(nest: Any) -> list[Any]:
    """The arrays of a nest of either backend."""
    return jax.tree.leaves(nest)


def bits(backend: Backend, seen: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Dtypes, shapes and bytes."""
    arrays = [backend.numpy(x) for x in leaves(seen)]
    return [(a.dtype.name, a.shape, np.ascontiguousarray(a).tobytes()) for a in arrays]


def state_bits(backend: Backend, state: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Those of all arrays of a state."""
    tree = [] if state.tree is None else [state.tree]
    return bits(
        backend,
        [state.rows, *state.wide, *tree, *(state.auxiliary[k] for k in sorted(state.auxiliary)), state.counters],
    )


def jitted(backend: Backend) -> Callable[..., Any]:
    """The step as one compiled program of JAX."""
    return jax.jit(functools.partial(step, backend))


def live_on_torch(name: str, spec: frb.BufferSpec) -> tuple[list[Any], list[Any], list[lives.Seen]]:
    """A life eagerly: the bits of each step, the states with copies made at the time, and what was seen."""
    with backends.make(name) as backend:
        state = lives.begin(backend, spec)
        told, states, seen = [], [], []
        for k, given in enumerate(lives.inputs(spec)):
            state, now = lives.step(backend, state, given, lives.keys(backend, k))
            told.append((lives.bits(backend, now), lives.state_bits(backend, copy.deepcopy(state))))
            states.append((state, copy.deepcopy(state)))
            seen.append(now)
        if not backend.consumes:
            for older, frozen in states:
                assert lives.state_bits(backend, older) == lives.state_bits(backend, frozen)
        return told, states, seen
