"""Memory that JAX shares with another library, where nothing may be written by donation.

On a CPU XLA looks after that: of what it does not own, or has given away, it donates a copy. On a GPU it writes to
memory that came through DLPack as to its own, so that torch would see its tensors change, and of what it has given
away it refuses the donation. What comes is therefore given away, as it were, to nobody, for as long as it lives: then
JAX refuses to donate it too. The library's own programs go on with a copy, as they do on a CPU; a user's `jax.jit` with
`donate_argnums` ends with JAX's error, "Donation requested for buffer with external reference", and nothing is written.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp


def donates_all(array: jax.Array) -> bool:
    """Whether XLA would donate memory where the array is, whoever else reads it."""
    return bool({device.platform for device in array.devices()} - {"cpu"})


def held(array: jax.Array) -> jax.Array:
    """An array in memory of another library, to which JAX then donates nothing.

    The hold is on the memory itself, by a second array there, and ends with the first one. (`jax.device_put` to where
    an array is makes a third: donate that only while the first one lives, or not at all.)
    """
    if array.size and donates_all(array):
        twin = array.addressable_data(0)
        weakref.finalize(array, _dropped, twin.__dlpack__()).atexit = False
    return array


def _dropped(capsule: object) -> None:
    """The end of a hold."""


def called(program: Callable[..., object], donated: Collection[int], *args: object, **static: object) -> Any:
    """What a compiled function gives, with copies of the arguments that it donates where these cannot be donated."""
    try:
        return program(*args, **static)
    except jax.errors.JaxRuntimeError as error:
        # JAX has one class for all errors of XLA, so the text alone tells this one.
        if "external reference" not in str(error):
            raise
    return program(*[jax.tree.map(_copied, x) if k in donated else x for k, x in enumerate(args)], **static)


def _copied(x: object) -> object:
    return jnp.array(x, copy=True) if isinstance(x, jax.Array) else x
