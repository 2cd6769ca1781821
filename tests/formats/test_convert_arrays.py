"""Specs of examples: TensorDicts with batch sizes, shapes and dtypes that JAX tells."""

from __future__ import annotations

from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tensordict import TensorDict, tensorclass

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.base import nest
from tests.support import grammar


@tensorclass
class Agents:
    obs: Any
    done: Any


def example(kind: Any, batch: tuple[int, ...] = ()) -> Any:
    """Three agents in a step, and two of something within each."""
    inner = TensorDict({"x": torch.ones(*batch, 3, 2, 4)}, [*batch, 3, 2])
    done = torch.zeros(*batch, 3, dtype=torch.bool)
    if kind is Agents:
        agents = Agents(obs=inner, done=done, batch_size=[*batch, 3])
    else:
        agents = TensorDict({"obs": inner, "done": done}, [*batch, 3])
    return {"agents": agents, "reward": torch.zeros(batch)}


@pytest.mark.parametrize("kind", [TensorDict, Agents])
def test_batch_sizes_become_batch_shapes(kind: Any) -> None:
    spec = frb.specs.spec_of(example(kind))
    agents = spec["agents"]
    assert agents == frb.Composite.like(
        kind,
        {
            "obs": frb.Composite.like(TensorDict, {"x": frb.Unbounded((3, 2, 4))}, (3, 2)),
            "done": frb.Binary((3,)),
        },
        (3,),
    )
    assert agents[0].batch_shape == ()
    state = torch_backend.init(frb.BufferSpec(spec, 8))
    state = torch_backend.add(state, example(kind, (5,)))
    _, sample = torch_backend.sample(state, torch_backend.key(0), 7)
    for got, lead in (
        (sample.items, (7,)),
        (torch_backend.get(state, sample.indices), (7,)),
        (torch_backend.zeros(spec, (4, 2)), (4, 2)),
        (torch_backend.zeros(spec), ()),
    ):
        assert type(got["agents"]) is kind
        assert tuple(got["agents"].batch_size) == (*lead, 3)
        inner = got["agents"].obs if kind is Agents else got["agents"]["obs"]
        assert tuple(inner.batch_size) == (*lead, 3, 2)
    assert frb.specs.spec_of(torch_backend.zeros(spec)) == spec


def test_batch_shapes_are_part_of_a_buffer() -> None:
    parts = {"x": frb.Unbounded((3,))}
    one, other = (frb.BufferSpec(frb.Composite.like(TensorDict, parts, shape), 8) for shape in ((), (3,)))
    assert one != other
    assert one == frb.BufferSpec(frb.Composite.like(TensorDict, parts), 8)


def test_dicts_in_tensordicts_and_the_other_way_round() -> None:
    nested = (TensorDict({"x": torch.zeros(2, 3)}, [2]), {"y": np.zeros(2, np.int8)})
    assert frb.specs.spec_of(nested) == (
        frb.Composite.like(TensorDict, {"x": frb.Unbounded((2, 3))}, (2,)),
        frb.Composite(y=frb.Unbounded((2,), "int8")),
    )
    with pytest.raises(TypeError, match=r"spec_of: expected names that are strings, got 1; rename it to '1'"):
        frb.specs.spec_of({"a": {1: np.zeros(2)}})
    with pytest.raises(TypeError, match=r"spec_of: leaf 'a/0': expected an array, got str"):
        frb.specs.spec_of({"a": ("x",)})


def test_shapes_and_dtypes_of_jax() -> None:
    told = jax.eval_shape(lambda: {"a": jnp.zeros((2, 3), jnp.bfloat16), "b": (jnp.zeros((), bool),)})
    assert frb.specs.spec_of(told) == frb.Composite(a=frb.Unbounded((2, 3), "bfloat16"), b=(frb.Binary(),))


ON_JAX = ("bool", "int8", "int32", "uint8", "float16", "float32", "bfloat16", "complex64")


SPECS = grammar.Grammar(grammar.leaves_of(ON_JAX, "object"), axes=(0, 3, 1)).nests_of()


@hypothesis.settings(max_examples=50)
@hypothesis.given(SPECS)
def test_specs_as_jax_tells_them(spec: Any) -> None:
    plan = frb.BufferSpec({"it": spec}, 8).plan
    zeros = nest.flatten_as(plan.structure, jax_backend.zeros({"it": spec}))
    told = jax.eval_shape(lambda: zeros)  # of the leaves alone, as JAX does not know all of the containers
    back = frb.BufferSpec(frb.specs.spec_of(nest.unflatten(plan.structure, told, lambda _, parts, __: parts)), 8).plan
    assert back.names == plan.names
    assert [(x.shape, x.dtype) for x in back.leaves] == [(x.shape, x.dtype) for x in plan.leaves]


def test_shapes_of_a_buffers_items() -> None:
    spec = frb.BufferSpec({"x": frb.Categorical(3, shape=(2,)), "done": frb.Binary()}, 8)
    state = jax.eval_shape(lambda: jax_backend.init(spec))
    added = jax.eval_shape(jax_backend.add, state, jax.eval_shape(lambda: jax_backend.zeros(spec.item, 5)))
    assert jax.tree.structure(added) == jax.tree.structure(state)
