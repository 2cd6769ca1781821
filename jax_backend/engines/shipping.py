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

from functional_rb.base.arrays import DeviceLike
from functional_rb.ops.part_kernels import NONE, carried_out
from functional_rb.storage.host_state import NumPy
from functional_rb.structures import frame_ring
from functional_rb.structures.frame_ring import ROWS, WIDE, Chain
from jax_backend.arrays import devices, ops

# Kinds of devices to which that pays: on the CPU a batch is shared and not copied.
GPUS: Final = {"gpu"}
# A program is compiled for each number of frames, so there are no more numbers than these.
PARTS: Final = 16


class Sending(NumPy):
    """NumPy, of whose draws frames are sent to a GPU rather than stacks of them."""

    def gather(self, target: DeviceLike) -> frame_ring.Gather:
        """Stacks on the GPU that samples go to."""
        config: Any = jax.config
        one = devices.resolve(target or config.jax_default_device) or jax.devices()[0]
        if isinstance(one, jax.Device) and one.platform in GPUS:
            return functools.partial(stacked_there, target)
        return super().gather(target)


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
    part = -(-len(every) // PARTS)
    frames = np.pad(frames, (0, -len(frames) % part), mode="edge")
    own = [chain.layout.leaves[k].wide for k in chosen]
    names = tuple(sorted({ROWS if k is None else WIDE.format(k) for k in own}))
    places = np.split(place.astype(np.int32), np.cumsum([len(x) for x in batches])[:-1])
    sent = jax.device_put((tuple(host.take(auxiliary[name], frames) for name in names), tuple(places)), target)
    return _stacked(chain, chosen, names, *sent)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _stacked(
    chain: Chain, chosen: tuple[int, ...], names: tuple[str, ...], sent: tuple[jax.Array, ...], places: list[jax.Array]
) -> list[dict[int, Any]]:
    given = dict(zip(names, sent, strict=True))
    # Of these nothing is read, where the leaves lie elsewhere.
    nothing: dict[str, Any] = {ROWS: jax.numpy.zeros((len(sent[0]), chain.layout.row_words), np.int32)}
    nothing |= dict.fromkeys(WIDE.format(k) for k in range(len(chain.layout.wide)))
    return carried_out(NONE, frame_ring.gathered, ops.OPS, chain, nothing | given, chosen, places)
