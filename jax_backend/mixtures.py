"""Mixtures on JAX: one compiled program draws from all buffers, unless some lie on the host."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base.arrays import BackendArray, NumpyArray
from functional_rb.buffer.reader import check_fits
from functional_rb.buffer.state import State
from functional_rb.core.strategy import Selection
from functional_rb.mixture import drawing
from functional_rb.mixture.drawing import Request, Status
from functional_rb.mixture.layout import form_of, layout_at_once
from functional_rb.mixture.shares import Assignment, normalized, quotas
from functional_rb.mixture.value import Mixture, register_array
from functional_rb.ops import numpy_ops, part_kernels
from functional_rb.shared.state import SharedState
from functional_rb.storage.host_state import HostState
from jax_backend import dispatch
from jax_backend.arrays import convert, keys, ops
from jax_backend.compiling import compile, copies
from jax_backend.engines import carried, execute, hosted, shipping
from jax_backend.kernels.custom_call import barrier

engine, carry_out = dispatch.of, carried.carry_out


# The leaves of what a buffer drew, of JAX or of NumPy.
Leaves: TypeAlias = list[BackendArray]
# What a draw changes of a buffer's arrays: its counters, and the auxiliary ones by name.
Changes: TypeAlias = dict[str, Any]


def _keys(key: jax.Array, n: int) -> list[jax.Array]:
    # In place of `jax.random.split`, which takes XLA longer on CPUs than a kernel takes to draw random bits.
    typed = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    words = math.prod(jax.random.key_data(typed).shape)
    data = compile.draws(typed, n, words).astype(jnp.uint32)
    return [jax.random.wrap_key_data(one, impl=jax.random.key_impl(typed)) for one in data]


class _Traced(drawing.Carrier[Changes]):
    """Draws while a program is traced; where a call gives no shares, no more than a buffer can have to give."""

    known, ops, row_ops, mapper = False, ops.OPS, ops.OPS, execute

    def __init__(self, most: Sequence[int] | None) -> None:
        self.most = most

    def assigned(self, assignment: Assignment) -> Assignment:
        # XLA may else compute it again for each row that is chosen by it.
        return Assignment(*barrier(list(assignment)))

    def drawn(self, draw: Callable[..., Any], sizes: Sequence[int], share: jax.Array) -> Any:
        most = self.most
        if most is None:
            return draw(sizes)
        return jax.lax.cond((share > 0).all(), lambda: draw(most), lambda: draw(sizes))

    def status(self, state: State) -> Status:
        return Status(*drawing.status(ops.OPS, state, state.spec))

    def floats(self, p: object, like: jax.Array) -> jax.Array:
        return jnp.asarray(p, jnp.float32)

    def keys(self, key: jax.Array, n: int) -> Sequence[jax.Array]:
        return _keys(key, n)

    def draws(self, key: jax.Array, n: int) -> jax.Array:
        return compile.draws(key, n, 1)[:, 0]

    def draw(
        self, state: State, key: jax.Array, batch: int, wanted: BackendArray | None
    ) -> tuple[Changes, Leaves, Selection]:
        # The weights are the mixture's; a buffer's own, which beta 0 makes 1, are not looked at.
        return execute.drawn_rows(state, key, batch, np.float32(0), wanted)


class _Hosted(drawing.Carrier[State]):
    """Draws where the numbers of all buffers are known, as those on the host are, into the host's memory.

    A buffer on a device gives whole batches, of which the first rows count: how many each gives may be another number
    each time, and would be another program.
    """

    known, ops, row_ops, mapper = True, numpy_ops.OPS, numpy_ops.OPS, execute

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def status(self, state: State) -> Status:
        return Status(*np.asarray(engine(state).look(state, drawing.status)))

    def floats(self, p: object, like: NumpyArray) -> NumpyArray:
        return np.asarray(p, np.float32)

    def keys(self, key: jax.Array, n: int) -> Sequence[jax.Array]:
        return list(jax.random.split(key, n))

    def draws(self, key: jax.Array, n: int) -> NumpyArray:
        return hosted.draws(key, (n, 1))[0][:, 0]

    def draw(
        self, state: State, key: jax.Array, batch: int, wanted: BackendArray | None
    ) -> tuple[State, Leaves, Selection]:
        carrier = engine(state)
        if isinstance(state, HostState):
            return hosted.drawn(state, key, batch, 0.0, wanted)
        if carrier is not execute:
            after, leaves, selection = carrier.sample(state, key, batch, 0.0)
            return after, leaves, jax.tree.map(np.asarray, selection)
        whole = self.batch if state.spec.sampler.heeds_wanted else batch
        wanted = np.int32(batch if wanted is None else wanted)
        changed, *drawn = _rows(state, key, whole, wanted, kernels=compile.use_kernels())
        rows = state.spec.sampler.leading_shape(batch)[0]
        leaves, selection = jax.tree.map(lambda x: np.asarray(x)[:rows], drawn)
        return execute.changed_by(state, changed) if state.spec.sampler.remembers else state, leaves, selection


@functools.partial(jax.jit, static_argnames=("batch", "kernels"))
@compile.program
def _rows(state: State, key: jax.Array, batch: int, wanted: jax.Array) -> object:
    return execute.drawn_rows(state, key, batch, np.float32(0), wanted)


@functools.partial(jax.jit, static_argnames=("batch", "kernels"), inline=True)
@compile.program
def _drawn(
    mixture: Mixture, key: jax.Array, batch: int, p: jax.Array | None, beta: jax.Array | None
) -> tuple[list[Changes], Leaves, Selection]:
    """What is new of each buffer, the leaves, and the selection."""
    at_once = _at_once(mixture, key, batch, p, beta)
    return _by_buffer(mixture, key, batch, p, beta) if at_once is None else at_once


def _at_once(
    mixture: Mixture, key: jax.Array, batch: int, p: jax.Array | None, beta: jax.Array | None
) -> tuple[list[Changes], Leaves, Selection] | None:
    """What `_drawn` gives, by one kernel where all buffers are alike; else None."""
    layout = layout_at_once(form_of(mixture), execute, batch)
    if not layout.alike:
        return None
    for state in mixture.buffers:
        check_fits(state, state.spec.plan, "sample")
    spec, shares = mixture.spec, mixture.p if p is None else p
    shares = None if shares is None else jnp.asarray(shares, jnp.float32)
    if shares is not None and shares.shape != (len(mixture),):  # a mixture that is put together of parts may have any
        return None
    listed = (spec.p or ()) if shares is None else None

    def core(
        states: Sequence[State], key: jax.Array, shares: jax.Array | None, beta: jax.Array | None
    ) -> tuple[Leaves, tuple[jax.Array, jax.Array, jax.Array, list[jax.Array]], list[jax.Array]]:
        changed, leaves, selection = _by_buffer(Mixture(states, spec=spec), key, batch, shares, beta)
        flags = [flag for name in drawing.FLAGS if (flag := getattr(selection, name)) is not None]
        return leaves, (*selection[:3], flags), [one["counters"] for one in changed]

    drawn = compile.sample_mixture(mixture.buffers, spec, key, listed, shares, beta, batch, core)
    if drawn is None:
        return None
    leaves, (handles, weights, probabilities, flags), counters = drawn
    named: dict[str, BackendArray] = dict(zip(drawing.FLAGS, flags, strict=False))  # none of single items
    selection = Selection(handles, weights, probabilities, **named)
    return [{"counters": of_buffer, "auxiliary": {}} for of_buffer in counters], leaves, selection


def _by_buffer(
    mixture: Mixture, key: jax.Array, batch: int, p: jax.Array | None, beta: jax.Array | None
) -> tuple[list[Changes], Leaves, Selection]:
    carrier = _Traced(_most(mixture, batch) if p is None else None)
    request = Request(layout_at_once(form_of(mixture), execute, batch), key, p, beta)
    changed, leaves, selection = drawing.draw(carrier, mixture, request)
    return [one for one in changed if one is not None], leaves, selection


def _most(mixture: Mixture, batch: int) -> Sequence[int] | None:
    """How many rows each buffer gives at most where all can be drawn from; None if it does not pay to draw no more.

    It pays on CPUs: an accelerator would wait for the host to choose. Kernels leave out what does not count anyway.
    """
    specs = [state.spec for state in mixture.buffers]
    if mixture.spec.p is None or mixture.spec.how != "exact" or not batch or jax.default_backend() != "cpu":
        return None
    if mixture.depth > 1 or any(spec.sampler.remembers for spec in specs):
        return None
    if part_kernels.in_force() and all(map(compile.leaves_out, specs)):
        return None
    numbers = np.array(mixture.spec.p, np.float32)
    shares = normalized(numpy_ops.OPS, numbers, numbers > 0)
    if not shares.all():
        return None
    whole, rest = quotas(numpy_ops.OPS, shares, np.array(batch, np.int32))
    return [int(count) for count in whole + (rest > 0)]


def draw(mixture: drawing.M, request: Request, consume: bool) -> tuple[drawing.M, Leaves, Selection]:
    """Draw a batch; where the result is at hand, to draw from nothing is an error."""
    layout, key, p, beta = request
    keys.check_key(key)
    batch, buffers = layout.size, mixture.buffers
    if any(type(state) is not State for state in buffers):
        return _draw_on_host(mixture, request)
    drawing.check_heeding(mixture)
    exponent = None if beta is None else convert.number(beta)
    changes, leaves, selection = _drawn(mixture, key, batch, p, exponent, kernels=compile.use_kernels())
    handles = selection.handles
    if batch and not isinstance(handles, jax.core.Tracer) and handles.is_fully_addressable:
        drawing.check_drawable(mixture, bool(np.asarray(handles).max() >= 0))
    after = [
        copies.warned("sample", state, execute.changed_by(state, changed))
        if state.spec.sampler.remembers or isinstance(state.counters, jax.core.Tracer)
        else None
        for state, changed in zip(buffers, changes, strict=True)
    ]
    return mixture.with_buffers(after), leaves, selection


def _draw_on_host(mixture: drawing.M, request: Request) -> tuple[drawing.M, Leaves, Selection]:
    beta = None if request.beta is None else np.float32(request.beta)
    buffers, leaves, selection = drawing.draw(_Hosted(request.layout.size), mixture, request._replace(beta=beta))
    # The samples go where those of the first buffer on the host go.
    host, extras = next(x for x in mixture.buffers if isinstance(x, HostState | SharedState)), selection.extras
    sent = shipping.sent([np.asarray(x) for x in (*leaves, *extras.values())], host.device)
    extras = dict(zip(extras, sent[len(leaves) :], strict=True))
    return (
        mixture.with_buffers(buffers),
        sent[: len(leaves)],
        jax.tree.map(jnp.asarray, selection._replace(extras=extras)),
    )


def are_values(buffers: Sequence[State | HostState]) -> bool:
    """Whether all buffers may be written to as values: XLA would copy each whole."""
    return False


def stacked(numbers: Sequence[object]) -> BackendArray:
    """Numbers, some of which may be traced, as an array."""
    if not any(isinstance(x, jax.Array) for x in numbers):
        return np.asarray(numbers, np.float32)
    return jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers])


def waits_for(p: jax.Array) -> bool:
    """Whether a draw would wait for an accelerator only to read these shares. No, as it waits for handles anyway."""
    return False


register_array(jax.Array, lambda p: None if isinstance(p, jax.core.Tracer) else np.asarray(p).tolist(), lambda p: p)
