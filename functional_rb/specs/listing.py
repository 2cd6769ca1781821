"""The list of all values of an array."""

from __future__ import annotations

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import NumpyArray
from functional_rb.specs import numpy_ops
from functional_rb.specs.array import ArraySpec
from functional_rb.specs.choices import Choices
from functional_rb.specs.text import Text

Vector = NumpyArray


def values_at(unit: ArraySpec, index: Vector) -> Vector:
    """The values [N, *shape] at positions int64 [N] in the list of all values, whose last element changes fastest."""
    if not unit.size:
        return numpy_ops.zeros((len(index), *unit.shape), unit.dtype)
    # The digits int32 [N, *shape] of the positions in the mixed radix of the counts, the last one changing fastest.
    counts, rest = unit.value_counts, index
    flat = np.zeros((len(index), counts.size), np.int32)
    for k in reversed(np.flatnonzero(counts.reshape(-1) > 1)):
        rest, flat[:, k] = np.divmod(rest, int(counts.flat[k]))
    digits: Vector = flat.reshape(len(index), *counts.shape)
    if isinstance(unit, Text):
        texts = [_text(unit, int(digit)) for digit in digits.flat]
        return unit.from_host(np.array(texts, object).reshape(digits.shape), index.shape)
    if isinstance(unit, Choices):
        parts = [digits[..., i] for i in range(digits.shape[-1])] if unit.several else [digits]
        chosen = [one.ranked(numpy_ops.OPS, ranks) for one, ranks in zip(unit.allowed, parts, strict=True)]
        return np.asarray(unit._made(numpy_ops.OPS, unit._together(numpy_ops.OPS, chosen)))
    if not unit.domain.discrete:
        return np.broadcast_to(unit._bounds[0], (len(index), *unit.shape)).copy()
    numbers = np.asarray(unit.domain.low, object) + digits.astype(object)
    return numbers != 0 if unit.dtype == "bool" else dtypes.as_numpy(unit.dtype, numbers)


def _text(unit: Text, number: int) -> str:
    # Shorter texts come first, and those of one length in the order of the charset.
    letters, length = len(unit.charset), unit.min_length
    while number >= letters**length:
        number -= letters**length
        length += 1
    places = np.unravel_index(number, (letters,) * length) if length else ()
    return "".join(unit.charset[int(place)] for place in places)
