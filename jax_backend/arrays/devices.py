"""Devices as users name them, and how a state lies on several."""

from __future__ import annotations

import jax
from jax.sharding import NamedSharding, PartitionSpec

from functional_rb.base.arrays import DeviceLike
from functional_rb.core.draft import Arrays
from functional_rb.structures import frame_ring
from functional_rb.structures.stored_arrays import AUXILIARY, ROWS, auxiliary_name, is_items, wide_name


def resolve(device: object) -> object:
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


def place(name: str, shape: tuple[int, ...], where: DeviceLike) -> DeviceLike:
    """Where an array of a state goes, that is named as in `functional_rb.interop.state_dict.named`.

    A sharding that divides is for the storage, what grows with the items: rows, wide leaves and shared frames. All the
    rest, which is small or read as a whole, lies whole on each device.
    """
    if not isinstance(where, NamedSharding) or where.is_fully_replicated:
        return where
    if not (is_items(name) or name.startswith(auxiliary_name(frame_ring.ROWS))):
        return NamedSharding(where.mesh, PartitionSpec(), memory_kind=where.memory_kind)
    try:
        where.shard_shape(shape)
    except ValueError as error:
        raise ValueError(
            f"device: expected a sharding that divides the storage ({name!r}, {list(shape)}, one slot after the other) "
            f"into equal parts, got {where.spec} on a mesh of {dict(where.mesh.shape)}; change "
            f"{'Compact(spare=...)' if name.startswith(AUXILIARY) else 'the capacity'} so that the number of devices "
            f"divides {shape[0]}"
        ) from error
    return where


def places(arrays: Arrays, where: object) -> object:
    """Where all of a state's arrays, or their shapes, are placed by a sharding."""
    if not isinstance(where, NamedSharding):
        return where
    return Arrays(
        place(ROWS, arrays.rows.shape, where),
        tuple(place(wide_name(k), x.shape, where) for k, x in enumerate(arrays.wide)),
        None if arrays.tree is None else place("tree", arrays.tree.shape, where),
        place("counters", arrays.counters.shape, where),
        {name: place(auxiliary_name(name), x.shape, where) for name, x in arrays.auxiliary.items()},
    )
