"""How many values a spec has, and the list of them."""

from __future__ import annotations

import math

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import NumpyArray
from functional_rb.specs import numpy_ops
from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import SpecNest, Unit
from functional_rb.specs.choices import Choices
from functional_rb.specs.composite import checked
from functional_rb.specs.graph import Graph
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.one_of import OneOf
from functional_rb.specs.rows import units
from functional_rb.specs.sequence import Sequence
from functional_rb.specs.text import Text
from functional_rb.specs.varying import Varying

Vector = NumpyArray


def cardinality(spec: SpecNest) -> int | float:
    """How many values lie in the domain of a spec, what masks forbid left out.

    Args:
        spec: a spec, or a nest of them.

    Returns:
        A Python int of any size; `math.inf` where reals have room, or objects. Whole numbers without bounds of their
        own have those of their dtype.

    Raises:
        TypeError: if a leaf is no spec, naming it.

    Example:
        >>> from functional_rb import Binary, Categorical, Unbounded
        >>> cardinality({"done": Binary((3,)), "action": Categorical(4, mask=[True, True, False, True])})
        24
        >>> cardinality(Unbounded(())), cardinality(Unbounded((), "int8"))
        (inf, 256)
    """
    counts = [of_unit(unit) for unit in units(checked(spec, "cardinality"))]
    # Of integers the product is exact; infinity times a large integer would overflow.
    return math.inf if math.inf in counts else math.prod(counts)


def of_unit(unit: Unit | NonTensor) -> int | float:
    if isinstance(unit, NonTensor):
        return math.inf if math.prod(unit.shape) else 1
    if isinstance(unit, Varying):
        many, one = math.prod(unit.batch_shape), _of_varying(unit)
        return one**many if many else 1
    assert isinstance(unit, ArraySpec)
    if not unit.size:
        return 1
    if not isinstance(unit, Choices | Text) and not unit.domain.discrete:
        low, high = unit._bounds
        return 1 if unit.dtype != "complex64" and (low == high).all() else math.inf
    return math.prod(int(n) for n in _counts(unit).flat)


def _of_varying(unit: Varying) -> int | float:
    # Of one value without batch axes.
    if isinstance(unit, OneOf):
        return sum(map(cardinality, unit.options))
    if isinstance(unit, Sequence):
        return _sequences(cardinality(unit.element), 0, unit.max_length)
    assert isinstance(unit, Graph)
    # Each of m edges has n^2 places between n nodes: sum_n node^n sum_m (edge n^2)^m values.
    node = cardinality(unit.node)
    if unit.edge is None:
        return _sequences(node, 1, unit.max_nodes)
    edge = cardinality(unit.edge)
    return sum(node**n * _sequences(edge * n * n, 0, unit.max_edges) for n in range(1, unit.max_nodes + 1))


def _sequences(letters: int | float, shortest: int, longest: int) -> int | float:
    # sum_n letters^n over the lengths n.
    return math.inf if letters == math.inf else sum(letters**n for n in range(shortest, longest + 1))


def _counts(unit: ArraySpec) -> Vector:
    # Python ints [*axes], which do not overflow.
    if isinstance(unit, Text):
        one = _sequences(len(unit.charset), unit.min_length, unit.max_length)
        return np.full(unit.axes, one, object)
    if isinstance(unit, Choices):
        counts = [np.broadcast_to(one.counts, one.of.shape) for one in unit.allowed]
        return np.stack(counts, -1) if unit.several else counts[0]
    low, high = (np.asarray(bound, object) for bound in unit.domain[:2])
    return np.broadcast_to(np.asarray(high - low + 1, object), unit.shape)


def values_at(unit: ArraySpec, index: Vector) -> Vector:
    """The values [N, *shape] at positions int64 [N] in the list of all values, whose last element changes fastest."""
    if not unit.size:
        return numpy_ops.zeros((len(index), *unit.shape), unit.dtype)
    # The digits int32 [N, *shape] of the positions in the mixed radix of the counts, the last one changing fastest.
    counts, rest = _counts(unit), index
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
