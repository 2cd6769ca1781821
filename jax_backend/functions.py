"""The public functions on JAX."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.buffer import api, checks, in_place, reading, samples
from functional_rb.buffer.binding import documented_by
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, Counts, Crop, State
from functional_rb.core.item_function import ItemFunction
from functional_rb.mixture import functions as mixed
from functional_rb.mixture import sampling
from functional_rb.mixture.value import Mixture
from functional_rb.specs import functions
from jax_backend import compat, engines, execute, hosted, inplace, mixtures, restore, rules, sharded, values
from jax_backend.binder import Binder
from jax_backend.sharded_state import ShardedState
from jax_backend.shared import SharedState, chain

P = ParamSpec("P")
A = TypeVar("A")
AnyState = TypeVar("AnyState", bound=State | Mixture)


def _engine(state: Any) -> Any:
    """What a function is carried out by that reads a state or a mixture."""
    return mixtures if isinstance(state, Mixture) else engines.of(state)


def _binds(core: Callable[..., Any]) -> Callable[[Callable[P, A]], Callable[P, A]]:
    """Make a public function of one that binds the core's: with its docstring, and free to move arrays."""

    def attach(function: Callable[P, A]) -> Callable[P, A]:
        return rules.transfers(documented_by(core)(function))

    return attach


def _as_array(found: Any) -> jax.Array:
    return found if isinstance(found, jax.Array) else jnp.asarray(found)


_reads = Binder(_engine, _as_array).array
_of_specs = Binder(lambda _: values)


@rules.transfers
def key(seed: int | jax.Array) -> jax.Array:
    """A key of JAX's default kind: `jax.random.key(seed)`.

    Args:
        seed: a whole number, of which all 64 bits count, whether JAX's 64-bit mode is on or not; beyond, it is taken
            modulo 2^64. Or a traced integer.

    Example:
        >>> first, second = rb.key(1), rb.key(2**32 + 1)
        >>> bool((jax.random.key_data(first) == jax.random.key_data(second)).all())
        False
    """
    if not isinstance(seed, (int, np.integer)) or -(2**31) <= seed < 2**32:
        return jax.random.key(seed)
    # In its 32-bit mode JAX drops the upper bits, and gives the key of another seed.
    with jax.ensure_compile_time_eval(), compat.enable_x64(True):
        return jax.random.key((int(seed) + 2**63) % 2**64 - 2**63)


@rules.transfers
def split(key: jax.Array, n: int = 2) -> jax.Array:
    """`n` independent keys [n] from one: `jax.random.split`."""
    execute.check_key(key)
    return jax.random.split(key, checks.count("split", "n", n))


@_binds(api.init)
def init(
    spec: BufferSpec, device: Any = None, items: Any = None, validate: bool = False, sharding: Any = None
) -> State:
    if sharding is not None:
        return sharded.init(spec, device, items, validate, sharding)
    engine = engines.for_spec(spec)
    fill = inplace.add_ if engine is execute else None
    return api.init(engine, spec, device, items, validate, fill)


@_binds(api.add)
def add(
    state: AnyState,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: jax.Array | None = None,
    validate: bool = False,
    time_major: bool = True,
    to: Any = None,
) -> AnyState:
    if (
        type(state) is SharedState
        and (made := chain().add(state, items, mask, priorities, key, validate, time_major, to)) is not NotImplemented
    ):
        return made
    if isinstance(state, ShardedState):
        return sharded.add_items(state, items, mask, priorities, key, validate, time_major, to, "add")
    if isinstance(state, Mixture):
        return mixed.add(add, state, to, items, mask, priorities, key, validate, time_major)
    return api.add(engines.of(state), state, items, mask, priorities, key, validate, time_major, to)


@_binds(api.sample)
def sample(
    state: AnyState,
    key: jax.Array,
    batch_size: int | None = None,
    beta: Any = None,
    p: Any = None,
    axis_name: Any = None,
    draw: Literal["global", "local"] = "global",
) -> tuple[AnyState, AnySample[Any]]:
    if isinstance(state, ShardedState):
        return sharded.sample_items(state, key, batch_size, beta, p, axis_name, draw, "sample")
    if axis_name is not None or draw != "global":
        sharded.check_unsharded(state, axis_name, draw, "sample")
    if isinstance(state, Mixture):
        return sampling.sample(mixtures, state, key, batch_size, beta, p, "sample")
    return api.sample(engines.of(state), state, key, batch_size, beta, p)


@_binds(api.update)
def update(state: AnyState, indices: Any, priorities: Any = None, items: Any = None) -> AnyState:
    if type(state) is SharedState and (made := chain().update(state, indices, priorities, items)) is not NotImplemented:
        return made
    if isinstance(state, Mixture):
        return mixed.update(mixtures, state, indices, priorities, items, "update")
    return api.update(engines.of(state), state, indices, priorities, items)


@_binds(api.clear)
def clear(state: State) -> State:
    return api.clear(engines.of(state), state)


@_binds(in_place.add_)
def add_(
    state: AnyState,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: jax.Array | None = None,
    validate: bool = False,
    time_major: bool = True,
    to: Any = None,
) -> AnyState:
    if (
        type(state) is SharedState
        and (made := chain().add_(state, items, mask, priorities, key, validate, time_major, to)) is not NotImplemented
    ):
        return made
    if isinstance(state, ShardedState):
        return sharded.add_items(state, items, mask, priorities, key, validate, time_major, to, "add_")
    if isinstance(state, Mixture):
        return mixed.add(add_, state, to, items, mask, priorities, key, validate, time_major)
    engine = engines.of(state)
    return in_place.add_(
        engine, engines.in_place(engine), state, items, mask, priorities, key, validate, time_major, to
    )


@_binds(in_place.sample_)
def sample_(
    state: AnyState,
    key: jax.Array,
    batch_size: int | None = None,
    beta: Any = None,
    p: Any = None,
    axis_name: Any = None,
    draw: Literal["global", "local"] = "global",
) -> tuple[AnyState, AnySample[Any]]:
    if isinstance(state, ShardedState):
        return sharded.sample_items(state, key, batch_size, beta, p, axis_name, draw, "sample_")
    if axis_name is not None or draw != "global":
        sharded.check_unsharded(state, axis_name, draw, "sample_")
    if isinstance(state, Mixture):
        return sampling.sample(mixtures, state, key, batch_size, beta, p, "sample_")
    engine = engines.of(state)
    return in_place.sample_(engine, engines.in_place(engine), state, key, batch_size, beta, p)


@_binds(in_place.update_)
def update_(state: AnyState, indices: Any, priorities: Any = None, items: Any = None) -> AnyState:
    if (
        type(state) is SharedState
        and (made := chain().update_(state, indices, priorities, items)) is not NotImplemented
    ):
        return made
    if isinstance(state, Mixture):
        return mixed.update(mixtures, state, indices, priorities, items, "update_")
    engine = engines.of(state)
    return in_place.update_(engine, engines.in_place(engine), state, indices, priorities, items)


@_binds(in_place.clear_)
def clear_(state: State) -> State:
    engine = engines.of(state)
    return in_place.clear_(engine, engines.in_place(engine), state)


@_binds(api.with_spec)
def with_spec(state: AnyState, spec: BufferSpec | Sequence[Any]) -> AnyState:
    if isinstance(state, Mixture):
        return mixed.with_spec(with_spec, state, spec)
    return api.with_spec(engines.of(state), state, spec, restore.elsewhere)


@_binds(reading.get)
def get(state: State | Mixture, indices: Any) -> Any:
    if isinstance(state, Mixture):
        return mixed.get(mixtures, state, indices)
    return reading.get(engines.of(state), state, indices)


@_binds(reading.items)
def items(state: State) -> Any:
    return reading.items(engines.of(state), state)


is_live = _reads(mixed.either(reading.is_live, mixed.is_live))
priorities = _reads(mixed.either(reading.priorities, mixed.priorities))
probabilities = _reads(reading.probabilities)
newest = _reads(reading.newest)
cursor = _reads(reading.cursor)
size = _reads(mixed.either(reading.size, mixed.size))
can_sample = _reads(mixed.either(reading.can_sample, mixed.can_sample))


@_binds(reading.counts)
def counts(state: State | Mixture) -> Counts:
    found = mixed.counts(mixtures, state) if isinstance(state, Mixture) else reading.counts(engines.of(state), state)
    return Counts(*map(_as_array, found))


@documented_by(samples.epochs)
def epochs(
    state: State, key: jax.Array, batch_size: int | None = None, n: int = 1
) -> Generator[tuple[State, AnySample[Any]], State | None, None]:
    following = None
    draws = samples.epochs(engines.of(state), state, key, batch_size, n)
    while True:
        with rules.explicit_transfers():  # not for what the caller does between the draws
            try:
                selection = draws.send(following)
            except StopIteration:
                return
        following = yield selection


@_binds(samples.map_spec)
def map_spec(fn: Callable[..., Any] | ItemFunction, item: Any, keyed: bool = False, masked: bool = False) -> Any:
    return samples.map_spec(execute, fn, item, keyed, masked)


@_binds(samples.sample_spec)
def sample_spec(spec: BufferSpec, batch_size: int | None = None) -> Any:
    return samples.sample_spec(execute, spec, batch_size)


@_binds(samples.random_crop)
def random_crop(items: Any, key: jax.Array, length: int, lengths: Any = None) -> Crop[Any]:
    return samples.random_crop(hosted, items, key, length, lengths)


@_binds(functions.rand)
def rand(spec: Any, key: jax.Array, batch: Any = (), device: Any = None, mask: Any = None) -> Any:
    return functions.rand(values, spec, key, batch, device, mask)


zeros = _of_specs(functions.zeros)
ones = _of_specs(functions.ones)
project = _of_specs(functions.project)
encode = _of_specs(functions.encode)
decode = _of_specs(functions.decode)


@_binds(functions.enumerate_values)
def enumerate(spec: Any) -> Any:
    return functions.enumerate_values(values, spec)


@_binds(functions.contains)
def contains(spec: Any, x: Any) -> jax.Array:
    found: jax.Array = functions.contains(values, spec, x)
    return found
