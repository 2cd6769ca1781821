"""Moving sampled arrays to a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jax_backend import execute


class Transfer:
    """To one device, or as a sharding says: `jax.device_put`, which does not wait for the copies."""

    build_mapping = staticmethod(execute.build_mapping)

    def __init__(self, device: Any) -> None:
        """To a `jax.Device` or a `jax.sharding.Sharding`."""
        self._device = device

    def send(self, leaves: Sequence[Any]) -> list[Any]:
        """Begin to copy."""
        moved: list[Any] = jax.device_put(list(leaves), self._device)
        return moved

    def receive(self, sent: list[Any]) -> list[Any]:
        """What was sent; JAX waits where the values are used."""
        return sent
