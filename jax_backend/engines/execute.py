"""The functions of `buffer.backend.Backend` on JAX: compiled once for a spec and the shapes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from functional_rb.base.arrays import BackendArray, NumpyArray
from functional_rb.buffer import checks, functions, respec
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.reader import check_fits
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.buffer.storage_kinds import Device
from functional_rb.core import counters
from functional_rb.core.draft import Arrays
from functional_rb.core.strategy import Selection
from functional_rb.specs import values
from functional_rb.specs.values import Outline
from functional_rb.structures import row_layout
from jax_backend import compat
from jax_backend.arrays import devices, ops, rules
from jax_backend.arrays.convert import as_vector as as_vector
from jax_backend.arrays.convert import build_mapping as build_mapping
from jax_backend.arrays.convert import convert as convert
from jax_backend.arrays.convert import number
from jax_backend.arrays.convert import unsupported as unsupported
from jax_backend.arrays.convert import value_of as value_of
from jax_backend.arrays.keys import check_key as check_key
from jax_backend.arrays.keys import split as split
from jax_backend.compiling import compile, copies
from jax_backend.engines import mapping
from jax_backend.engines.mapping import evaluated as evaluated
from jax_backend.engines.mapping import map_items as map_items

jax.tree_util.register_dataclass(
    State, data_fields=("rows", "wide", "tree", "counters", "auxiliary"), meta_fields=("spec",)
)


def check_state(state: object, function: str) -> None:
    """Refuse what is no state of JAX."""
    checks.check_state(state, function)
    if type(state) is not State:
        assert isinstance(state, State)
        raise checks.of_other_backend(state, function, "jax_backend", "torch")
    state.check_alive()


def to_state(arrays: Arrays, spec: BufferSpec) -> State:
    """A state of new arrays."""
    return State(*arrays, spec)


def device_of(spec: BufferSpec, device: object) -> object:
    """Where the arrays of a state lie: on the device that is given, else on that of the storage."""
    named = spec.storage.device if isinstance(spec.storage, Device) else None
    return devices.resolve(named if device is None else device)


def init(spec: BufferSpec, device: object = None) -> State:
    """An empty state of a spec, on its device."""
    where = device_of(spec, device)
    if isinstance(where, jax.sharding.NamedSharding):
        return to_state(_spread(spec, where)(), spec)
    with rules.promoting_ranks():
        return to_state(functions.init(ops.OPS, spec, where), spec)


# Makes the arrays of an empty state where they are to lie.
@functools.lru_cache(maxsize=256)
def _spread(spec: BufferSpec, sharding: jax.sharding.NamedSharding) -> Callable[[], Arrays]:
    make = compile.program(functools.partial(functions.init, ops.OPS, spec))
    return jax.jit(make, out_shardings=devices.places(jax.eval_shape(make), sharding))


@compile.program
def added(
    state: State,
    leaves: list[jax.Array],
    batch: int,
    mask: jax.Array | None,
    priorities: jax.Array | None,
    key: jax.Array | None,
) -> State:
    """The program of `add`, as JAX traces it."""
    check_fits(state, state.spec.plan, "add")
    words = state.spec.writer.words
    numbers = None if key is None or not words else compile.draws(key, state.spec.rows(batch), words)
    return to_state(compile.add(state, leaves, batch, mask, priorities, numbers), state.spec)


_add = jax.jit(added, static_argnames=("batch", "kernels"), inline=True)


def add(state: State, batch: Batch, key: jax.Array | None) -> State:
    """Write a batch of checked items; returns the new state."""
    if key is not None:
        check_key(key)
    following = _add(state, *batch, key, kernels=compile.use_kernels())
    return copies.warned("add", state, following)


@compile.program
def drawn_from(
    state: State, key: jax.Array, batch: int, beta: jax.Array
) -> tuple[dict[str, object], list[jax.Array], object, Selection]:
    """What `sample` traces: of the state what is new, the leaves, their structure if it is another, the selection."""
    changed, leaves, selection = drawn_rows(state, key, batch, beta, None)
    leaves, structure = mapping.sampled(state.spec, leaves, batch, key, selection.mask)
    return changed, leaves, structure, selection


def drawn_rows(
    state: State, key: jax.Array, batch: int, beta: BackendArray, wanted: jax.Array | None
) -> tuple[dict[str, object], list[jax.Array], Selection]:
    """What is traced to draw a batch, of which the first rows count, an int32 scalar, or all."""
    check_fits(state, state.spec.plan, "sample")
    spec, more = state.spec, None
    if spec.plan.extra_words:
        key, other = jax.random.split(key)
        more = compile.draws(other, *spec.extra_shape(batch))
    arrays, leaves, selection = compile.sample(state, key, more, beta, batch, wanted)
    return _changes(state, arrays), leaves, selection


_sample = jax.jit(drawn_from, static_argnames=("batch", "kernels"), inline=True)


def _changes(state: State, arrays: Arrays) -> dict[str, object]:
    """What of a state a sampler has exchanged: a jitted function would copy what it only hands through.

    While tracing, the counters at least, for what they wait for; see `custom_call.barrier`.
    """
    if not state.spec.sampler.remembers:
        return {"counters": arrays.counters, "auxiliary": {}}
    return _exchanged(state, arrays)


def changed_by(state: State, changed: dict[str, Any]) -> State:
    """A state with some of its arrays exchanged."""
    return dataclasses.replace(state, **changed | {"auxiliary": state.auxiliary | changed["auxiliary"]})


def sample(
    state: State, key: jax.Array, batch: int, beta: float | BackendArray
) -> tuple[State, list[jax.Array], Selection]:
    """Draw items; where the result is at hand, an empty buffer is an error."""
    check_key(key)
    spec = state.spec
    changed, leaves, structure, selection = _sample(state, key, batch, number(beta), kernels=compile.use_kernels())
    if structure is not None:
        leaves = mapping.Mapped(leaves, structure)
    # Looking at a handle waits for the draw. Where numbers are not at hand, handles of -1 say that nothing was drawn.
    if batch and not isinstance(selection.handles, jax.core.Tracer) and selection.handles.is_fully_addressable:
        checks.check_nonempty(
            spec, bool(np.asarray(selection.handles).max() >= 0), int(np.asarray(state.counters)[counters.SIZE])
        )
    if spec.sampler.remembers or isinstance(state.counters, jax.core.Tracer):
        # Eagerly a state that remembers nothing is returned as it is; while tracing its counters carry the order of
        # reads and writes, see `compile.finished`.
        state = copies.warned("sample", state, changed_by(state, changed))
    return state, leaves, selection


def known(state: State, mask: jax.Array | None) -> tuple[NumpyArray, NumpyArray | None] | None:
    """The state's counters and a mask as NumPy arrays, None while tracing."""
    if any(isinstance(x, jax.core.Tracer) for x in (state.counters, mask)):
        return None
    return np.asarray(state.counters), None if mask is None else np.asarray(mask)


@functools.partial(jax.jit, static_argnames="outline", inline=True)
@compile.program
def inside(outline: Outline, leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """Whether values lie in the domain of each unit."""
    return values.inside(ops.OPS, outline, leaves)


def count_invalid(state: State, outside: jax.Array) -> State:
    """The same state, with what was left out counted."""
    return dataclasses.replace(state, counters=_counted(state.counters, outside))


@functools.partial(jax.jit, inline=True)
@compile.program
def _counted(vector: jax.Array, outside: jax.Array) -> jax.Array:
    return counters.with_invalid(ops.OPS, vector, outside)


@compile.program
def updated(
    state: State, handles: jax.Array, priorities: jax.Array | None, replacements: dict[int, jax.Array]
) -> State:
    """The program of `update`, as JAX traces it."""
    check_fits(state, state.spec.plan, "update")
    return to_state(compile.update(state, handles, priorities, replacements), state.spec)


_update = jax.jit(updated, static_argnames="kernels", inline=True)


def update(
    state: State, handles: jax.Array, priorities: jax.Array | None, replacements: Mapping[int, jax.Array]
) -> State:
    """Set priorities and rewrite leaves."""
    kernels = compile.use_kernels()
    if replacements or isinstance(state.counters, jax.core.Tracer):
        return copies.warned("update", state, _update(state, handles, priorities, dict(replacements), kernels=kernels))
    return copies.warned("update", state, changed_by(state, _prioritize(state, handles, priorities, kernels=kernels)))


# What of a state changes with the priorities alone: not the rows, which JAX would copy.
@functools.partial(jax.jit, static_argnames="kernels")
@compile.program
def _prioritize(state: State, handles: jax.Array, priorities: jax.Array | None) -> dict[str, Any]:
    check_fits(state, state.spec.plan, "update")
    return _exchanged(state, compile.update(state, handles, priorities, {}))


# All but rows and wide arrays, as far as it is new.
def _exchanged(state: State, arrays: Arrays) -> dict[str, object]:
    tree = {} if arrays.tree is state.tree else {"tree": arrays.tree}
    changed = {name: x for name, x in arrays.auxiliary.items() if x is not state.auxiliary[name]}
    return {**tree, "counters": arrays.counters, "auxiliary": changed}


@compile.program
def cleared(state: State) -> dict[str, object]:
    """What of a state changes where all items are taken out."""
    check_fits(state, state.spec.plan, "clear")
    return _exchanged(state, compile.finished(functions.clear(ops.OPS, state, state.spec)))


_clear = jax.jit(cleared, static_argnames="kernels", inline=True)


def clear(state: State) -> State:
    """Take all items out; the rows are handed on as they are."""
    return changed_by(state, _clear(state, kernels=compile.use_kernels()))


@compile.program
def advanced(state: State, version: jax.Array) -> dict[str, object]:
    """What of a state changes with the version of the policy that learns."""
    check_fits(state, state.spec.plan, "update")
    return _exchanged(state, compile.finished(functions.advance(ops.OPS, state, state.spec, version)))


_advance = jax.jit(advanced, static_argnames="kernels", inline=True)


def advance(state: State, version: object) -> State:
    """Tell the sampler the version of the policy that learns; the rows are handed on as they are."""
    return changed_by(state, _advance(state, number(version, np.int32), kernels=compile.use_kernels()))


# What is new of a state under another spec.
@functools.partial(jax.jit, static_argnames=("spec", "kernels", "where"), inline=True)
@compile.program
def _with_spec(state: State, spec: BufferSpec, where: jax.sharding.NamedSharding | None) -> dict[str, object]:
    check_fits(state, state.spec.plan, "with_spec")
    arrays = compile.finished(respec.with_spec(ops.OPS, state, state.spec, spec))
    auxiliary = {name: x for name, x in arrays.auxiliary.items() if x is not state.auxiliary.get(name)}
    changed = {"tree": arrays.tree, "counters": arrays.counters, "auxiliary": auxiliary}
    if arrays.rows is state.rows:
        return changed
    if where is not None:  # else XLA would have all of them on each device
        arrays = jax.lax.with_sharding_constraint(arrays, devices.places(arrays, where))
        changed["auxiliary"] = arrays.auxiliary
    return changed | {"rows": arrays.rows, "wide": arrays.wide}


def with_spec(state: State, spec: BufferSpec) -> State:
    """Another spec, with the items in the same place; rows that stay are handed on as they are."""
    if respec.is_label(state.spec, spec):
        return dataclasses.replace(state, spec=spec)
    changed = _with_spec(state, spec, _spread_over(state, spec), kernels=compile.use_kernels())
    auxiliary = {
        name: changed["auxiliary"][name] if name in changed["auxiliary"] else state.auxiliary[name]
        for name in spec.plan.auxiliary
    }
    return dataclasses.replace(state, **changed | {"auxiliary": auxiliary}, spec=spec)


def _spread_over(state: State, spec: BufferSpec) -> jax.sharding.NamedSharding | None:
    """How the storage of a state is divided among devices, if XLA needs to know it.

    Raises:
        ValueError: if that of the spec cannot be divided so.
    """
    where = None if isinstance(state.rows, jax.core.Tracer) else state.rows.sharding
    if not isinstance(where, jax.sharding.NamedSharding) or where.is_fully_replicated:
        return None
    devices.place("rows", (spec.capacity, spec.plan.layout.row_words), where)
    return None if compat.is_explicit(where.mesh) else where


@functools.partial(jax.jit, inline=True)
@compile.program
def get(state: State, handles: jax.Array) -> list[jax.Array]:
    """Read items by handle."""
    check_fits(state, state.spec.plan, "get")
    return functions.get(ops.OPS, state, state.spec, handles)


@functools.partial(jax.jit, inline=True)
@functools.partial(compile.program, by_row=True)
def items(state: State) -> list[jax.Array]:
    """The items of all slots, unpacked from the storage."""
    check_fits(state, state.spec.plan, "items")
    if state.spec.plan.frames is not None:
        return functions.items(ops.OPS, state, state.spec)
    return row_layout.unpack(ops.OPS, state.spec.plan.layout, state.rows, state.wide)


@functools.partial(jax.jit, static_argnames="place", inline=True)
@compile.program
def _counter(counters: jax.Array, place: int) -> jax.Array:
    return counters[..., place]


def counter(state: State, place: int) -> jax.Array:
    """One of the counters; indexing outside of a compiled program takes ten times as long."""
    return _counter(state.counters, place)


@functools.partial(jax.jit, static_argnames=("function", "n"), inline=True)
@compile.program
def look(
    state: State, function: Callable[..., jax.Array], handles: jax.Array | None = None, n: int | None = None
) -> jax.Array:
    """What a function of `buffer.functions` reads off a state."""
    if handles is not None:  # what is only counted is read of stacks of states as well
        check_fits(state, state.spec.plan, function.__name__)
    return function(ops.OPS, state, state.spec, *(x for x in (handles, n) if x is not None))
