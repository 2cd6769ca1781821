"""The array primitives of `functional_rb.ops.protocol.Ops` on torch.

`set_at` and its like write in place: the caller of the core makes sure that nobody else uses the memory (see `memory`).
"""

from __future__ import annotations

import functools
import math
import sys
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

from functional_rb.base.arrays import DeviceLike, NumpyArray
from functional_rb.base.dtypes import ITEMSIZE, kind_of
from functional_rb.ops.fixed_point import MASK, TABLES
from functional_rb.ops.protocol import BackendOps, BackendOpsOf, Carry, T
from torch_backend.arrays import pages
from torch_backend.arrays.in_parts import by_places as by_places
from torch_backend.arrays.in_parts import in_turn as in_turn

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEMSIZE}
# Torch can hold these but hardly compute with them; moving them about works under another name.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
CPU = torch.device("cpu")
_compiling = torch.compiler.is_compiling
_transforms, _level = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.maybe_get_level
# For what kernels write: whatever `torch.set_default_device` says, they reach the CPU's memory only.
empty = functools.partial(torch.empty, device=CPU)
CONSTANTS = {CPU: {name: torch.from_numpy(table) for name, table in TABLES.items()}}


def zeros(shape: Sequence[int], dtype: str, device: DeviceLike = None) -> torch.Tensor:
    room = pages.large(shape, DTYPES[dtype], device)
    return torch.zeros(tuple(shape), dtype=DTYPES[dtype], device=device) if room is None else room.zero_()


def full_like(x: torch.Tensor, value: int | float) -> torch.Tensor:
    return torch.full_like(x, value)


def arange(n: int, like: torch.Tensor) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int32, device=like.device)


def constant(name: str, like: torch.Tensor) -> torch.Tensor:
    if like.device not in CONSTANTS:
        CONSTANTS[like.device] = {k: v.to(like.device) for k, v in CONSTANTS[torch.device("cpu")].items()}
    return CONSTANTS[like.device][name]


def floats(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)


def integers(values: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=like.device)


def cast(x: torch.Tensor, dtype: str) -> torch.Tensor:
    return x.to(DTYPES[dtype])


def bitcast(x: torch.Tensor, dtype: str) -> torch.Tensor:
    target = DTYPES[dtype]
    if target.itemsize == x.dtype.itemsize:
        return x.contiguous().view(target)
    shape = (*x.shape[:-1], x.shape[-1] * x.dtype.itemsize // target.itemsize)
    if x.numel() == 0:  # nothing to read, and strides that torch may find unfit
        return x.new_empty(shape, dtype=target)
    if target.itemsize > x.dtype.itemsize:
        x = x.clone(memory_format=torch.contiguous_format)  # a slice of a row need not be aligned for it
    # As one vector: the stride of a last axis of one element may be any, for CUDA's inductor too.
    return x.contiguous().view(-1).view(target).view(shape)


def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    # `x[index]` takes torch twice as long.
    if x.dtype in SIGNED:
        return take(x.view(SIGNED[x.dtype]), index).view(x.dtype)
    return x.index_select(0, index) if index.dim() == 1 else x[index]


def set_at(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if _is_shared(x, index, values):
        return x.index_put((index,), values)
    if x.dtype in SIGNED:
        x.view(SIGNED[x.dtype])[index] = values.view(SIGNED[x.dtype])
    else:
        x[index] = values
    return x


def take_each(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return take(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), _places(x, index))


def set_each(x: torch.Tensor, index: torch.Tensor, live: torch.Tensor | None, values: torch.Tensor) -> torch.Tensor:
    if live is not None:
        values = where(live.reshape(-1, *(1,) * (values.dim() - 1)), values, take_each(x, index))
    set_at(x.view(x.shape[0] * x.shape[1], *x.shape[2:]), _places(x, index), values)
    return x


def _places(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    first = arange(x.shape[0], like=index) * x.shape[1]
    return index + first.view(-1, *(1,) * (index.dim() - 1))


def set_flat(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    set_at(x.view(-1), index, values)
    return x


def min_at(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    index = index.to(torch.int64)  # by which alone torch scatters
    return (x.scatter_reduce if _is_shared(x, index, values) else x.scatter_reduce_)(0, index, values, "amin")


def add_at(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return (x.index_add if _is_shared(x, index, values) else x.index_add_)(0, index, values)


# Whether torch.vmap has one array for all its rows, to which each would write values of its own: it refuses that in
# place, so that they get an array each.
def _is_shared(x: torch.Tensor, *given: torch.Tensor) -> bool:
    if _compiling() or _transforms() is None:
        return False
    return _level(x) < max(map(_level, given))


def where(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.dtype in SIGNED:
        signed = SIGNED[x.dtype]
        return torch.where(condition, x.view(signed), y.view(signed)).view(x.dtype)
    return torch.where(condition, x, y)


def minimum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.minimum(x, y)


def maximum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.maximum(x, y)


def divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x / y


def settled(x: torch.Tensor) -> torch.Tensor:
    return x


def cumsum(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, -1, dtype=torch.int32)


def cummax(x: torch.Tensor) -> torch.Tensor:
    return torch.cummax(x, -1).values


def count(mask: torch.Tensor) -> torch.Tensor:
    return mask.sum(dtype=torch.int32)


def argsort(x: torch.Tensor) -> torch.Tensor:
    return torch.sort(x, stable=True).indices.to(torch.int32)


def searchsorted(ascending: torch.Tensor, values: torch.Tensor, side: Literal["left", "right"]) -> torch.Tensor:
    if not _compiling() and _transforms() is not None:
        # Torch warns of values that are the same for all rows of torch.vmap, or are laid out of turn.
        values = torch.cat((values + ascending.new_zeros((), dtype=values.dtype),))
    return torch.searchsorted(ascending, values, out_int32=True, right=side == "right")


def concat(arrays: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    return torch.cat(list(arrays), axis)


def stack(scalars: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(scalars))


def all_rows(x: torch.Tensor) -> torch.Tensor:
    # The least byte, which torch finds twice as fast.
    return x.view(torch.uint8).amin(1).view(torch.bool) if x.shape[1] else x.all(1)


def moveaxis(x: torch.Tensor, source: int, destination: int) -> torch.Tensor:
    return x.movedim(source, destination)


def mul_wide(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = a.to(torch.int64) * b
    return (product >> 31).to(torch.int32), (product & MASK).to(torch.int32)


def call(function: Callable[..., object], *arrays: object) -> Any:
    return function(*arrays)


def while_loop(condition: Callable[..., torch.Tensor], body: Callable[..., Carry], carry: Carry) -> Carry:
    # The device is asked at each turn whether to go on.
    while bool(condition(*carry)):
        carry = body(*carry)
    return carry


def repeat(n: int, body: Callable[..., T], carry: T) -> T:
    for i in range(n):
        carry = body(i, carry)
    return carry


def argmax_by(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return torch.where(x == x.amax(-1, keepdim=True), order, -1).argmax(-1).to(torch.int32)


def largest(x: torch.Tensor) -> torch.Tensor:
    return x.amax(-1)


def total(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1, dtype=torch.int32 if x.dtype is torch.bool else x.dtype)


def exp(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)


def table(values: NumpyArray, dtype: str, like: torch.Tensor) -> Any:
    # Copied, as torch does not want what may not be written. A single one costs nothing as a number.
    if values.ndim == 0 and dtype != "bool" and DTYPES[dtype] not in SIGNED:
        return int(values) if kind_of(dtype) == "int" else values.item()
    return torch.as_tensor(np.array(values), dtype=DTYPES[dtype], device=like.device)


def argmax(x: torch.Tensor) -> torch.Tensor:
    # Torch's own argmax does not promise the first of equal ones; of NaN this gives the last.
    before = (x == x.amax(-1, keepdim=True)).to(torch.int32).cumsum(-1).eq(0).sum(-1, dtype=torch.int32)
    return before.clamp_max(x.shape[-1] - 1)


def take_along(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.gather(-1, index.to(torch.int64))


def log(x: torch.Tensor) -> torch.Tensor:
    return torch.log(x)


def cos(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(x)


def clamp(x: torch.Tensor, low: torch.Tensor | float, high: torch.Tensor | float) -> torch.Tensor:
    if isinstance(low, torch.Tensor) and isinstance(high, torch.Tensor):
        return x.clamp(low, high)
    if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor):
        return x.clamp_min(low).clamp_max(high)
    return x.clamp(low, high)


def without_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(x, 0.0, math.inf, -math.inf)


def scale(high: torch.Tensor, low: torch.Tensor, n: int | torch.Tensor) -> torch.Tensor:
    # Products of numbers of 31 bits, and a carry, fit into an int64.
    wide = n.to(torch.int64) if isinstance(n, torch.Tensor) else n
    return (high.to(torch.int64) * wide + (low.to(torch.int64) * wide >> 31) >> 31).to(torch.int32)


def resampled(x: torch.Tensor, weights: NumpyArray, axis: int) -> torch.Tensor:
    return moveaxis(torch.matmul(moveaxis(x, axis, -1), table(weights.T, "float32", x)), -1, axis)


def rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x)


if TYPE_CHECKING:
    from torch_backend.arrays import ops as _functions

    _compared: BackendOpsOf[torch.Tensor] = _functions

# This module, for the algorithms: they see arrays as `Array`, and hand back to it what came out of it.
OPS: Final = typing.cast("BackendOps", sys.modules[__name__])
