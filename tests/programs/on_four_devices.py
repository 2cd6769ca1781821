"""Programs on four devices: run by `test_meshes` in a process that was told to have so many."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import functional_rb as frb
import jax_backend as rb
from tests.members import MEMBERS
from tests.programs import training

SEEDS = 4
BOTH = ("prioritized", "slices, prioritized", "without replacement")
"""On a mesh of each kind; the others on one."""
each_member = pytest.mark.parametrize(
    ("kind", "name"),
    [(AxisType.Auto, name) for name in MEMBERS if MEMBERS[name].compiled]
    + [(AxisType.Explicit, name) for name in BOTH],
)


def mesh_of(kind: AxisType) -> jax.sharding.Mesh:
    assert len(jax.devices()) == SEEDS
    return jax.make_mesh((SEEDS,), ("d",), axis_types=(kind,))


@functools.cache
def alone(name: str) -> tuple[Any, Any, Any]:
    """Empty buffers, what chance gives, and what becomes of them on one device, one after the other."""
    spec = MEMBERS[name].spec
    begun, given = training.begin(spec), [training.given(spec, seed) for seed in range(SEEDS)]
    program = training.jit(training.train)
    after = [jax.device_get(program(begun, chance)) for chance in given]
    return stacked([begun] * SEEDS), stacked(given), stacked(after)


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def spread(mesh: jax.sharding.Mesh, tree: Any) -> Any:
    return jax.device_put(tree, NamedSharding(mesh, P("d")))


def one_of_each(state: frb.State, given: training.Given) -> Any:
    """The training of a device's own buffer, the only one in its part of the arrays."""
    after = training.train(*jax.tree.map(lambda x: x[0], (state, given)))
    return jax.tree.map(lambda x: x[None], after)


@each_member
def test_each_device_trains_its_own(kind: AxisType, name: str) -> None:
    """`shard_map` with all that JAX checks by default."""
    begun, given, expected = alone(name)
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh):
        program = training.jit(jax.shard_map(one_of_each, in_specs=P("d"), out_specs=P("d")))
        begun, given = spread(mesh, (begun, given))
        compiled = program.lower(begun, given).compile()
        training.assert_same_bits(compiled(begun, given), expected)
    assert "functional_rb_" in compiled.as_text()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_a_storage_that_is_divided_stays_so_under_another_spec(kind: AxisType) -> None:
    """The tree, and what else is small, lies whole on each device."""
    where = NamedSharding(mesh_of(kind), P("d"))
    state = rb.init(frb.BufferSpec({"x": frb.Unbounded((2,))}, 8), device=where)
    state = rb.add(state, {"x": np.arange(12, dtype=np.float32).reshape(6, 2)})
    for changes in ({"sampler": frb.Prioritized()}, {"capacity": 16, "sampler": frb.Slices(2, end_keys=())}):
        after = rb.with_spec(state, dataclasses.replace(state.spec, **changes))
        assert after.rows.sharding.is_equivalent_to(where, 2)
        assert after.tree.is_fully_replicated
        assert rb.get(after, np.arange(6))["x"][:, 0].tolist() == [0, 2, 4, 6, 8, 10]
        with pytest.raises(ValueError, match="multiple of the devices'"):
            rb.with_spec(after, dataclasses.replace(after.spec, capacity=9))
