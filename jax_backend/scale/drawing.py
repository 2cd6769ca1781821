"""`sample` and `sample_` on sharded buffers: what each device draws and reads of a batch."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax import lax

from functional_rb.base.arrays import Nest, PRNGKey
from functional_rb.buffer import api, checks, functions
from functional_rb.buffer.state import SameState, State
from functional_rb.core import counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.sample import AnySample
from functional_rb.core.strategy import Selection
from functional_rb.sharding import asked, deal, follow, local, rows
from jax_backend import compat
from jax_backend.arrays import ops, tracing
from jax_backend.arrays.convert import number
from jax_backend.arrays.keys import check_key
from jax_backend.compiling import compile
from jax_backend.engines import execute
from jax_backend.kernels.custom_call import barrier
from jax_backend.scale.mapped import WHOLE, along, as_of, check_state, mapped, names_of, on_device, using
from jax_backend.scale.state import (
    ShardedState,
    own_share,
    scattered,
    shard_number,
)


# A device's share of a batch: what changes of the state, the leaves, and their selection.
@on_device
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
    if how == "local":
        draft = Draft.of(state.index, dealing.index.plan)
        numbers = compile.draws(key, *local.draw_shape(dealing, share))
        slots, selection = local.draw(ops.OPS, dealing, draft, numbers, beta, share, shard)
        index = draft.finish(ops.OPS)
    else:
        index, slots, selection = compile.chosen(state.index, key, beta, batch)
    # Whatever is read by what was drawn waits for all of the draw: else XLA might draw anew where a result is used, and
    # copy the index for that.
    (slots, *info), outline = jax.tree.flatten((slots, selection))
    seen = barrier([slots, *info])
    slots, selection = jax.tree.unflatten(outline, seen)
    own_slots, held = deal.own_slots(ops.OPS, dealing, slots, shard)
    handles = selection.handles.reshape(-1)
    handles = jax.numpy.where(held, handles, functions.NOTHING)
    part = Draft.of(state.own, dealing.part.plan)
    leaves, extras = functions.read_drawn(ops.OPS, part, dealing.part, own_slots, handles, more)
    read = [*leaves, *extras.values()]
    if how == "global":
        read = _exchanged(state, read, held)
        selection = jax.tree.map(functools.partial(own_share, state), selection)
    after, read = read, functions.with_leading_axes(spec, share, read)
    leaves, read_extras = read[: len(leaves)], dict(zip(extras, read[len(leaves) :], strict=True))
    selection = selection._replace(extras={**selection.extras, **read_extras})
    # What all devices have the same of must not depend on what differs between them, of which `jax.shard_map` keeps
    # account: each part is written once it has been read, and so is the index, where that is known to be the same.
    alike = [x for x in seen if not compat.varying_axes(x)]
    changed = _changes(state, compile.finished(index, alike))
    vector = state.own.counters
    if spec.sampler.takes_out:
        vector = follow.emptied(ops.OPS, dealing, changed["counters"], vector, shard)
    (vector,) = barrier([vector], after)
    return changed | {"part": vector}, leaves, selection


# Each device has read its own rows of arrays [n, *shape]; it gets the n / D rows that it asked for.
def _exchanged(state: ShardedState, arrays: list[jax.Array], held: jax.Array) -> list[jax.Array]:
    layout = rows.layout_of(arrays)
    words = rows.only(ops.OPS, rows.packed(ops.OPS, layout, arrays), held)
    return rows.unpacked(ops.OPS, layout, scattered(state, words))


# The arrays of the index that a draw has exchanged.
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
    """Sample a sharded buffer, in place if the function is named `sample_`."""
    checks.check_single(function, p=p)
    checks.check_not_a_size(key, batch_size, function)
    check_state(state, function)
    size, beta = asked.check_sample(execute, as_of(state, state.spec), batch_size, beta, draw, function)
    if axis_name is not None and names_of(axis_name) != names_of(state.axis):
        raise ValueError(
            f"{function}: expected axis_name={state.axis!r}, along which the buffer is sharded, got {axis_name!r}; "
            f"leave it out, or shard the buffer along that axis (rb.init(spec, sharding=...))"
        )
    check_key(key)
    asked.check_shares(state.dealing, size, draw)
    if state.is_mapped:
        if draw == "global" and not compat.varying_axes(key).isdisjoint(names_of(state.axis)):
            raise ValueError(
                f"{function}: expected the same key on each device, as draw='global' has them draw the same batch, got "
                f"one that differs along {state.axis!r}; give one key to all, or draw='local'"
            )
        with using(compile.use_kernels()):
            changed, leaves, selection = _drawn(state, key, number(beta), size, draw)
        own_key = key if state.spec.on_sample is None else jax.random.fold_in(key, shard_number(state))
        drawn = api.as_sample(execute, state.spec, size // state.dealing.shards, own_key, leaves, selection)
        return _changed_by(state, changed), drawn
    state, leaves, selection = sample(state, key, size, beta, draw, function == "sample_")
    return state, api.as_sample(execute, state.spec, size, key, leaves, selection)


def sample(
    state: ShardedState, key: jax.Array, batch: int, beta: object, draw: str = "global", in_place: bool = False
) -> tuple[ShardedState, list[jax.Array], Selection]:
    """Draw items; where the result is at hand, an empty buffer is an error."""
    traced = tracing.is_traced(state.counters, key, beta)
    kernels = compile.use_kernels()
    if not traced and in_place:
        state, leaves, selection = _sample_in_place(state, key, number(beta), batch, draw, kernels=kernels)
    else:
        changed, leaves, selection = _sample(state, key, number(beta), batch, draw, kernels=kernels)
        if traced or state.spec.sampler.remembers:
            state = _changed_by(state, changed)
    if batch and not traced and selection.handles.is_fully_addressable:
        any_drawn = bool(np.asarray(selection.handles).max() >= 0)
        checks.check_nonempty(state.spec, any_drawn, int(np.asarray(state.counters)[counters.SIZE]))
    return state, leaves, selection


def check_asked(state: object, axis_name: object, group: object, draw: object, function: str) -> None:
    """Refuse what has no meaning for a buffer that is not sharded; on a single device, everything has."""
    asked.check_draw(draw, function)
    if group is not None:
        raise ValueError(f"{function}: group is of torch; on JAX give axis_name=, or leave it out")
    if isinstance(state, ShardedState):
        return  # `sample_items` checks these itself
    if draw == "local" and isinstance(state, State):
        local.check(state.spec)
    if axis_name is None:
        return
    devices = 1
    for name in names_of(axis_name):
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

    divided = along(state)
    with using(kernels):
        out = (WHOLE, divided, divided, divided)
        changed, part, leaves, selection = mapped(state, body, (key, beta), (WHOLE, WHOLE), out)
    return changed | {"part": part}, leaves, selection


def _sampled_program(
    state: ShardedState, key: jax.Array, beta: object, batch: int, how: str, kernels: bool
) -> tuple[ShardedState, list[jax.Array], Selection]:
    changed, leaves, selection = _sample_program(state, key, beta, batch, how, kernels)
    return _changed_by(state, changed), leaves, selection


_sample = jax.jit(_sample_program, static_argnames=("batch", "how", "kernels"), inline=True)
_sample_in_place = jax.jit(_sampled_program, static_argnames=("batch", "how", "kernels"), donate_argnums=0)
