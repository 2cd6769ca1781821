"""Mixtures on torch: each buffer draws just what it gives; while tracing, a whole batch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.counters import SIZE
from functional_rb.core.draft import Arrays
from functional_rb.core.strategy import Selection
from functional_rb.mixture import drawing, sampling, shares
from functional_rb.mixture.drawing import Drawn, Status
from functional_rb.mixture.functions import Place, is_own
from functional_rb.mixture.layout import Form, Layout, layout_at_once, layout_of
from functional_rb.mixture.sampling import check_drawable, check_heeding
from functional_rb.mixture.shares import Assignment
from functional_rb.mixture.value import Mixture, register_array
from functional_rb.native.switch import switch
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import NONE, Table, using
from functional_rb.samplers.importance import importance_weights
from functional_rb.versions.state import readable
from torch_backend import engines, execute, modes, random
from torch_backend import ops as ops
from torch_backend.convert import is_batched
from torch_backend.library import HAVE_KERNELS, TORCH, numbers
from torch_backend.state import State as TorchState
from torch_backend.values import to_numpy as to_numpy

mapper, engine, is_compiling, check_state = execute, engines.of, torch.compiler.is_compiling, checks.check_state


class _Eager:
    """Draws where the numbers of all buffers are known."""

    ops, mapper = ops, execute

    def __init__(self, consume: bool = False) -> None:
        self.consume = consume

    def layout(self, form: Form) -> Layout:
        return (layout_of if is_compiling() else layout_at_once)(form, execute)

    def status(self, state: State) -> Status:
        if engine(state) is not execute:  # others write to the same buffer
            return Status(*engine(state).look(state, drawing.status).cpu().numpy())
        known: Status | None = state.__dict__.get("_status")
        if known is None:  # a state never changes, so it is asked once
            found = _status_in_numpy(state)
            known = Status(*(execute.look(state, drawing.status).cpu().numpy() if found is None else found))
            state.__dict__["_status"] = known
        return known

    def shares(self, mixture: Mixture) -> Any:
        assert mixture.p is not None
        return _numpy(torch.as_tensor(mixture.p, device=ops.CPU)).astype(np.float32)

    def draw(self, state: State, key: torch.Tensor, batch: int, wanted: Any) -> tuple[State, list[Any], Selection]:
        where = state.counters.device
        number = None if wanted is None else torch.tensor(int(wanted), dtype=torch.int32, device=where)
        drawn: tuple[State, list[Any], Selection] = engine(state).sample(state, key, batch, 0.0, number)
        return drawn

    def keys(self, key: torch.Tensor, n: int) -> Sequence[torch.Tensor]:
        return random.split_at_once(key, n)

    def draws(self, key: torch.Tensor, n: int, words: int) -> torch.Tensor:
        return numbers(key, (n, words), key.device)

    def in_numpy(self, array: torch.Tensor) -> Any:
        return _numpy(array)

    def joined(self, pieces: Sequence[torch.Tensor], order: Any) -> torch.Tensor:
        found = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
        return found if order is None else found[torch.from_numpy(order).to(found.device)]


def _status_in_numpy(state: Any) -> Any:
    """`drawing.status` of a state whose memory NumPy can read as it is: the fastest for a few numbers; else None."""
    version = readable(state)
    with version.lock:
        memory = version.own()
        if not memory.is_ordinary or memory.rows.device.type != "cpu":
            return None
        tree = None if memory.tree is None else memory.tree.numpy()
        kept = {name: x.numpy() for name, x in memory.auxiliary.items() if x.dtype in (torch.int32, torch.float32)}
        arrays = Arrays(memory.rows, (), tree, state.counters.numpy(), kept)
        return drawing.status(numpy_ops, arrays, state.spec)


class _Traced(_Eager):
    """Draws while nothing is known."""

    def status(self, state: State) -> Status:
        return Status(*engine(state).look(state, drawing.status).unbind())

    def keys(self, key: torch.Tensor, n: int) -> Sequence[torch.Tensor]:
        return random.split(key, n).unbind()

    def shares(self, mixture: Mixture) -> Any:
        assert mixture.p is not None
        return torch.as_tensor(mixture.p, dtype=torch.float32, device=mixture.buffers[0].counters.device)

    def computed(self, plan: Assignment) -> Assignment:
        return plan

    def chooses(self, spec: BufferSpec) -> bool:
        return False

    def either(self, condition: torch.Tensor, first: Any, other: Any) -> Drawn:
        raise AssertionError  # as it does not choose

    def draw(self, state: State, key: torch.Tensor, batch: int, wanted: Any) -> tuple[State, list[Any], Selection]:
        found = engine(state)
        if not self.consume:
            drawn: tuple[State, list[Any], Selection] = found.sample(state, key, batch, 0.0, wanted)
            return drawn
        after, (leaves, selection) = found.sample_(state, key, batch, 0.0, lambda *parts: parts, wanted)
        return after, leaves, selection


def _numpy(array: torch.Tensor) -> Any:
    return array.detach().cpu().numpy()


@functools.cache
def _kernels() -> Table:
    """Imported when first used, as there may be none."""
    table: Table = importlib.import_module("functional_rb.storage.host_kernels").TABLE
    return table


def draw(
    mixture: Mixture, key: Any, batch: int, p: Any, beta: Any, consume: bool
) -> tuple[Mixture, Drawn, torch.Tensor]:
    """Draw a batch; where the numbers of the buffers are known, to draw from nothing is an error."""
    random.check_key(key)
    batched = any(map(is_batched, (key, p, mixture.p, *[state.counters for state in mixture.buffers])))
    if batch and not batched and not is_compiling():
        return _draw(mixture, key, batch, p, beta)
    check_heeding(mixture)
    with modes.without_gradients():
        carrier = _Traced(consume)
        looked = drawing.look(carrier, ops, mixture, None if p is None else p.to(torch.float32))
        after, drawn = drawing.traced(carrier, looked, key, batch)
        exponent = None if beta is None else torch.as_tensor(beta, dtype=torch.float32, device=drawn.chances.device)
        return after, drawn, drawing.weights(ops, drawn, looked.status.least, exponent)


def _draw(mixture: Mixture, key: torch.Tensor, batch: int, p: Any, beta: Any) -> tuple[Mixture, Drawn, torch.Tensor]:
    found = _draw_at_once(mixture, key, batch, p, beta)
    if found is not None:
        return mixture, *found
    carrier = _Eager()
    looked = drawing.look(carrier, numpy_ops, mixture, None if p is None else _numpy(p).astype(np.float32))
    check_drawable(mixture, bool(looked.status.drawable > 0))
    with modes.without_gradients():
        after, drawn = drawing.known(carrier, looked, key, batch)
    exponent = None if beta is None else np.float32(beta)
    with using(_kernels() if HAVE_KERNELS and switch.on and beta is not None else NONE):
        weights = drawing.weights(numpy_ops, drawn, looked.status.least, exponent)
    device = next((x.device for x in drawn.leaves if isinstance(x, torch.Tensor)), key.device)
    return after, *drawing.lifted(drawn, weights, lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(device))


class _Way(NamedTuple):
    """One way in which a batch is shared out.

    Attributes:
        counts: how many rows each buffer gives.
        ids: int32 [B], the buffer of each row.
        chances: float32 [B], the chance of that buffer.
    """

    counts: list[int]
    ids: torch.Tensor
    chances: torch.Tensor


class _Plan(NamedTuple):
    """How batches are shared out by the same shares.

    Attributes:
        shares: float32 [K], the chance of each buffer for a row.
        starts: the draws from which on they are shared out in another way, see `shares.turns`.
        ways: those that were met, by the first of their draws.
    """

    shares: Any
    starts: Sequence[int]
    ways: dict[int, _Way]


PLANS = 8
"""So many are kept: shares that are annealed, or follow from what is stored, may be others each time."""


def _plan(mixture: Mixture, batch: int, p: torch.Tensor | None) -> _Plan | None:
    """None where a batch is not shared out so, or where fused kernels do not draw from all of the buffers."""
    states: Any = mixture.states
    if mixture.spec.how != "exact" or not all(isinstance(x, TorchState) and x._target is None for x in states):
        return None
    p = mixture.p if p is None else p
    numbers = mixture.spec.p if p is None else tuple(p.tolist())
    numbers = numbers or tuple(x._counters[SIZE].item() for x in states)  # in proportion to what they store
    facts = sampling.facts(execute, mixture)
    if (batch, numbers) not in facts.plans:
        if len(facts.plans) >= PLANS:
            facts.plans.clear()
        facts.plans[batch, numbers] = _new_plan(mixture, facts, numbers, batch)
    plan: _Plan | None = facts.plans[batch, numbers]
    return plan


def _new_plan(mixture: Mixture, facts: sampling.Facts, numbers: Sequence[float], batch: int) -> _Plan | None:
    for spec, places in zip(facts.specs, facts.layout.places, strict=True):
        if not spec.known.buffer or spec.plan.objects or places != tuple(range(len(spec.plan.leaves))):
            return None
    if facts.mapped or not any(numbers):
        return None
    given = drawing.in_shares(numbers)
    return _Plan(np.frombuffer(given, np.float32), shares.turns(mixture.spec, given, batch), {})


def _way(mixture: Mixture, plan: _Plan, batch: int, key: int) -> _Way | None:
    """The way in which a batch is shared out by a key; None if a buffer that gives nothing cannot be drawn from.

    That is looked at here, as the others' shares depend on it; of the others it shows when they draw.
    """
    start = 0
    if len(plan.starts) > 1:
        start = shares.turn_of(plan.starts, random.first_draw(key))
    if start not in plan.ways:
        found = shares.exact(mixture.spec, plan.shares.tobytes(), batch, start)
        chances = torch.from_numpy(plan.shares[found.ids])
        plan.ways[start] = _Way(found.counts.tolist(), torch.from_numpy(found.ids), chances)
    way = plan.ways[start]
    for state, count, share in zip(mixture.states, way.counts, plan.shares, strict=True):
        if share and not count and not _Eager().status(state).drawable:  # type: ignore[arg-type]  # no mixtures: `_plan`
            return None
    return way


def _draw_at_once(
    mixture: Mixture, key: torch.Tensor, batch: int, p: Any, beta: Any
) -> tuple[Drawn, torch.Tensor] | None:
    """What `drawing.known` draws, into one batch without any copies; None where that cannot be, or nothing is there."""
    plan = _plan(mixture, batch, p) if HAVE_KERNELS and switch.on else None
    if plan is None:
        return None
    states: Any = mixture.states
    chooses, *keys = random.split_numbers(key, len(states) + 1)
    way = _way(mixture, plan, batch, chooses)
    if way is None:
        return None
    made = TORCH.by_chain("together", states, way.counts, keys)
    if made is NotImplemented:
        return None
    _, leaves, _, handles, _, probabilities = made
    chances, weights = probabilities.mul_(way.chances), torch.ones_like(probabilities)
    if beta is not None:
        found = drawing.least_of([_Eager().status(state) for state in states], plan.shares)
        least, exponent = (torch.as_tensor(x, dtype=torch.float32, device=ops.CPU) for x in (found, beta))
        weights = TORCH.kernels.TABLE[importance_weights](chances, least, exponent)
    indices = torch.stack((way.ids, handles), 1)
    return Drawn(leaves, indices, chances, chances, drawing.NO_FLAGS, {}), weights


def in_place(engine: Any) -> Any:
    """An engine carries out in-place writes too."""
    return engine


def carry_out(function: Callable[..., Any], static: Any, *arrays: Any) -> Any:
    """A function of the core, as it is; what a buffer on the host gives goes where the others are."""
    return function(ops, static, *(arrays if is_compiling() else _on_one_device(arrays)))


def _on_one_device(arrays: tuple[Any, ...]) -> Any:
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


def _moved(nested: Any, device: torch.device) -> Any:
    if isinstance(nested, list | tuple):
        return [_moved(part, device) for part in nested]
    return nested.to(device) if isinstance(nested, torch.Tensor) else nested


def rows_of(indices: torch.Tensor, paths: Sequence[Place]) -> Sequence[torch.Tensor] | None:
    """The rows of each buffer, where how many these are can be known."""
    if is_compiling() or is_batched(indices):
        return None
    return [is_own(indices, path).nonzero()[:, 0] for path in paths]


def stacked(numbers: Sequence[Any]) -> Any:
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
