"""`functional_rb.buffer.backend.Backend` on JAX for buffers in the host's memory: functions are called outside of jit.

JAX's arrays come in without a copy where they lie in the host's memory, and go out without one where NumPy's memory is
aligned as XLA wants it. Random numbers are JAX's, so that results are those of a buffer on a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import jax
import numpy as np

from functional_rb.base import dtypes, forks, nest
from functional_rb.base.arrays import BackendArray, DeviceLike, Nest, PRNGKey
from functional_rb.base.object_arrays import is_non_tensor, is_object_array
from functional_rb.buffer import checks, mapping
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.checkpoint import in_place
from functional_rb.core.draft import Arrays, by_name
from functional_rb.core.item_function import HostFunction
from functional_rb.core.strategy import Selection
from functional_rb.ops.numpy_ops import Vector
from functional_rb.specs import ArraySpec
from functional_rb.specs.values import Outline
from functional_rb.storage import host_state
from functional_rb.storage.host_memory import Memory
from functional_rb.storage.host_state import Bits, HostState, NumPy
from functional_rb.versions.engine import Engine
from functional_rb.versions.object_table import Held
from functional_rb.versions.version import Version
from jax_backend.arrays import devices, host_ops, tracing
from jax_backend.arrays.convert import NUMBERS, NUMPY, exactly
from jax_backend.arrays.convert import build_mapping as build_mapping
from jax_backend.arrays.convert import value_of as value_of
from jax_backend.arrays.keys import check_key
from jax_backend.arrays.keys import split as split
from jax_backend.compiling import compile
from jax_backend.engines import execute, shipping
from jax_backend.engines.mapping import evaluated as evaluated

R = TypeVar("R")

_engine = Engine(NumPy(host_ops.OPS))
# Whose samples are on their way to a device.
_sending = Engine(shipping.Sending(host_ops.OPS))


def convert(leaf: object, expected: ArraySpec, name: str) -> Vector:
    """Arrays of JAX and NumPy as NumPy has them, Python numbers for scalar leaves."""
    if isinstance(leaf, jax.Array):
        checks.check_dtype(name, leaf, expected.dtype)
        return _in_numpy(leaf)
    if isinstance(leaf, NUMPY):
        checks.check_numpy(name, leaf)
        checks.check_dtype(name, leaf, expected.dtype)
        return np.asarray(leaf, order="C")
    if isinstance(leaf, NUMBERS) and expected.shape == ():
        dtypes.check_scalar(leaf, expected.dtype, name)
        return np.asarray(leaf, jax.numpy.dtype(expected.dtype))
    return np.asarray(execute.convert(leaf, expected, name))


def _in_numpy(array: jax.Array) -> Vector:
    if isinstance(array, jax.core.Tracer):
        raise _traced()
    return np.asarray(array, order="C")


def _traced() -> TypeError:
    return TypeError(
        "this buffer lies in the memory of the host (BufferSpec.storage), out of the reach of jax.jit, vmap and scan; "
        "call the function outside of them, or use storage=frb.Device()"
    )


def refuse_tracing() -> None:
    """Refuse to make a buffer while tracing: the compiled program would make no other one."""
    if tracing.in_program():
        raise _traced()


def check_state(state: object, function: str) -> None:
    """Refuse what is no state, and to use one in a program, which would not do again what was done as it was traced."""
    checks.check_state(state, function)
    assert isinstance(state, HostState)
    # `of_arrays` makes states of traced leaves too, which are to be handed on alone.
    if not isinstance(state._counters, np.ndarray) or tracing.in_program():
        raise _traced()
    state.check_alive()


def as_vector(array: object, name: str) -> BackendArray:
    """Masks, priorities and indices as NumPy has them."""
    if isinstance(array, jax.Array):
        return exactly(_in_numpy(array), name)
    if isinstance(array, NUMPY):
        checks.check_numpy(name, array)
        return exactly(np.asarray(array, order="C"), name)
    return array if is_non_tensor(array) else execute.as_vector(array, name)


def unsupported(dtype: str) -> str | None:
    """64-bit dtypes, unless they are enabled in JAX."""
    return None if dtype == "object" else execute.unsupported(dtype)


def init(spec: BufferSpec, device: object) -> HostState:
    """An empty state; what is sampled goes to the device."""
    refuse_tracing()
    target = devices.resolve(device)
    return host_state.init(spec, in_place.create(spec) if isinstance(spec.storage, Memmap) else None, target)


# Numbers as `execute` draws them: the sampler's, and those for transforms.
@functools.partial(jax.jit, static_argnames=("shape", "extra", "kernels"))
@compile.program
def _draws(key: jax.Array, shape: tuple[int, int], extra: tuple[int, int] | None) -> tuple[jax.Array, jax.Array | None]:
    more = None
    if extra is not None:
        key, other = jax.random.split(key)
        more = compile.draws(other, *extra)
    return compile.draws(key, *shape), more


def draws(key: PRNGKey, shape: tuple[int, int], extra: tuple[int, int] | None = None) -> tuple[Vector, Vector | None]:
    """Random bits as NumPy arrays: the sampler's, and those for transforms."""
    check_key(key)
    if isinstance(key, jax.core.Tracer):
        raise _traced()
    numbers, more = _draws(key, shape, extra, kernels=compile.use_kernels())
    return np.asarray(numbers), None if more is None else np.asarray(more)


def add(state: HostState, batch: Batch, key: PRNGKey) -> HostState:
    """Write a batch of items; returns the new state."""
    return _engine.add(state, batch, _bits_to_add(state.spec, batch.size, key))


def add_(state: HostState, batch: Batch, key: PRNGKey) -> HostState:
    """Write a batch; the state is consumed."""
    return _engine.add_(state, batch, _bits_to_add(state.spec, batch.size, key))


# The random bits for a writer that takes any.
def _bits_to_add(spec: BufferSpec, batch: int, key: object) -> Vector | None:
    if key is None:
        return None
    if spec.writer.words:
        return draws(key, (spec.rows(batch), spec.writer.words))[0]
    check_key(key)
    return None


def sample(state: HostState, key: PRNGKey, batch: int, beta: float) -> tuple[HostState, list[jax.Array], Selection]:
    """Draw a batch of items; the new state, leaves and selection."""
    return _sending.sample(state, _bits_to_draw(state.spec, batch, key), batch, float(beta))


def drawn(
    state: HostState, key: PRNGKey, batch: int, beta: float, wanted: Vector | None
) -> tuple[HostState, list[jax.Array], Selection]:
    """What `sample` gives, of a batch of which the first `wanted` rows count, or all, in arrays of NumPy."""
    return _engine.sample(state, _bits_to_draw(state.spec, batch, key), batch, float(beta), wanted)


def sample_(
    state: HostState, key: PRNGKey, batch: int, beta: float, finish: Callable[[list[jax.Array], Selection], R]
) -> tuple[HostState, R]:
    """Draw items, and finish the sample; then the state is consumed."""
    return _sending.sample_(state, _bits_to_draw(state.spec, batch, key), batch, float(beta), finish)


# The random bits for the sampler, and for transforms.
def _bits_to_draw(spec: BufferSpec, batch: int, key: object) -> Bits:
    extra = spec.extra_shape(batch) if spec.plan.extra_words else None
    return Bits(*draws(key, spec.draw_shape(batch), extra))


def known(state: HostState, mask: Vector | None) -> tuple[Vector, Vector | None]:
    """The state's counters, and a mask, as NumPy arrays."""
    return state.counters, mask


def inside(outline: Outline, leaves: Sequence[object]) -> list[Vector]:
    """Whether values lie in the domain of each unit."""
    nothing = np.zeros(0, np.bool_)
    return [np.asarray(x) for x in execute.inside(outline, [nothing if is_object_array(x) else x for x in leaves])]


def map_items(
    spec: BufferSpec,
    at: str,
    leaves: Sequence[BackendArray],
    lead: tuple[int, ...],
    key: PRNGKey,
    mask: jax.Array | None,
) -> Nest:
    """What a function of items gives, computed by JAX; the leaves to store as NumPy has them."""
    transform = mapping.of(spec, at)
    if isinstance(transform.function, HostFunction):
        results, structure = mapping.on_host(transform, [np.asarray(x) for x in leaves], lead)
        where = next((x.sharding for x in leaves if x.committed), None)  # the device that was asked for, if any was
        return nest.unflatten(structure, shipping.sent(results, where), build_mapping, lead)
    mapped = execute.map_items(spec, at, leaves, lead, key, mask)
    if at == "sample":
        return mapped
    return [x if is_object_array(x) else _in_numpy(x) for x in mapped]


count_invalid, with_spec = _engine.count_invalid, _engine.with_spec
update, update_, clear, clear_ = _engine.update, _engine.update_, _engine.clear, _engine.clear_
advance, advance_ = _engine.advance, _engine.advance_
get, look = _sending.get, _sending.look


def counter(state: HostState, place: int) -> jax.Array:
    """One of the counters, where samples go."""
    return shipping.sent([_engine.counter(state, place)], state.device)[0]


def items(state: HostState) -> list[jax.Array]:
    """The items of all slots, unpacked from the storage."""
    return shipping.sent(_engine.items(state), state.device)


# ---------------------------------------------------------------- pytrees

_Outline = tuple[BufferSpec, Held | None, DeviceLike]


def of_arrays(arrays: Arrays, spec: BufferSpec, held: Held | None = None, device: DeviceLike = None) -> HostState:
    """A state of arrays that others may hold."""
    named = [arrays.rows, *arrays.wide, arrays.tree, arrays.counters, *arrays.auxiliary.values()]
    known = [
        isinstance(x, np.ndarray | jax.Array) and not isinstance(x, jax.core.Tracer) for x in named if x is not None
    ]
    if all(known):
        arrays = jax.tree.map(np.asarray, arrays)
        return HostState.of_arrays(arrays, spec, objects=None if held is None else held.table, target=device)
    # Tracers, or whatever a mapped function has made of the leaves: only to be handed on.
    version = Version(Memory(arrays, pinned=True), forks.lock())
    return HostState(version, arrays.counters, spec, None, device)


def _flatten_with_keys(state: HostState) -> tuple[list[tuple[jax.tree_util.GetAttrKey, BackendArray]], _Outline]:
    memory = state.exported_memory()
    spec, key = state.spec, jax.tree_util.GetAttrKey
    leaves = by_name(memory.state_arrays(state.counters), spec.plan)
    held = Held(memory.table, memory) if spec.plan.objects and memory.table is not None else None
    return [(key(name), x) for name, x in leaves.items()], (spec, held, state.device)


def _unflatten(outline: _Outline, leaves: Iterable[BackendArray]) -> HostState:
    spec, held, device = outline
    return of_arrays(Arrays.of_leaves(spec.plan, leaves), spec, held, device)


jax.tree_util.register_pytree_with_keys(HostState, _flatten_with_keys, _unflatten)
