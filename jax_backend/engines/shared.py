"""Buffers that processes share, on JAX: a shared state is no pytree, and what is traced is refused."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base.arrays import BackendArray, DeviceLike, PRNGKey
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.shared.engine import Engine
from functional_rb.shared.library import Library, Vector
from functional_rb.shared.state import SharedState as CoreSharedState
from functional_rb.specs import ArraySpec
from functional_rb.storage.host_state import NUMPY, HostState
from jax_backend.arrays import devices, ops, rules, tracing
from jax_backend.engines import execute, hosted, shipping


class _Library(Library):
    backend, ops = execute, ops.OPS
    check_key = staticmethod(execute.check_key)

    def check_state(self, state: object, function: str) -> None:
        checks.check_state(state, function)
        if tracing.in_program():
            raise _traced()

    def convert(self, leaf: object, expected: ArraySpec, name: str) -> BackendArray:
        if isinstance(leaf, np.ndarray):
            checks.check_numpy(name, leaf)
            checks.check_dtype(name, leaf, expected.dtype)
            return leaf
        return execute.convert(leaf, expected, name)

    def place(self, device: DeviceLike) -> DeviceLike:
        hosted.refuse_tracing()
        return devices.resolve(device)

    def to_numpy(self, array: object) -> Vector:
        _refuse_traced(array)
        return np.asarray(array, order="C")

    @rules.transfers
    def from_numpy(self, arrays: Sequence[Vector], dtypes: Sequence[str], place: DeviceLike) -> list[jax.Array]:
        return shipping.sent([x.view(jnp.dtype(dtype)) for x, dtype in zip(arrays, dtypes, strict=True)], place)

    def random_bits(self, key: PRNGKey, shape: tuple[int, int]) -> Vector:
        _refuse_traced(key)
        return hosted.draws(key, shape)[0]

    def as_value(self, arrays: Arrays, spec: BufferSpec) -> State:
        return execute.to_state(arrays, spec)


def _refuse_traced(array: object) -> None:
    if isinstance(array, jax.core.Tracer):
        raise _traced()


def _traced() -> TypeError:
    return TypeError(
        "a buffer that other processes write is used outside of jax.jit, vmap and scan: what a compiled function "
        "did while it was traced, it would not do again; call rb.add, rb.sample and rb.update between the steps"
    )


class SharedState(CoreSharedState):
    """A handle of a shared buffer, on JAX."""

    library = _Library()


@functools.cache
def chain() -> Any:
    """What does usual writes whole, of arrays of the host; imported when first used, as there may be no native code."""
    from functional_rb.native.chain import Chains

    with jax.ensure_compile_time_eval():
        arrays = type(jnp.zeros(())), np.ndarray, *[None] * 5
    return Chains(NUMPY, execute.build_mapping).make(HostState, arrays, shared=SharedState)


engine = Engine(SharedState)
