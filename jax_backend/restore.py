"""States of JAX from arrays of NumPy that nobody else holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from functional_rb import checks
from functional_rb.buffer_spec import BufferSpec
from functional_rb.draft import Arrays
from functional_rb.state import State
from jax_backend import execute


def restore(
    spec: BufferSpec,
    arrays: Arrays,
    device: Any = None,
    *,
    objects: Mapping[int, Any] | None = None,
    stamp: str | None = None,
) -> State:
    """A state.

    Args:
        spec: of the buffer.
        arrays: of NumPy, taken over.
        device: a device or sharding of JAX; None for the default.
        objects: the Python objects by token, which JAX cannot have.
        stamp: of the checkpoint that it comes from, for backends whose states have an identity.

    Raises:
        TypeError: for dtypes that JAX lacks, naming leaf and remedy.
    """
    checks.leaves_for_backend(spec, execute.unsupported)
    assert not objects
    made: Arrays = jax.tree.map(lambda array: jax.device_put(array, device), arrays)
    return execute.to_state(made, spec)
