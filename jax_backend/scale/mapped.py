"""How a function is carried out on each device of a sharded buffer's mesh, and what its functions check first.

What a device does is written once, for one device among others, as `jax.shard_map` maps it. In a `shard_map` of the
user's it is carried out as it is; elsewhere `mapped` maps it over the state's own mesh.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import jax
from jax.sharding import NamedSharding, PartitionSpec

from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.ops import part_kernels
from jax_backend import compat
from jax_backend.arrays import rules
from jax_backend.compiling import compile
from jax_backend.scale.state import (
    ShardedState,
    partition_specs,
)

WHOLE = PartitionSpec()


def check_state(state: object, function: str) -> None:
    """Refuse a state that was consumed."""
    checks.check_state(state, function)
    assert isinstance(state, State)
    state.check_alive()


# A state of another spec for checks, which read its first counters alone.
def as_of(state: ShardedState, spec: BufferSpec) -> State:
    return State(state.rows, state.wide, state.tree, state.counters, state.auxiliary, spec)


def refuse(function: str, remedy: str) -> NoReturn:
    raise ValueError(f"{function}: a sharded buffer has no such function; {remedy}")


def names_of(axis: Any) -> tuple[str, ...]:
    return (axis,) if isinstance(axis, str) else tuple(axis)


def mapped(
    state: ShardedState, body: Callable[..., object], args: Sequence[object], specs: Sequence[object], out: object
) -> Any:
    """What a function of the state and arrays gives, carried out on each device."""
    mesh = state.sharding.mesh
    operands = (state, *args)
    where = (partition_specs(state), *specs)
    if compat.explicit_axes(mesh):
        operands = jax.tree.map(
            lambda spec, tree: jax.tree.map(lambda x: jax.sharding.reshard(x, NamedSharding(mesh, spec)), tree),
            where,
            operands,
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )
    return jax.shard_map(body, mesh=mesh, in_specs=where, out_specs=out, check_vma=False)(*operands)


# Divided along the shards, after so many other axes.
def along(state: ShardedState, axes: int = 0) -> PartitionSpec:
    return PartitionSpec(*[None] * axes, state.axis)


def using(kernels: bool) -> AbstractContextManager[None]:
    return part_kernels.using(compile.table(kernels))


def on_device(function: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(function)
    def traced(*args: object, **others: object) -> Any:
        with rules.promoting_ranks():
            return function(*args, **others)

    return traced
