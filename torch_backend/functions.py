"""The public functions on torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeVar

import torch

from functional_rb.buffer import api, in_place, reading, samples
from functional_rb.buffer.binding import documented_by
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, Counts, Crop, State
from functional_rb.core.item_function import ItemFunction
from functional_rb.mixture import functions as mixed
from functional_rb.mixture import sampling
from functional_rb.mixture.value import Mixture
from functional_rb.native.switch import HAVE_KERNELS
from functional_rb.specs import functions
from torch_backend import engines, execute, mixtures, restore, sharded, values
from torch_backend.binder import Binder
from torch_backend.library import TORCH
from torch_backend.sharded_state import ShardedState

if HAVE_KERNELS:
    from torch_backend import cpu_kernels, custom_ops
    from torch_backend.chain import CHAIN

    TORCH.chain, TORCH.kernels, TORCH.operations = CHAIN, cpu_kernels, custom_ops
_natively = TORCH.by_chain  # which is asked first: it does a usual call whole

AnyState = TypeVar("AnyState", bound=State | Mixture)


def _engine(state: Any) -> Any:
    """What a function is carried out by that reads a state or a mixture."""
    return mixtures if isinstance(state, Mixture) else engines.of(state)


_reads = Binder(_engine).array
_of_specs = Binder(lambda _: values)


@documented_by(api.init)
def init(
    spec: BufferSpec, device: Any = None, items: Any = None, validate: bool = False, sharding: Any = None
) -> State:
    if sharding is not None:
        return sharded.init(spec, device, items, validate, sharding)
    return api.init(engines.for_spec(spec), spec, device, items, validate)


@documented_by(api.add)
def add(
    state: AnyState,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: torch.Tensor | None = None,
    validate: bool = False,
    time_major: bool = True,
    to: Any = None,
) -> AnyState:
    made = _natively("add", state, items, mask, priorities, key, validate, time_major, to)
    if made is not NotImplemented:
        return made
    if isinstance(state, ShardedState):
        return sharded.add(state, items, mask, priorities, key, validate, time_major, to, "add")
    if isinstance(state, Mixture):
        return mixed.add(add, state, to, items, mask, priorities, key, validate, time_major)
    return api.add(engines.of(state), state, items, mask, priorities, key, validate, time_major, to)


@documented_by(api.sample)
def sample(
    state: AnyState,
    key: torch.Tensor,
    batch_size: int | None = None,
    beta: Any = None,
    p: Any = None,
    group: Any = None,
    draw: Literal["global", "local"] = "global",
) -> tuple[AnyState, AnySample[Any]]:
    if group is not None or draw != "global":
        sharded.check_asked(state, group, draw, "sample")
    made = _natively("sample", state, key, batch_size, beta, p)
    if made is not NotImplemented:
        return made
    if isinstance(state, ShardedState):
        return sharded.sample(state, key, batch_size, beta, p, draw, "sample")
    if isinstance(state, Mixture):
        return sampling.sample(mixtures, state, key, batch_size, beta, p, "sample")
    return api.sample(engines.of(state), state, key, batch_size, beta, p)


@documented_by(api.update)
def update(state: AnyState, indices: Any, priorities: Any = None, items: Any = None) -> AnyState:
    made = _natively("update", state, indices, priorities, items)
    if made is not NotImplemented:
        return made
    if isinstance(state, ShardedState):
        return sharded.update(state, indices, priorities, items, "update")
    if isinstance(state, Mixture):
        return mixed.update(mixtures, state, indices, priorities, items, "update")
    return api.update(engines.of(state), state, indices, priorities, items)


@documented_by(api.clear)
def clear(state: State) -> State:
    return api.clear(engines.of(state), state)


@documented_by(in_place.add_)
def add_(
    state: AnyState,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: torch.Tensor | None = None,
    validate: bool = False,
    time_major: bool = True,
    to: Any = None,
) -> AnyState:
    made = _natively("add_", state, items, mask, priorities, key, validate, time_major, to)
    if made is not NotImplemented:
        return made
    if isinstance(state, ShardedState):
        return sharded.add(state, items, mask, priorities, key, validate, time_major, to, "add_")
    if isinstance(state, Mixture):
        return mixed.add(add_, state, to, items, mask, priorities, key, validate, time_major)
    engine = engines.of(state)
    return in_place.add_(engine, engine, state, items, mask, priorities, key, validate, time_major, to)


@documented_by(in_place.sample_)
def sample_(
    state: AnyState,
    key: torch.Tensor,
    batch_size: int | None = None,
    beta: Any = None,
    p: Any = None,
    group: Any = None,
    draw: Literal["global", "local"] = "global",
) -> tuple[AnyState, AnySample[Any]]:
    if group is not None or draw != "global":
        sharded.check_asked(state, group, draw, "sample_")
    made = _natively("sample_", state, key, batch_size, beta, p)
    if made is not NotImplemented:
        return made
    if isinstance(state, ShardedState):
        return sharded.sample(state, key, batch_size, beta, p, draw, "sample_")
    if isinstance(state, Mixture):
        return sampling.sample(mixtures, state, key, batch_size, beta, p, "sample_")
    engine = engines.of(state)
    return in_place.sample_(engine, engine, state, key, batch_size, beta, p)


@documented_by(in_place.update_)
def update_(state: AnyState, indices: Any, priorities: Any = None, items: Any = None) -> AnyState:
    made = _natively("update_", state, indices, priorities, items)
    if made is not NotImplemented:
        return made
    if isinstance(state, ShardedState):
        return sharded.update(state, indices, priorities, items, "update_")
    if isinstance(state, Mixture):
        return mixed.update(mixtures, state, indices, priorities, items, "update_")
    engine = engines.of(state)
    return in_place.update_(engine, engine, state, indices, priorities, items)


@documented_by(in_place.clear_)
def clear_(state: State) -> State:
    engine = engines.of(state)
    return in_place.clear_(engine, engine, state)


@documented_by(api.with_spec)
def with_spec(state: AnyState, spec: BufferSpec | Sequence[Any]) -> AnyState:
    if isinstance(state, Mixture):
        return mixed.with_spec(with_spec, state, spec)
    return api.with_spec(engines.of(state), state, spec, restore.elsewhere)


@documented_by(reading.get)
def get(state: State | Mixture, indices: Any) -> Any:
    if isinstance(state, Mixture):
        return mixed.get(mixtures, state, indices)
    return reading.get(engines.of(state), state, indices)


@documented_by(reading.items)
def items(state: State) -> Any:
    return reading.items(engines.of(state), state)


is_live = _reads(mixed.either(reading.is_live, mixed.is_live))
priorities = _reads(mixed.either(reading.priorities, mixed.priorities))
probabilities = _reads(reading.probabilities)
newest = _reads(reading.newest)
cursor = _reads(reading.cursor)
size = _reads(mixed.either(reading.size, mixed.size))
can_sample = _reads(mixed.either(reading.can_sample, mixed.can_sample))


@documented_by(reading.counts)
def counts(state: State | Mixture) -> Counts:
    return mixed.counts(mixtures, state) if isinstance(state, Mixture) else reading.counts(engines.of(state), state)


@documented_by(samples.epochs)
def epochs(
    state: State, key: torch.Tensor, batch_size: int | None = None, n: int = 1
) -> Generator[tuple[State, AnySample[Any]], State | None, None]:
    return samples.epochs(engines.of(state), state, key, batch_size, n)


@documented_by(samples.map_spec)
def map_spec(fn: Callable[..., Any] | ItemFunction, item: Any, keyed: bool = False, masked: bool = False) -> Any:
    return samples.map_spec(execute, fn, item, keyed, masked)


@documented_by(samples.sample_spec)
def sample_spec(spec: BufferSpec, batch_size: int | None = None) -> Any:
    return samples.sample_spec(execute, spec, batch_size)


@documented_by(samples.random_crop)
def random_crop(items: Any, key: torch.Tensor, length: int, lengths: Any = None) -> Crop[Any]:
    return samples.random_crop(execute, items, key, length, lengths)


@documented_by(functions.rand)
def rand(spec: Any, key: torch.Tensor, batch: Any = (), device: Any = None, mask: Any = None) -> Any:
    return functions.rand(values, spec, key, batch, device, mask)


zeros = _of_specs(functions.zeros)
ones = _of_specs(functions.ones)
project = _of_specs(functions.project)
encode = _of_specs(functions.encode)
decode = _of_specs(functions.decode)


@documented_by(functions.enumerate_values)
def enumerate(spec: Any) -> Any:
    return functions.enumerate_values(values, spec)


@documented_by(functions.contains)
def contains(spec: Any, x: Any) -> torch.Tensor:
    found: torch.Tensor = functions.contains(values, spec, x)
    return found
