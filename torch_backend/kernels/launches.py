"""Launches on GPUs for torch's tensors there, as XLA has them; see `functional_rb.native.launches`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from functional_rb import _native
from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer import functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays, Draft
from functional_rb.hash_maps import functions as maps
from functional_rb.mixture import functions as mixtures
from functional_rb.native import gpu, launches
from functional_rb.native.kernels import DECLARED, Declaration, Kernel, Made, rebuilt
from functional_rb.ops.part_kernels import Table
from functional_rb.structures import hash_map, row_layout
from functional_rb.transforms.her import find_goals
from torch_backend.arrays import ops
from torch_backend.memory.gpus import Gpus
from torch_backend.memory.library import TORCH


def launched(kernel: Kernel) -> Any:
    """What a kernel makes on the GPU that its operands lie on."""
    assert kernel.on_gpu is not None
    device = next(x.device for x in kernel.operands if isinstance(x, torch.Tensor))
    new = {
        id(x): torch.empty(x.shape, dtype=ops.DTYPES[x.dtype], device=device)
        for x in kernel.in_order
        if isinstance(x, Made)
    }
    outputs = [None if isinstance(x, str) else new.get(id(x), x) for x in kernel.in_order]
    launch(kernel.on_gpu.name, kernel.vectors, [_in_a_row(x) for x in kernel.operands], outputs)
    return rebuilt(kernel.results, lambda x: new.get(id(x), x))


def _in_a_row(x: torch.Tensor | None) -> torch.Tensor | None:
    """What launches read in place of a tensor: what is changed lies so already, and stays where it is."""
    if x is None or (type(x) is torch.Tensor and x.is_contiguous() and not (x.is_conj() or x.is_neg())):
        return x
    return x.detach().resolve_conj().resolve_neg().contiguous().as_subclass(torch.Tensor)


def launch(
    name: str,
    records: Sequence[NumpyArray],
    operands: Sequence[torch.Tensor | None],
    results: Sequence[torch.Tensor | None],
) -> None:
    device = next(x.device for x in operands if x is not None)
    scratch = torch.empty(_native.gpu_scratch(name, tuple(records)), dtype=torch.int32, device=device)
    where, stream = gpus().where(device)
    TORCH.chain.call(_native.GPU_HANDLERS[name], records, operands, [*results, scratch], where, stream)


def gpus() -> Gpus:
    assert TORCH.gpus is not None
    return TORCH.gpus


def reading(read: Callable[[Arrays, BufferSpec, torch.Tensor], Any]) -> Callable[..., Any]:
    """What stands in for `functions.read_drawn`: what reads from the slots alone, or the core where that gives None."""

    def read_drawn(
        draft: Draft,
        spec: BufferSpec,
        slots: torch.Tensor,
        handles: torch.Tensor,
        draws: torch.Tensor | None,
        known: Mapping[int, torch.Tensor] | None = None,
    ) -> Any:
        leaves = read(draft.as_begun, spec, slots)
        return (
            functions.read_drawn.core(ops.OPS, draft, spec, slots, handles, draws, known) if leaves is None else leaves
        )

    return read_drawn


def _read(arrays: Arrays, spec: BufferSpec, slots: torch.Tensor) -> Any:
    kernel = launches.read(arrays, spec, slots)
    return None if kernel is None or not gpu.fits(kernel) else launched(kernel)


def _by_launch(function: Any, declaration: Declaration) -> Callable[..., object]:
    def work(*args: object, **named: object) -> object:
        kernel = declaration(*args, **named)
        return function.core(ops, *args, **named) if kernel is None else launched(kernel)

    return work


# What stands in for functions of the core on a GPU, where nobody traces.
TABLE: Final[Table] = {
    functions.read_drawn: reading(_read),
    row_layout.read: _by_launch(row_layout.read, launches.read_rows),
    **{function: _by_launch(function, DECLARED[function]) for function in (hash_map.lookup, hash_map.insert)},
    maps.rows_of_keys: _by_launch(maps.rows_of_keys, launches.pack_keys),
    maps.insert: _by_launch(maps.insert, launches.insert_keys),
    maps.find: _by_launch(maps.find, launches.find_keys),
    mixtures.apart: _by_launch(mixtures.apart, launches.apart),
    find_goals: _by_launch(find_goals, launches.find_goals),
}
