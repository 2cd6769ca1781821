"""States as plain pytrees, for Orbax and whoever else writes dicts of arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb import checks
from functional_rb import state_dict as core
from functional_rb.buffer_spec import BufferSpec
from functional_rb.draft import Arrays
from functional_rb.host.state import HostState
from functional_rb.state import State
from functional_rb.versions import Memory
from jax_backend import execute, hosted


def state_dict(state: State) -> dict[str, Any]:
    """A state as a flat dict of arrays, its spec among them, for Orbax.

    Args:
        state: the buffer.

    Returns:
        The state's arrays by name, see `functional_rb.state_dict`, not copied: donating the state deletes them, so
        save first. And "spec", the UTF-8 bytes of its JSON, uint8 [n].

    Raises:
        TypeError: for what is no state of JAX; while tracing.
        ValueError: if the state was donated, or other processes hold parts of its arrays, or the spec names a function
            or class that JSON cannot tell (a lambda).

    Example:
        >>> import functional_rb as frb
        >>> state = rb.init(frb.BufferSpec({"x": frb.Unbounded((3,))}, capacity=8, sampler=frb.Prioritized()))
        >>> sorted(rb.state_dict(state))
        ['counters', 'rows', 'spec', 'tree']
    """
    on_host = _is_hosted(state, "state_dict")
    text = core.text_of(state.spec)
    found: dict[str, Any] = core.named(state)
    for name, array in found.items():
        if on_host:
            found[name] = np.array(array)  # as a buffer on the host goes on in its memory
        else:
            _check_at_hand(name, array)
    return found | {core.SPEC: jnp.asarray(np.frombuffer(text.encode(), np.uint8))}


def load_state_dict(target: State | BufferSpec, given: Any, device: Any = None) -> State:
    """The state that a dict from `state_dict` tells.

    Args:
        target: a state, of the same spec and with the same shardings, or the spec. It stays as it is. The storage may
            be another than it was.
        given: from `state_dict`, of JAX or torch, or the same in NumPy, as Orbax restores it. It is copied, so that
            donating the state leaves it.
        device: where the arrays live, a `jax.Device` or sharding; by default as those of the target, or, where these
            are bound to no device, as those given.

    Returns:
        A state that goes on bit for bit as the one that was saved.

    Raises:
        ValueError: if the dict was made of another spec, lacks an array, or has one of another name or shape.
        TypeError: if something in it is no array, or of another dtype.

    Example:
        >>> import functional_rb as frb
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)
        >>> state = rb.add(rb.init(spec), {"x": np.arange(5, dtype=np.float32)})
        >>> int(rb.size(rb.load_state_dict(spec, rb.state_dict(state))))
        5
    """
    placed: dict[str, Any] = {}
    if isinstance(target, BufferSpec):
        spec = target
    else:
        on_host = _is_hosted(target, "load_state_dict")
        spec = target.spec
        if isinstance(target, HostState):
            device = target.device if device is None else device
        placed = {} if on_host else {name: x.sharding for name, x in core.named(target).items() if x.committed}
    checks.leaves_for_backend(spec, execute.unsupported)
    if spec.storage.on_host:
        return _on_host(spec, core.as_arrays(spec, given, _in_numpy), device)

    def take(name: str, array: Any) -> jax.Array:
        if isinstance(array, jax.Array):
            _check_at_hand(name, array)
        else:
            array = _in_numpy(name, array)
        where = placed.get(name) if device is None else device
        copied = jnp.array(array, copy=True)
        return copied if where is None else jax.device_put(copied, where)

    return execute.to_state(core.as_arrays(spec, given, take), spec)


def _is_hosted(state: Any, function: str) -> bool:
    """Whether a state lies in the memory of the host; what is none of JAX's is refused."""
    if isinstance(state, HostState):
        hosted.check_state(state, function)
        return True
    execute.check_state(state, function)
    return False


def _on_host(spec: BufferSpec, arrays: Arrays, device: Any) -> HostState:
    """A state in the memory of the host, or in files, with the content of some arrays."""
    state = hosted.init(spec, device)
    memory = state._version.own()
    if memory.files is not None:
        memory.files.prepare_all()  # a full disk is an error, not a signal as the pages are written
    for mine, saved in zip(_in_order(memory), _in_order(arrays), strict=True):
        mine[...] = saved
    return HostState(state._version, arrays.counters.copy(), spec, state.device)


def _in_order(of: Memory | Arrays) -> list[Any]:
    return [of.rows, *of.wide, *([] if of.tree is None else [of.tree]), *(of.kept[name] for name in sorted(of.kept))]


def _in_numpy(name: str, array: Any) -> Any:
    """An array of whichever library."""
    if isinstance(array, jax.Array):
        _check_at_hand(name, array)
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def _check_at_hand(name: str, array: jax.Array) -> None:
    """Refuse what has no values here."""
    if isinstance(array, jax.core.Tracer):
        raise TypeError(f"state_dict: {name!r} is traced; call it outside of jitted functions")
    if array.is_deleted():
        raise ValueError(
            f"state_dict: {name!r} was deleted, as the state was donated to a jitted function; "
            f"use the state that this returned, or save before it is called"
        )
    if not array.is_fully_addressable:
        raise ValueError(
            f"state_dict: other processes hold parts of {name!r}; give the state itself to Orbax, a pytree whose parts "
            f"each process saves"
        )
