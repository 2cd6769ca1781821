"""What earlier versions wrote: the leaves of an item in the order in which its names were given.

Now they lie in the order of their names, so that states of equal specs have equal arrays. Text of specs tells which: of
version 1 those, see `convert.json`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb.specs import Composite, Spec, Stacked, Varying
from functional_rb.structures import frame_ring
from functional_rb.structures.row_layout import Layout

if TYPE_CHECKING:
    from functional_rb.buffer.spec import BufferSpec
    from functional_rb.core.draft import Arrays


def laid_out(spec: BufferSpec, text: str | bytes) -> BufferSpec:
    """The spec by which what is stored beside a text lies: the one given, or its form of earlier versions.

    That has dicts in place of NamedTuples and dataclasses, whose fields may have had another order then.

    Args:
        spec: what `from_json` has made of the text, or an equal one.
        text: the JSON.
    """
    told = json.loads(text)
    if told["version"] > 1:
        return spec
    item = _in_order_of(spec.item, told["spec"]["item"])
    return _in_given_order(spec, dataclasses.replace(spec, item=item))


def unpickled(arrays: Arrays, spec: BufferSpec) -> Arrays:
    """The arrays of a state that an earlier version has pickled, of whatever library, as they are laid out now."""
    old = _in_given_order(spec, spec)
    return arranged(arrays, old, spec)


def _in_given_order(spec: BufferSpec, told: BufferSpec) -> BufferSpec:
    """The form of a spec that has the leaves in the order in which another was told; itself, if that is the same."""
    given = told.as_given()
    return spec if given.plan.structure.paths == spec.plan.structure.paths else given


def arranged(arrays: Arrays, old: BufferSpec, spec: BufferSpec) -> Arrays:
    """The arrays of a state as they are laid out now.

    Args:
        arrays: of any library, on the host.
        old: by which they lie, from `laid_out`.
        spec: by which they shall; the same one leaves all where it is, in files too.
    """
    if old is spec:
        return arrays
    auxiliary = dict(arrays.auxiliary)
    for before, now in zip(old.transforms, spec.transforms, strict=True):
        for name, layout in before.carried().items():
            auxiliary[name] = _rows(auxiliary[name], layout, now.carried()[name])
    if old.plan.frames is not None and spec.plan.frames is not None:
        wides = [auxiliary[frame_ring.WIDE.format(k)] for k in range(len(old.plan.frames.layout.wide))]
        auxiliary[frame_ring.ROWS] = _rows(auxiliary[frame_ring.ROWS], old.plan.frames.layout, spec.plan.frames.layout)
        ordered = _wide(wides, old.plan.frames.layout, spec.plan.frames.layout)
        auxiliary |= {frame_ring.WIDE.format(k): array for k, array in enumerate(ordered)}
    rows, wide = (
        _rows(arrays.rows, old.plan.layout, spec.plan.layout),
        _wide(arrays.wide, old.plan.layout, spec.plan.layout),
    )
    return arrays._replace(rows=rows, wide=wide, auxiliary=auxiliary)


def _rows(rows: Any, old: Layout, new: Layout) -> Any:
    """Rows int32 [n, words] in another layout of the same leaves."""
    if not old.row_words:
        return rows
    content = np.ascontiguousarray(rows.cpu() if hasattr(rows, "cpu") else rows).view(np.uint8)
    moved = np.zeros_like(content)
    before = {leaf.path: leaf.offset for leaf in old.leaves}
    for leaf in new.leaves:
        source, target = before[leaf.path], leaf.offset
        if source is not None and target is not None:
            moved[:, target : target + leaf.nbytes] = content[:, source : source + leaf.nbytes]
    whole = moved.view(np.int32)
    if isinstance(rows, np.ndarray):
        return whole
    return rows.__array_namespace__().asarray(whole) if hasattr(rows, "__array_namespace__") else rows.new_tensor(whole)


def _wide(wide: Sequence[Any], old: Layout, new: Layout) -> tuple[Any, ...]:
    before = {leaf.path: array for leaf, array in zip(old.wide, wide, strict=True)}
    return tuple(before[leaf.path] for leaf in new.wide)


def _in_order_of(item: Any, told: Any) -> Any:
    """A nest of specs with its names in the order that the JSON of an equal nest has them, in dicts."""
    if isinstance(item, Composite):
        return item.with_parts({name: _in_order_of(item[name], part) for name, part in told["parts"].items()})
    if isinstance(item, Spec):
        names = item.nests if isinstance(item, Varying) else ("members",) if isinstance(item, Stacked) else ()
        made: Any = {name: _in_order_of(getattr(item, name), told[name]) for name in names}
        return dataclasses.replace(item, **made) if names else item  # type: ignore[type-var]  # each is a dataclass
    parts = told if isinstance(told, list) else told["parts"]
    if isinstance(parts, dict):
        return {name: _in_order_of(getattr(item, name), part) for name, part in parts.items()}
    return type(item)(_in_order_of(part, other) for part, other in zip(item, parts, strict=True))
