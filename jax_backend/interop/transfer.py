"""Moving sampled arrays to a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from functional_rb.base.object_arrays import is_object_array
from jax_backend.arrays import convert, devices


class Transfer:
    """To one device, or as a sharding says: `jax.device_put`, which does not wait for the copies."""

    build_mapping = staticmethod(convert.build_mapping)

    def __init__(self, device: object) -> None:
        self._device = devices.resolve(device)

    def drawn(self, sample: Callable[..., tuple[Any, Any]], state: object, *arguments: object) -> tuple[Any, Any]:
        return sample(state, *arguments)

    def send(self, leaves: Sequence[object]) -> list[object]:
        arrays = iter(jax.device_put([leaf for leaf in leaves if not is_object_array(leaf)], self._device))
        return [leaf if is_object_array(leaf) else next(arrays) for leaf in leaves]

    def receive(self, sent: list[object]) -> list[object]:
        # JAX waits where the values are used.
        return sent
