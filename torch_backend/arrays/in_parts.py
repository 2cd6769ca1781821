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
    found: torch.Tensor = _ByPlaces.apply(x, y, function, slopes)  # type: ignore[no-untyped-call]  # torch has it so
    return found


# Whether gradients are not, or not only, those of `backward`.
def _is_transformed() -> bool:
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


# Where parts of [N, S, V] are: some rows, or some places of one.
def _parts(x: torch.Tensor) -> Iterator[tuple[slice, slice]]:
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
        found = x.new_empty(y.shape, dtype=torch.float32)
        for part in _parts(x):
            found[part] = function(x[part], y[part])
        return found

    @staticmethod
    def backward(ctx: Any, *back: torch.Tensor) -> object:
        (x, y), slopes = ctx.saved_tensors, ctx.slopes
        by = back[0][..., None]
        if torch.is_grad_enabled():  # there are to be gradients of these
            return (slopes(x, y) * by).to(x.dtype), None, None, None
        found = torch.empty_like(x)
        for part in _parts(x):
            found[part] = slopes(x[part], y[part]) * by[part]
        return found, None, None, None


def in_turn(function: Callable[..., tuple[T, torch.Tensor]], carry: T, *arrays: torch.Tensor) -> tuple[T, torch.Tensor]:
    # torch.compile unrolls this.
    found = []
    for parts in zip(*arrays, strict=True):
        if carry is None:
            new = _forgotten(lambda *parts: function(None, *parts)[1], *parts)
        else:
            carry, new = function(carry, *parts)
        found.append(new)
    return carry, torch.stack(found)


# `function(*given)`, which is called again for gradients, with the same numbers drawn by torch's generators.
def _forgotten(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or _is_transformed():
        return function(*given)
    from torch.utils.checkpoint import checkpoint

    found: torch.Tensor = checkpoint(function, *given, use_reentrant=False)
    return found
