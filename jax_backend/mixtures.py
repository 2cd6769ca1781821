"""Mixtures on JAX: one compiled program draws from all buffers, unless some lie on the host."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base.arrays import BackendArray, NumpyArray, PRNGKey
from functional_rb.buffer import checks
from functional_rb.buffer.state import State
from functional_rb.core.strategy import Selection
from functional_rb.mixture import drawing
from functional_rb.mixture.drawing import Drawn, Status
from functional_rb.mixture.functions import Place, with_buffers
from functional_rb.mixture.layout import Layout, form_of, layout_at_once
from functional_rb.mixture.shares import Assignment, exact, normalized, turns
from functional_rb.mixture.value import Mixture, register_array
from functional_rb.ops import numpy_ops, part_kernels
from functional_rb.shared.state import SharedState
from functional_rb.storage.host_state import HostState
from jax_backend import dispatch
from jax_backend.arrays import convert, keys
from jax_backend.arrays import ops as ops
from jax_backend.compiling import compile, copies
from jax_backend.engines import carried, execute, hosted
from jax_backend.engines.values import to_numpy as to_numpy
from jax_backend.kernels.custom_call import barrier

mapper, engine, in_place, carry_out = execute, dispatch.of, dispatch.in_place, carried.carry_out
check_state = checks.check_state


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


class _Traced(drawing.Carrier):
    """Draws while a program is traced; what changes of each buffer is noted in their order."""

    known, ops, mapper = False, ops.OPS, execute

    def __init__(self) -> None:
        self.changed: list[Changes] = []

    def status(self, state: State) -> Status:
        return Status(*drawing.status(ops.OPS, state, state.spec))

    def floats(self, p: BackendArray | Sequence[float], like: jax.Array) -> jax.Array:
        return jnp.asarray(p, jnp.float32)

    def settled(self, plan: Assignment) -> Assignment:
        return Assignment(*barrier(plan))

    def draw(
        self, state: State, key: jax.Array, batch: int, wanted: BackendArray | None
    ) -> tuple[State, Leaves, Selection]:
        # The weights are the mixture's; a buffer's own, which beta 0 makes 1, are not looked at.
        changed, leaves, selection = execute.drawn_rows(state, key, batch, np.float32(0), wanted)
        self.changed.append(changed)
        return state, leaves, selection

    def keys(self, key: jax.Array, n: int) -> Sequence[jax.Array]:
        return _keys(key, n)

    def draws(self, key: jax.Array, n: int) -> jax.Array:
        return compile.draws(key, n, 1)[:, 0]


class _Hosted(drawing.Carrier):
    """Draws where the numbers of all buffers are known, as those on the host are, into the host's memory.

    A buffer on a device gives whole batches, of which the first rows count: how many each gives may be another number
    each time, and would be another program.
    """

    known, ops, mapper = True, numpy_ops.OPS, execute

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def status(self, state: State) -> Status:
        return Status(*np.asarray(engine(state).look(state, drawing.status)))

    def draw(
        self, state: State, key: jax.Array, batch: int, wanted: BackendArray | None
    ) -> tuple[State, Leaves, Selection]:
        carrier = engine(state)
        if isinstance(state, HostState):
            return hosted.drawn(state, key, batch, 0.0, wanted)
        if carrier is not execute:
            return carrier.sample(state, key, batch, 0.0)
        whole = self.batch if state.spec.sampler.heeds_wanted else batch
        changed, *drawn = _rows(state, key, whole, np.int32(batch), kernels=compile.use_kernels())
        count = state.spec.sampler.leading_shape(batch)[0]
        leaves, selection = jax.tree.map(lambda x: np.asarray(x)[:count], drawn)
        return execute.changed_by(state, changed) if state.spec.sampler.remembers else state, leaves, selection

    def keys(self, key: jax.Array, n: int) -> Sequence[jax.Array]:
        return list(jax.random.split(key, n))

    def draws(self, key: jax.Array, n: int) -> NumpyArray:
        return hosted.draws(key, (n, 1))[0][:, 0]

    def numbers(self, array: BackendArray) -> NumpyArray:
        return np.asarray(array)


@functools.partial(jax.jit, static_argnames=("batch", "kernels"))
@compile.program
def _rows(state: State, key: jax.Array, batch: int, wanted: jax.Array) -> object:
    return execute.drawn_rows(state, key, batch, np.float32(0), wanted)


@functools.partial(jax.jit, static_argnames=("batch", "kernels"), inline=True)
@compile.program
def _drawn(
    mixture: Mixture, key: jax.Array, batch: int, p: jax.Array | None, beta: jax.Array | None
) -> tuple[list[Changes], Drawn, jax.Array]:
    """The changes of each buffer, the rows that all of them drew, and their weights."""
    made = _by_launches(mixture, key, batch, p, beta)
    return _by_buffer(mixture, key, batch, p, beta) if made is None else made


def _by_launches(mixture: Mixture, key: jax.Array, batch: int, p: jax.Array | None, beta: jax.Array | None) -> Any:
    """What `_drawn` gives, where all buffers are alike and lie on a GPU; else None."""
    if not layout_at_once(form_of(mixture), execute).alike:
        return None
    spec, shares = mixture.spec, mixture.p if p is None else p
    shares = None if shares is None else jnp.asarray(shares, jnp.float32)
    listed = (spec.p or ()) if shares is None else None

    def core(states: Sequence[State], key: jax.Array, shares: Any, beta: Any) -> Any:
        changed, drawn, weights = _by_buffer(Mixture(states, spec=spec), key, batch, shares, beta)
        flags = [flag for flag in drawn.flags.values() if flag is not None]
        told = drawn.indices, weights, drawn.probabilities, flags
        return drawn.leaves, told, [one["counters"] for one in changed]

    made = compile.sample_mixture(mixture.buffers, spec, key, listed, shares, beta, batch, core)
    if made is None:
        return None
    leaves, (indices, weights, probabilities, flags), counters = made
    told = dict(itertools.zip_longest(drawing.FLAGS, flags))
    drawn = Drawn(leaves, indices, probabilities, probabilities, told, {})
    return [{"counters": own, "auxiliary": {}} for own in counters], drawn, weights


def _by_buffer(
    mixture: Mixture, key: jax.Array, batch: int, p: jax.Array | None, beta: jax.Array | None
) -> tuple[list[Changes], Drawn, jax.Array]:
    carrier, layout = _Traced(), layout_at_once(form_of(mixture), execute)
    looked = drawing.look(carrier, mixture, p)

    def drawn(most: Sequence[int] | None = None) -> tuple[Drawn, list[jax.Array]]:
        branch = _Traced()
        rows = drawing.draw(branch, looked, layout, key, batch, most=most)[1]
        return rows, [one["counters"] for one in branch.changed]

    most = _most(mixture, batch) if p is None else None
    if most is None:
        rows = drawing.draw(carrier, looked, layout, key, batch)[1]
        changed = carrier.changed
    else:
        # A branch may give no more than counters: `_most` is for buffers that remember nothing.
        drawable = ops.stack([one.status.drawable for one in looked.members])
        rows, counters = jax.lax.cond(ops.count(drawable > 0) == len(mixture), lambda: drawn(most), drawn)
        changed = [{"counters": one, "auxiliary": {}} for one in counters]
    return changed, rows, drawing.weights(carrier, rows, looked.status.least, beta)


def _most(mixture: Mixture, batch: int) -> Sequence[int] | None:
    """How many rows each buffer gives at most where all can be drawn from; None if it does not pay to draw no more.

    It pays on CPUs: an accelerator would wait for the host to choose. Kernels leave out what does not count anyway.
    """
    specs = [state.spec for state in mixture.buffers]
    if mixture.spec.p is None or mixture.spec.how != "exact" or not batch or jax.default_backend() != "cpu":
        return None
    if any(spec.sampler.remembers for spec in specs):
        return None
    if part_kernels.in_force() and all(map(compile.leaves_out, specs)):
        return None
    numbers = np.array(mixture.spec.p, np.float32)
    if not numbers.all():
        return None
    shares = np.asarray(normalized(numpy_ops.OPS, numbers, numbers > 0)).tobytes()
    ways = [exact(mixture.spec, shares, batch, start).counts for start in turns(mixture.spec, shares, batch)]
    return [int(count) for count in np.max(ways, 0)]


def draw(
    mixture: Mixture,
    layout: Layout,
    key: PRNGKey,
    batch: int,
    p: BackendArray | None,
    beta: float | BackendArray | None,
    consume: bool,
) -> tuple[Mixture, Drawn, jax.Array]:
    """Draw a batch; where the result is at hand, to draw from nothing is an error."""
    keys.check_key(key)
    buffers = mixture.buffers
    if any(type(state) is not State for state in buffers):
        return _draw_on_host(mixture, layout, key, batch, p, beta)
    drawing.check_heeding(mixture)
    exponent = None if beta is None else convert.number(beta)
    changes, drawn, weights = _drawn(mixture, key, batch, p, exponent, kernels=compile.use_kernels())
    traced = isinstance(drawn.indices, jax.core.Tracer)
    if batch and not traced and drawn.indices.is_fully_addressable:
        drawing.check_drawable(mixture, bool(np.asarray(drawn.indices).max() >= 0))
    after = [
        copies.warned("sample", state, execute.changed_by(state, changed))
        if state.spec.sampler.remembers or isinstance(state.counters, jax.core.Tracer)
        else state
        for state, changed in zip(buffers, changes, strict=True)
    ]
    same = all(one is before for one, before in zip(after, buffers, strict=True))
    return mixture if same else with_buffers(mixture, after), drawn, weights


def _draw_on_host(
    mixture: Mixture,
    layout: Layout,
    key: PRNGKey,
    batch: int,
    p: BackendArray | None,
    beta: float | BackendArray | None,
) -> tuple[Mixture, Drawn, jax.Array]:
    after, drawn, weights = drawing.known_batch(_Hosted(batch), mixture, layout, key, batch, p, beta)
    # The samples go where those of the first buffer on the host go.
    host, extras = next(x for x in mixture.buffers if isinstance(x, HostState | SharedState)), drawn.extras
    leaves = hosted.out(host, [np.asarray(x) for x in (*drawn.leaves, *extras.values())])
    drawn = drawn._replace(
        leaves=leaves[: len(drawn.leaves)], extras=dict(zip(extras, leaves[len(drawn.leaves) :], strict=True))
    )
    return after, *drawing.lifted(drawn, weights, jnp.asarray)


def is_compiling() -> bool:
    """No: JAX traces arrays, and Python runs as it is."""
    return False


def rows_of(indices: jax.Array, paths: Sequence[Place]) -> None:
    """None: programs are compiled for a number of rows."""


def stacked(numbers: Sequence[object]) -> BackendArray:
    """Numbers, some of which may be traced, as an array."""
    if not any(isinstance(x, jax.Array) for x in numbers):
        return np.asarray(numbers, np.float32)
    return jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers])


def numbers_of(p: object) -> Sequence[float] | None:
    """The numbers in an array that is at hand."""
    return None if isinstance(p, jax.core.Tracer) else np.asarray(p).tolist()


register_array(jax.Array, numbers_of)
