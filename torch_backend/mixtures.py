"""Mixtures on torch: each buffer draws just what it gives; while tracing, as much as it may have to give."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TypeAlias

import numpy as np
import torch
from torch.utils import _pytree as pytree

from functional_rb.base.arrays import BackendArray, Nest, NumpyArray, PRNGKey
from functional_rb.buffer import checks
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.core.strategy import Selection
from functional_rb.mixture import drawing
from functional_rb.mixture.drawing import Drawn, Status
from functional_rb.mixture.functions import Place, is_own
from functional_rb.mixture.layout import Layout
from functional_rb.mixture.value import Mixture, register_array
from functional_rb.native.descriptor import encode_mixture
from functional_rb.native.switch import switch
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import NONE, Table, using
from functional_rb.versions.state import VersionedState, readable
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
# The leaves of what a buffer drew, tensors or Python objects in NumPy.
Leaves: TypeAlias = list[BackendArray]


class _Known(drawing.Carrier):
    """Draws where the numbers of all buffers are known."""

    known, ops, mapper = True, numpy_ops.OPS, execute

    def status(self, state: State) -> Status:
        if engine(state) is not execute:  # other processes write to the same buffer
            return Status(*_in_numpy(engine(state).look(state, drawing.status)))
        status: Status | None = state.__dict__.get("_status")
        if status is None:  # a state never changes, so it is asked once
            assert isinstance(state, VersionedState)
            status = Status(*_status_of(state))
            state.__dict__["_status"] = status
        return status

    def keys(self, key: torch.Tensor | int, n: int) -> Sequence[int]:
        return random.split_numbers(key, n)

    def key_of(self, key: int) -> torch.Tensor:
        return torch.tensor(key, dtype=torch.int64, device="cpu")

    def draws(self, key: int, n: int) -> NumpyArray:
        return random.known_draws(key, n)

    def draw(
        self, state: State, key: torch.Tensor, batch: int, wanted: BackendArray | None
    ) -> tuple[State, Leaves, Selection]:
        if wanted is not None:
            wanted = torch.tensor(int(wanted), dtype=torch.int32, device=state.counters.device)
        drawn: tuple[State, Leaves, Selection] = engine(state).sample(state, key, batch, 0.0, wanted)
        return drawn

    def draw_at_once(
        self, states: Sequence[State | Mixture], keys: Sequence[int], sizes: Sequence[int]
    ) -> tuple[list[torch.Tensor], Selection] | None:
        if not all(isinstance(state, TorchState) and state._target is None for state in states):
            return None
        drawn = TORCH.by_chain("together", states, sizes, keys)
        if drawn is NotImplemented:
            return None
        _, leaves, _, *selection = drawn
        return leaves, Selection(*selection)

    def numbers(self, array: torch.Tensor) -> NumpyArray:
        return _in_numpy(array)

    def rows(self, leaves: Sequence[Sequence[BackendArray]], order: NumpyArray | None) -> Leaves:
        rows: Leaves = []
        orders: dict[torch.device, torch.Tensor | None] = {}  # copied to each device once
        for pieces in leaves:
            if not isinstance(pieces[0], torch.Tensor):
                rows.append(drawing.take(ops.OPS, pieces, order))
                continue
            device = next((x.device for x in pieces if x.device.type != "cpu"), ops.CPU)
            if device not in orders:
                orders[device] = None if order is None else torch.from_numpy(order).to(device)
            rows.append(drawing.take(ops.OPS, [x.to(device) for x in pieces], orders[device]))
        return rows

    def weights(self, chances: BackendArray, least: BackendArray, beta: BackendArray) -> BackendArray:
        with using(_kernels() if HAVE_KERNELS and switch.on else NONE):
            return super().weights(chances, least, beta)


class _Traced(drawing.Carrier):
    """Draws where nothing is known."""

    known, ops, mapper = False, ops.OPS, execute

    def __init__(self, consume: bool = False) -> None:
        self.consume = consume

    def status(self, state: State) -> Status:
        return Status(*engine(state).look(state, drawing.status).unbind())

    def floats(self, p: BackendArray | Sequence[float], like: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(p, dtype=torch.float32, device=like.device)

    def keys(self, key: torch.Tensor, n: int) -> Sequence[torch.Tensor]:
        return random.split(key, n).unbind()

    def draws(self, key: torch.Tensor, n: int) -> torch.Tensor:
        return numbers(key, (n, 1), key.device)[:, 0]

    def draw(
        self, state: State, key: torch.Tensor, batch: int, wanted: BackendArray | None
    ) -> tuple[State, Leaves, Selection]:
        if not self.consume:
            drawn: tuple[State, Leaves, Selection] = engine(state).sample(state, key, batch, 0.0, wanted)
            return drawn
        after, (leaves, selection) = engine(state).sample_(state, key, batch, 0.0, lambda *parts: parts, wanted)
        return after, leaves, selection


def _in_numpy(array: torch.Tensor) -> NumpyArray:
    return array.numpy(force=True)


def _status_of(state: VersionedState) -> NumpyArray:
    # By NumPy where it can read the memory as it is: for a few numbers it takes less time than torch.
    version = readable(state)
    with version.lock:
        memory = version.own()
        if memory.is_ordinary and memory.rows.device.type == "cpu":
            tree = None if memory.tree is None else memory.tree.numpy()
            kept = {name: x.numpy() for name, x in memory.auxiliary.items() if x.dtype in (torch.int32, torch.float32)}
            arrays = Arrays(memory.rows.numpy(), (), tree, state.counters.numpy(), kept)
            return drawing.status(numpy_ops.OPS, arrays, state.spec)
    return _in_numpy(execute.look(state, drawing.status))


@functools.cache
def _kernels() -> Table:
    # Imported when first used, as there may be none.
    table: Table = importlib.import_module("functional_rb.storage.host_kernels").TABLE
    return table


def draw(
    mixture: Mixture,
    layout: Layout,
    key: PRNGKey,
    batch: int,
    p: BackendArray | None,
    beta: float | BackendArray | None,
    consume: bool,
) -> tuple[Mixture, Drawn, torch.Tensor]:
    """Draw a batch; where the numbers of the buffers are known, to draw from nothing is an error."""
    random.check_key(key)
    traced = is_compiling()
    if not traced and TRANSFORMS() is not None:  # whether a function of torch's maps over an array that is read
        traced = any(map(is_batched, (key, p, mixture.p, *[state.counters for state in mixture.buffers])))
    with modes.without_gradients():
        at_once = None if traced or TORCH.gpus is None else _at_once(mixture, layout, key, batch, p, beta)
        if at_once is not None:
            return mixture, *at_once
        if batch and not traced:
            exponent = beta.item() if isinstance(beta, torch.Tensor) else beta  # wherever it lies
            after, drawn, weights = drawing.known_batch(_Known(), mixture, layout, key, batch, p, exponent)
            # What was computed by NumPy goes where the rows are.
            device = next((x.device for x in drawn.leaves if isinstance(x, torch.Tensor)), key.device)
            lift = torch.from_numpy if device == ops.CPU else lambda x: torch.from_numpy(x).to(device)
            return after, *drawing.lifted(drawn, weights, lift)
        drawing.check_heeding(mixture)
        carrier = _Traced(consume)
        looked = drawing.look(carrier, mixture, p)
        after, drawn = drawing.draw(carrier, looked, layout, key, batch)
        exponent = None if beta is None else torch.as_tensor(beta, dtype=torch.float32, device=drawn.chances.device)
        return after, drawn, drawing.weights(carrier, drawn, looked.status.least, exponent)


def _at_once(
    mixture: Mixture,
    layout: Layout,
    key: torch.Tensor,
    batch: int,
    p: BackendArray | None,
    beta: float | BackendArray | None,
) -> tuple[Drawn, torch.Tensor] | None:
    """The rows and their weights by a launch for each buffer, where all lie on a GPU, for which nobody waits; or None.

    Where nothing can be drawn, the host does not know that, and handles are -1.
    """
    states = mixture.states
    own = all(isinstance(state, TorchState) and state._target is None for state in states)
    if not (layout.alike and batch and own):
        return None
    shares = mixture.p if p is None else p
    on_gpu = isinstance(shares, torch.Tensor) and shares.device.type != "cpu"
    listed = mixture.spec.p or () if shares is None else tuple(shares.tolist()) if not on_gpu else None
    told = encode_mixture(mixture.spec, len(states), batch, listed, beta is not None).tobytes()
    exponent: float | torch.Tensor
    if isinstance(beta, torch.Tensor) and beta.device.type != "cpu":  # where nobody waits for it
        exponent = beta.to(torch.float32)
    else:
        exponent = 0.0 if beta is None else float(beta)
    drawn = TORCH.by_chain("mixed", states, told, shares if on_gpu else None, key, exponent, batch)
    if drawn is NotImplemented:
        return None
    _, leaves, _, indices, weights, probabilities, *flags = drawn
    return drawing.by_one_call(mixture.buffers[0].spec, leaves, indices, probabilities, flags), weights


def in_place(engine: ModuleType) -> ModuleType:
    """An engine carries out in-place writes too."""
    return engine


def carry_out(function: Callable[..., Nest], static: object, *arrays: Nest) -> Nest:
    """A function of the core, by launches where there are any; what a host gives goes where the others are."""
    if is_compiling():
        return function(ops.OPS, static, *arrays)
    tensors = [x for x in pytree.tree_leaves(arrays) if isinstance(x, torch.Tensor)]
    if _is_launched(tensors):
        with using(TORCH.on_gpu.TABLE):
            return function(ops.OPS, static, *arrays)
    devices = {x.device for x in tensors}
    if len(devices) > 1:
        device = next(one for one in devices if one.type != "cpu")
        arrays = pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), arrays)
    return function(ops.OPS, static, *arrays)


def _is_launched(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether launches work on tensors: on one GPU, where nobody maps."""
    return TORCH.gpus is not None and switch.on and TRANSFORMS() is None and TORCH.gpus.works_on(tensors)


def rows_of(indices: torch.Tensor, paths: Sequence[Place]) -> Sequence[torch.Tensor] | None:
    """The rows of each buffer, where how many these are can be known: for an accelerator nobody waits."""
    if is_compiling() or is_batched(indices) or indices.device.type != "cpu" or _is_launched([indices]):
        return None
    return [is_own(indices, path).nonzero()[:, 0] for path in paths]


def stacked(numbers: Sequence[object]) -> BackendArray:
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
