"""Mixtures on JAX: one compiled program draws from all buffers, unless some lie on the host."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.strategy import Selection
from functional_rb.mixture import drawing
from functional_rb.mixture.drawing import Drawn, Status
from functional_rb.mixture.functions import Place, with_buffers
from functional_rb.mixture.layout import Form, Layout, layout_at_once
from functional_rb.mixture.sampling import check_drawable, check_heeding
from functional_rb.mixture.shares import Assignment
from functional_rb.mixture.value import Mixture, register_array
from functional_rb.ops import numpy_ops, part_kernels
from jax_backend import carried, compile, convert, copies, engines, execute, hosted, keys
from jax_backend import ops as ops
from jax_backend.custom_call import barrier
from jax_backend.values import to_numpy as to_numpy

mapper, engine, in_place, carry_out = execute, engines.of, engines.in_place, carried.carry_out
check_state = checks.check_state


def _keys(key: jax.Array, n: int) -> list[jax.Array]:
    """Keys of the kind of one, made of random bits by it: on CPUs these come from a kernel, and a split from XLA."""
    typed = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    words = math.prod(jax.random.key_data(typed).shape)
    data = compile.draws(typed, n, words).astype(jnp.uint32)
    return [jax.random.wrap_key_data(one, impl=jax.random.key_impl(typed)) for one in data]


class _Traced:
    """Draws while a program is traced; what changes of each buffer is noted in their order."""

    ops, mapper = ops, execute

    def __init__(self) -> None:
        self.changed: list[dict[str, Any]] = []

    def layout(self, form: Form) -> Layout:
        return layout_at_once(form, execute)

    def status(self, state: State) -> Status:
        return Status(*drawing.status(ops, state, state.spec))

    def shares(self, mixture: Mixture) -> jax.Array:
        return jnp.asarray(mixture.p, jnp.float32)

    def computed(self, plan: Assignment) -> Assignment:
        return Assignment(*barrier(plan))

    def chooses(self, spec: BufferSpec) -> bool:
        """On CPUs: an accelerator would wait for the host to choose. Kernels leave out what does not count anyway."""
        return jax.default_backend() == "cpu" and not (compile.leaves_out(spec) and part_kernels.in_force())

    def either(
        self, condition: jax.Array, first: Callable[[_Traced], Drawn], other: Callable[[_Traced], Drawn]
    ) -> Drawn:
        def branch(draw: Callable[[_Traced], Drawn]) -> tuple[Drawn, list[jax.Array]]:
            own = _Traced()
            return draw(own), [changed["counters"] for changed in own.changed]

        drawn, changed = jax.lax.cond(condition, lambda: branch(first), lambda: branch(other))
        self.changed += [{"counters": counters, "auxiliary": {}} for counters in changed]
        return drawn

    def draw(
        self, state: State, key: jax.Array, batch: int, wanted: jax.Array | None
    ) -> tuple[State, list[jax.Array], Selection]:
        changed, leaves, selection = execute.drawn_rows(state, key, batch, np.float32(0), wanted)
        self.changed.append(changed)
        return state, leaves, selection

    def keys(self, key: jax.Array, n: int) -> Sequence[jax.Array]:
        return _keys(key, n)

    def draws(self, key: jax.Array, n: int, words: int) -> jax.Array:
        return compile.draws(key, n, words)


class _Hosted:
    """Draws where the numbers of all buffers are known, as those on the host are, into the host's memory.

    A buffer on a device gives whole batches, of which the first rows count: how many each gives may be another number
    each time, and would be another program.
    """

    ops, mapper = ops, execute

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def layout(self, form: Form) -> Layout:
        return layout_at_once(form, execute)

    def status(self, state: State) -> Status:
        return Status(*np.asarray(engine(state).look(state, drawing.status)))

    def shares(self, mixture: Mixture) -> Any:
        return np.asarray(mixture.p, np.float32)

    def draw(self, state: State, key: jax.Array, batch: int, wanted: Any) -> tuple[State, list[Any], Selection]:
        found = engine(state)
        if found is hosted:
            return hosted.drawn(state, key, batch, 0.0, wanted)
        if found is not execute:
            return found.sample(state, key, batch, 0.0)
        whole = self.batch if state.spec.sampler.heeds_wanted else batch
        drawn = _rows(state, key, whole, np.int32(batch), kernels=compile.use_kernels())
        changed, leaves, selection = drawn
        count = state.spec.sampler.leading_shape(batch)[0]
        leaves, selection = jax.tree.map(lambda x: np.asarray(x)[:count], (leaves, selection))
        return execute.changed_by(state, changed) if state.spec.sampler.remembers else state, leaves, selection

    def joined(self, pieces: Sequence[Any], order: Any) -> Any:
        return drawing.joined([np.asarray(x) for x in pieces], order)

    def keys(self, key: jax.Array, n: int) -> Sequence[jax.Array]:
        return list(jax.random.split(key, n))

    def draws(self, key: jax.Array, n: int, words: int) -> Any:
        return hosted.draws(key, (n, words))[0]

    def in_numpy(self, array: Any) -> Any:
        return np.asarray(array)


@functools.partial(jax.jit, static_argnames=("batch", "kernels"))
@compile.program
def _rows(state: State, key: jax.Array, batch: int, wanted: jax.Array) -> Any:
    """What a buffer on a device gives to others on the host."""
    return execute.drawn_rows(state, key, batch, np.float32(0), wanted)


@functools.partial(jax.jit, static_argnames=("batch", "kernels"), inline=True)
@compile.program
def _drawn(
    mixture: Mixture, key: jax.Array, batch: int, p: jax.Array | None, beta: jax.Array | None
) -> tuple[list[dict[str, Any]], Drawn, jax.Array]:
    """What `draw` traces; of the buffers what is new."""
    carrier = _Traced()
    looked = drawing.look(carrier, ops, mixture, p)
    _, drawn = drawing.traced(carrier, looked, key, batch)
    return carrier.changed, drawn, drawing.weights(ops, drawn, looked.status.least, beta)


def draw(mixture: Mixture, key: Any, batch: int, p: Any, beta: Any, consume: bool) -> tuple[Mixture, Drawn, jax.Array]:
    """Draw a batch; where the result is at hand, to draw from nothing is an error."""
    keys.check_key(key)
    buffers = mixture.buffers
    if any(type(state) is not State for state in buffers):
        return _draw_on_host(mixture, key, batch, p, beta)
    check_heeding(mixture)
    exponent = None if beta is None else convert.number(beta)
    changes, drawn, weights = _drawn(mixture, key, batch, p, exponent, kernels=compile.use_kernels())
    traced = isinstance(drawn.indices, jax.core.Tracer)
    if batch and not traced and drawn.indices.is_fully_addressable:
        check_drawable(mixture, bool(np.asarray(drawn.indices).max() >= 0))
    after = [
        copies.warned("sample", state, execute.changed_by(state, changed))
        if state.spec.sampler.remembers or isinstance(state.counters, jax.core.Tracer)
        else state
        for state, changed in zip(buffers, changes, strict=True)
    ]
    same = all(one is before for one, before in zip(after, buffers, strict=True))
    return mixture if same else with_buffers(mixture, after), drawn, weights


def _draw_on_host(mixture: Mixture, key: Any, batch: int, p: Any, beta: Any) -> tuple[Mixture, Drawn, jax.Array]:
    carrier = _Hosted(batch)
    looked = drawing.look(carrier, numpy_ops, mixture, None if p is None else np.asarray(p, np.float32))
    check_drawable(mixture, looked.status.drawable > 0 or not batch)
    after, drawn = drawing.known(carrier, looked, key, batch)
    weights = drawing.weights(numpy_ops, drawn, looked.status.least, None if beta is None else np.float32(beta))
    host, extras = next(state for state in mixture.buffers if type(state) is not State), drawn.extras
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


def stacked(numbers: Sequence[Any]) -> Any:
    """Numbers, some of which may be traced, as an array."""
    if not any(isinstance(x, jax.Array) for x in numbers):
        return np.asarray(numbers, np.float32)
    return jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers])


def numbers_of(p: Any) -> Sequence[float] | None:
    """The numbers in an array that is at hand."""
    return None if isinstance(p, jax.core.Tracer) else np.asarray(p).tolist()


register_array(jax.Array, numbers_of)
