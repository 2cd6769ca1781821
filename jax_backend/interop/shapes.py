"""Specs as `jax.ShapeDtypeStruct`s, for `jax.eval_shape` and for compiling ahead of time."""

from __future__ import annotations

from typing import Any

import jax

from functional_rb.base import nest
from functional_rb.buffer.spec import BufferSpec
from functional_rb.specs import ArraySpec
from functional_rb.specs.base import sizes_of
from functional_rb.specs.values import Outline
from jax_backend.arrays.convert import build_mapping, unsupported

WHO = "shape_dtype_struct"


def shape_dtype_struct(spec: object, batch: object = ()) -> Any:
    """The shapes and dtypes of a spec's values, as `jax.eval_shape` returns them.

    Args:
        spec: a spec, a nest of specs, or a `BufferSpec`, which stands for its item.
        batch: leading axes, an int or a tuple.

    Returns:
        `jax.ShapeDtypeStruct`s [*batch, *shape] in the containers of the spec. `frb.specs.spec_of` makes a spec of
        them.

    Raises:
        TypeError: for a leaf of Python objects, or of a dtype that JAX does not have now, naming it.

    Example:
        >>> import functional_rb as frb
        >>> shape_dtype_struct({"x": frb.Bounded(-1, 1, (2,))}, 256)["x"]
        ShapeDtypeStruct(shape=(256, 2), dtype=float32)
    """
    outline = Outline.of(spec.item if isinstance(spec, BufferSpec) else spec, WHO)
    lead = sizes_of((batch,)) if batch != () else ()
    structs = []
    for name, leaf in zip(outline.names, outline.leaves, strict=True):
        if not isinstance(leaf, ArraySpec):
            raise TypeError(f"{WHO}: leaf {name!r}: expected the spec of an array, got {leaf!r}; leave it out")
        why = unsupported(leaf.dtype)
        if why is not None:
            raise TypeError(f"{WHO}: leaf {name!r}: dtype {leaf.dtype} {why}")
        structs.append(jax.ShapeDtypeStruct((*lead, *leaf.shape), jax.numpy.dtype(leaf.dtype)))
    return nest.unflatten(outline.structure, structs, build_mapping, lead)
