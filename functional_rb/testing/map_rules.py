"""What a function of items must do, as the transform `map_items`."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.item_function import ItemFunction, Leaves, Specs, check_leaves
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import ItemOps
from functional_rb.specs.regrouped import leaves_of
from functional_rb.specs.values import Outline
from functional_rb.testing import carriers, strategies
from functional_rb.testing.faults import differing, expect, kind_of, near, no_error, shown
from functional_rb.transforms.map_items import MapItems

# How many items are added, and sampled, at a time.
SIZES = (6, 1, 3)
# The leading axes of what item functions are tried with: single items, and slices.
LEADS = ((6,), (1,), (2, 3), (1, 1))


def check_map(who: str, transform: MapItems, spec: BufferSpec, names: Sequence[str]) -> None:
    """Try a function of items on arrays of each library, and in a buffer of each backend."""
    libraries = sorted({name.split("-")[0] for name in names} - {"numpy"})
    if isinstance(transform.function, ItemFunction):
        _check_alike(who, transform.function, spec, libraries)
    for library in libraries:
        for size in SIZES:
            _check_in_buffer(who, transform, spec, importlib.import_module(f"{library}_backend"), size)


def _check_alike(who: str, function: ItemFunction, spec: BufferSpec, libraries: Sequence[str]) -> None:
    # The same draws give the same numbers on every library, and no array that was passed changes.
    item = leaves_of(spec.item)
    for lead in LEADS:
        batch = leaves_of_batch(spec, math.prod(lead))
        leaves = {path: leaf.reshape(*lead, *leaf.shape[1:]) for path, leaf in batch.items()}
        for leaf in leaves.values():
            leaf.setflags(write=False)
        draws = np.random.default_rng(0).integers(0, 2**31, (math.prod(lead), function.words), np.int32)
        results = {}
        for name in ("numpy", *libraries):
            ops: Any = numpy_ops if name == "numpy" else importlib.import_module(f"{name}_backend.arrays.ops")
            rb: Any = None if name == "numpy" else importlib.import_module(f"{name}_backend")
            arrays, bits = dict(leaves), draws if function.words else None
            if rb is not None:
                arrays = {path: rb.from_dlpack(numpy_ops.copy(leaf)) for path, leaf in leaves.items()}
                bits = None if bits is None else rb.from_dlpack(numpy_ops.copy(bits))
            with no_error(who, f"`apply` on {name}"):
                after = applied(function, ops, item, arrays, lead, bits, None)
            results[name] = {nest.show(path): carriers.as_numpy(leaf) for path, leaf in after.items()}
            for path, leaf in results[name].items():
                one = results["numpy"][path]
                expect(
                    one.shape == leaf.shape and one.dtype == leaf.dtype and near(one, leaf, False),
                    who,
                    f"leaf {path!r} on {name}: expected what NumPy gives, {shown(one)}, got {shown(leaf)}; "
                    "compute by `ops` alone",
                )


def applied(
    function: ItemFunction,
    ops: ItemOps,
    before: Specs,
    leaves: Leaves,
    lead: tuple[int, ...],
    draws: Array | None,
    mask: Array | None,
) -> Leaves:
    """What a function gives of leaves of these specs, after a check that it gives what it says."""
    expected = function.spec(dict(before), len(lead))
    after = function.apply(ops, dict(leaves), lead, draws, mask)
    check_leaves(str(function), expected, after, lead)
    return {path: after[path] for path in expected}


def _check_in_buffer(who: str, transform: MapItems, spec: BufferSpec, rb: ModuleType, size: int) -> None:
    count = size * (spec.lanes or 1)
    batch = leaves_of_batch(spec, count)
    lead = (count,) if spec.lanes is None else (size, spec.lanes)
    shaped = [batch[path].reshape(*lead, *batch[path].shape[1:]) for path in spec.added.structure.paths]
    items = nest.unflatten(spec.added.structure, shaped, lambda _, parts, __: parts)
    with no_error(who, f"`add` and `sample` of a batch of {size} on {rb.__name__}"):
        state = rb.add(rb.init(spec), items, key=rb.key(1))
        stored = rb.items(state)
        samples = [rb.sample(state, rb.key(2), size)[1] for _ in range(2)]
        outline = Outline.of(rb.sample_spec(spec, size), who)
    for name, one, other in differing(_in_numpy(stored), _in_numpy(rb.items(state)), "items"):
        expect(
            False,
            who,
            f"what is stored, {name}, after a sample: expected {shown(one)}, got {shown(other)}; write to no array",
        )
    first, again = ([carriers.as_numpy(x) for x in nest.flatten_as(outline.structure, s.items)] for s in samples)
    for name, kind, leaf, other in zip(outline.names, outline.leaves, first, again, strict=True):
        same = f"{kind.dtype} {list(kind.shape)}"
        expect(
            kind_of(leaf) == same,
            who,
            f"leaf {name!r} of a sample: expected {same}, got {kind_of(leaf)}; see `rb.sample_spec`",
        )
        expect(
            near(leaf, other, True),
            who,
            f"leaf {name!r} of a second sample by the same key: expected {shown(leaf)}, got {shown(other)}; let "
            "all that is random follow from the key: write map_items(fn, keyed=True)",
        )


def leaves_of_batch(spec: BufferSpec, size: int) -> dict[nest.Path, NumpyArray]:
    """Some items of a spec, numbered, by path."""
    items = strategies.numbered(spec.item, strategies.some_items(spec.item, size, 3), 0)
    return dict(zip(spec.added.structure.paths, nest.flatten_as(spec.added.structure, items), strict=True))


def _in_numpy(items: Nest) -> Nest:
    return carriers.mapped(carriers.as_numpy, items)
