"""Devices as users name them."""

from __future__ import annotations

from typing import Any

import jax


def resolve(device: Any) -> Any:
    """A device of JAX, or a sharding, as it is; one by name, as in `frb.Device("cuda:1")`.

    Raises:
        ValueError: if there is no such device, naming those that there are.

    Example:
        >>> resolve("cpu").platform, resolve(None)
        ('cpu', None)
    """
    if not isinstance(device, str):
        return device
    platform, _, number = device.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (IndexError, RuntimeError, ValueError) as error:
        there = sorted({f"{x.platform}:{x.id}" for x in jax.devices()})
        raise ValueError(f"init: expected one of JAX's devices, {there}, got {device!r}") from error
