"""The core's functions on JAX."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from functional_rb import buffer
from functional_rb.buffer import Arrays
from functional_rb.samplers import Drawn
from functional_rb.state import State
from jax_backend import ops


def add(
    state: State, leaves: list[jax.Array], batch: int, mask: jax.Array | None, priorities: jax.Array | None
) -> Arrays:
    """Write a batch."""
    return buffer.add(ops, state, state.spec, leaves, batch, mask, priorities)


def draw(state: State, draws: jax.Array, beta: jax.Array) -> tuple[list[jax.Array], Drawn]:
    """Choose items by draws, and read them."""
    return buffer.draw(ops, state, state.spec, draws, beta)


def update(
    state: State, handles: jax.Array, priorities: jax.Array | None, replacements: Mapping[int, jax.Array]
) -> Arrays:
    """Set priorities and rewrite leaves."""
    return buffer.update(ops, state, state.spec, handles, priorities, replacements)
