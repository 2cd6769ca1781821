"""Running mean and deviation as a value: `rb.moments`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from functional_rb.base.arrays import BackendArray
from functional_rb.base.containers import add_rule
from functional_rb.lib import AnyLib, library_of
from functional_rb.ops.protocol import Array, ItemOps


class Moments(NamedTuple):
    """How many vectors were met, their mean, and their squared deviations from it: a value, and a pytree.

    Attributes:
        count: float32, how many; beyond 2^24 rounded.
        mean: float32 [*shape].
        m2: float32 [*shape], the sum of `(x - mean)^2`.
    """

    count: BackendArray
    mean: BackendArray
    m2: BackendArray

    def deviation(self, eps: float = 1e-4) -> BackendArray:
        """The standard deviation of all that was met, `sqrt(max(m2 / count, eps))`, float32 [*shape].

        Of what varies less than `sqrt(eps)`, or before anything was met, the deviation counts as that.

        Args:
            eps: the least variance.

        Example:
            >>> import torch_backend as rb, torch
            >>> seen = rb.moments(torch.tensor([1.0, 3.0]))
            >>> (torch.tensor([1.0, 5.0]) - seen.mean) / seen.deviation()
            tensor([-1.,  3.])
        """
        return (self.m2 / self.count.clip(1)).clip(eps) ** 0.5

    def merge(self, other: Moments) -> Moments:
        """The moments of all that both have met.

        Args:
            other: moments of the same vectors, of the same backend.

        Raises:
            TypeError: for what are no moments, or those of another backend.
            ValueError: for moments of vectors of another shape, or on another device.

        Example:
            >>> import torch_backend as rb
            >>> rb.moments(np.ones(3)).merge(rb.moments(np.full(1, 5.0))).mean.item()
            2.0
        """
        lib = library_of(*self)
        if lib is None:
            raise TypeError("merge: expected moments of a backend; bring them over by rb.from_dlpack(moments)")
        both: Moments = lib.around(_merge)(lib, self, other)
        return both


def _merge(lib: AnyLib, one: Moments, other: object) -> Moments:
    if not isinstance(other, Moments):
        raise TypeError(f"merge: expected moments, as rb.moments makes them, got {type(other).__name__}")
    for name, x in (*one._asdict().items(), *other._asdict().items()):
        if not isinstance(x, lib.array):
            raise TypeError(
                f"merge: expected moments of one backend, got {name} as {type(x).__name__}; bring them over by "
                f"rb.from_dlpack(moments)"
            )
    ours, theirs = ([tuple(x.shape) for x in (operand.count, operand.mean)] for operand in (one, other))
    if ours != theirs:
        raise ValueError(f"merge: expected moments of vectors of the same shape, {ours[1]}, got {theirs[1]}")
    # JAX has arrays that are on no device of their own, and says itself which do not go together.
    if not lib.is_traced(one.count) and not hasattr(one.count, "committed"):
        here, there = (str(operand.count.device) for operand in (one, other))
        if here != there:
            raise ValueError(
                f"merge: expected moments on one device, {here}, got {there}; move them over: "
                f"type(moments)(*[x.to({here!r}) for x in moments])"
            )
    return merged(lib.ops, one, other)


def problem(moments: Moments) -> str | None:
    """Why what a file has, of NumPy, cannot be moments; or None. Of what is no number the mean is none either."""
    arrays = [np.asarray(array) for array in moments]
    count, mean, m2 = arrays
    if any(array.dtype.kind != "f" for array in arrays):
        return f"expected floats, found {', '.join(array.dtype.name for array in arrays)}"
    if mean.shape != m2.shape or mean.shape[: count.ndim] != count.shape:
        return f"its count, mean and m2 have the shapes {count.shape}, {mean.shape} and {m2.shape}"
    if not (count >= 0).all() or (m2 < 0).any():
        return "it has counted less than nothing, or has squares below nothing"
    return None


add_rule(Moments, problem)


def merged(ops: ItemOps, one: Moments, other: Moments) -> Moments:
    """The moments of all that two have met, in whichever order.

    With `d = mean_b - mean_a` and `n = n_a + n_b`: `mean = mean_a + d n_b / n` and `M2 = M2_a + M2_b + d^2 n_a n_b / n`
    (T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", 1979).
    """
    count = one.count + other.count
    share = other.count / ops.maximum(count, ops.full_like(count, 1))
    apart = other.mean - one.mean
    return Moments(count, one.mean + apart * share, one.m2 + other.m2 + apart * apart * (one.count * share))


def moments(ops: ItemOps, x: Array, shape: Sequence[int] = (), mask: Array | None = None) -> Moments:
    """The moments of a batch of vectors; `merge` makes those of several batches, and of no vector is where to begin.

    Args:
        x: numbers [..., *shape] of the backend or NumPy, any axes in front.
        shape: of one vector.
        mask: bool, in the shape of the axes in front: which of them count; by default all.

    Raises:
        TypeError: for what is no array of the backend or NumPy, for a mask of no bool, or a shape that is no sequence.
        ValueError: if the vectors, or the mask, have another shape.

    Example:
        >>> import torch_backend as rb, torch
        >>> seen = rb.moments(torch.zeros(0))
        >>> for batch in ([1.0, 3.0], [5.0]):
        ...     seen = seen.merge(rb.moments(torch.tensor(batch)))
        >>> seen.count, seen.mean, seen.m2
        (tensor(3.), tensor(3.), tensor(8.))
    """
    shape = tuple(shape)
    front = tuple(x.shape)[: max(len(x.shape) - len(shape), 0)]
    if tuple(x.shape) != (*front, *shape) or (mask is not None and tuple(mask.shape) != front):
        got = tuple(x.shape) if mask is None else f"{tuple(x.shape)} with a mask of shape {tuple(mask.shape)}"
        raise ValueError(f"moments: expected x of shape {('...', *shape)}, got {got}; reshape it, or give its shape")
    rows, size = math.prod(front), math.prod(shape)
    columns = ops.moveaxis(ops.cast(x, "float32").reshape(rows, size), 0, 1)
    chosen = (ops.arange(rows, like=x) >= 0 if mask is None else mask.reshape(rows))[None]
    columns = ops.where(chosen, columns, ops.full_like(columns, 0))
    weights = ops.cast(chosen, "float32")
    real = ops.total(weights[0])
    mean = ops.total(columns) / ops.maximum(real, ops.full_like(real, 1))
    apart = (columns - mean[:, None]) * weights
    return Moments(real, mean.reshape(shape), ops.total(apart * apart).reshape(shape))
