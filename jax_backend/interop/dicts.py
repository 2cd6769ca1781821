"""What the functions on state dicts need of JAX."""

from __future__ import annotations

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base.arrays import BackendArray, DeviceLike, NumpyArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.interop import dicts
from functional_rb.interop import state_dict as core
from jax_backend.arrays import convert, devices
from jax_backend.engines import execute
from jax_backend.engines.restore import restore
from jax_backend.lib import LIB


def _on_device(spec: BufferSpec, target: State | None, mapping: object, device: DeviceLike) -> State:
    placed = {}
    if target is None:
        device = execute.device_of(spec, device)
    else:
        device = devices.resolve(device)
        # Arrays that JAX has put somewhere by itself may be moved by it, and so may what is loaded in their place.
        placed = {name: x.sharding for name, x in core.named(target, spec.plan).items() if x.committed}

    def take(name: str, array: object) -> jax.Array:
        if not isinstance(array, jax.Array):
            array = _read(name, array)
        else:
            _check_at_hand(name, array)
        where = placed.get(name) if device is None else devices.place(name, array.shape, device)
        copied = _copied(name, array)
        return copied if where is None else jax.device_put(copied, where)

    return execute.to_state(core.as_arrays(spec, mapping, take, _read), spec)


def _copied(name: str, array: BackendArray) -> jax.Array:
    # Of JAX's arrays too, as donating the state would delete the array in the dict.
    return jnp.array(array, copy=True) if isinstance(array, jax.Array) else convert.copied(array)


def _read(name: str, array: object) -> NumpyArray:
    if isinstance(array, jax.Array):
        _check_at_hand(name, array)
    # A tensor of torch's that requires gradients, or is on a GPU, refuses to become an array of NumPy.
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


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


_LIB: Final[dicts.DictsLib[jax.Array]] = dicts.DictsLib.of(
    LIB,
    text=lambda text: jnp.asarray(np.frombuffer(text.encode(), np.uint8)),  # as pytrees have no texts
    check_at_hand=_check_at_hand,
    read=_read,
    copied=_copied,
    restore=restore,
    on_device=_on_device,
)

state_dict = _LIB.bind(dicts.state_dict)
load_state_dict = _LIB.bind(dicts.load_state_dict)
