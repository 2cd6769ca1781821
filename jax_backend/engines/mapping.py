"""Functions of items on JAX: traced into the user's program, or into one that is compiled for a spec and shapes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functional_rb.base import nest
from functional_rb.base.nest import Structure
from functional_rb.base.object_arrays import is_object_array
from functional_rb.buffer import mapping
from functional_rb.buffer.mapping import Lead
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.item_function import HostFunction
from functional_rb.specs.values import Outline
from functional_rb.transforms.map_items import MapItems
from jax_backend.arrays import ops
from jax_backend.arrays.convert import build_mapping
from jax_backend.arrays.keys import check_key, for_maps
from jax_backend.compiling import compile


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Static:
    """A structure, as a compiled program gives it."""

    structure: Structure


class Mapped(list[jax.Array]):
    """The leaves that a function of sampled items gives, where the program that draws has carried it out already."""

    def __init__(self, leaves: Sequence[jax.Array], static: _Static) -> None:
        super().__init__(leaves)
        self.structure = static.structure


def sampled(
    spec: BufferSpec, leaves: list[jax.Array], batch: int, key: jax.Array, mask: jax.Array | None
) -> tuple[list[jax.Array], _Static | None]:
    """What a sample has of leaves that were drawn by a key, and its structure if that is not the spec's."""
    if spec.on_sample is None:
        return leaves, None
    lead = spec.sampler.leading_shape(batch)
    return _results(spec.on_sample, leaves, lead, key if spec.on_sample.draws else None, mask)


def _is_array(x: object) -> bool:
    return isinstance(x, jax.Array)


# The checked leaves that a function gives, and their structure.
def _results(
    transform: MapItems,
    leaves: Sequence[object],
    lead: Lead,
    key: jax.Array | None,
    mask: jax.Array | None,
    as_declared: bool = True,
) -> tuple[list[Any], _Static]:
    if isinstance(transform.function, HostFunction):
        return _called_back(transform, leaves, lead)
    # Unrelated to all else that is drawn by the key: the sampler's draws, and what is split from it.
    key, draws = None if key is None else for_maps(key), None
    if key is not None and transform.item_words:
        draws = compile.draws(key, math.prod(lead), transform.item_words)
    items = mapping.carried_out(ops.OPS, transform, leaves, lead, draws, key, mask, build_mapping)
    results, structure = mapping.flattened(transform, items, lead, _is_array, as_declared)
    return results, _Static(structure)


# What a function on the host gives, as a program that is compiled asks it.
def _called_back(transform: MapItems, leaves: Sequence[object], lead: Lead) -> tuple[list[object], _Static]:
    after = mapping.known_of_host(transform)

    def call(*arrays: object) -> list[Any]:
        return mapping.on_host(transform, [np.asarray(x) for x in arrays], lead)[0]

    kinds = [jax.ShapeDtypeStruct((*lead, *leaf.shape), jnp.dtype(leaf.dtype)) for leaf in after.leaves]
    return jax.pure_callback(call, kinds, *leaves, vmap_method="sequential"), _Static(after.structure)


@functools.partial(jax.jit, static_argnames=("spec", "at", "lead", "kernels"), inline=True)
@compile.program
def _mapped(
    leaves: list[jax.Array], key: jax.Array | None, mask: jax.Array | None, spec: BufferSpec, at: str, lead: Lead
) -> tuple[list[jax.Array], _Static]:
    return _results(mapping.of(spec, at), leaves, lead, key, mask)


def map_items(
    spec: BufferSpec, at: str, leaves: Sequence[object], lead: Lead, key: jax.Array | None, mask: jax.Array | None
) -> Any:
    """What the function of items of a spec gives of leaves [*lead, *shape]; of added ones, the leaves to store."""
    if isinstance(leaves, Mapped):
        return nest.unflatten(leaves.structure, leaves, build_mapping, lead)
    if key is not None:
        check_key(key)
    if any(map(is_object_array, leaves)):  # which only buffers of the host have
        arrays = [leaf if is_object_array(leaf) else jnp.asarray(leaf) for leaf in leaves]
        results, static = _results(mapping.of(spec, at), arrays, lead, key, mask)
    else:
        results, static = _mapped(list(leaves), key, mask, spec=spec, at=at, lead=lead, kernels=compile.use_kernels())
    return results if at == "add" else nest.unflatten(static.structure, results, build_mapping, lead)


def evaluated(transform: MapItems, outline: Outline, lead: Lead) -> object:
    """What a function of items gives of leaves [*lead, *shape]: `jax.ShapeDtypeStruct`s."""
    structs = [jax.ShapeDtypeStruct((*lead, *leaf.shape), jnp.dtype(leaf.dtype)) for leaf in outline.leaves]
    key = jax.eval_shape(lambda: jax.random.key(0)) if transform.draws else None
    shapes, static = jax.eval_shape(
        lambda leaves, key: _results(transform, leaves, lead, key, None, False), structs, key
    )
    return nest.unflatten(static.structure, shapes, build_mapping, lead)
