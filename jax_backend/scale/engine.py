"""The public functions on sharded buffers: the engine of `ShardedState`, and the calls in which lanes are dealt.

What a device does is written once, for one device among others, as `jax.shard_map` maps it. In a `shard_map` of the
user's it is carried out as it is; elsewhere these functions map it over the state's own mesh.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from functional_rb.base import nest
from functional_rb.base.arrays import DeviceLike, Nest, PRNGKey
from functional_rb.buffer import api, checks, functions, mapping, respec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, SameState, State
from functional_rb.core import counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.strategy import Selection
from functional_rb.ops import part_kernels
from functional_rb.scale import asked, deal, follow, local, place, rows
from functional_rb.structures import row_layout
from jax_backend import compat
from jax_backend.arrays import ops, rules
from jax_backend.arrays.convert import as_vector as as_vector
from jax_backend.arrays.convert import build_mapping as build_mapping
from jax_backend.arrays.convert import convert as convert
from jax_backend.arrays.convert import number
from jax_backend.arrays.convert import unsupported as unsupported
from jax_backend.arrays.convert import value_of as value_of
from jax_backend.arrays.keys import check_key
from jax_backend.compiling import compile
from jax_backend.engines import execute
from jax_backend.engines.execute import evaluated as evaluated
from jax_backend.engines.execute import inside as inside
from jax_backend.engines.execute import known as known
from jax_backend.engines.execute import map_items as map_items
from jax_backend.engines.execute import split as split
from jax_backend.kernels.custom_call import barrier
from jax_backend.scale import state as sharded_state
from jax_backend.scale.state import (
    ShardedState,
    gathered,
    own_share,
    partition_specs,
    scattered,
    shard_number,
)

WHOLE = PartitionSpec()


def check_state(state: object, function: str) -> None:
    """Refuse a state that was consumed."""
    checks.check_state(state, function)
    assert isinstance(state, State)
    state.check_alive()


# What checks see: a state of a spec, of which they read the first counters alone.
def _as_of(state: ShardedState, spec: BufferSpec) -> State:
    return State(state.rows, state.wide, state.tree, state.counters, state.auxiliary, spec)


def _refuse(function: str, remedy: str) -> NoReturn:
    raise ValueError(f"{function}: a sharded buffer has no such function; {remedy}")


def init(spec: Any, device: object, items: Nest, validate: bool, sharding: DeviceLike) -> State:
    """What `init` makes with a sharding."""
    if device is not None:
        raise ValueError(
            "init: device and sharding were given; the sharding says where the arrays live, so leave device out"
        )
    checks.check_spec(spec)
    checks.leaves_for_backend(spec, unsupported)
    mapping.check_gives(execute, spec)
    state = sharded_state.init(spec, sharding)
    if items is None:
        checks.may_start_empty(spec)
        return state
    checks.may_start_filled(spec)
    if type(state) is not ShardedState:
        return api.init(execute, spec, sharding, items, validate)
    return _written(state, items, None, None, None, validate, True, "add_")


# --- mapping over the devices ---------------------------------------------------------------------------------------


def _mapped(
    state: ShardedState, body: Callable[..., object], args: Sequence[object], specs: Sequence[object], out: object
) -> Any:
    """What a function of the state and arrays gives, carried out on each device.

    Args:
        state: whose mesh it is.
        body: takes what a device has of the state and of the arguments.
        args: pytrees of arrays.
        specs: how each of these is divided.
        out: how what it gives is divided.
    """
    mesh = state.sharding.mesh
    given = (state, *args)
    where = (partition_specs(state), *specs)
    if compat.explicit_axes(mesh):
        given = jax.tree.map(
            lambda spec, tree: jax.tree.map(lambda x: jax.sharding.reshard(x, NamedSharding(mesh, spec)), tree),
            where,
            given,
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )
    return jax.shard_map(body, mesh=mesh, in_specs=where, out_specs=out, check_vma=False)(*given)


# Divided along the shards, after so many other axes.
def _along(state: ShardedState, axes: int = 0) -> PartitionSpec:
    return PartitionSpec(*[None] * axes, state.axis)


def _using(kernels: bool) -> AbstractContextManager[None]:
    return part_kernels.using(compile.table(kernels))


def _body(function: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(function)
    def traced(*args: object, **others: object) -> Any:
        with rules.promoting_ranks():
            return function(*args, **others)

    return traced


# --- adding ---------------------------------------------------------------------------------------------------------


# Note what came of all lanes in the index, which all have, and write to the device's part what belongs there.
@_body
def _added(
    state: ShardedState,
    items: object,
    mask: object,
    priorities: object,
    key: PRNGKey,
    validate: bool,
    function: str,
    major: bool,
) -> ShardedState:
    dealing = state.dealing
    own_key = None if key is None else jax.random.fold_in(key, shard_number(state))
    leaves, batch, mask, priorities, _, outside = api.check_add(
        execute, _as_of(state, dealing.asked), items, mask, priorities, own_key, validate, function, major
    )
    if dealing.by_slots:
        following = _write_where_chosen(state, list(leaves), batch, mask, priorities, key)
    elif dealing.delays:
        following = _write_later_items(state, list(leaves), batch, mask)
    else:
        following = _write_alike(state, list(leaves), batch, mask, priorities)
    if dealing.spec.plan.frames is not None and batch:
        given = _told(state, following).sizes, batch // dealing.lanes_each, dealing.spec.plan.frames
        left = follow.shortened(ops.OPS, sharded_state.arrays_of(following), dealing.index, *given)
        following = following.with_index(compile.finished(left))
    return following if outside is None else count_invalid(following, outside)


# Write the same rows to the index, of all lanes, and to the part.
def _write_alike(
    state: ShardedState, leaves: list[jax.Array], batch: int, mask: jax.Array | None, priorities: jax.Array | None
) -> ShardedState:
    dealing = state.dealing
    steps = batch // dealing.lanes_each
    read = [leaves[k] for k in dealing.index_leaves]
    given = [x for x in (mask, priorities) if x is not None]
    everyones = _of_all_lanes(state, [*given, *read])
    whole_mask = None if mask is None else everyones.pop(0)
    whole_priorities = None if priorities is None else everyones.pop(0)
    index = compile.add(state.index, everyones, steps * dealing.lanes, whole_mask, whole_priorities, None)
    own = compile.add(state.own, leaves, batch, _real(state, steps, mask), None, None)
    return state.with_index(index).with_own(own)


# Note the rows of all lanes in the index, whose writer chooses slots, and write those that go to the device's.
def _write_where_chosen(
    state: ShardedState, leaves: list[jax.Array], batch: int, mask: Any, priorities: Any, key: PRNGKey
) -> ShardedState:
    dealing = state.dealing
    given = _of_all_lanes(state, [*leaves, *(x for x in (mask, priorities) if x is not None)])
    if not batch:
        return state
    leaves, told = given[: len(leaves)], given[len(leaves) :]
    whole_mask = None if mask is None else told.pop(0)
    whole_priorities = None if priorities is None else told.pop(0)
    rows, words = batch // dealing.lanes_each * dealing.lanes, dealing.index.writer.words
    draws = compile.draws(key, rows, words) if words else None
    index, write = place.choose(
        ops.OPS, sharded_state.arrays_of(state), dealing, leaves, rows, whole_mask, whole_priorities, draws
    )
    own = place.place(ops.OPS, state.part, dealing.part, dealing, leaves, write, shard_number(state))
    return state.with_index(compile.finished(index)).with_own(compile.finished(own))


# Write to the part, which makes other items of the rows, and these to the index.
def _write_later_items(state: ShardedState, leaves: list[jax.Array], batch: int, mask: object) -> ShardedState:
    dealing = state.dealing
    steps = dealing.part.rows(batch) // dealing.lanes_each
    own = compile.add(state.own, leaves, batch, _real(state, batch // dealing.lanes_each, mask), None, None)
    following = state.with_own(own)
    real = follow.first_rows(ops.OPS, _told(state, following).written, steps)
    read = []
    if dealing.index_leaves:
        slots = follow.slots_of_rows(ops.OPS, dealing.part.plan, state.own.counters, steps)
        found = Draft.of(own, dealing.part.plan).read(ops.OPS, slots, dealing.index_leaves)
        read = _of_all_lanes(state, [found[k] for k in dealing.index_leaves])
    index = compile.add(state.index, read, steps * dealing.lanes, real, None, None)
    return following.with_index(index)


# Which rows of a device's lanes are written: a mask, but for lanes that the buffer does not have.
def _real(state: ShardedState, steps: int, mask: object) -> Any:
    dealing = state.dealing
    if dealing.is_even:
        return mask
    real = deal.real_rows(ops.OPS, dealing, shard_number(state), steps, state.counters)
    return real if mask is None else mask & real


# What the parts of all devices tell after a write, of all lanes.
def _told(before: ShardedState, after: ShardedState) -> follow.Told:
    own = follow.told(ops.OPS, before.dealing, before.own.counters, after.own.counters)
    return follow.Told(*_of_all_lanes(before, [*own]))


# Arrays [steps * lanes_each, *shape] of a device's lanes as those of all lanes, [steps * lanes, *shape].
def _of_all_lanes(state: ShardedState, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    if not arrays:
        return []
    layout = rows.layout_of(arrays)
    words = gathered(state, rows.packed(ops.OPS, layout, arrays))
    return rows.unpacked(ops.OPS, layout, deal.of_all_lanes(ops.OPS, state.dealing, words))


def add_items(
    state: ShardedState,
    items: object,
    mask: object,
    priorities: object,
    key: object,
    validate: bool,
    time_major: bool,
    to: object,
    function: str = "add",
) -> SameState:
    """What `add` does with a sharded buffer, and, named so, `add_`."""
    if to is not None:
        raise ValueError(f"{function}: to was given, but there is a single buffer; leave it out, or add to a Mixture")
    check_state(state, function)
    checks.check_writable(state.spec)
    if key is not None:
        check_key(key)
        if state.is_mapped and state.spec.writer.words and not compat.varying_axes(key).isdisjoint(_names(state.axis)):
            raise ValueError(
                f"{function}: expected the same key on each device, as {state.spec.writer} chooses slots of all of "
                f"them, got one that differs along {state.axis!r}; give one key to all"
            )
    return _written(state, items, mask, priorities, key, validate, time_major, function)


# What `add` makes of a state that may be written to, as that of a dataset may while it is made.
def _written(
    state: ShardedState,
    items: object,
    mask: object,
    priorities: object,
    key: object,
    validate: bool,
    time_major: bool,
    function: str,
) -> ShardedState:
    if state.is_mapped:
        with _using(compile.use_kernels()):
            done: ShardedState = _added(state, items, mask, priorities, key, validate, function, time_major)
        return done
    spec = state.spec
    given = items, mask, priorities, key, validate, function, time_major
    checks.check_unpacked(items, function)
    flat = nest.flatten_as(spec.added.structure, items)
    leaves = [convert(x, leaf, name) for x, leaf, name in zip(flat, spec.added.leaves, spec.added.names, strict=True)]
    mask = None if mask is None else as_vector(mask, "mask")
    priorities = None if priorities is None else as_vector(priorities, "priorities")
    axes = _axes_before_lanes(spec, leaves, mask, priorities, time_major)
    traced = any(isinstance(x, jax.core.Tracer) for x in (state.counters, *leaves, mask, priorities))
    if axes is None or (not traced and (validate or not spec.writer.overwrites)):
        api.check_add(execute, _as_of(state, deal.writable(spec)), *given)  # refuses what does not fit, or is outside
        assert axes is not None
    if priorities is not None and priorities.ndim > (2 if axes else 1):
        priorities = priorities[..., 0]  # as critics give them
    program = _add_in_place if function == "add_" and not traced else _add
    after: ShardedState = program(
        state, leaves, mask, priorities, key, validate, function, axes, kernels=compile.use_kernels()
    )
    return after


# How many axes a batch has before that of the lanes, 0 or 1; -1 for [E, T, *shape]; None if it does not fit.
def _axes_before_lanes(spec: BufferSpec, leaves: Sequence[Any], mask: Any, priorities: Any, time_major: bool) -> Any:
    lead = None
    for x, leaf in zip(leaves, spec.added.leaves, strict=True):
        own = tuple(x.shape[: x.ndim - len(leaf.shape)])
        if tuple(x.shape[len(own) :]) != leaf.shape or lead not in (None, own):
            return None
        lead = own
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
    missing = dealing.shards * dealing.lanes_each - dealing.lanes

    def padded(x: Any) -> Any:
        widths = [(0, missing if k == at else 0) for k in range(x.ndim)]
        return jax.numpy.pad(x, widths) if missing else x

    def body(state: ShardedState, leaves: list[Any], mask: object, priorities: object, key: object) -> ShardedState:
        lead = leaves[0].shape[: max(at, -axes) + 1] if leaves else ()
        items = nest.unflatten(state.spec.added.structure, leaves, build_mapping, lead)
        return _added(state, items, mask, priorities, key, validate, function, axes >= 0)

    along = _along(state, at)
    given = jax.tree.map(padded, (leaves, mask, priorities))
    with _using(kernels):
        return _mapped(state, body, (*given, key), (along, along, along, WHOLE), partition_specs(state))


_STATIC = ("validate", "function", "axes", "kernels")
_add = jax.jit(_add_program, static_argnames=_STATIC, inline=True)
_add_in_place = jax.jit(_add_program, static_argnames=_STATIC, donate_argnums=0)


def count_invalid(state: ShardedState, outside: jax.Array) -> ShardedState:
    """The same state, in which items that bool [B] marks are counted as invalid, those of all shards."""
    if state.is_mapped:
        outside = gathered(state, outside.astype(np.int32)).reshape(-1) > 0
    return dataclasses.replace(state, counters=counters.with_invalid(ops.OPS, state.counters, outside))


# --- drawing --------------------------------------------------------------------------------------------------------


# A device's share of a batch: what changes of the state, the leaves, and their selection.
@_body
def _drawn(
    state: ShardedState, key: jax.Array, beta: Any, batch: int, how: str
) -> tuple[dict[str, Any], list[jax.Array], Selection]:
    dealing, spec, shard = state.dealing, state.spec, shard_number(state)
    share, more = batch // dealing.shards, None
    if how == "local":
        key = jax.random.fold_in(key, shard)
    drawn = share if how == "local" else batch
    if spec.plan.extra_words:
        key, other = jax.random.split(key)
        more = compile.draws(other, *spec.extra_shape(drawn))
    draft = Draft.of(state.index, dealing.index.plan)
    shape = local.draw_shape(dealing, share) if how == "local" else dealing.index.draw_shape(batch)
    numbers = compile.draws(key, *shape)
    if how == "local":
        slots, selection = local.draw(ops.OPS, dealing, draft, numbers, beta, share, shard)
    else:
        slots, selection = spec.sampler.draw(ops.OPS, draft, numbers, beta, batch)
    (slots, *info), outline = jax.tree.flatten((slots, selection))
    seen = barrier([slots, *info])
    slots, selection = jax.tree.unflatten(outline, seen)
    own_slots, own = deal.own_slots(ops.OPS, dealing, slots, shard)
    handles = selection.handles.reshape(-1)
    handles = jax.numpy.where(own, handles, functions.NOTHING)
    part = Draft.of(state.own, dealing.part.plan)
    leaves, extras = functions.read_drawn(ops.OPS, part, dealing.part.inner, own_slots, handles, more)
    read = [*leaves, *extras.values()]
    if how == "global":
        read = _exchanged(state, read, own)
        selection = jax.tree.map(functools.partial(own_share, state), selection)
    after, read = read, functions.with_leading_axes(spec, share, read)
    leaves, told = read[: len(leaves)], dict(zip(extras, read[len(leaves) :], strict=True))
    selection = selection._replace(extras={**selection.extras, **told})
    # What all devices have the same of must not depend on what differs between them, of which `jax.shard_map` keeps
    # account: each part is written once it has been read, and so is the index, where that is known to be the same.
    alike = [x for x in seen if not compat.varying_axes(x)]
    changed = _changes(state, compile.finished(draft.finish(ops.OPS), alike))
    vector = state.own.counters
    if spec.sampler.takes_out:
        vector = follow.emptied(ops.OPS, dealing, changed["counters"], vector, shard)
    (vector,) = barrier([vector], after)
    return changed | {"part": vector}, leaves, selection


# Of arrays [n, *shape] of which each device has read its own rows, the n / D that it asked for.
def _exchanged(state: ShardedState, arrays: list[jax.Array], own: jax.Array) -> list[jax.Array]:
    layout = rows.layout_of(arrays)
    words = rows.only(ops.OPS, rows.packed(ops.OPS, layout, arrays), own)
    return rows.unpacked(ops.OPS, layout, scattered(state, words))


# What of the index a draw has exchanged; of the counters what they wait for.
def _changes(state: ShardedState, arrays: Arrays) -> dict[str, Any]:
    if not state.spec.sampler.remembers:
        return {"counters": arrays.counters, "auxiliary": {}}
    tree = {} if arrays.tree is state.tree else {"tree": arrays.tree}
    changed = {name: x for name, x in arrays.auxiliary.items() if x is not state.auxiliary[name]}
    return {**tree, "counters": arrays.counters, "auxiliary": changed}


def _changed_by(state: ShardedState, changed: dict[str, Any]) -> ShardedState:
    part = state.part._replace(counters=changed["part"])
    index = {name: x for name, x in changed.items() if name not in ("part", "auxiliary")}
    return dataclasses.replace(state, **index, auxiliary=state.auxiliary | changed["auxiliary"], part=part)


def sample_items(
    state: ShardedState,
    key: PRNGKey,
    batch_size: int | None,
    beta: object,
    p: object,
    axis_name: object,
    draw: str,
    function: str = "sample",
) -> tuple[SameState, AnySample[Nest]]:
    """What `sample` does with a sharded buffer, and, named so, `sample_`."""
    if p is not None:
        raise ValueError(f"{function}: p was given, but a single buffer gives all of the batch; leave it out")
    checks.check_not_a_size(key, batch_size, function)
    check_state(state, function)
    size, beta = asked.check_sample(execute, _as_of(state, state.spec), batch_size, beta, draw, function)
    _check_axis(state, axis_name, function)
    check_key(key)
    asked.check_shares(state.dealing, size, draw)
    if state.is_mapped:
        if draw == "global" and not compat.varying_axes(key).isdisjoint(_names(state.axis)):
            raise ValueError(
                f"{function}: expected the same key on each device, as draw='global' has them draw the same batch, got "
                f"one that differs along {state.axis!r}; give one key to all, or draw='local'"
            )
        with _using(compile.use_kernels()):
            changed, leaves, selection = _drawn(state, key, number(beta), size, draw)
        own = key if state.spec.on_sample is None else jax.random.fold_in(key, shard_number(state))
        made = api.as_sample(execute, state.spec, size // state.dealing.shards, own, leaves, selection)
        return _changed_by(state, changed), made
    state, leaves, selection = sample(state, key, size, beta, draw, function == "sample_")
    return state, api.as_sample(execute, state.spec, size, key, leaves, selection)


def sample(
    state: ShardedState, key: jax.Array, batch: int, beta: object, draw: str = "global", in_place: bool = False
) -> tuple[ShardedState, list[jax.Array], Selection]:
    """Draw items; where the result is at hand, an empty buffer is an error."""
    traced = any(isinstance(x, jax.core.Tracer) for x in (state.counters, key, beta))
    kernels = compile.use_kernels()
    if not traced and in_place:
        state, leaves, selection = _sample_in_place(state, key, number(beta), batch, draw, kernels=kernels)
    else:
        changed, leaves, selection = _sample(state, key, number(beta), batch, draw, kernels=kernels)
        if traced or state.spec.sampler.remembers:
            state = _changed_by(state, changed)
    if batch and not traced and selection.handles.is_fully_addressable:
        found = bool(np.asarray(selection.handles).max() >= 0)
        checks.check_nonempty(state.spec, found, int(np.asarray(state.counters)[counters.SIZE]))
    return state, leaves, selection


def _names(axis: Any) -> tuple[str, ...]:
    return (axis,) if isinstance(axis, str) else tuple(axis)


def _check_axis(state: ShardedState, axis_name: object, function: str) -> None:
    if axis_name is not None and _names(axis_name) != _names(state.axis):
        raise ValueError(
            f"{function}: expected axis_name={state.axis!r}, along which the buffer is sharded, got {axis_name!r}; "
            f"leave it out, or shard the buffer along that axis (rb.init(spec, sharding=...))"
        )


def check_asked(state: object, axis_name: object, group: object, draw: object, function: str) -> None:
    """Refuse what has no meaning for a buffer that is not sharded; on a single device, everything has.

    Raises:
        ValueError: with the remedy.
    """
    asked.check_draw(draw, function)
    if group is not None:
        raise ValueError(f"{function}: group is of torch; on JAX give axis_name=, or leave it out")
    if isinstance(state, ShardedState):
        return  # of these `sample_items` looks at it
    if draw == "local" and isinstance(state, State):
        local.check(state.spec)
    if axis_name is None:
        return
    devices = 1
    for name in _names(axis_name):
        devices *= lax.axis_size(name)
    if devices > 1 or not isinstance(state, State):
        raise ValueError(
            f"{function}: axis_name={axis_name!r} was given, but this buffer is not sharded along it; make it by "
            f"rb.init(spec, sharding=NamedSharding(mesh, PartitionSpec({axis_name!r}))), or leave axis_name out, for a "
            f"buffer of each device's own"
        )


def _sample_program(
    state: ShardedState, key: jax.Array, beta: object, batch: int, how: str, kernels: bool
) -> tuple[dict[str, Any], list[jax.Array], Selection]:
    def body(state: ShardedState, key: jax.Array, beta: object) -> Any:
        changed, leaves, selection = _drawn(state, key, beta, batch, how)
        part = changed.pop("part")
        return changed, part, leaves, selection

    along = _along(state)
    with _using(kernels):
        out = (WHOLE, along, along, along)
        changed, part, leaves, selection = _mapped(state, body, (key, beta), (WHOLE, WHOLE), out)
    return changed | {"part": part}, leaves, selection


def _sampled_program(
    state: ShardedState, key: jax.Array, beta: object, batch: int, how: str, kernels: bool
) -> tuple[ShardedState, list[jax.Array], Selection]:
    changed, leaves, selection = _sample_program(state, key, beta, batch, how, kernels)
    return _changed_by(state, changed), leaves, selection


_sample = jax.jit(_sample_program, static_argnames=("batch", "how", "kernels"), inline=True)
_sample_in_place = jax.jit(_sampled_program, static_argnames=("batch", "how", "kernels"), donate_argnums=0)


# --- updating -------------------------------------------------------------------------------------------------------


# Set priorities in the index, and rewrite leaves where they lie; all devices were given the same.
@_body
def _updated(
    state: ShardedState, handles: jax.Array, priorities: jax.Array | None, replacements: dict[int, jax.Array]
) -> ShardedState:
    dealing = state.dealing
    draft = Draft.of(state.index, dealing.index.plan)
    slots, live = draft.locate(ops.OPS, handles)
    read = {own: replacements[k] for own, k in enumerate(dealing.index_leaves) if k in replacements}
    index = compile.update(state.index, handles, priorities, read)
    if replacements and handles.shape[0]:
        own_slots, own = deal.own_slots(ops.OPS, dealing, slots, shard_number(state))
        part = state.own
        names = Draft.of(part, dealing.part.plan).handles_of(ops.OPS, own_slots)
        names = jax.numpy.where(own & live, names, functions.NOTHING)
        state = state.with_own(compile.update(part, names, None, replacements))
    return state.with_index(index)


@_body
def _updated_by_all(
    state: ShardedState, handles: jax.Array, priorities: object, replacements: dict[int, jax.Array]
) -> ShardedState:
    arrays, outline = jax.tree.flatten((handles, priorities, replacements))
    layout = rows.layout_of(arrays)
    words = gathered(state, rows.packed(ops.OPS, layout, arrays))
    arrays = rows.unpacked(ops.OPS, layout, words.reshape(-1, words.shape[-1]))
    done: ShardedState = _updated(state, *jax.tree.unflatten(outline, arrays))
    return done


def _update_program(
    state: ShardedState, handles: jax.Array, priorities: object, replacements: dict[int, jax.Array], kernels: bool
) -> ShardedState:
    with _using(kernels):
        given = (handles, priorities, replacements)
        return _mapped(state, _updated, given, (WHOLE, WHOLE, WHOLE), partition_specs(state))


_update = jax.jit(_update_program, static_argnames="kernels", inline=True)
_update_in_place = jax.jit(_update_program, static_argnames="kernels", donate_argnums=0)


# The index alone: what is handed through a program is copied.
def _prioritize_program(state: ShardedState, handles: jax.Array, priorities: object, kernels: bool) -> Arrays:
    after = _update_program(state, handles, priorities, {}, kernels)
    return Arrays(after.rows, after.wide, after.tree, after.counters, after.auxiliary)


_prioritize = jax.jit(_prioritize_program, static_argnames="kernels")


def update(
    state: ShardedState, handles: jax.Array, priorities: object, replacements: Mapping[int, jax.Array]
) -> ShardedState:
    """Set priorities and rewrite leaves."""
    kernels = compile.use_kernels()
    if state.is_mapped:
        with _using(kernels):
            done: ShardedState = _updated_by_all(state, handles, priorities, dict(replacements))
        return done
    if replacements or isinstance(state.counters, jax.core.Tracer):
        after: ShardedState = _update(state, handles, priorities, dict(replacements), kernels=kernels)
        return after
    return state.with_index(_prioritize(state, handles, priorities, kernels=kernels))


def update_items(state: ShardedState, indices: object, priorities: object, items: object, function: str) -> SameState:
    """What `update` does with a sharded buffer, and, named so, `update_`."""
    write = update if function == "update" else update_
    return write(state, *api.check_update(_ENGINE, state, indices, priorities, items, function))


def update_(
    state: ShardedState, handles: jax.Array, priorities: object, replacements: Mapping[int, jax.Array]
) -> ShardedState:
    """The same in place."""
    given = state.counters, handles, priorities, *replacements.values()
    if state.is_mapped or any(isinstance(x, jax.core.Tracer) for x in given):
        return update(state, handles, priorities, replacements)
    after: ShardedState = _update_in_place(
        state, handles, priorities, dict(replacements), kernels=compile.use_kernels()
    )
    return after


# --- all else -------------------------------------------------------------------------------------------------------


@_body
def _cleared(state: ShardedState) -> ShardedState:
    dealing = state.dealing
    index = compile.finished(functions.clear(ops.OPS, state.index, dealing.index))
    own = compile.finished(functions.clear(ops.OPS, state.own, dealing.part))
    return state.with_index(index).with_own(own)


def _clear_program(state: ShardedState, kernels: bool) -> ShardedState:
    with _using(kernels):
        return _mapped(state, _cleared, (), (), partition_specs(state))


_clear = jax.jit(_clear_program, static_argnames="kernels", inline=True)
_clear_in_place = jax.jit(_clear_program, static_argnames="kernels", donate_argnums=0)


def clear(state: ShardedState) -> ShardedState:
    """Take all items out."""
    if state.is_mapped:
        with _using(compile.use_kernels()):
            done: ShardedState = _cleared(state)
        return done
    after: ShardedState = _clear(state, kernels=compile.use_kernels())
    return after


def clear_(state: ShardedState) -> ShardedState:
    """The same in place."""
    if state.is_mapped or isinstance(state.counters, jax.core.Tracer):
        return clear(state)
    after: ShardedState = _clear_in_place(state, kernels=compile.use_kernels())
    return after


def with_spec(state: ShardedState, spec: BufferSpec) -> ShardedState:
    """Another spec, where it only says how to call: another beta, or batch size."""
    if not respec.is_label(state.spec, spec):
        _refuse("with_spec", "put it together first: rb.shard(rb.with_spec(rb.unshard(state), spec), sharding)")
    return dataclasses.replace(state, spec=spec)


@_body
def _got(state: ShardedState, handles: jax.Array, by_all: bool) -> list[jax.Array]:
    dealing = state.dealing
    if by_all:
        handles = gathered(state, handles).reshape(-1)
    slots, live = Draft.of(state.index, dealing.index.plan).locate(ops.OPS, handles)
    own_slots, own = deal.own_slots(ops.OPS, dealing, slots, shard_number(state))
    part = Draft.of(state.own, dealing.part.plan)
    found = part.read(ops.OPS, own_slots, range(len(dealing.part.plan.leaves)))
    leaves = [found[k] for k in range(len(found))]
    layout = rows.layout_of(leaves)
    words = rows.only(ops.OPS, rows.packed(ops.OPS, layout, leaves), own & live)
    words = scattered(state, words) if by_all else lax.psum(words, state.axis)
    return rows.unpacked(ops.OPS, layout, words)


@functools.partial(jax.jit, inline=True)
def _get(state: ShardedState, handles: jax.Array) -> list[jax.Array]:
    body = functools.partial(_got, by_all=False)
    found: list[jax.Array] = _mapped(state, body, (handles,), (WHOLE,), WHOLE)
    return found


def get(state: ShardedState, handles: jax.Array) -> list[jax.Array]:
    """Read items by handle; each device those it asks for."""
    found: list[jax.Array] = _got(state, handles, by_all=True) if state.is_mapped else _get(state, handles)
    return found


@functools.partial(jax.jit, inline=True)
def _items(state: ShardedState) -> list[jax.Array]:
    def body(state: ShardedState) -> list[jax.Array]:
        own = state.own
        if own.spec.plan.frames is not None:
            return functions.items(ops.OPS, own, own.spec)
        return row_layout.unpack(ops.OPS, own.spec.plan.layout, own.rows, own.wide)

    found = _mapped(state, _body(body), (), (), _along(state))
    if state.dealing.slots_each * state.dealing.shards == state.spec.capacity:
        return found
    mesh = state.sharding.mesh
    if compat.explicit_axes(mesh):  # which divide nothing into unequal parts
        found = [jax.sharding.reshard(x, NamedSharding(mesh, WHOLE)) for x in found]
    return [x[: state.spec.capacity] for x in found]


def items(state: ShardedState) -> list[jax.Array]:
    """The items of all slots, divided among the devices as they lie."""
    if state.is_mapped:
        _refuse("items", "inside of jax.shard_map use rb.get(state, handles)")
    found: list[jax.Array] = _items(state)
    return found


def is_live(state: ShardedState, handles: jax.Array) -> jax.Array:
    """Whether handles name stored items."""
    return execute.is_live(state.index, handles)


def look(
    state: ShardedState, function: Callable[..., jax.Array], handles: jax.Array | None = None, n: int | None = None
) -> jax.Array:
    """What a function of `buffer` reads off the index."""
    return execute.look(state.index, function, handles, n)


def counter(state: ShardedState, place: int) -> jax.Array:
    """One of the counters, by its place in those of the whole buffer."""
    return execute.counter(state.index, asked.place_in_index(state.dealing, place))


def drawable(state: ShardedState, n: int) -> jax.Array:
    """Whether n items can be drawn."""
    return execute.drawable(state.index, n)


_ENGINE: Any = sys.modules[__name__]
