"""Devices as users name them."""

from __future__ import annotations

from typing import Any

import jax


def resolve(device: Any) -> Any:
    """A device of JAX, or a sharding, as it is; one by name, as in `frb.Device("cuda:1")`; None for no device.

    Raises:
        ValueError: if there is no such device, naming those that there are.
        TypeError: for what names no device.

    Example:
        >>> resolve("cpu").platform, resolve(None)
        ('cpu', None)
    """
    if device is None or isinstance(device, jax.Device | jax.sharding.Sharding):
        return device
    if not isinstance(device, str):
        raise TypeError(f"device: expected a jax.Device, a sharding, or a name such as 'gpu:1', got {device!r}")
    platform, _, number = device.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (IndexError, RuntimeError, ValueError) as error:
        there = sorted({f"{x.platform}:{x.id}" for x in jax.devices()})
        raise ValueError(f"device: expected one of JAX's devices, {there}, got {device!r}") from error
