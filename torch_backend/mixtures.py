"""Mixtures on torch: each buffer draws just what it gives; while tracing, as much as it may have to give."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch.utils import _pytree as pytree

from functional_rb.base.arrays import BackendArray, Nest, NumpyArray
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.core.strategy import Selection
from functional_rb.mixture import drawing
from functional_rb.mixture.drawing import Request, Status
from functional_rb.mixture.value import Mixture, register_array
from functional_rb.native.descriptor import encode_mixture
from functional_rb.native.switch import switch
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import NONE, Table, using
from functional_rb.versions.state import VersionedState, readable
from torch_backend import dispatch
from torch_backend.arrays import modes, ops, random
from torch_backend.arrays.convert import check_known, is_batched, number
from torch_backend.engines import execute
from torch_backend.memory.library import HAVE_KERNELS, TORCH, numbers
from torch_backend.memory.state import State as TorchState

engine, is_compiling = dispatch.of, torch.compiler.is_compiling
# The innermost of torch's functions that map, or take derivatives, if any is at work.
TRANSFORMS = torch._C._functorch.peek_interpreter_stack
# The leaves of what a buffer drew, tensors or Python objects in NumPy.
Leaves: TypeAlias = list[BackendArray]


class _Torch(drawing.Carrier[State]):
    """Draws whose rows are torch's, of known numbers, which are NumPy's, or of traced ones."""

    row_ops, mapper = ops.OPS, execute

    def __init__(self, known: bool, consume: bool = False) -> None:
        self.known, self.consume = known, consume
        self.ops = numpy_ops.OPS if known else ops.OPS

    def status(self, state: State) -> Status:
        if not self.known:
            return Status(*engine(state).look(state, drawing.status).unbind())
        if engine(state) is not execute:  # other processes write to the same buffer
            return Status(*_in_numpy(engine(state).look(state, drawing.status)))
        status: Status | None = state.__dict__.get("_status")
        if status is None:  # a state never changes, so it is asked once
            assert isinstance(state, VersionedState)
            status = Status(*_status_of(state))
            state.__dict__["_status"] = status
        return status

    def floats(self, p: object, like: BackendArray) -> BackendArray:
        if not self.known:
            return torch.as_tensor(p, dtype=torch.float32, device=like.device)
        check_known(p, ops.CPU)
        if isinstance(p, torch.Tensor):  # also of bfloat16, which NumPy lacks
            p = _in_numpy(p.to(torch.float32))
        return np.asarray(p, np.float32)

    def keys(self, key: torch.Tensor, n: int) -> Sequence[torch.Tensor]:
        return random.split(key.to("cpu") if self.known else key, n).unbind()

    def draws(self, key: torch.Tensor, n: int) -> BackendArray:
        if self.known:
            return random.draws(key, n, 1).numpy()[:, 0]
        return numbers(key, (n, 1), key.device)[:, 0]

    def draw(
        self, state: State, key: torch.Tensor, batch: int, wanted: BackendArray | None
    ) -> tuple[State, Leaves, Selection]:
        if self.consume:
            after, drawn = engine(state).sample_(state, key, batch, 0.0, lambda *parts: parts, wanted)
            return after, *drawn
        if self.known and wanted is not None:
            wanted = torch.tensor(int(wanted), dtype=torch.int32, device=state.counters.device)
        one: tuple[State, Leaves, Selection] = engine(state).sample(state, key, batch, 0.0, wanted)
        return one

    def join(self, columns: Sequence[Sequence[BackendArray]], order: BackendArray | None) -> list[BackendArray]:
        joined: list[BackendArray] = []
        orders: dict[torch.device, torch.Tensor | None] = {}  # copied to each device once
        for pieces in columns:
            if not isinstance(pieces[0], torch.Tensor):
                joined.append(drawing.joined(ops.OPS, pieces, order))
                continue
            device = next((x.device for x in pieces if x.device.type != "cpu"), ops.CPU)
            if device not in orders:
                orders[device] = None if order is None else torch.as_tensor(order, device=device)
            joined.append(drawing.joined(ops.OPS, [x.to(device) for x in pieces], orders[device]))
        return joined

    def weights(self, chances: torch.Tensor, least: BackendArray, beta: float | torch.Tensor) -> torch.Tensor:
        least, exponent = (number(x, chances.device) for x in (least, beta))
        with using(_kernels_for(chances, exponent)):
            return super().weights(chances, least, exponent)


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


def _kernels_for(chances: torch.Tensor, exponent: torch.Tensor) -> Table:
    """The kernels that compute weights."""
    if is_compiling() or is_batched(chances) or is_batched(exponent) or not (HAVE_KERNELS and switch.on):
        return NONE
    if chances.device.type == "cpu":
        return TORCH.kernels.TABLE
    return TORCH.on_gpu.TABLE if _is_launched([chances]) else NONE


def draw(mixture: drawing.M, request: Request, consume: bool) -> tuple[drawing.M, Leaves, Selection]:
    """Draw a batch; where the numbers of the buffers are known, to draw from nothing is an error."""
    random.check_key(request.key)
    traced = is_compiling()
    if not traced and TRANSFORMS() is not None:  # whether a function of torch's maps over an array that is read
        counters = [state.counters for state in mixture.buffers]
        traced = any(map(is_batched, (request.key, request.p, request.beta, mixture.p, *counters)))
    known = not traced and bool(request.layout.size)
    with modes.without_gradients():
        drawn = None
        if not known:
            drawing.check_heeding(mixture)
        elif (at_once := _at_once(mixture, request)) is not None:
            return mixture, *at_once
        elif TORCH.mixing is not None:
            drawn = TORCH.mixing.draw(_Torch(False), mixture, request)
        if drawn is None:
            drawn = drawing.draw(_Torch(known, consume and not known), mixture, request)
        after, leaves, selection = drawn
        return mixture.with_buffers(after), leaves, selection


def _at_once(mixture: Mixture, request: Request) -> tuple[Leaves, Selection] | None:
    """The leaves and the selection by one call of the version chain where buffers are alike; or None.

    On a GPU nobody waits for it: where nothing can be drawn, the host does not know that, and handles are -1.
    """
    layout, key, p, beta = request
    states, batch = mixture.states, layout.size
    if not layout.alike or not all(isinstance(state, TorchState) and state._target is None for state in states):
        return None
    shares = mixture.p if p is None else p
    on_gpu = isinstance(shares, torch.Tensor) and shares.device.type != "cpu"
    listed = mixture.spec.p or () if shares is None else tuple(shares.tolist()) if not on_gpu else None
    record = encode_mixture(mixture.spec, len(states), batch, listed, beta is not None).tobytes()
    exponent: float | torch.Tensor
    if isinstance(beta, torch.Tensor) and beta.device.type != "cpu":  # where nobody waits for it
        exponent = beta.to(torch.float32)
    else:
        exponent = 0.0 if beta is None else float(beta)
    drawn = TORCH.natively("mixed", states, record, shares if on_gpu else None, key, exponent, batch)
    if drawn is NotImplemented:
        return None
    _, leaves, _, _, *numbers = drawn
    split = functools.partial(drawing.split, layout, batch)
    return [split(leaf) for leaf in leaves], drawing.each(split, Selection(*numbers))


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


def are_values(buffers: Sequence[State]) -> bool:
    """Whether all buffers may be written to as values, in the memory that the next ones take over."""
    return not is_compiling() and all(isinstance(state, TorchState) for state in buffers)


def consumed_together(buffers: Sequence[TorchState], after: Sequence[TorchState]) -> list[TorchState]:
    """The buffers that follow, with those before them consumed: all of them, whatever interrupts it."""
    try:
        return [execute.taken_over(*pair) for pair in zip(buffers, after, strict=True)]
    except BaseException:
        for state in buffers:
            state.consume()
        raise


def stacked(numbers: Sequence[object]) -> BackendArray:
    """Numbers as an array where the first array among them is; while tracing, floats may be traced as well."""
    device = next((x.device for x in numbers if isinstance(x, torch.Tensor)), None)
    if device is None and not is_compiling():
        return np.asarray(numbers, np.float32)
    return torch.stack([number(x, device or ops.CPU) for x in numbers])


def waits_for(p: torch.Tensor) -> bool:
    """Whether a draw would wait for an accelerator only to read these shares."""
    return p.device.type != "cpu"


def _listed(p: torch.Tensor) -> list[float] | None:
    return None if is_compiling() or is_batched(p) or p.is_meta else p.tolist()


# Without history, and a copy, so that no later write to it changes a mixture.
register_array(torch.Tensor, _listed, lambda p: p.detach().clone())
