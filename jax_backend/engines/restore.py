"""States of JAX from arrays of NumPy that nobody else holds."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from functional_rb.base.arrays import DeviceLike, NumpyArray
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.checkpoint import in_place
from functional_rb.core import save_history
from functional_rb.core.draft import Arrays
from functional_rb.storage import elsewhere as other_storage
from functional_rb.storage import mapped
from functional_rb.storage.host_state import HostState
from functional_rb.storage.mapped import MappedFiles
from jax_backend.arrays import devices
from jax_backend.engines import execute, hosted, shared
from jax_backend.engines.execute import build_mapping as build_mapping
from jax_backend.engines.shared import SharedState


def elsewhere(state: State, spec: BufferSpec) -> State:
    """A state under another spec, in another storage."""
    device, held = getattr(state, "device", None), None
    if isinstance(state, SharedState):
        state = state.detached()
    if isinstance(state, HostState):
        arrays, files, held = other_storage.of_version(state, spec, in_place.create)
    else:
        if isinstance(state.counters, jax.core.Tracer):
            raise TypeError(
                "with_spec: under jax.jit, vmap and scan a buffer stays where it lies; call it outside of them, or "
                "leave BufferSpec.storage as it is"
            )
        on_device = Arrays(state.rows, state.wide, state.tree, state.counters, dict(state.auxiliary))
        arrays, files = other_storage.with_spec(jax.tree.map(np.asarray, on_device), state.spec, spec, in_place.create)
    return restore(spec, arrays, device, objects=held, files=files)


def restore(
    spec: BufferSpec,
    arrays: Arrays,
    device: object = None,
    *,
    objects: Mapping[int, object] | None = None,
    stamp: str | None = None,
    files: MappedFiles | None = None,
) -> State:
    """A state of arrays of NumPy, which are taken over.

    Of `Memmap` storage files are made and filled, but where the arrays lie in `files` already; of shared ones those
    that are there are taken, if they have no items. `objects` are the Python objects by their tokens, and `stamp` is of
    the checkpoint that the arrays come from, see `functional_rb.core.save_history`.
    """
    if spec.storage.shared:
        return shared.engine.restored(spec, arrays, device)
    if spec.storage.on_host:
        checks.leaves_for_backend(spec, hosted.unsupported)
        place = devices.resolve(device)
        if files is None and isinstance(spec.storage, Memmap):
            files, arrays = mapped.replaced(spec, arrays, in_place.create)
        state = HostState.of_arrays(arrays, spec, False, objects, place, files)
        if stamp is not None:
            state.remember(save_history.NEW.saved(stamp))
        return state
    checks.leaves_for_backend(spec, execute.unsupported)
    place = execute.device_of(spec, device)
    return execute.to_state(jax.device_put(arrays, devices.places(arrays, place)), spec)


def placed(leaf: NumpyArray, device: DeviceLike) -> jax.Array:
    """A leaf of a nest on a device, None for the default.

    Raises:
        TypeError: for a dtype that JAX lacks now.
    """
    why = execute.unsupported(leaf.dtype.name)
    if why is not None:
        raise TypeError(f"load: dtype {leaf.dtype.name} {why}")
    return jax.device_put(leaf, devices.resolve(device))
