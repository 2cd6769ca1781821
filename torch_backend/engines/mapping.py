"""Functions of items on torch: called at once, or traced by torch.compile with what is around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray
from functional_rb.base.tracing import constant
from functional_rb.buffer import mapping
from functional_rb.buffer.mapping import Lead
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.item_function import HostFunction, ItemFunction
from functional_rb.native.switch import switch
from functional_rb.ops import part_kernels
from functional_rb.specs.values import Outline
from functional_rb.transforms.map_items import MapItems
from torch_backend.arrays import ops, random
from torch_backend.arrays.convert import build_mapping, convert, is_batched
from torch_backend.memory import library

_compiling = torch.compiler.is_compiling


def _is_array(x: object) -> bool:
    return isinstance(x, torch.Tensor)


def map_items(
    spec: BufferSpec,
    at: str,
    leaves: Sequence[BackendArray],
    lead: Lead,
    key: torch.Tensor | None,
    mask: torch.Tensor | None,
) -> Any:
    """What the function of items of a spec gives of leaves [*lead, *shape]; of added ones, the leaves to store."""
    transform = mapping.of(spec, at)
    if transform.on_host:
        return _on_host(transform, leaves, lead)
    # Unrelated to all else that is drawn by the key: the sampler's draws, and what is split from it.
    key = None if key is None else random.for_maps(key)
    draws = None
    if transform.item_words:
        assert key is not None
        device = next((leaf.device for leaf in leaves if _is_array(leaf)), ops.CPU)
        draws = library.numbers(key, (math.prod(lead), transform.item_words), device)
    with part_kernels.using(library.TORCH.kernels.TABLE if _by_kernels(transform, leaves) else part_kernels.NONE):
        items = mapping.carried_out(ops.OPS, transform, leaves, lead, draws, key, mask, build_mapping)
    if at == "add":
        stored, _ = mapping.flattened(transform, items, lead, _is_array)
        return [_stored(x, leaf, name) for x, leaf, name in zip(stored, spec.plan.leaves, spec.plan.names, strict=True)]
    if transform.after is not None:
        if transform.gives is not None and not _compiling():
            mapping.flattened(transform, items, lead, _is_array)
    elif not _compiling():
        mapping.check_like_before(spec, items, lead, _is_array)
    return items


# What a function on the host gives, on the device of what it is given.
def _on_host(transform: MapItems, leaves: Sequence[BackendArray], lead: Lead) -> object:
    names = transform.given.names
    if isinstance(leaves[0], np.ndarray):  # from a kernel, which knows who reads them
        return transform.function.read(dict(zip(names, leaves, strict=True)), torch.from_numpy)
    if _compiling():
        results = _read(_number(transform), list(lead), list(leaves))
        return nest.unflatten(mapping.known_of_host(transform).structure, results, build_mapping, lead)
    device = leaves[0].device
    arrays = dict(zip(names, [x.cpu().numpy() for x in leaves], strict=True))
    as_array = torch.from_numpy if device.type == "cpu" else lambda x: torch.from_numpy(x).to(device)
    return transform.function.read(arrays, as_array)


# Those that compiled programs call, by number: what is traced may carry a number as a constant, but no object.
_TRANSFORMS: list[MapItems] = []


@constant
def _number(transform: MapItems) -> int:
    """The number of a function on the host, which gives what is known before.

    Raises:
        ValueError: if its shapes depend on values.
    """
    mapping.known_of_host(transform)
    if transform not in _TRANSFORMS:
        _TRANSFORMS.append(transform)
    return _TRANSFORMS.index(transform)


# What a function on the host gives of leaves [*lead, *shape]: torch.compile sees one operation.
@torch.library.custom_op("functional_rb::read_on_host", mutates_args=())
def _read(number: int, lead: list[int], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    results, _ = mapping.on_host(_TRANSFORMS[number], [x.detach().cpu().numpy() for x in leaves], tuple(lead))
    return [torch.from_numpy(x).to(leaves[0].device) for x in results]


@_read.register_fake
def _as_read(number: int, lead: list[int], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    kinds = mapping.known_of_host(_TRANSFORMS[number]).leaves
    return [leaves[0].new_empty((*lead, *kind.shape), dtype=ops.DTYPES[kind.dtype]) for kind in kinds]


# Whether kernels may stand in for parts of a function: of the library's own, on the CPU, and not while tracing.
def _by_kernels(transform: MapItems, leaves: Sequence[BackendArray]) -> bool:
    if not isinstance(transform.function, ItemFunction) or not library.HAVE_KERNELS or not switch.on or _compiling():
        return False
    tensors = [leaf for leaf in leaves if _is_array(leaf)]
    return all(x.device.type == "cpu" and not x.requires_grad and not is_batched(x) for x in tensors)


def _stored(leaf: torch.Tensor | None, expected: Any, name: str) -> object:
    return leaf if expected.dtype == "object" else convert(leaf, expected, name)


def evaluated(transform: MapItems, outline: Outline, lead: Lead) -> object:
    """What a function of items gives of leaves [*lead, *shape]: fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if isinstance(transform.function, HostFunction):
        after = mapping.known_of_host(transform)
        kinds = [((*lead, *leaf.shape), ops.DTYPES[leaf.dtype]) for leaf in after.leaves]
        empty = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in kinds]
        return nest.unflatten(after.structure, empty, build_mapping, lead)
    with FakeTensorMode(allow_non_fake_inputs=True):
        leaves = [
            np.full((*lead, *leaf.shape), None)
            if leaf.dtype == "object"
            else torch.empty((*lead, *leaf.shape), dtype=ops.DTYPES[leaf.dtype])
            for leaf in outline.leaves
        ]
        words = transform.item_words
        draws = torch.empty((math.prod(lead), words), dtype=torch.int32) if words else None
        key = torch.empty((), dtype=torch.int64) if transform.keyed else None
        items = mapping.carried_out(ops.OPS, transform, leaves, lead, draws, key, None, build_mapping)
    mapping.flattened(transform, items, lead, _is_array, as_declared=False)
    return items
