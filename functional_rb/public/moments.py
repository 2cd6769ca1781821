"""`rb.moments`: the functions of `functional_rb.items.moments`, on numbers of a backend or of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from functional_rb.base.arrays import ArrayLike
from functional_rb.items import moments as core
from functional_rb.items.moments import Moments
from functional_rb.lib import A, Lib, documented_by

NAMES: Final = ("init", "merge", "normalize", "update")


@documented_by(core.init)
def init(lib: Lib[A], shape: Sequence[int] = (), device: object = None) -> Moments:
    return core.init(lib.ops, shape, device)


@documented_by(core.merge)
def merge(lib: Lib[A], one: Moments, other: Moments) -> Moments:
    return core.merge(lib.ops, one, other)


@documented_by(core.update)
def update(lib: Lib[A], moments: Moments, x: object, mask: ArrayLike = None) -> Moments:
    where = moments.count
    given = lib.as_array(x, where), None if mask is None else lib.as_array(mask, where)
    return core.update(lib.ops, moments, *given)


@documented_by(core.apply)
def normalize(lib: Lib[A], moments: Moments, x: object, eps: float = 1e-4) -> A:
    return core.apply(lib.ops, moments, lib.as_array(x, moments.count), eps)
