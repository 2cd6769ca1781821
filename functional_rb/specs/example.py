"""The spec of items that are like an example."""

from __future__ import annotations

import dataclasses

from functional_rb.base import nest
from functional_rb.base.arrays import Nest
from functional_rb.base.containers import Registered, apart, check_depth
from functional_rb.base.object_arrays import is_non_tensor
from functional_rb.specs.array import Binary, Unbounded
from functional_rb.specs.base import SpecNest
from functional_rb.specs.composite import Composite
from functional_rb.specs.non_tensor import NonTensor


def spec_of(example: object) -> SpecNest:
    """Derive the item spec from one item of arrays.

    Args:
        example: a nest of arrays of NumPy, JAX or torch, or of descriptions with shape and dtype
            (`jax.ShapeDtypeStruct`), without a batch axis. Leaves become `Unbounded`, or `Binary` where the dtype is
            bool. A TensorDict or tensorclass gives a spec whose items come back as such on torch; its batch size
            becomes the `batch_shape`, which comes back behind the axes of a batch, with the names of its axes. Items
            have a device if the example has one, that of the arrays. Arrays of objects, NonTensorData, and other values
            that a tensorclass has in place of tensors, become `NonTensor`; a field that is None stays None.

    Returns:
        A nest of specs in the same containers, for `BufferSpec(item=...)`.

    Raises:
        TypeError: if a leaf has no shape and dtype, naming its path, or a static field cannot be hashed.

    Example:
        >>> import numpy as np
        >>> spec_of({"obs": np.zeros((3,), np.float32), "done": np.bool_(False)})
        Composite({'obs': Unbounded((3,)), 'done': Binary()})
    """
    return _spec_of(example, ())


def _spec_of(example: Nest, path: nest.Path) -> SpecNest:
    check_depth(len(path))
    if is_non_tensor(example):
        return NonTensor(tuple(example.batch_size))
    if example is None:
        return None
    # TensorDicts, and containers that are registered, may have a dtype too.
    is_array = hasattr(example, "dtype") and not hasattr(example, "batch_size") and apart(example) is None
    parts = None if is_array else nest.parts_of(example)
    if parts is None:
        if getattr(example, "is_nested", False):  # torch's, whose parts may differ in length
            raise TypeError(
                f"spec_of: leaf {nest.show(path)!r}: expected an array, got a nested tensor, which has no shape; "
                f"give torch.nested.to_padded_tensor(...) of it, and keep the lengths beside it"
            )
        if not (hasattr(example, "shape") and hasattr(example, "dtype")):
            raise TypeError(
                f"spec_of: leaf {nest.show(path)!r}: expected an array, got {type(example).__name__}; "
                f"give NumPy, JAX or torch arrays, so that the dtype is known"
            )
        if str(example.dtype) == "object":
            return NonTensor(tuple(example.shape))
        try:
            plain = Unbounded(tuple(example.shape), example.dtype)
        except TypeError as error:
            raise TypeError(f"spec_of: leaf {nest.show(path)!r}: {error}") from None
        return Binary(plain.shape) if plain.dtype == "bool" else plain
    structure, values = parts
    structure = dataclasses.replace(structure, children=(nest.LEAF,) * len(values))
    structure.check_names("spec_of")
    children = [_spec_of(value, (*path, key)) for key, value in zip(structure.keys, values, strict=True)]

    def mapping(container: type | Registered | None, parts: dict[str, SpecNest], _: tuple[int, ...]) -> Composite:
        if container is None:
            return Composite(parts)
        if isinstance(container, Registered):
            return Composite.like(container, parts)
        batch = tuple(example.batch_size)
        names = tuple(example.names) if batch else ()
        return Composite.like(container, parts, batch, names, example.device is not None)

    return nest.unflatten(structure, children, mapping)
