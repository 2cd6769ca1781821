"""States as plain pytrees, for Orbax and other writers of dicts of arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base.arrays import DeviceLike
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.interop import state_dict as core
from functional_rb.mixture.value import Mixture
from functional_rb.public import records
from functional_rb.storage.host_state import HostState
from jax_backend.arrays import devices, rules
from jax_backend.engines import execute, hosted
from jax_backend.engines.restore import restore
from jax_backend.lib import LIB


@rules.transfers
def state_dict(state: object) -> dict[str, Any]:
    """A state, or a record, as a flat dict of arrays, for Orbax; the spec of a state is among them.

    Args:
        state: the buffer; of a `Mixture` a dict of its buffers' dicts; of a record, or any nest of arrays, its arrays
            by their paths, not copied, without fields that are None.

    Returns:
        The state's arrays by name, see `interop.state_dict`, not copied: donating the state deletes them, so
        save first. Of buffers on the host copies. And "spec", the UTF-8 bytes of its JSON, uint8 [n]. Of a record its
        arrays alone.

    Raises:
        TypeError: for what is no state of JAX, or a record with a leaf that is no array; for a state while tracing.
        ValueError: if other processes hold parts of its arrays, or the spec names a function or class that JSON cannot
            tell (a lambda).
        RuntimeError: if the state, or a hash map or forest, was consumed.

    Example:
        >>> import functional_rb as frb
        >>> state = rb.init(frb.BufferSpec({"x": frb.Unbounded((3,))}, capacity=8, sampler=frb.Prioritized()))
        >>> sorted(rb.state_dict(state))
        ['counters', 'rows', 'spec', 'tree']
    """
    if records.is_record(state):
        return records.state_dict(LIB, state)
    if isinstance(state, Mixture):
        return core.of_mixture(state, state_dict, _bytes_of)
    checks.check_together(state, "state_dict")
    _is_hosted(state, "state_dict")
    assert isinstance(state, State)
    text = core.text_of(state.spec)
    found: dict[str, Any]
    if isinstance(state, HostState):  # which goes on in its memory
        found = core.named(state.copied_memory().state_arrays(state._counters.copy()), state.spec.plan)
    else:
        found = core.named(state, state.spec.plan)
        for name, array in found.items():
            _check_at_hand(name, array)
    return found | {core.SPEC: _bytes_of(text)}


# A text as an array, as pytrees have no texts.
def _bytes_of(text: str) -> jax.Array:
    return jnp.asarray(np.frombuffer(text.encode(), np.uint8))


@rules.transfers
def load_state_dict(target: object, given: object, device: DeviceLike = None) -> Any:
    """The state, or the record, that a dict from `state_dict` tells.

    Args:
        target: a record of the same leaves, or what has their shapes and dtypes (`jax.ShapeDtypeStruct`, meta tensors);
            or a state, of the same spec and with the same shardings, or the spec, or a `Mixture` of such states. It
            stays as it is. The storage may be another than it was.
        given: from `state_dict`, of JAX or torch, or the same in NumPy, as Orbax restores it. It is copied, so that
            donating the state leaves it.
        device: where the arrays live, a `jax.Device`, a sharding, or a name; by default where the spec says or those of
            the target are, or, where these are bound to no device, as those given. Not for a record.

    Returns:
        A state that goes on bit for bit as the one that was saved; of a record one with the arrays of the dict, not
        copied where they are of this backend.

    Raises:
        ValueError: if the dict was made of another spec or record, lacks an array, or has one of another name or shape;
            or if its values are those of no buffer: cursors out of range, infinite weights.
        TypeError: if something in it is no array, or of another dtype, or traced; for a device beside a record.
        RuntimeError: if the target is a state that was consumed.

    Example:
        >>> import functional_rb as frb
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)
        >>> state = rb.add(rb.init(spec), {"x": np.arange(5, dtype=np.float32)})
        >>> int(rb.size(rb.load_state_dict(spec, rb.state_dict(state))))
        5
    """
    if records.is_record(target):
        return records.load_state_dict(LIB, target, given, device)
    if isinstance(target, Mixture):
        return core.mixture_of(
            target,
            given,
            lambda one, arrays: load_state_dict(one, arrays, device),
            lambda _, x: jnp.array(x, copy=True),
        )
    checks.check_together(target, "load_state_dict")
    placed = {}
    if isinstance(target, BufferSpec):
        spec = target
        device = devices.resolve(device) if spec.storage.on_host else execute.device_of(spec, device)
    else:
        on_host = _is_hosted(target, "load_state_dict")
        assert isinstance(target, State)
        spec, device = target.spec, devices.resolve(device)
        if isinstance(target, HostState):
            device = target.device if device is None else device
        named = {} if on_host else core.named(target, spec.plan)
        placed = {name: x.sharding for name, x in named.items() if x.committed}
    checks.leaves_for_backend(spec, execute.unsupported)
    if spec.storage.on_host:
        return restore(spec, core.as_arrays(spec, given, _copied, _in_numpy), device)

    def take(name: str, array: Any) -> jax.Array:
        if isinstance(array, jax.Array):
            _check_at_hand(name, array)
        else:
            array = _in_numpy(name, array)
        where = placed.get(name) if device is None else devices.place(name, array.shape, device)
        copied = jnp.array(array, copy=True)
        return copied if where is None else jax.device_put(copied, where)

    return execute.to_state(core.as_arrays(spec, given, take, _in_numpy), spec)


# Whether a state lies in the memory of the host; what is none of JAX's is refused.
def _is_hosted(state: object, function: str) -> bool:
    core.check_whole(state, function)
    if isinstance(state, HostState):
        hosted.check_state(state, function)
        return True
    execute.check_state(state, function)
    return False


def _copied(name: str, array: object) -> Any:
    return np.array(_in_numpy(name, array), order="C")


def _in_numpy(name: str, array: object) -> Any:
    if isinstance(array, jax.Array):
        _check_at_hand(name, array)
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


# Refuse an array that has no values to read: a traced, deleted or partly remote one.
def _check_at_hand(name: str, array: jax.Array) -> None:
    if isinstance(array, jax.core.Tracer):
        raise TypeError(f"state_dict: {name!r} is traced; call it outside of jitted functions")
    if array.is_deleted():
        raise ValueError(
            f"state_dict: {name!r} was deleted, as it was donated to a compiled function; give what that returned"
        )
    if not array.is_fully_addressable:
        raise ValueError(
            f"state_dict: other processes hold parts of {name!r}; give the state itself to Orbax, a pytree whose parts "
            f"each process saves"
        )
