"""What goes from the host's memory to a GPU: of stacks of frames each frame once, of which the GPU makes the stacks.

Copies need nothing else there: `jax.device_put` returns at once, and threads of XLA's take an array of NumPy's of less
than 1 GB to pinned memory of XLA's own, and copy it from there (`BufferFromHostBuffer` of its clients for GPUs). Rows
that were pinned by cuMemHostRegister would gain nothing: XLA goes by what was registered with itself (`DmaMap`), for
which JAX has no function.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from functional_rb.base.arrays import BackendArray, DeviceLike
from functional_rb.base.object_arrays import is_object_array
from functional_rb.ops.part_kernels import NONE, Table, carried_out
from functional_rb.storage.host_state import NumPy
from functional_rb.structures import frame_ring
from functional_rb.structures.frame_ring import ROWS, WIDE, Chain
from jax_backend.arrays import devices, ops

# Kinds of devices to which that pays: on the CPU a batch is shared and not copied.
GPUS: Final = {"gpu"}
# A program is compiled for each number of frames, so there are no more numbers than these.
PARTS: Final = 16
# Bytes up to which copying an array costs less than to share it: `jax.device_put` takes some 25 us for each, handing
# one more to a jitted function a few, and copying so many bytes 10.
SMALL: Final = 2**17


class Sending(NumPy):
    """NumPy, of whose draws frames are sent to a GPU rather than stacks of them."""

    def sent(self, arrays: list[BackendArray], target: DeviceLike) -> list[BackendArray]:
        return sent(arrays, target)

    def sending(self, target: DeviceLike) -> Table:
        """Stacks are made on the GPU that samples go to."""
        config: Any = jax.config
        one = devices.resolve(target or config.jax_default_device) or jax.devices()[0]
        if isinstance(one, jax.Device) and one.platform in GPUS:
            return {frame_ring.gathered: functools.partial(stacked_there, target, self.ops)}
        return NONE


def sent(arrays: Sequence[BackendArray], device: DeviceLike) -> list[BackendArray]:
    """Arrays of NumPy that nobody writes to any more as JAX has them, on a device, or, for None, on the default one.

    What is none stays as it is, and so do Python objects.
    """
    moved = list(arrays)
    places = [k for k, x in enumerate(arrays) if isinstance(x, np.ndarray | np.generic) and not is_object_array(x)]
    # A jitted identity takes all small arrays in one call, and puts them on the default device.
    small = [k for k in places if device is None and arrays[k].nbytes <= SMALL]
    large = [k for k in places if k not in small]
    copied = _copied([arrays[k] for k in small]) if small else ()
    put = jax.device_put([arrays[k] for k in large], device) if large else ()
    for k, x in zip([*small, *large], [*copied, *put], strict=True):
        moved[k] = x
    return moved


@jax.jit
def _copied(arrays: list[jax.Array]) -> list[jax.Array]:
    return arrays


def stacked_there(
    target: DeviceLike,
    host: Any,
    chain: Chain,
    auxiliary: Mapping[str, Any],
    chosen: tuple[int, ...],
    batches: Sequence[Any],
) -> list[dict[int, Any]]:
    """What `frame_ring.gathered` gives, on a device: each frame is sent once, however many stacks have it.

    Of two stacks of four frames, an observation and the next one, that are five in place of eight. Some frames may
    follow that no stack has: at most a sixteenth of those that stacks name.
    """
    every = np.concatenate(batches)
    frames, place = np.unique(every, return_inverse=True)
    # Few lengths, as each is compiled once.
    step = -(-len(every) // PARTS)
    frames = np.pad(frames, (0, -len(frames) % step), mode="edge")
    wide = [chain.layout.leaves[k].wide for k in chosen]
    names = tuple(sorted({ROWS if k is None else WIDE.format(k) for k in wide}))
    places = np.split(place.astype(np.int32), np.cumsum([len(x) for x in batches])[:-1])
    sent = jax.device_put((tuple(host.take(auxiliary[name], frames) for name in names), tuple(places)), target)
    return _stacked(chain, chosen, names, *sent)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _stacked(
    chain: Chain, chosen: tuple[int, ...], names: tuple[str, ...], sent: tuple[jax.Array, ...], places: list[jax.Array]
) -> list[dict[int, Any]]:
    auxiliary = dict(zip(names, sent, strict=True))
    # Of these nothing is read, where the leaves lie elsewhere.
    nothing: dict[str, Any] = {ROWS: jax.numpy.zeros((len(sent[0]), chain.layout.row_words), np.int32)}
    nothing |= dict.fromkeys(WIDE.format(k) for k in range(len(chain.layout.wide)))
    return carried_out(NONE, frame_ring.gathered, ops.OPS, chain, nothing | auxiliary, chosen, places)
