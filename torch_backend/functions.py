"""The public functions on torch."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Concatenate, ParamSpec

import torch

from functional_rb.buffer import api, in_place
from functional_rb.buffer.binding import bound
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, Crop, State
from functional_rb.specs import functions
from torch_backend import execute, restore, shared, values

P = ParamSpec("P")


def _engine(state: Any) -> api.Backend:
    """What carries the functions out on a state."""
    return shared.engine if isinstance(state, shared.SharedState) else execute


def _in_place(state: Any) -> in_place.InPlace:
    """The engine that carries out in-place writes for a state."""
    return shared.engine if isinstance(state, shared.SharedState) else execute


def _engine_for(spec: Any) -> api.Backend:
    """The engine that makes a state of a spec."""
    return shared.engine if isinstance(spec, BufferSpec) and spec.storage.shared else execute


def _reads(core: Callable[Concatenate[Any, P], Any]) -> Callable[P, torch.Tensor]:
    """Bind a function of the core that reads a tensor off a state."""
    return bound(core, _engine, _as_it_is, "torch.Tensor")


def _of_specs(core: Callable[Concatenate[Any, P], Any]) -> Callable[P, Any]:
    """Bind a function of the core that makes values of a spec."""
    return bound(core, lambda _: values, _as_it_is, "Any")


def _as_it_is(found: Any) -> Any:
    return found


@api.documented_by(api.init)
def init(spec: BufferSpec, device: Any = None, items: Any = None, validate: bool = False) -> State:
    return api.init(_engine_for(spec), spec, device, items, validate)


@api.documented_by(api.add)
def add(
    state: State,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: torch.Tensor | None = None,
    validate: bool = False,
    time_major: bool = True,
) -> State:
    return api.add(_engine(state), state, items, mask, priorities, key, validate, time_major)


@api.documented_by(api.sample)
def sample(
    state: State, key: torch.Tensor, batch_size: int | None = None, beta: Any = None
) -> tuple[State, AnySample[Any]]:
    return api.sample(_engine(state), state, key, batch_size, beta)


@api.documented_by(api.update)
def update(state: State, indices: Any, priorities: Any = None, items: Any = None) -> State:
    return api.update(_engine(state), state, indices, priorities, items)


@api.documented_by(api.clear)
def clear(state: State) -> State:
    return api.clear(_engine(state), state)


@api.documented_by(in_place.add_)
def add_(
    state: State,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: torch.Tensor | None = None,
    validate: bool = False,
    time_major: bool = True,
) -> State:
    return in_place.add_(_engine(state), _in_place(state), state, items, mask, priorities, key, validate, time_major)


@api.documented_by(in_place.sample_)
def sample_(
    state: State, key: torch.Tensor, batch_size: int | None = None, beta: Any = None
) -> tuple[State, AnySample[Any]]:
    return in_place.sample_(_engine(state), _in_place(state), state, key, batch_size, beta)


@api.documented_by(in_place.update_)
def update_(state: State, indices: Any, priorities: Any = None, items: Any = None) -> State:
    return in_place.update_(_engine(state), _in_place(state), state, indices, priorities, items)


@api.documented_by(in_place.clear_)
def clear_(state: State) -> State:
    return in_place.clear_(_engine(state), _in_place(state), state)


@api.documented_by(api.with_spec)
def with_spec(state: State, spec: BufferSpec) -> State:
    return api.with_spec(_engine(state), state, spec, restore.elsewhere)


@api.documented_by(api.get)
def get(state: State, indices: Any) -> Any:
    return api.get(_engine(state), state, indices)


@api.documented_by(api.items)
def items(state: State) -> Any:
    return api.items(_engine(state), state)


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
    state: State, key: torch.Tensor, batch_size: int | None = None, n: int = 1
) -> Generator[tuple[State, AnySample[Any]], State | None, None]:
    return api.epochs(_engine(state), state, key, batch_size, n)


@api.documented_by(api.random_crop)
def random_crop(items: Any, key: torch.Tensor, length: int, lengths: Any = None) -> Crop[Any]:
    return api.random_crop(execute, items, key, length, lengths)


@api.documented_by(functions.rand)
def rand(spec: Any, key: torch.Tensor, batch: Any = (), device: Any = None, mask: Any = None) -> Any:
    return functions.rand(values, spec, key, batch, device, mask)


zeros = _of_specs(functions.zeros)
ones = _of_specs(functions.ones)
project = _of_specs(functions.project)
encode = _of_specs(functions.encode)
decode = _of_specs(functions.decode)


@api.documented_by(functions.enumerate_values)
def enumerate(spec: Any) -> Any:
    return functions.enumerate_values(values, spec)


@api.documented_by(functions.contains)
def contains(spec: Any, x: Any) -> torch.Tensor:
    found: torch.Tensor = functions.contains(values, spec, x)
    return found
