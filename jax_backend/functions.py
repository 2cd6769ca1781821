"""The public functions on JAX."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.buffer import api, checks, in_place
from functional_rb.buffer.binding import bound
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, Crop, State
from functional_rb.specs import functions
from functional_rb.storage.host_state import HostState
from jax_backend import execute, hosted, inplace, restore, rules, shared, values

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")

_ENGINES: dict[type, Any] = {HostState: hosted, shared.SharedState: shared.engine}
"""What carries the functions out for states of other classes than `State`, whose arrays are on a device."""


def _of(state: Any) -> Any:
    return execute if type(state) is State else _ENGINES.get(type(state), execute)


def _in_place(state: Any) -> Any:
    """The engine that carries out in-place writes for a state."""
    engine = _of(state)
    return inplace if engine is execute else engine


def _engine_for(spec: Any) -> Any:
    """The engine that makes a state of a spec."""
    if not isinstance(spec, BufferSpec) or not spec.storage.on_host:
        return execute
    return shared.engine if spec.storage.shared else hosted


def _binds(core: Callable[..., Any]) -> Callable[[F], F]:
    """Make a public function of one that binds the core's: with its docstring, and free to move arrays."""

    def attach(function: F) -> F:
        return rules.transfers(api.documented_by(core)(function))

    return attach


def _reads(core: Callable[Concatenate[Any, P], Any]) -> Callable[P, jax.Array]:
    """Bind a function of the core that reads an array off a state."""
    return rules.transfers(bound(core, _of, _as_array, "jax.Array"))


def _as_array(found: Any) -> jax.Array:
    return found if isinstance(found, jax.Array) else jnp.asarray(found)


def _of_specs(core: Callable[Concatenate[Any, P], Any]) -> Callable[P, Any]:
    """Bind a function of the core that makes values of a spec."""
    return rules.transfers(bound(core, lambda _: values, lambda made: made, "Any"))


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
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        return jax.random.key((int(seed) + 2**63) % 2**64 - 2**63)


@rules.transfers
def split(key: jax.Array, n: int = 2) -> jax.Array:
    """`n` independent keys [n] from one: `jax.random.split`."""
    execute.check_key(key)
    return jax.random.split(key, checks.count("split", "n", n))


@_binds(api.init)
def init(spec: BufferSpec, device: Any = None, items: Any = None, validate: bool = False) -> State:
    engine = _engine_for(spec)
    fill = inplace.add_ if engine is execute else None
    return api.init(engine, spec, device, items, validate, fill)


@_binds(api.add)
def add(
    state: State,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: jax.Array | None = None,
    validate: bool = False,
    time_major: bool = True,
) -> State:
    return api.add(_of(state), state, items, mask, priorities, key, validate, time_major)


@_binds(api.sample)
def sample(
    state: State, key: jax.Array, batch_size: int | None = None, beta: Any = None
) -> tuple[State, AnySample[Any]]:
    return api.sample(_of(state), state, key, batch_size, beta)


@_binds(api.update)
def update(state: State, indices: Any, priorities: Any = None, items: Any = None) -> State:
    return api.update(_of(state), state, indices, priorities, items)


@_binds(api.clear)
def clear(state: State) -> State:
    return api.clear(_of(state), state)


@_binds(in_place.add_)
def add_(
    state: State,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: jax.Array | None = None,
    validate: bool = False,
    time_major: bool = True,
) -> State:
    return in_place.add_(_of(state), _in_place(state), state, items, mask, priorities, key, validate, time_major)


@_binds(in_place.sample_)
def sample_(
    state: State, key: jax.Array, batch_size: int | None = None, beta: Any = None
) -> tuple[State, AnySample[Any]]:
    return in_place.sample_(_of(state), _in_place(state), state, key, batch_size, beta)


@_binds(in_place.update_)
def update_(state: State, indices: Any, priorities: Any = None, items: Any = None) -> State:
    return in_place.update_(_of(state), _in_place(state), state, indices, priorities, items)


@_binds(in_place.clear_)
def clear_(state: State) -> State:
    return in_place.clear_(_of(state), _in_place(state), state)


@_binds(api.with_spec)
def with_spec(state: State, spec: BufferSpec) -> State:
    return api.with_spec(_of(state), state, spec, restore.elsewhere)


@_binds(api.get)
def get(state: State, indices: Any) -> Any:
    return api.get(_of(state), state, indices)


@_binds(api.items)
def items(state: State) -> Any:
    return api.items(_of(state), state)


is_live = _reads(api.is_live)
priorities = _reads(api.priorities)
probabilities = _reads(api.probabilities)
newest = _reads(api.newest)
cursor = _reads(api.cursor)
size = _reads(api.size)
can_sample = _reads(api.can_sample)
rejected = _reads(api.rejected)
stale = _reads(api.stale)
invalid = _reads(api.invalid)
lost = _reads(api.lost)
refused = _reads(api.refused)
epochs_done = _reads(api.epochs_done)


@api.documented_by(api.epochs)
def epochs(
    state: State, key: jax.Array, batch_size: int | None = None, n: int = 1
) -> Generator[tuple[State, AnySample[Any]], State | None, None]:
    following = None
    draws = api.epochs(_of(state), state, key, batch_size, n)
    while True:
        with rules.explicit_transfers():  # not for what the caller does between the draws
            try:
                selection = draws.send(following)
            except StopIteration:
                return
        following = yield selection


@_binds(api.random_crop)
def random_crop(items: Any, key: jax.Array, length: int, lengths: Any = None) -> Crop[Any]:
    return api.random_crop(hosted, items, key, length, lengths)


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
