"""`rb.moments`: `functional_rb.items.moments`, on what a caller gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import ArrayLike
from functional_rb.items import moments as core
from functional_rb.items.moments import Moments
from functional_rb.lib import A, Lib, documented_by

# Tuples, because torch.compile does not trace unions of types.
HOST: Final = (np.ndarray, np.generic, float, int)
WHOLE: Final = (int, np.integer)


@documented_by(core.moments)
def moments(lib: Lib[A], x: object, shape: Sequence[int] = (), mask: ArrayLike = None) -> Moments:
    if not _is_shape(shape):
        raise TypeError(f"moments: expected shape as a sequence of ints, such as (3,), got {shape!r:.80}")
    numbers = _array(lib, x, None, "moments", "x", ("bool", "int", "float"))
    chosen = None if mask is None else _array(lib, mask, numbers, "moments", "mask", ("bool",))
    return core.moments(lib.ops, numbers, shape, chosen)


def _is_shape(shape: object) -> bool:
    return isinstance(shape, Sequence) and all(isinstance(n, WHOLE) for n in shape)


def _array(lib: Lib[A], x: ArrayLike, like: A | None, who: str, name: str, kinds: Sequence[str]) -> A:
    """Numbers of the backend, of NumPy or Python's own, as an array of the backend.

    Raises:
        TypeError: for anything else, and for numbers of another kind.
    """
    if not isinstance(x, (lib.array, *HOST)):
        raise TypeError(
            f"{who}: {name}: expected an array of this backend or NumPy, got {type(x).__module__}.{type(x).__name__}; "
            f"bring it over by rb.from_dlpack, or convert it by np.asarray"
        )
    dtype = dtypes.name_of(x.dtype if hasattr(x, "dtype") else type(x).__name__)
    if dtypes.kind_of(dtype) not in kinds:
        raise TypeError(
            f"{who}: {name}: expected numbers of kind {' or '.join(kinds)}, got {dtype}; convert it yourself"
        )
    return lib.as_array(x, like)
