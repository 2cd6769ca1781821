"""The public functions on sharded buffers: the engine of `ShardedState`.

What a device does is written once, for one device among others, see `jax_backend.scale.mapped`.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from functional_rb.base.arrays import DeviceLike, Nest
from functional_rb.buffer import api, functions, in_place, respec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import SameState, State
from functional_rb.core.draft import Arrays, Draft
from functional_rb.sharding import asked, deal, rows
from functional_rb.structures import row_layout
from jax_backend import compat
from jax_backend.arrays import ops, tracing
from jax_backend.arrays.convert import as_vector as as_vector
from jax_backend.arrays.convert import build_mapping as build_mapping
from jax_backend.arrays.convert import convert as convert
from jax_backend.arrays.convert import number
from jax_backend.arrays.convert import unsupported as unsupported
from jax_backend.arrays.convert import value_of as value_of
from jax_backend.compiling import compile
from jax_backend.engines import execute
from jax_backend.engines.execute import evaluated as evaluated
from jax_backend.engines.execute import inside as inside
from jax_backend.engines.execute import known as known
from jax_backend.engines.execute import map_items as map_items
from jax_backend.engines.execute import split as split
from jax_backend.scale import state as sharded_state
from jax_backend.scale.adding import add_items as add_items
from jax_backend.scale.adding import count_invalid as count_invalid
from jax_backend.scale.adding import written
from jax_backend.scale.drawing import check_asked as check_asked
from jax_backend.scale.drawing import sample as sample
from jax_backend.scale.drawing import sample_items as sample_items
from jax_backend.scale.mapped import WHOLE, along, mapped, on_device, refuse, using
from jax_backend.scale.mapped import check_state as check_state
from jax_backend.scale.state import (
    ShardedState,
    gathered,
    partition_specs,
    scattered,
    shard_number,
)


def init(spec: Any, device: object, items: Nest, validate: bool, sharding: DeviceLike) -> State:
    """Make a buffer with a sharding."""
    if device is not None:
        raise ValueError(
            "init: device and sharding were given; the sharding says where the arrays live, so leave device out"
        )
    api.check_init(_ENGINE, spec, items)
    state = sharded_state.init(spec, sharding)
    if items is None:
        return state
    if type(state) is not ShardedState:
        return api.init(execute, spec, sharding, items, validate)
    return written(state, api.Given(items, validate=validate), "add_")


# --- updating -------------------------------------------------------------------------------------------------------


# Set priorities in the index, and rewrite leaves where they lie; all devices were given the same.
@on_device
def _updated(
    state: ShardedState, handles: jax.Array, priorities: jax.Array | None, replacements: dict[int, jax.Array]
) -> ShardedState:
    dealing = state.dealing
    draft = Draft.of(state.index, dealing.index.plan)
    slots, live = draft.locate(ops.OPS, handles)
    read = {position: replacements[k] for position, k in enumerate(dealing.index_leaves) if k in replacements}
    index = compile.update(state.index, handles, priorities, read)
    if replacements and handles.shape[0]:
        own_slots, held = deal.own_slots(ops.OPS, dealing, slots, shard_number(state))
        part = state.own
        names = Draft.of(part, dealing.part.plan).handles_of(ops.OPS, own_slots)
        # Each device rewrites what lies in its own part: the handles of all else name nothing there.
        names = jax.numpy.where(held & live, names, functions.NOTHING)
        state = state.with_own(compile.update(part, names, None, replacements))
    return state.with_index(index)


@on_device
def _updated_by_all(
    state: ShardedState, handles: jax.Array, priorities: object, replacements: dict[int, jax.Array]
) -> ShardedState:
    arrays, outline = jax.tree.flatten((handles, priorities, replacements))
    layout = rows.layout_of(arrays)
    # Packed into rows of words, so that one collective takes all arrays.
    words = gathered(state, rows.packed(ops.OPS, layout, arrays))
    arrays = rows.unpacked(ops.OPS, layout, words.reshape(-1, words.shape[-1]))
    done: ShardedState = _updated(state, *jax.tree.unflatten(outline, arrays))
    return done


def _on_all(state: ShardedState, write: Callable[..., object], given: tuple[object, ...], kernels: bool) -> Any:
    # Each device writes by what all of them are given.
    with using(kernels):
        return mapped(state, write, given, (WHOLE,) * len(given), partition_specs(state))


def _carried_out(
    write: Callable[..., ShardedState], in_user_map: Callable[..., ShardedState] | None = None
) -> Callable[..., ShardedState]:
    """A function of a state, what a device writes by, and whether it consumes the state; by what each device does."""

    def program(state: ShardedState, given: tuple[object, ...], kernels: bool) -> Any:
        return _on_all(state, write, given, kernels)

    apart = jax.jit(program, static_argnames="kernels", inline=True)
    in_place = jax.jit(program, static_argnames="kernels", donate_argnums=0)

    def carry_out(state: ShardedState, *given: object, consume: bool = False) -> ShardedState:
        kernels = compile.use_kernels()
        if state.is_mapped:
            with using(kernels):
                return (in_user_map or write)(state, *given)
        consume = consume and not tracing.is_traced(state.counters, *jax.tree.leaves(given))
        after: ShardedState = (in_place if consume else apart)(state, given, kernels=kernels)
        return after

    return carry_out


_update = _carried_out(_updated, _updated_by_all)


# The index alone: what is handed through a program is copied.
@functools.partial(jax.jit, static_argnames="kernels")
def _prioritized(state: ShardedState, handles: jax.Array, priorities: object, kernels: bool) -> Arrays:
    return compile.arrays_of(_on_all(state, _updated, (handles, priorities, {}), kernels))


def update(
    state: ShardedState, handles: jax.Array, priorities: object, replacements: Mapping[int, jax.Array]
) -> ShardedState:
    if state.is_mapped or replacements or isinstance(state.counters, jax.core.Tracer):
        return _update(state, handles, priorities, dict(replacements))
    return state.with_index(_prioritized(state, handles, priorities, kernels=compile.use_kernels()))


def update_(
    state: ShardedState, handles: jax.Array, priorities: object, replacements: Mapping[int, jax.Array]
) -> ShardedState:
    return _update(state, handles, priorities, dict(replacements), consume=True)


def update_items(
    function: str, state: ShardedState, indices: object, priorities: object, items: object, version: object
) -> SameState:
    """Update a sharded buffer, in place if the function is named `update_`."""
    if function == "update":
        return api.update(_ENGINE, state, indices, priorities, items, version)
    return in_place.update_(_ENGINE, _ENGINE, state, indices, priorities, items, version)


@on_device
def _advanced(state: ShardedState, version: jax.Array) -> ShardedState:
    return state.with_index(compile.finished(functions.advance(ops.OPS, state.index, state.dealing.index, version)))


_advance = _carried_out(_advanced)


def advance(state: ShardedState, version: object) -> ShardedState:
    return _advance(state, number(version, np.int32))


def advance_(state: ShardedState, version: object) -> ShardedState:
    return _advance(state, number(version, np.int32), consume=True)


# --- all else -------------------------------------------------------------------------------------------------------


@on_device
def _cleared(state: ShardedState) -> ShardedState:
    dealing = state.dealing
    index = compile.finished(functions.clear(ops.OPS, state.index, dealing.index))
    part = compile.finished(functions.clear(ops.OPS, state.own, dealing.part))
    return state.with_index(index).with_own(part)


_clear = _carried_out(_cleared)


def clear(state: ShardedState) -> ShardedState:
    return _clear(state)


def clear_(state: ShardedState) -> ShardedState:
    return _clear(state, consume=True)


def with_spec(state: ShardedState, spec: BufferSpec) -> ShardedState:
    if not respec.is_label(state.spec, spec):
        refuse("with_spec", "put it together first: rb.shard(rb.with_spec(rb.shard(state, None), spec), sharding)")
    return dataclasses.replace(state, spec=spec)


@on_device
def _got(state: ShardedState, handles: jax.Array, by_all: bool) -> list[jax.Array]:
    dealing = state.dealing
    if by_all:
        handles = gathered(state, handles).reshape(-1)
    slots, live = Draft.of(state.index, dealing.index.plan).locate(ops.OPS, handles)
    own_slots, held = deal.own_slots(ops.OPS, dealing, slots, shard_number(state))
    part = Draft.of(state.own, dealing.part.plan)
    by_position = part.read(ops.OPS, own_slots, range(len(dealing.part.plan.leaves)))
    leaves = [by_position[k] for k in range(len(by_position))]
    layout = rows.layout_of(leaves)
    # Zeros but for what the device has, so that the sum over all devices has every row once.
    words = rows.only(ops.OPS, rows.packed(ops.OPS, layout, leaves), held & live)
    words = scattered(state, words) if by_all else lax.psum(words, state.axis)
    return rows.unpacked(ops.OPS, layout, words)


@functools.partial(jax.jit, inline=True)
def _get(state: ShardedState, handles: jax.Array) -> list[jax.Array]:
    body = functools.partial(_got, by_all=False)
    leaves: list[jax.Array] = mapped(state, body, (handles,), (WHOLE,), WHOLE)
    return leaves


def get(state: ShardedState, handles: jax.Array) -> list[jax.Array]:
    leaves: list[jax.Array] = _got(state, handles, by_all=True) if state.is_mapped else _get(state, handles)
    return leaves


@functools.partial(jax.jit, inline=True)
def _items(state: ShardedState) -> list[jax.Array]:
    def body(state: ShardedState) -> list[jax.Array]:
        part = state.own
        if part.spec.plan.frames is not None:
            return functions.items(ops.OPS, part, part.spec)
        return row_layout.unpack(ops.OPS, part.spec.plan.layout, part.rows, part.wide)

    leaves = mapped(state, on_device(body), (), (), along(state))
    if state.dealing.slots_each * state.dealing.shards == state.spec.capacity:
        return leaves
    mesh = state.sharding.mesh
    if compat.explicit_axes(mesh):  # which divide nothing into unequal parts
        leaves = [jax.sharding.reshard(x, NamedSharding(mesh, WHOLE)) for x in leaves]
    return [x[: state.spec.capacity] for x in leaves]


def items(state: ShardedState) -> list[jax.Array]:
    # The items of all slots, divided among the devices as they lie.
    if state.is_mapped:
        refuse("items", "inside of jax.shard_map use rb.get(state, handles)")
    leaves: list[jax.Array] = _items(state)
    return leaves


def look(
    state: ShardedState, function: Callable[..., jax.Array], handles: jax.Array | None = None, n: int | None = None
) -> jax.Array:
    return execute.look(state.index, function, handles, n)


def counter(state: ShardedState, place: int) -> jax.Array:
    return execute.counter(state.index, asked.place_in_index(state.dealing, place))


_ENGINE: Any = sys.modules[__name__]
