"""The processes that share a buffer, as checkpoints know them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from functional_rb.base.arrays import NumpyArray
from functional_rb.checkpoint.agreement import Group


def members(sharding: NamedSharding, shards: int, once: bool) -> Group:
    """The processes whose devices a mesh has, each of which has the shards of its own devices.

    A shard that several processes have is, with `once`, that of the first of them alone, which saves it; all that have
    it load it.
    """
    owners: dict[int, set[int]] = {}
    places: Any = sharding.devices_indices_map((shards,))
    for device, (place,) in places.items():
        owners.setdefault(place.start or 0, set()).add(device.process_index)
    here = jax.process_index()
    own_shards = tuple(sorted(k for k, of in owners.items() if here in of and not (once and min(of) < here)))
    devices = np.asarray(sharding.mesh.devices).reshape(-1)
    of_devices = [device.process_index for device in devices]
    processes = sorted(set(of_devices))

    def tell(text: str) -> list[str]:
        if len(processes) == 1:
            return [text]
        encoded = np.frombuffer(text.encode(), np.uint8)
        sizes = _gathered(devices, np.array([len(encoded)], np.int32))[:, 0]
        # A collective takes arrays of one shape.
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: len(encoded)] = encoded
        everyones = _gathered(devices, padded)
        firsts = [of_devices.index(process) for process in processes]
        return [everyones[k][: sizes[k]].tobytes().decode() for k in firsts]

    return Group(processes.index(here), len(processes), shards, own_shards, tell)


# An array of each process as those of all devices.
def _gathered(devices: NumpyArray, numbers: NumpyArray) -> NumpyArray:
    mesh = Mesh(devices, ("all",))
    divided, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("all"), PartitionSpec()))
    rows = jax.make_array_from_callback((len(devices), *numbers.shape), divided, lambda _: numbers[None])
    # An output that lies whole on each device is gathered by the compiled program.
    gathered = jax.jit(lambda x: x, out_shardings=whole)(rows)
    return np.asarray(gathered.addressable_data(0))
