"""Encoding of what environments have in another form than buffers: texts, one-hot vectors, sequences, graphs.

An item says how they are stored. Arrays that are stored as they come are left alone here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from functional_rb.base import dtypes, nest
from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.dtypes import shown
from functional_rb.base.steps import FLAGS, NEXT, REWARD
from functional_rb.buffer.spec import BufferSpec
from functional_rb.specs import Composite, MultiOneHot, OneHot, Sequence, Text, Varying, freeze
from functional_rb.specs.base import SpecNest
from functional_rb.specs.values import Outline
from functional_rb.ted.check import named_parts


def encoding_item(item: object) -> Composite | None:
    """The item, if some of its leaves have another form in environments; else None."""
    spec = freeze(item_of(item))
    return spec if isinstance(spec, Composite) and is_encoding(spec) else None


def item_of(item: object) -> object:
    return item.item if isinstance(item, BufferSpec) else item


def is_encoding(spec: SpecNest) -> bool:
    return any(_is_encoded(member.spec) for member in _outline(spec).members)


def encoded(spec: SpecNest, value: object, batch: tuple[int, ...], prefix: str, who: str) -> Nest:
    """A value of an environment with its encoded units as a nest of NumPy arrays, leaves [*batch, *shape].

    A vector environment's axis of environments is the batch. In errors `prefix` stands before the names of leaves.
    """
    outline = _outline(spec)
    units = []
    for member, unit in zip(outline.members, nest.flatten_as(outline.shape_of_units, value), strict=True):
        if not _is_encoded(member.spec):
            units.append(unit)
            continue
        try:
            units.append(member.spec.from_host(unit, batch))
        except (TypeError, ValueError) as error:
            name = "/".join(filter(None, (prefix, member.name if outline.shape_of_units.keys else "")))
            raise type(error)(f"{who}: leaf {name!r}: {error}") from None
    return nest.unflatten(outline.shape_of_units, units)


def encoded_observation(
    item: Composite, observation: object, key: str | None, batch: tuple[int, ...], who: str
) -> dict[str, Nest]:
    specs, alone = observation_parts(item, observation, key, who)
    whole = observation if alone is None else {alone: observation}
    arrays: dict[str, Nest] = encoded(Composite(specs), whole, batch, "", who)
    return arrays


def observation_parts(
    item: Mapping[str, SpecNest], observation: object, key: str | None, who: str
) -> tuple[dict[str, object], str | None]:
    """The specs that an item has for an observation, by name; and the name of the observation, if it is one of them."""
    following = named_parts(item[NEXT], who)
    specs = {name: spec for name, spec in following.items() if name != REWARD and name not in FLAGS}
    if key is not None or len(specs) != 1:
        return specs, key
    # A single part, which may come by its name, or alone.
    (name, spec), *_ = specs.items()
    if not isinstance(observation, Mapping):
        return specs, name
    # A dict may hold the parts of a composite, or a stack of composites.
    inner = spec.element if isinstance(spec, Sequence) and spec.stack else spec
    by_name = not isinstance(inner, Composite) or set(observation) == {name} != set(inner)
    return specs, None if by_name else name


def cast(leaf: NumpyArray, dtype: str, name: str, who: str) -> NumpyArray:
    """An array of NumPy in another dtype: floats are rounded, integers must fit."""
    kinds = {"bool": 0, "int": 1, "float": 2, "complex": 3}
    if kinds[dtypes.kind_of(shown(leaf.dtype))] > kinds[dtypes.kind_of(dtype)]:
        raise TypeError(
            f"{who}: leaf {name!r}: expected dtype {dtype} or what it can hold, got {shown(leaf.dtype)}; "
            f"change the item, or convert it yourself"
        )
    with np.errstate(over="ignore"):  # an error below says so
        converted = leaf.astype(dtype)
    lost = converted != leaf if dtypes.kind_of(dtype) == "int" else np.isinf(converted) & np.isfinite(leaf)
    if lost.any():
        raise ValueError(
            f"{who}: leaf {name!r}: {leaf[lost].flat[0]} does not fit into {dtype}; "
            f"change the item, or convert it yourself"
        )
    return converted


def _is_encoded(unit: object) -> bool:
    return isinstance(unit, Varying | Text | OneHot | MultiOneHot)


@functools.lru_cache(maxsize=64)
def _outline(spec: SpecNest) -> Outline:
    return Outline.of(spec, "ted")
