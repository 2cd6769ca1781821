"""`rb.moments` and `rb.normalize`: the functions of `functional_rb.items.moments`, on numbers of a backend or NumPy."""

from __future__ import annotations

from collections.abc import Sequence

from functional_rb.base.arrays import ArrayLike
from functional_rb.items import moments as core
from functional_rb.items.moments import Moments
from functional_rb.lib import A, Lib, documented_by


@documented_by(core.moments)
def moments(lib: Lib[A], x: object, shape: Sequence[int] = (), mask: ArrayLike = None) -> Moments:
    return core.moments(lib.ops, lib.as_array(x, None), shape, None if mask is None else lib.as_array(mask, None))


@documented_by(core.normalized)
def normalize(lib: Lib[A], moments: Moments, x: object, eps: float = 1e-4) -> A:
    return core.normalized(lib.ops, moments, lib.as_array(x, moments.count), eps)
