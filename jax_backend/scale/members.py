"""The processes that share a buffer, as checkpoints know them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from functional_rb.base.arrays import NumpyArray


class Members:
    """The processes whose devices a mesh has, each of which has the shards of its own devices."""

    def __init__(self, sharding: NamedSharding, shards: int, once: bool) -> None:
        """Take who has what.

        Args:
            sharding: along an axis of a mesh.
            shards: into how many parts it divides.
            once: whether a shard that several processes have is that of the first of them alone, which saves it; all
                that have it load it.
        """
        self.shards = shards
        owners: dict[int, set[int]] = {}
        places: Any = sharding.devices_indices_map((shards,))
        for device, (place,) in places.items():
            owners.setdefault(place.start or 0, set()).add(device.process_index)
        here = jax.process_index()
        self.own = tuple(sorted(k for k, of in owners.items() if here in of and not (once and min(of) < here)))
        self._devices = np.asarray(sharding.mesh.devices).reshape(-1)
        self._processes = sorted({device.process_index for device in self._devices})
        self.number, self.count = self._processes.index(here), len(self._processes)

    def tell(self, text: str) -> list[str]:
        """What each process tells, in their order."""
        if self.count == 1:
            return [text]
        told = np.frombuffer(text.encode(), np.uint8)
        sizes = self._gathered(np.array([len(told)], np.int32))[:, 0]
        # A collective takes arrays of one shape.
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: len(told)] = told
        everyones = self._gathered(padded)
        of_devices = [device.process_index for device in self._devices]
        firsts = [of_devices.index(process) for process in self._processes]
        return [everyones[k][: sizes[k]].tobytes().decode() for k in firsts]

    # An array of each process as those of all devices.
    def _gathered(self, numbers: NumpyArray) -> NumpyArray:
        mesh = Mesh(self._devices, ("all",))
        divided, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("all"), PartitionSpec()))
        shape = (len(self._devices), *numbers.shape)
        given = jax.make_array_from_callback(shape, divided, lambda _: numbers[None])
        # To have all of it on each device is to gather it.
        found = jax.jit(lambda x: x, out_shardings=whole)(given)
        return np.asarray(found.addressable_data(0))
