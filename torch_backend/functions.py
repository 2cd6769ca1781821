"""The public functions on torch."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from functional_rb.buffer import api, in_place
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, Crop, State
from functional_rb.specs import functions
from torch_backend import execute, restore, shared, values


def _engine(state: Any) -> api.Backend:
    """What carries the functions out on a state."""
    return shared.engine if isinstance(state, shared.SharedState) else execute


def _in_place(state: Any) -> in_place.InPlace:
    """The engine that carries out in-place writes for a state."""
    return shared.engine if isinstance(state, shared.SharedState) else execute


def _engine_for(spec: Any) -> api.Backend:
    """The engine that makes a state of a spec."""
    return shared.engine if isinstance(spec, BufferSpec) and spec.storage.shared else execute


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


@api.documented_by(api.is_live)
def is_live(state: State, indices: Any) -> torch.Tensor:
    live: torch.Tensor = api.is_live(_engine(state), state, indices)
    return live


@api.documented_by(api.priorities)
def priorities(state: State, indices: Any) -> torch.Tensor:
    found: torch.Tensor = api.priorities(_engine(state), state, indices)
    return found


@api.documented_by(api.probabilities)
def probabilities(state: State, indices: Any) -> torch.Tensor:
    probabilities: torch.Tensor = api.probabilities(_engine(state), state, indices)
    return probabilities


@api.documented_by(api.newest)
def newest(state: State, n: int) -> torch.Tensor:
    handles: torch.Tensor = api.newest(_engine(state), state, n)
    return handles


@api.documented_by(api.cursor)
def cursor(state: State) -> torch.Tensor:
    handle: torch.Tensor = api.cursor(_engine(state), state)
    return handle


@api.documented_by(api.size)
def size(state: State) -> torch.Tensor:
    count: torch.Tensor = api.size(_engine(state), state)
    return count


@api.documented_by(api.can_sample)
def can_sample(state: State, n: int | None = None) -> torch.Tensor:
    possible: torch.Tensor = api.can_sample(_engine(state), state, n)
    return possible


@api.documented_by(api.rejected)
def rejected(state: State) -> torch.Tensor:
    count: torch.Tensor = api.rejected(_engine(state), state)
    return count


@api.documented_by(api.stale)
def stale(state: State) -> torch.Tensor:
    count: torch.Tensor = api.stale(_engine(state), state)
    return count


@api.documented_by(api.invalid)
def invalid(state: State) -> torch.Tensor:
    count: torch.Tensor = api.invalid(_engine(state), state)
    return count


@api.documented_by(api.lost)
def lost(state: State) -> torch.Tensor:
    count: torch.Tensor = api.lost(_engine(state), state)
    return count


@api.documented_by(api.refused)
def refused(state: State) -> torch.Tensor:
    count: torch.Tensor = api.refused(_engine(state), state)
    return count


@api.documented_by(api.epochs_done)
def epochs_done(state: State) -> torch.Tensor:
    count: torch.Tensor = api.epochs_done(_engine(state), state)
    return count


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


@api.documented_by(functions.zeros)
def zeros(spec: Any, batch: Any = (), device: Any = None) -> Any:
    return functions.zeros(values, spec, batch, device)


@api.documented_by(functions.ones)
def ones(spec: Any, batch: Any = (), device: Any = None) -> Any:
    return functions.ones(values, spec, batch, device)


@api.documented_by(functions.enumerate_values)
def enumerate(spec: Any) -> Any:
    return functions.enumerate_values(values, spec)


@api.documented_by(functions.contains)
def contains(spec: Any, x: Any) -> torch.Tensor:
    found: torch.Tensor = functions.contains(values, spec, x)
    return found


@api.documented_by(functions.project)
def project(spec: Any, x: Any) -> Any:
    return functions.project(values, spec, x)


@api.documented_by(functions.encode)
def encode(spec: Any, value: Any, batch: Any = ()) -> Any:
    return functions.encode(values, spec, value, batch)


@api.documented_by(functions.decode)
def decode(spec: Any, x: Any) -> Any:
    return functions.decode(values, spec, x)
