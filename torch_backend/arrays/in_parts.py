"""What is computed part by part, so that it is never there as a whole, nor kept for gradients; of `TextOps`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from functional_rb.ops.protocol import T

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Numbers that are computed with at a time: they stay in the cache of a processor.
AT_ONCE = 2**20


def by_places(function: Function, slopes: Function, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As `TextOps` says; a compiler is to see to it by itself, and `torch.func` keeps what it needs."""
    if x.numel() <= AT_ONCE or torch.compiler.is_compiling() or _is_transformed():
        return function(x, y)
    result: torch.Tensor = _ByPlaces.apply(x, y, function, slopes)  # type: ignore[no-untyped-call]  # torch has it so
    return result


# Whether gradients are not, or not only, those of `backward`.
def _is_transformed() -> bool:
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


# The chunks of [N, S, V] to compute at a time: some rows, or some places of one.
def _chunks(x: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    rows, width, each = x.shape
    places = max(1, AT_ONCE // each)
    step = max(1, places // width)
    for row in range(0, rows, step):
        for place in range(0, width, places):
            yield slice(row, row + step), slice(place, place + places)


class _ByPlaces(torch.autograd.Function):
    """A function of places whose slopes are known."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, function: Function, slopes: Function) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        ctx.slopes = slopes
        result = x.new_empty(y.shape, dtype=torch.float32)
        for places in _chunks(x):
            result[places] = function(x[places], y[places])
        return result

    @staticmethod
    def backward(ctx: Any, *back: torch.Tensor) -> object:
        (x, y), slopes = ctx.saved_tensors, ctx.slopes
        by = back[0][..., None]
        if torch.is_grad_enabled():  # there are to be gradients of these
            return (slopes(x, y) * by).to(x.dtype), None, None, None
        gradient = torch.empty_like(x)
        for places in _chunks(x):
            gradient[places] = slopes(x[places], y[places]) * by[places]
        return gradient, None, None, None


def in_turn(function: Callable[..., tuple[T, torch.Tensor]], carry: T, *arrays: torch.Tensor) -> tuple[T, torch.Tensor]:
    # torch.compile unrolls this.
    results = []
    for slices in zip(*arrays, strict=True):
        if carry is None:
            result = _forgotten(lambda *slices: function(None, *slices)[1], *slices)
        else:
            carry, result = function(carry, *slices)
        results.append(result)
    return carry, torch.stack(results)


# `function(*operands)`, which is called again for gradients, with the same numbers drawn by torch's generators.
def _forgotten(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> torch.Tensor:
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or _is_transformed():
        return function(*operands)
    from torch.utils.checkpoint import checkpoint

    result: torch.Tensor = checkpoint(function, *operands, use_reentrant=False)
    return result
