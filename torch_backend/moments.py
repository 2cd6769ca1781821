"""Running mean and deviation on torch: `rb.moments`."""

from __future__ import annotations

from typing import Any

import torch

from functional_rb.buffer.binding import documented_by
from functional_rb.items import moments as functions
from functional_rb.items.moments import Moments
from torch_backend import ops
from torch_backend.binder import Binder

_binds = Binder(lambda _: ops)

init = _binds(functions.init)
merge = _binds(functions.merge)


@documented_by(functions.update)
def update(moments: Moments, x: Any, mask: Any = None) -> Moments:
    return functions.update(ops, moments, _beside(moments, x), None if mask is None else _beside(moments, mask))


@documented_by(functions.apply)
def normalize(moments: Moments, x: Any, eps: float = 1e-4) -> torch.Tensor:
    made: torch.Tensor = functions.apply(ops, moments, _beside(moments, x), eps)
    return made


def _beside(moments: Moments, x: Any) -> torch.Tensor:
    """A tensor as it is; what is none, where the moments are."""
    return x if isinstance(x, torch.Tensor) else torch.as_tensor(x, device=moments.count.device)


__all__ = [
    "init",
    "merge",
    "normalize",
    "update",
]
__dir__ = __all__.copy
