"""Several buffers stacked into one state, for `vmap`, and what happens where it was forgotten."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import jax_backend
from tests.support import backends, lives
from tests.support.backends import Backend
from tests.support.members import BATCH, MEMBERS, Member

SPEC = frb.BufferSpec({"x": frb.Unbounded((2,))}, 6, frb.Prioritized(), batch_size=2)
HANDLES = np.zeros(3, np.int32)


def stacked(library: str, states: list[Any]) -> Any:
    if library == "jax":
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *states)


def filled(rb: Any, count: int, spec: frb.BufferSpec = SPEC) -> Any:
    return rb.add(rb.init(spec), {"x": np.ones((count, 2), np.float32)})


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda rb, s: rb.add(s, {"x": np.ones((3, 2), np.float32)}),
    "sample": lambda rb, s: rb.sample(s, rb.key(0)),
    "update": lambda rb, s: rb.update(s, HANDLES, np.ones(3, np.float32)),
    "get": lambda rb, s: rb.get(s, HANDLES),
    "is_live": lambda rb, s: rb.is_live(s, HANDLES),
    "items": lambda rb, s: rb.items(s),
    "can_sample": lambda rb, s: rb.can_sample(s),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_stack_without_vmap_is_told_of_vmap(library: Backend, name: str) -> None:
    rb = library.rb
    states = stacked(library.library, [filled(rb, n) for n in (1, 2, 3)])
    with pytest.raises(ValueError, match=rf"^{name}: .*batch axes \(3,\); use jax\.vmap\(rb\.{name}\)\(states"):
        CALLS[name](rb, states)
    if name == "can_sample":
        twice = stacked(library.library, [states, states])
        with pytest.raises(ValueError, match=r"batch axes \(2, 3\); use jax\.vmap.*once for each axis"):
            rb.can_sample(twice)


@pytest.mark.parametrize("lanes", [None, 2])
def test_a_stack_counts_one_by_one(library: Backend, lanes: int | None) -> None:
    rb, spec = library.rb, dataclasses.replace(SPEC, lanes=lanes)
    states = [
        rb.add(rb.init(spec), {"x": np.ones((n, 2) if lanes is None else (n, 2, 2), np.float32)}) for n in (1, 2, 5)
    ]
    found, each = rb.counts(stacked(library.library, states)), [rb.counts(state) for state in states]
    for name in found._fields:
        expected = [library.numpy(getattr(one, name)).tolist() for one in each]
        assert library.numpy(getattr(found, name)).tolist() == expected, name


@pytest.mark.parametrize("name", ["add", "sample", "update"])
def test_arrays_that_were_cut_are_refused(name: str) -> None:
    """Kernels would read and write beyond them; here they are off, so that this fails rather than crashes."""
    state = filled(jax_backend, 3)
    with (
        backends.make("jax-core"),
        pytest.raises(ValueError, match=rf"^{name}: state\.rows has the shape \(3, 2\), "),
    ):
        CALLS[name](jax_backend, dataclasses.replace(state, rows=state.rows[:3]))


def test_a_stack_on_the_host_too() -> None:
    rb = jax_backend
    spec = frb.BufferSpec({"x": frb.Unbounded((2,))}, 6, storage=frb.Host())
    states = jax.tree.map(lambda *leaves: np.stack(leaves), filled(rb, 1, spec), filled(rb, 2, spec))
    with pytest.raises(ValueError, match=r"can_sample: expected one buffer, got a stack of them"):
        rb.can_sample(states)


def test_vmap_over_a_state_that_is_no_stack() -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 6)  # as many slots as counters, so that JAX itself finds no fault
    with pytest.raises(ValueError, match=r"add: vmap took the arrays of a single buffer apart; .* in_axes=None"):
        jax.vmap(jax_backend.add)(jax_backend.init(spec), {"x": np.ones(6, np.float32)})


def test_vmap_takes_a_stack_apart(library: Backend) -> None:
    rb = library.rb
    states = stacked(library.library, [filled(rb, n) for n in (1, 2, 3)])
    vmap: Any = jax.vmap if library.library == "jax" else torch.func.vmap
    assert vmap(rb.can_sample)(states).tolist() == [False, True, True]


@pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
def test_what_is_counted_is_read_of_each(member: Member) -> None:
    """`size` and `counts` work on a stack as they are."""
    rb = importlib.import_module("torch_backend")
    backend = Backend("torch", rb, torch.from_numpy, lambda x: x.numpy())
    states, state = [], lives.begin(backend, member.spec)
    for k, given in enumerate(lives.inputs(member.spec)):
        state = lives.step(backend, state, given, lives.keys(backend, k), look=False)[0]
        states.append(state)
    together = stacked("torch", states)
    assert rb.size(together).tolist() == [int(rb.size(state)) for state in states]
    for found, *each in zip(rb.counts(together), *map(rb.counts, states), strict=True):
        assert found.tolist() == [count.tolist() for count in each]
    with pytest.raises(ValueError, match=r"sample: expected one buffer, got a stack"):
        rb.sample(together, rb.key(0), BATCH)


def test_arrays_that_were_cut_never_reach_a_kernel() -> None:
    """It would write beyond them."""
    batch = {"x": np.ones((3, 2), np.float32)}
    cut = jax.tree.map(lambda leaf: leaf if leaf.ndim == 1 else leaf[:2], filled(jax_backend, 4))
    for call in (lambda s: jax_backend.add(s, batch), lambda s: jax_backend.sample(s, jax_backend.key(0))):
        for run in (call, jax.jit(call)):
            with pytest.raises(ValueError, match=r"state\.rows has the shape \(2, 2\), and by the spec it is \(6, 2\)"):
                run(cut)
    with pytest.raises(ValueError, match=r"^update: state\.rows has the shape"):
        jax_backend.update(cut, HANDLES, np.ones(3, np.float32))
    rb = importlib.import_module("torch_backend")
    on_torch = pytree.tree_map(lambda leaf: leaf if leaf.ndim == 1 else leaf[:2].clone(), filled(rb, 4))
    for call in (lambda: rb.add(on_torch, batch), lambda: rb.add_(on_torch, batch), lambda: rb.get(on_torch, HANDLES)):
        with pytest.raises(ValueError, match=r"^(add|get): state\.rows has the shape \(2, 2\)"):
            call()
    spec = frb.BufferSpec({"x": frb.Unbounded((2,))}, 6, storage=frb.Host())
    on_host = jax.tree.map(lambda leaf: leaf if leaf.ndim == 1 else leaf[:2], filled(jax_backend, 4, spec))
    with pytest.raises(ValueError, match=r"^add: state\.rows has the shape \(2, 2\)"):
        jax_backend.add(on_host, batch)
