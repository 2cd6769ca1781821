"""What `map_items` does around the functions of the core: to a batch before it is stored, to a sample once it is read.

A backend carries it out by `carried_out`, in a compiled program or at once; what a function gives is checked here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray, Nest, PRNGKey
from functional_rb.base.dtypes import shown
from functional_rb.base.nest import BuildMapping, Structure
from functional_rb.base.object_arrays import is_non_tensor, is_object_array
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.item_function import ItemFunction, check_leaves
from functional_rb.ops.part_kernels import call_users
from functional_rb.ops.protocol import ItemOps
from functional_rb.specs import spec_of
from functional_rb.specs.regrouped import leaves_of, with_lead
from functional_rb.specs.values import Outline
from functional_rb.transforms.map_items import MapItems

Lead = tuple[int, ...]
# The shape and the dtype of a leaf, in its library's own terms; None of what has none.
Kind = tuple[Any, Any]


class Mapper(Protocol):
    """What of a backend carries out functions of items."""

    def __hash__(self) -> int:
        """What is found out of functions is kept for each backend."""

    @property
    def build_mapping(self) -> BuildMapping:
        """How mappings are made."""

    def map_items(
        self,
        spec: BufferSpec,
        at: str,
        leaves: Sequence[BackendArray],
        lead: Lead,
        key: PRNGKey,
        mask: BackendArray | None,
    ) -> Nest:
        """What the function of items of a spec, at="add" or at="sample", gives of leaves [*lead, *shape]."""

    def evaluated(self, transform: MapItems, outline: Outline, lead: Lead) -> object:
        """What a function of items gives of leaves [*lead, *shape]: shapes and dtypes, without any array."""


def of(spec: BufferSpec, at: str) -> MapItems:
    """The function of items of a spec that stands there; there is one."""
    transform = spec.on_add if at == "add" else spec.on_sample
    assert transform is not None
    return transform


def carried_out(
    ops: ItemOps,
    transform: MapItems,
    leaves: Sequence[BackendArray],
    lead: Lead,
    draws: BackendArray | None,
    key: PRNGKey,
    mask: BackendArray | None,
    build_mapping: BuildMapping,
) -> Nest:
    """The items that a bound function gives of leaves [*lead, *shape]; those of an `ItemFunction` are checked.

    Draws are int32 [N, words], for an `ItemFunction` that takes any, and a key is for a function that takes one; mask
    bool [*lead] says which items are real, None that all are.
    """
    function, outline = transform.function, transform.given
    if isinstance(function, ItemFunction):
        assert transform.after is not None
        axes = lead if transform.steps is None else (lead[0] // transform.steps, transform.steps)
        if axes != lead:  # what has one number for a slice, or looks along it, must know which steps are its own
            leaves = [leaf.reshape(*axes, *leaf.shape[1:]) for leaf in leaves]
            mask = None if mask is None else mask.reshape(axes)
        by_path = function.apply(ops, dict(zip(transform.paths, leaves, strict=True)), axes, draws, mask)
        check_leaves(transform.who, transform.expected, by_path, axes)
        mapped = [by_path[path] for path in transform.expected]
        if axes != lead:
            mapped = [leaf.reshape(*lead, *leaf.shape[2:]) for leaf in mapped]
        return nest.unflatten(transform.after.structure, mapped, build_mapping, lead)
    items = nest.unflatten(outline.structure, leaves, build_mapping, lead)
    if transform.masked:
        function = functools.partial(function, mask=mask)
    try:
        mapped = call_users(ops, function, items, key) if transform.keyed else call_users(ops, function, items)
    except Exception as error:
        shapes = ", ".join(f"{name} {tuple(leaf.shape)}" for name, leaf in zip(outline.names, leaves, strict=True))
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"{transform.who}: the function failed on a batch with the leaves {shapes:.300}: "
            f"{type(error).__name__}: {error!s:.300}; it has to be a pure function of arrays of this backend (for a "
            f"state that came from the other one: rb.with_spec(state, spec), with a function of this one)"
        ) from error
    if mapped is None:
        raise TypeError(
            f"{transform.who}: expected the function to return the items, a nest of arrays, got None; return them also "
            f"where they were changed in place"
        )
    return mapped


def on_host(transform: MapItems, leaves: Sequence[object], lead: Lead) -> tuple[list[BackendArray], Structure]:
    """What a bound `HostFunction` gives of arrays of NumPy [*lead, *shape]: checked, and their structure."""
    items = transform.function.read(dict(zip(transform.given.names, leaves, strict=True)), lambda array: array)
    return flattened(transform, items, lead, lambda x: isinstance(x, np.ndarray))


def known_of_host(transform: MapItems) -> Outline:
    """What a `HostFunction` gives, taken apart, for a program that is compiled."""
    if transform.after is None:
        raise ValueError(
            f"{transform.who}: the shapes that it gives depend on values, which a compiled program cannot have; give "
            f"it fixed ones (length=), or keep the buffer in the memory of the host (storage=frb.Memmap())"
        )
    return transform.after


# ---------------------------------------------------------------- what a function gives


def flattened(
    transform: MapItems, items: Nest, lead: Lead, is_array: Callable[[object], bool], as_declared: bool = True
) -> tuple[list[BackendArray], Structure]:
    """The leaves of what a function gives, and their structure: as it was declared to give them, where it was."""
    after = transform.after if as_declared else None
    if after is None:
        leaves, structure = nest.flatten(items, lambda x: is_array(x) or is_non_tensor(x))
    else:
        structure = after.structure
        try:
            leaves = nest.flatten_as(structure, items)
        except ValueError as error:
            raise ValueError(f"{transform.who}: {error}") from None
    if not leaves:
        raise ValueError(f"{transform.who}: expected the function to return some leaf, got {items!r}; return the items")
    for k, leaf in enumerate(leaves):
        if not (is_array(leaf) or is_non_tensor(leaf) or is_object_array(leaf)):
            raise TypeError(
                f"{transform.who}: leaf {nest.show(structure.paths[k])!r}: expected an array of the backend, got "
                f"{type(leaf).__module__}.{type(leaf).__name__}; compute it by the backend's own functions"
            )
        if is_array(leaf) and tuple(leaf.shape[:1]) != lead[:1]:
            raise ValueError(
                f"{transform.who}: leaf {nest.show(structure.paths[k])!r}: expected a first axis of {lead[0]}, one "
                f"entry for each item of the batch, got shape {tuple(leaf.shape)}"
            )
    if after is not None:
        _check_kinds(transform, after, leaves, lead)
    return leaves, structure


def _check_kinds(transform: MapItems, after: Outline, leaves: Sequence[BackendArray], lead: Lead) -> None:
    for leaf, spec, name in zip(leaves, after.leaves, after.names, strict=True):
        if spec.dtype == "object":
            continue
        shape, dtype = (*lead, *spec.shape), shown(leaf.dtype)
        if tuple(leaf.shape) != shape or dtype != spec.dtype:
            raise (ValueError if dtype == spec.dtype else TypeError)(
                f"{transform.who}: leaf {name!r}: expected {spec.dtype} {shape} as `gives` says, got {dtype} "
                f"{tuple(leaf.shape)}; correct the function, or give gives=rb.map_spec(function, item)"
            )


class Seen(NamedTuple):
    """What a function gave of the first batch of a size."""

    structure: Structure
    kinds: list[Kind]


_SEEN: dict[tuple[BufferSpec, Lead], Seen] = {}
_MOST_SEEN = 256


def check_like_before(spec: BufferSpec, items: Nest, lead: Lead, is_array: Callable[[object], bool]) -> None:
    """Refuse what a function gives at="sample" if it is not as before, of a batch of this size: shapes are static."""
    transform = of(spec, "sample")
    seen = _SEEN.get((spec, lead))
    if seen is None:
        leaves, structure = flattened(transform, items, lead, is_array)
        # A program that makes a spec anew at each step must not fill the memory.
        if len(_SEEN) >= _MOST_SEEN:
            _SEEN.clear()
        _SEEN[spec, lead] = Seen(structure, _kinds(leaves))
        return
    try:
        leaves = nest.flatten_as(seen.structure, items)
    except ValueError as error:
        raise ValueError(f"{transform.who}: {error}; it gave these for a batch before") from None
    kinds = _kinds(leaves)
    # The usual case is one comparison; what differs is looked at closely, for the error.
    if kinds == seen.kinds:
        return
    flattened(transform, items, lead, is_array)
    for k, leaf in enumerate(leaves):
        if kinds[k] != seen.kinds[k]:
            shape, dtype = seen.kinds[k]
            raise (ValueError if dtype == leaf.dtype else TypeError)(
                f"{transform.who}: leaf {nest.show(seen.structure.paths[k])!r}: expected {shown(dtype)} {tuple(shape)} "
                f"as for a batch before, got {shown(leaf.dtype)} {tuple(leaf.shape)}; shapes and dtypes must not "
                f"depend on values"
            )


def _kinds(leaves: Sequence[object]) -> list[Kind]:
    return [(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]


# ---------------------------------------------------------------- around the core


def stored(
    backend: Mapper,
    spec: BufferSpec,
    leaves: list[BackendArray],
    batch: int,
    key: PRNGKey,
    mask: BackendArray | None,
) -> list[BackendArray]:
    """The leaves [B, *shape] that are stored of leaves that are added."""
    transform = spec.on_add
    if transform is None:
        return leaves
    if transform.draws and key is None:
        raise ValueError(f"add: {transform.who} takes a key; give add(..., key=key), a new key at every call")
    key = key if transform.draws else None
    mapped: list[BackendArray] = backend.map_items(spec, "add", leaves, (batch,), key, mask)
    return mapped


def given_out(
    backend: Mapper,
    spec: BufferSpec,
    leaves: Sequence[BackendArray],
    lead: Lead,
    key: PRNGKey,
    mask: BackendArray | None,
) -> Nest:
    """The items of a sample, of leaves [*lead, *shape] that were read."""
    transform = spec.on_sample
    if transform is None:
        return nest.unflatten(spec.plan.structure, leaves, backend.build_mapping, lead)
    return backend.map_items(spec, "sample", leaves, lead, key if transform.draws else None, mask)


def taken_apart(spec: BufferSpec, items: Nest) -> tuple[list[BackendArray], Structure]:
    """The leaves of a sample's items, and their structure."""
    outline = spec.plan.outline if spec.on_sample is None else spec.on_sample.after
    if outline is not None:
        return nest.flatten_as(outline.structure, items), outline.structure
    return nest.flatten(items, is_leaf)


def is_leaf(x: object) -> bool:
    return is_non_tensor(x) or (hasattr(x, "dtype") and not hasattr(x, "keys"))


# ---------------------------------------------------------------- abstract evaluation


def batch_spec(backend: Mapper, transform: MapItems, lead: Lead) -> Nest:
    """The spec of what a function that is bound gives of a batch, the leading axes included."""
    spec = spec_of(backend.evaluated(transform, transform.given, lead))
    for path, leaf in leaves_of(spec).items():
        if leaf.leading[:1] != lead[:1]:
            raise ValueError(
                f"{transform.who}: leaf {nest.show(path)!r}: expected a first axis of {lead[0]}, one entry for each "
                f"item of the batch, got shape {leaf.leading}"
            )
    return spec


def item_spec(backend: Mapper, transform: MapItems) -> Nest:
    """The spec of one item of those that a function that is bound gives."""
    return with_lead(batch_spec(backend, transform, (2,)), lambda shape: shape[1:])


def check_gives(backend: Mapper, spec: BufferSpec) -> None:
    """Refuse a function at="add" whose abstract evaluation is not as its `gives` says."""
    transform = spec.on_add
    if transform is None or isinstance(transform.function, ItemFunction):
        return
    evaluated = Outline.of(item_spec(backend, transform), transform.who)
    try:
        leaves = nest.flatten_as(spec.plan.structure, nest.unflatten(evaluated.structure, evaluated.leaves))
    except ValueError as error:
        raise ValueError(f"{transform.who}: gives: {error}; rb.map_spec(function, item) finds it") from None
    for leaf, declared, name in zip(leaves, spec.plan.leaves, spec.plan.names, strict=True):
        if (leaf.shape, leaf.dtype) != (declared.shape, declared.dtype):
            raise (ValueError if leaf.dtype == declared.dtype else TypeError)(
                f"{transform.who}: gives: leaf {name!r}: expected {declared.dtype} {declared.shape}, and the function "
                f"gives {leaf.dtype} {leaf.shape}; rb.map_spec(function, item) finds it"
            )
