"""`add` and `add_` on sharded buffers: lanes are dealt, the index notes all of them, and each device writes its own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from functional_rb.base import nest
from functional_rb.buffer import api, checks
from functional_rb.buffer.api import Given
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import SameState, State
from functional_rb.core import counters
from functional_rb.core.draft import Arrays
from functional_rb.sharding import adding, deal, rows
from functional_rb.sharding.adding import Shard
from jax_backend import compat
from jax_backend.arrays import ops, tracing
from jax_backend.arrays.convert import as_vector, build_mapping, convert
from jax_backend.arrays.keys import check_key
from jax_backend.compiling import compile
from jax_backend.engines import execute
from jax_backend.scale.mapped import WHOLE, along, as_of, check_state, mapped, names_of, on_device, using
from jax_backend.scale.state import ShardedState, gathered, partition_specs, shard_number


# Note what came of all lanes in the index, which all have, and write to the device's part what belongs there.
@on_device
def _added(state: ShardedState, given: Given, function: str) -> ShardedState:
    dealing, key = state.dealing, given.key
    # Functions of added items draw other numbers on each device.
    own_key = None if key is None else jax.random.fold_in(key, shard_number(state))
    batch, outside = api.check_add(execute, as_of(state, dealing.asked), given._replace(key=own_key), function)
    shard = Shard(
        ops.OPS,
        dealing,
        shard_number(state),
        index=state.index,
        part=state.own,
        add=lambda buffer, batch: State(*compile.add(buffer, *batch, None), buffer.spec),
        run=_rewritten,
        read=lambda buffer, function, *arguments: function(ops.OPS, compile.arrays_of(buffer), buffer.spec, *arguments),
        everyones=functools.partial(_of_all_lanes, state),
        draws=functools.partial(compile.draws, key),
    )
    index, part = adding.added(shard, batch)
    following = state.with_index(compile.arrays_of(index)).with_own(compile.arrays_of(part))
    return following if outside is None else count_invalid(following, outside)


def _rewritten(buffer: State, function: Callable[..., Arrays], *arguments: object, rewrites: bool = False) -> State:
    return State(*compile.finished(function(ops.OPS, compile.arrays_of(buffer), buffer.spec, *arguments)), buffer.spec)


# Arrays [steps * lanes_each, *shape] of a device's lanes as those of all lanes, [steps * lanes, *shape].
def _of_all_lanes(state: ShardedState, arrays: Sequence[jax.Array | None]) -> list[jax.Array | None]:
    present = [x for x in arrays if x is not None]
    if not present:
        return list(arrays)
    layout = rows.layout_of(present)
    words = gathered(state, rows.packed(ops.OPS, layout, present))
    everyones = iter(rows.unpacked(ops.OPS, layout, deal.of_all_lanes(ops.OPS, state.dealing, words)))
    return [None if x is None else next(everyones) for x in arrays]


def add_items(state: ShardedState, given: Given, function: str) -> SameState:
    """Add items to a sharded buffer, in place if the function is named `add_`."""
    check_state(state, function)
    checks.check_writable(state.spec)
    key = given.key
    if key is not None:
        check_key(key)
        if (
            state.is_mapped
            and state.spec.writer.words
            and not compat.varying_axes(key).isdisjoint(names_of(state.axis))
        ):
            raise ValueError(
                f"{function}: expected the same key on each device, as {state.spec.writer} chooses slots of all of "
                f"them, got one that differs along {state.axis!r}; give one key to all"
            )
    return written(state, given, function)


# Add to a state without asking whether its writer takes items, as a dataset's does only while it is made.
def written(state: ShardedState, given: Given, function: str) -> ShardedState:
    if state.is_mapped:
        with using(compile.use_kernels()):
            done: ShardedState = _added(state, given, function)
        return done
    spec = state.spec
    items, mask, priorities, key, validate, time_major = given
    checks.check_unpacked(items, function)
    flat = nest.flatten_as(spec.added.structure, items)
    leaves = [convert(x, leaf, name) for x, leaf, name in zip(flat, spec.added.leaves, spec.added.names, strict=True)]
    mask = None if mask is None else as_vector(mask, "mask")
    priorities = None if priorities is None else as_vector(priorities, "priorities")
    axes = _axes_before_lanes(spec, leaves, mask, priorities, time_major)
    traced = tracing.is_traced(state.counters, *leaves, mask, priorities)
    if axes is None or (not traced and (validate or not spec.writer.overwrites)):
        api.check_add(execute, as_of(state, deal.writable(spec)), given, function)  # refuses what does not fit
        assert axes is not None
    if priorities is not None and priorities.ndim > (2 if axes else 1):
        priorities = priorities[..., 0]  # critics give priorities with a last axis of one
    program = _add_in_place if function == "add_" and not traced else _add
    after: ShardedState = program(
        state, leaves, mask, priorities, key, validate, function, axes, kernels=compile.use_kernels()
    )
    return after


# How many axes a batch has before that of the lanes, 0 or 1; -1 for [E, T, *shape]; None if it does not fit.
def _axes_before_lanes(spec: BufferSpec, leaves: Sequence[Any], mask: Any, priorities: Any, time_major: bool) -> Any:
    lead = None
    for x, leaf in zip(leaves, spec.added.leaves, strict=True):
        leading = tuple(x.shape[: x.ndim - len(leaf.shape)])
        if tuple(x.shape[len(leading) :]) != leaf.shape or lead not in (None, leading):
            return None
        lead = leading
    for x, last in ((mask, ()), (priorities, (1,))):
        if x is not None and lead is not None and tuple(x.shape) not in (lead, (*lead, *last)):
            return None
        lead = lead if x is None or lead is not None else tuple(x.shape)
    lead = (spec.lanes,) if lead is None else lead
    if len(lead) == 1 and lead[0] == spec.lanes:
        return 0
    if len(lead) == 2 and lead[1 if time_major else 0] == spec.lanes:
        return 1 if time_major else -1
    return None


# Deal the lanes of a batch to the devices.
def _add_program(
    state: ShardedState,
    leaves: list[jax.Array],
    mask: object,
    priorities: object,
    key: object,
    validate: bool,
    function: str,
    axes: int,
    kernels: bool,
) -> ShardedState:
    dealing, at = state.dealing, max(axes, 0)
    # Each device gets as many lanes; those that the buffer does not have are padded, and left out by `_real`.
    missing = dealing.shards * dealing.lanes_each - dealing.lanes

    def padded(x: Any) -> Any:
        widths = [(0, missing if k == at else 0) for k in range(x.ndim)]
        return jax.numpy.pad(x, widths) if missing else x

    def body(state: ShardedState, leaves: list[Any], mask: object, priorities: object, key: object) -> ShardedState:
        lead = leaves[0].shape[: max(at, -axes) + 1] if leaves else ()
        items = nest.unflatten(state.spec.added.structure, leaves, build_mapping, lead)
        return _added(state, Given(items, mask, priorities, key, validate, axes >= 0), function)

    divided = along(state, at)
    operands = jax.tree.map(padded, (leaves, mask, priorities))
    with using(kernels):
        return mapped(state, body, (*operands, key), (divided, divided, divided, WHOLE), partition_specs(state))


_STATIC = ("validate", "function", "axes", "kernels")
_add = jax.jit(_add_program, static_argnames=_STATIC, inline=True)
_add_in_place = jax.jit(_add_program, static_argnames=_STATIC, donate_argnums=0)


def count_invalid(state: ShardedState, outside: jax.Array) -> ShardedState:
    """The same state, in which items that bool [B] marks are counted as invalid, those of all shards."""
    if state.is_mapped:
        outside = gathered(state, outside.astype(np.int32)).reshape(-1) > 0
    return dataclasses.replace(state, counters=counters.with_invalid(ops.OPS, state.counters, outside))
