"""A buffer's spec among the arguments of transformed functions, and inside the caller's own pytrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend as rb
from tests.support.members import MEMBERS, Member

SPEC = frb.BufferSpec({"x": frb.Unbounded((2,)), "n": frb.Unbounded((), "int32")}, 8)


class Agent(NamedTuple):
    params: Any
    spec: frb.BufferSpec


@pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
def test_the_shapes_of_a_buffer_without_its_memory(member: Member) -> None:
    spec = member.spec
    if isinstance(spec.writer, frb.Immutable):
        pytest.skip("it is filled as it is made")
    shapes = jax.eval_shape(rb.init, spec)
    assert shapes.spec == spec
    made = rb.init(spec)
    assert jax.tree.structure(shapes) == jax.tree.structure(made)
    chex.assert_trees_all_equal_shapes_and_dtypes(shapes, made)


def test_init_is_compiled_once_for_a_spec() -> None:
    chex.clear_trace_counter()
    init = jax.jit(chex.assert_max_traces(lambda spec: rb.init(spec), n=2))
    for capacity in (8, 9, 8):
        spec = frb.BufferSpec({"x": frb.Unbounded((2,))}, capacity)
        state = rb.add(init(spec), {"x": np.ones((20, 2), np.float32)})
        assert int(rb.size(state)) == capacity
    filled = jax.jit(rb.init)(SPEC, items={"x": jnp.ones((3, 2)), "n": jnp.arange(3)})
    assert rb.items(filled)["n"].tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_specs_inside_pytrees_are_static() -> None:
    agent = Agent({"w": jnp.ones(3)}, SPEC)
    assert len(jax.tree.leaves(agent)) == 1
    doubled = jax.jit(lambda agent: jax.tree.map(lambda x: 2 * x, agent))(agent)
    assert doubled.spec == SPEC
    assert doubled.params["w"].tolist() == [2.0, 2.0, 2.0]
    gradient = jax.grad(lambda agent: agent.params["w"].sum() * agent.spec.capacity)(agent)
    assert gradient.params["w"].tolist() == [8.0, 8.0, 8.0]
    other = agent._replace(spec=frb.BufferSpec(SPEC.item, 9))
    assert jax.tree.structure(agent) != jax.tree.structure(other)
    with pytest.raises(ValueError, match="capacity=9"):
        jax.tree.map(jnp.add, agent, other)


def test_nests_of_item_specs_are_mapped_over_as_ever() -> None:
    """These are leaves: an item is a nest of them, whose shapes users read leaf by leaf."""
    item = {"obs": (frb.Unbounded((3,)), frb.Bounded(-1, 1, (2,))), "done": frb.Binary(())}
    zeros = jax.tree.map(lambda spec: np.zeros((5, *spec.shape), spec.dtype), item)
    assert jax.tree.map(np.shape, zeros) == {"obs": ((5, 3), (5, 2)), "done": (5,)}
    state = rb.add(rb.init(frb.BufferSpec(item, 8)), zeros)
    assert int(rb.size(state)) == 5


@pytest.mark.parametrize("how", ["jit", "eval_shape", "closed over"])
@pytest.mark.parametrize("storage", ["host", "files", "shared"])
def test_buffers_on_the_host_are_not_made_while_tracing(how: str, storage: str, tmp_path: Path) -> None:
    path = str(tmp_path / "buffer")
    storages = {"host": frb.Host(), "files": frb.Memmap(path), "shared": frb.Memmap(path, shared=True)}
    spec = frb.BufferSpec({"x": frb.Unbounded((2,))}, 8, storage=storages[storage])
    make = {
        "jit": lambda: jax.jit(rb.init)(spec),
        "eval_shape": lambda: jax.eval_shape(rb.init, spec),
        "closed over": lambda: jax.jit(lambda: rb.size(rb.init(spec)))(),
    }[how]
    with pytest.raises(TypeError, match=r"lies in the memory of the host .* out of the reach of jax\.jit"):
        make()
    assert not (tmp_path / "buffer").exists()
