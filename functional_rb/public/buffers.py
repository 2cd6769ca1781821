"""The public functions on buffers: single ones, sharded ones, those that processes share, and mixtures.

Each looks what its state is and hands the call on; what it does is said where a single buffer's is checked
(`functional_rb.buffer.api` and the modules beside it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar

from functional_rb.base.arrays import ArrayLike, DeviceLike, Nest, PRNGKey
from functional_rb.base.description import Described, Description, refuse
from functional_rb.buffer import api, checks, in_place, reading, samples
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import Counts, State
from functional_rb.core.item_function import ItemFunction
from functional_rb.core.sample import AnySample, Items
from functional_rb.lib import A, Lib, documented_by
from functional_rb.mixture import functions as mixed
from functional_rb.mixture import sampling
from functional_rb.mixture.value import Mixture
from functional_rb.public.structures import called_on
from functional_rb.specs.base import SpecNest

AnyState = TypeVar("AnyState", bound=State | Mixture | Described)
OneState = TypeVar("OneState", bound=State)

NAMES: Final = (
    "add",
    "add_",
    "can_sample",
    "clear",
    "clear_",
    "contains",
    "counts",
    "decode",
    "encode",
    "enumerate",
    "from_dlpack",
    "get",
    "init",
    "is_live",
    "items",
    "jit",
    "key",
    "load_state_dict",
    "lookup",
    "map_spec",
    "moments",
    "newest",
    "priorities",
    "probabilities",
    "project",
    "rand",
    "sample",
    "sample_",
    "sample_spec",
    "size",
    "split",
    "state_dict",
    "text",
    "trees",
    "update",
    "update_",
    "visits",
    "with_spec",
    "zeros",
)
"""What every backend has."""


# --- writing and drawing --------------------------------------------------------------------------------------------
# What the chain does whole is asked of it in each function anew: eager torch would pay for one more call of Python.


@documented_by(api.init)
def init(
    lib: Lib[A],
    spec: Any,
    device: DeviceLike = None,
    items: Nest = None,
    validate: bool = False,
    sharding: object = None,
) -> Any:
    if isinstance(spec, Description) and not isinstance(spec, BufferSpec):
        implementation = called_on(spec, "init")
        refuse("init", spec, validate=validate, sharding=sharding)
        return implementation(lib, spec, device, items)
    if sharding is not None:
        return lib.sharded.init(spec, device, items, validate, sharding)
    engine = lib.engine_for(spec)
    return api.init(engine, spec, device, items, validate, lib.in_place(engine).add_)


@documented_by(api.add)
def add(
    lib: Lib[A],
    state: AnyState,
    items: Nest,
    mask: ArrayLike = None,
    priorities: ArrayLike = None,
    key: A | None = None,
    validate: bool = False,
    time_major: bool = True,
    to: object = None,
) -> AnyState:
    chain = lib.chain(state)
    if chain is not None:
        result = chain.add(state, items, mask, priorities, key, validate, time_major, to)
        if result is not NotImplemented:
            return result
    return _add(lib, "add", state, items, mask, priorities, key, validate, time_major, to)


@documented_by(in_place.add_)
def add_(
    lib: Lib[A],
    state: AnyState,
    items: Nest,
    mask: ArrayLike = None,
    priorities: ArrayLike = None,
    key: A | None = None,
    validate: bool = False,
    time_major: bool = True,
    to: object = None,
) -> AnyState:
    chain = lib.chain(state)
    if chain is not None:
        result = chain.add_(state, items, mask, priorities, key, validate, time_major, to)
        if result is not NotImplemented:
            return result
    return _add(lib, "add_", state, items, mask, priorities, key, validate, time_major, to)


def _add(lib: Lib[A], function: str, state: Nest, items: Nest, *arguments: Any) -> Nest:
    if isinstance(state, Described):
        implementation = called_on(state, function)
        mask, priorities, key, validate, time_major, to = arguments
        lane_major = not time_major  # of the two ways, the one that is no default
        refuse(function, state, priorities=priorities, key=key, validate=validate, time_major=lane_major, to=to)
        return implementation(lib, state, items, mask)
    if isinstance(state, Mixture):
        *each, to = arguments
        # A buffer that is in the mixture twice is written in one place, and must not be consumed in the other.
        write = add if function == "add" or state.repeats else add_
        return mixed.add(lambda one, *args, **named: write(lib, one, *args, **named), state, to, items, *each)
    if isinstance(state, lib.sharded.ShardedState):
        *given, to = arguments
        checks.check_single(function, to=to)
        return lib.sharded.add_items(state, api.Given(items, *given), function)
    engine = lib.engine(state)
    if function == "add":
        return api.add(engine, state, items, *arguments)
    return in_place.add_(engine, lib.in_place(engine), state, items, *arguments)


@documented_by(api.sample)
def sample(
    lib: Lib[A],
    state: AnyState,
    key: A,
    batch_size: int | None = None,
    beta: ArrayLike = None,
    p: object = None,
    *,
    axis_name: object = None,
    group: object = None,
    draw: Literal["global", "local"] = "global",
) -> tuple[AnyState, AnySample[Nest]]:
    if axis_name is not None or group is not None or draw != "global":
        lib.sharded.check_asked(state, axis_name, group, draw, "sample")
    chain = lib.chain(state)
    if chain is not None:
        result = chain.sample(state, key, batch_size, beta, p)
        if result is not NotImplemented:
            return result
    return _sample(lib, "sample", state, key, batch_size, beta, p, axis_name, draw)


@documented_by(in_place.sample_)
def sample_(
    lib: Lib[A],
    state: AnyState,
    key: A,
    batch_size: int | None = None,
    beta: ArrayLike = None,
    p: object = None,
    *,
    axis_name: object = None,
    group: object = None,
    draw: Literal["global", "local"] = "global",
) -> tuple[AnyState, AnySample[Nest]]:
    if axis_name is not None or group is not None or draw != "global":
        lib.sharded.check_asked(state, axis_name, group, draw, "sample_")
    chain = lib.chain(state)
    if chain is not None:
        result = chain.sample_(state, key, batch_size, beta, p)
        if result is not NotImplemented:
            return result
    return _sample(lib, "sample_", state, key, batch_size, beta, p, axis_name, draw)


def _sample(
    lib: Lib[A], function: str, state: Nest, key: PRNGKey, size: int | None, beta: ArrayLike, p: object, *shared: object
) -> Nest:
    if isinstance(state, Mixture):
        return sampling.sample(lib, state, key, size, beta, p, function)
    if isinstance(state, lib.sharded.ShardedState):
        return lib.sharded.sample_items(state, key, size, beta, p, *shared, function)
    engine = lib.engine(state)
    if function == "sample":
        return api.sample(engine, state, key, size, beta, p)
    return in_place.sample_(engine, lib.in_place(engine), state, key, size, beta, p)


@documented_by(api.update)
def update(
    lib: Lib[A],
    state: AnyState,
    indices: ArrayLike = None,
    priorities: ArrayLike = None,
    items: Nest = None,
    version: ArrayLike = None,
) -> AnyState:
    chain = lib.chain(state)
    if chain is not None and version is None:
        result = chain.update(state, indices, priorities, items)
        if result is not NotImplemented:
            return result
    return _update(lib, "update", state, indices, priorities, items, version)


@documented_by(in_place.update_)
def update_(
    lib: Lib[A],
    state: AnyState,
    indices: ArrayLike = None,
    priorities: ArrayLike = None,
    items: Nest = None,
    version: ArrayLike = None,
) -> AnyState:
    chain = lib.chain(state)
    if chain is not None and version is None:
        result = chain.update_(state, indices, priorities, items)
        if result is not NotImplemented:
            return result
    return _update(lib, "update_", state, indices, priorities, items, version)


def _update(lib: Lib[A], function: str, state: Nest, *given: Any) -> Nest:
    if isinstance(state, Mixture):
        return mixed.update(lib, function, state, *given)
    if isinstance(state, lib.sharded.ShardedState):
        return lib.sharded.update_items(function, state, *given)
    engine = lib.engine(state)
    if function == "update":
        return api.update(engine, state, *given)
    return in_place.update_(engine, lib.in_place(engine), state, *given)


@documented_by(api.clear)
def clear(lib: Lib[A], state: OneState) -> OneState:
    return api.clear(lib.engine(state), state)


@documented_by(in_place.clear_)
def clear_(lib: Lib[A], state: OneState) -> OneState:
    engine = lib.engine(state)
    return in_place.clear_(engine, lib.in_place(engine), state)


@documented_by(api.with_spec)
def with_spec(lib: Lib[A], state: AnyState, spec: Description | Sequence[object]) -> AnyState:
    if isinstance(state, Described):
        result: AnyState = called_on(state, "with_spec")(lib, state, spec)
        return result
    if isinstance(state, Mixture):
        return mixed.with_spec(lambda one, new: with_spec(lib, one, new), state, spec)
    return api.with_spec(lib.engine(state), state, spec, lib.elsewhere)


# --- reading --------------------------------------------------------------------------------------------------------


@documented_by(reading.get)
def get(lib: Lib[A], state: State[AnySample[Items]] | Mixture[AnySample[Items]], indices: ArrayLike) -> Items:
    stored: Items = _read(lib, reading.get, mixed.get, state, indices)
    return stored


@documented_by(reading.items)
def items(lib: Lib[A], state: State | Described) -> Nest:
    if isinstance(state, Described):
        return called_on(state, "items")(lib, state)
    return reading.items(lib.engine(state), state)


@documented_by(reading.is_live)
def is_live(lib: Lib[A], state: State | Mixture, indices: ArrayLike) -> A:
    return lib.as_array(_read(lib, reading.is_live, mixed.is_live, state, indices), None)


@documented_by(reading.priorities)
def priorities(lib: Lib[A], state: State | Mixture, indices: ArrayLike) -> A:
    return lib.as_array(_read(lib, reading.priorities, mixed.priorities, state, indices), None)


@documented_by(reading.probabilities)
def probabilities(lib: Lib[A], state: State, indices: ArrayLike) -> A:
    return lib.as_array(reading.probabilities(lib.engine(state), state, indices), None)


@documented_by(reading.newest)
def newest(lib: Lib[A], state: State, n: int) -> A:
    return lib.as_array(reading.newest(lib.engine(state), state, n), None)


@documented_by(reading.size)
def size(lib: Lib[A], state: State | Mixture | Described, *, each: bool = False) -> A:
    if isinstance(state, Described):
        implementation = called_on(state, "size")
        refuse("size", state, each=each)
        count: A = implementation(lib, state)
        return count
    return lib.as_array(_read(lib, reading.size, mixed.size, state, each=each), None)


@documented_by(reading.can_sample)
def can_sample(lib: Lib[A], state: State | Mixture, n: int | None = None) -> A:
    return lib.as_array(_read(lib, reading.can_sample, mixed.can_sample, state, n), None)


@documented_by(reading.counts)
def counts(lib: Lib[A], state: State | Mixture | Described) -> Counts:
    if isinstance(state, Described):
        return Counts.of_refused(called_on(state, "counts")(lib, state))
    return Counts(*(lib.as_array(x, None) for x in _read(lib, reading.counts, mixed.counts, state)))


# What the one function reads of a single buffer, and the other of a mixture.
def _read(
    lib: Lib[A],
    single: Callable[..., object],
    of_mixture: Callable[..., object],
    state: object,
    *args: object,
    **named: object,
) -> Any:
    if isinstance(state, Mixture):
        return of_mixture(lib, state, *args, **named)
    return single(lib.engine(state), state, *args, **named)


# --- specs of samples ------------------------------------------------------------------------------------------------


@documented_by(samples.map_spec)
def map_spec(
    lib: Lib[A], fn: Callable[..., object] | ItemFunction, item: object, keyed: bool = False, masked: bool = False
) -> SpecNest:
    return samples.map_spec(lib.mapper, fn, item, keyed, masked)


@documented_by(samples.sample_spec)
def sample_spec(lib: Lib[A], spec: BufferSpec, batch_size: int | None = None) -> Nest:
    return samples.sample_spec(lib.mapper, spec, batch_size)
