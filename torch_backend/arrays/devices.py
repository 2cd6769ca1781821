"""Devices as users name them."""

from __future__ import annotations

import torch

from functional_rb.base.arrays import DeviceLike


def resolve(device: object) -> torch.device | None:
    """A device of torch that is there, with its number: "cuda" means the current one; None for no device.

    Raises:
        ValueError: if there is no such device, naming those that there are.
        TypeError: for what names no device.

    Example:
        >>> resolve("cpu"), resolve(None)
        (device(type='cpu'), None)
    """
    if device is None:
        return None
    if not isinstance(device, str | int | torch.device) or isinstance(device, bool):
        raise TypeError(f"device: expected a torch.device or a name such as 'cuda:1', got {device!r}")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # the latter where torch is built without CUDA
        there = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        why = str(error).splitlines()[0]
        raise ValueError(f"device: expected one of torch's devices, {there}, got {str(device)!r} ({why})") from error


def target(device: DeviceLike) -> torch.device | None:
    """Where samples of a buffer in the host's memory go, by default to torch's device; None if they stay there."""
    resolved = resolve(torch.get_default_device() if device is None else device)
    return None if resolved is None or resolved.type == "cpu" else resolved
