"""Mixtures on torch: each buffer draws just what it gives; while tracing, as much as it may have to give."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from functional_rb.buffer import checks
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.core.strategy import Selection
from functional_rb.mixture import drawing
from functional_rb.mixture.drawing import Drawn, Status
from functional_rb.mixture.functions import Place, is_own
from functional_rb.mixture.layout import Layout
from functional_rb.mixture.value import Mixture, register_array
from functional_rb.native.switch import switch
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import NONE, Table, using
from functional_rb.versions.state import readable
from torch_backend import dispatch
from torch_backend.arrays import modes, random
from torch_backend.arrays import ops as ops
from torch_backend.arrays.convert import is_batched
from torch_backend.engines import execute
from torch_backend.engines.values import to_numpy as to_numpy
from torch_backend.memory.library import HAVE_KERNELS, TORCH, numbers
from torch_backend.memory.state import State as TorchState

mapper, engine, is_compiling, check_state = execute, dispatch.of, torch.compiler.is_compiling, checks.check_state


# The innermost of torch's functions that map, or take derivatives, if any is at work.
TRANSFORMS = torch._C._functorch.peek_interpreter_stack


class _Known(drawing.Carrier):
    """Draws where the numbers of all buffers are known."""

    known, ops, mapper = True, numpy_ops, execute

    def status(self, state: State) -> Status:
        if engine(state) is not execute:  # others write to the same buffer
            return Status(*_in_numpy(engine(state).look(state, drawing.status)))
        found: Status | None = state.__dict__.get("_status")
        if found is None:  # a state never changes, so it is asked once
            found = Status(*_status_of(state))
            state.__dict__["_status"] = found
        return found

    def keys(self, key: torch.Tensor | int, n: int) -> Sequence[int]:
        return random.split_numbers(key, n)

    def key_of(self, key: int) -> torch.Tensor:
        return torch.tensor(key, dtype=torch.int64, device="cpu")

    def draws(self, key: int, n: int) -> Any:
        return random.known_draws(key, n)

    def draw(self, state: State, key: torch.Tensor, batch: int, wanted: Any) -> tuple[State, list[Any], Selection]:
        if wanted is not None:
            wanted = torch.tensor(int(wanted), dtype=torch.int32, device=state.counters.device)
        drawn: tuple[State, list[Any], Selection] = engine(state).sample(state, key, batch, 0.0, wanted)
        return drawn

    def draw_at_once(
        self, states: Sequence[Any], keys: Sequence[int], sizes: Sequence[int]
    ) -> tuple[list[torch.Tensor], Selection] | None:
        if not all(isinstance(state, TorchState) and state._target is None for state in states):
            return None
        made = TORCH.by_chain("together", states, sizes, keys)
        if made is NotImplemented:
            return None
        _, leaves, _, *told = made
        return leaves, Selection(*told)

    def numbers(self, array: torch.Tensor) -> Any:
        return _in_numpy(array)

    def rows(self, leaves: Sequence[Sequence[Any]], order: Any) -> list[Any]:
        found, orders = list[Any](), dict[torch.device, Any]()
        for pieces in leaves:
            if not isinstance(pieces[0], torch.Tensor):
                found.append(drawing.take(ops, pieces, order))
                continue
            device = next((x.device for x in pieces if x.device.type != "cpu"), ops.CPU)
            if device not in orders:
                orders[device] = None if order is None else torch.from_numpy(order).to(device)
            found.append(drawing.take(ops, [x.to(device) for x in pieces], orders[device]))
        return found

    def weights(self, chances: object, least: object, beta: object) -> Any:
        with using(_kernels() if HAVE_KERNELS and switch.on else NONE):
            return super().weights(chances, least, beta)


class _Traced(drawing.Carrier):
    """Draws where nothing is known."""

    known, ops, mapper = False, ops, execute

    def __init__(self, consume: bool = False) -> None:
        self.consume = consume

    def status(self, state: State) -> Status:
        return Status(*engine(state).look(state, drawing.status).unbind())

    def floats(self, p: object, like: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(p, dtype=torch.float32, device=like.device)

    def keys(self, key: torch.Tensor, n: int) -> Sequence[torch.Tensor]:
        return random.split(key, n).unbind()

    def draws(self, key: torch.Tensor, n: int) -> torch.Tensor:
        return numbers(key, (n, 1), key.device)[:, 0]

    def draw(self, state: State, key: torch.Tensor, batch: int, wanted: Any) -> tuple[State, list[Any], Selection]:
        found = engine(state)
        if not self.consume:
            drawn: tuple[State, list[Any], Selection] = found.sample(state, key, batch, 0.0, wanted)
            return drawn
        after, (leaves, selection) = found.sample_(state, key, batch, 0.0, lambda *parts: parts, wanted)
        return after, leaves, selection


def _to(device: torch.device) -> Callable[[Any], torch.Tensor]:
    return lambda x: torch.from_numpy(x).to(device)


def _in_numpy(array: torch.Tensor) -> Any:
    return array.numpy(force=True)


def _status_of(state: Any) -> Any:
    """`drawing.status` of a state, by NumPy where it can read the memory as it is: the fastest for a few numbers."""
    version = readable(state)
    with version.lock:
        memory = version.own()
        if memory.is_ordinary and memory.rows.device.type == "cpu":
            tree = None if memory.tree is None else memory.tree.numpy()
            kept = {name: x.numpy() for name, x in memory.auxiliary.items() if x.dtype in (torch.int32, torch.float32)}
            arrays = Arrays(memory.rows, (), tree, state.counters.numpy(), kept)
            return drawing.status(numpy_ops, arrays, state.spec)
    return _in_numpy(execute.look(state, drawing.status))


@functools.cache
def _kernels() -> Table:
    """Imported when first used, as there may be none."""
    table: Table = importlib.import_module("functional_rb.storage.host_kernels").TABLE
    return table


def _is_batched(mixture: Mixture, *given: object) -> bool:
    """Whether a function of torch's maps over any of the arrays that a draw reads."""
    return any(map(is_batched, (*given, mixture.p, *[state.counters for state in mixture.buffers])))


def draw(
    mixture: Mixture, layout: Layout, key: Any, batch: int, p: Any, beta: Any, consume: bool
) -> tuple[Mixture, Drawn, torch.Tensor]:
    """Draw a batch; where the numbers of the buffers are known, to draw from nothing is an error."""
    random.check_key(key)
    traced = is_compiling() or (TRANSFORMS() is not None and _is_batched(mixture, key, p))
    with modes.without_gradients():
        if batch and not traced:
            after, drawn, weights = drawing.known_batch(_Known(), mixture, layout, key, batch, p, beta)
            device = next((x.device for x in drawn.leaves if isinstance(x, torch.Tensor)), key.device)
            return after, *drawing.lifted(drawn, weights, torch.from_numpy if device == ops.CPU else _to(device))
        drawing.check_heeding(mixture)
        carrier = _Traced(consume)
        looked = drawing.look(carrier, mixture, p)
        after, drawn = drawing.draw(carrier, looked, layout, key, batch)
        exponent = None if beta is None else torch.as_tensor(beta, dtype=torch.float32, device=drawn.chances.device)
        return after, drawn, drawing.weights(carrier, drawn, looked.status.least, exponent)


def in_place(engine: object) -> Any:
    """An engine carries out in-place writes too."""
    return engine


def carry_out(function: Callable[..., object], static: object, *arrays: object) -> Any:
    """A function of the core, as it is; what a buffer on the host gives goes where the others are."""
    return function(ops, static, *(arrays if is_compiling() else _on_one_device(arrays)))


def _on_one_device(arrays: tuple[object, ...]) -> Any:
    devices = set[torch.device]()
    _find_devices(arrays, devices)
    if len(devices) < 2:
        return arrays
    return _moved(arrays, next(device for device in devices if device.type != "cpu"))


def _find_devices(nested: Any, found: set[torch.device]) -> None:
    for part in nested:
        if isinstance(part, torch.Tensor):
            found.add(part.device)
        elif isinstance(part, list | tuple):
            _find_devices(part, found)


def _moved(nested: object, device: torch.device) -> object:
    if isinstance(nested, list | tuple):
        return [_moved(part, device) for part in nested]
    return nested.to(device) if isinstance(nested, torch.Tensor) else nested


def rows_of(indices: torch.Tensor, paths: Sequence[Place]) -> Sequence[torch.Tensor] | None:
    """The rows of each buffer, where how many these are can be known."""
    if is_compiling() or is_batched(indices):
        return None
    return [is_own(indices, path).nonzero()[:, 0] for path in paths]


def stacked(numbers: Sequence[object]) -> Any:
    """Numbers as an array where the first array among them is; while tracing, floats may be traced as well."""
    device = next((x.device for x in numbers if isinstance(x, torch.Tensor)), None)
    if device is None and not is_compiling():
        return np.asarray(numbers, np.float32)
    device = torch.device("cpu") if device is None else device
    return torch.stack([torch.as_tensor(x, dtype=torch.float32, device=device) for x in numbers])


def numbers_of(p: torch.Tensor) -> Sequence[float] | None:
    """The numbers in an array, unless it is traced."""
    return None if is_compiling() or is_batched(p) else p.tolist()


register_array(torch.Tensor, numbers_of)
