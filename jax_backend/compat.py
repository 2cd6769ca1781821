"""What differs between the versions of JAX that this library runs on, and nothing else.

Each piece says from which version of JAX on it can be replaced by what JAX itself has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax


def on_each_change(of: Callable[[Callable[[bool], object]], None], now: bool) -> None:
    """Let a setting of the process be a part of what JAX finds traced and compiled functions by.

    JAX 0.10 has contexts of users for that. Before, what was traced is forgotten whenever the setting changes.

    Args:
        of: is given a function to call with each new value of the setting.
        now: its value.
    """
    if hasattr(jax, "make_user_context"):
        of(jax.make_user_context(now).set_global)
        return
    last = [now]

    def changed(value: bool) -> None:
        if value != last[0]:
            last[0] = value
            jax.clear_caches()

    of(changed)


def varying_axes(x: Any) -> frozenset[str]:
    """The axes of a mesh along which an array of `jax.shard_map` varies: JAX 0.10 moved the field `vma`."""
    kind = jax.typeof(x)
    where = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(kind, "vma", ()) if where is None else where.varying)


def made_varying(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """An array that varies along further axes of a mesh: `lax.pcast` is there from JAX 0.8 on."""
    names = tuple(axes)
    library: Any = lax  # the type checker knows only the version that it finds installed
    found: jax.Array = library.pcast(x, names, to="varying") if hasattr(lax, "pcast") else library.pvary(x, names)
    return found


def explicit_axes(mesh: Any) -> tuple[Any, ...]:
    """The names of a mesh's explicit axes; meshes tell them from JAX 0.8 on."""
    found: tuple[Any, ...] = getattr(mesh, "explicit_axes", ())
    return found
