"""The static description of a map, which every map carries."""

from __future__ import annotations

import dataclasses

from functional_rb.base.arrays import Nest
from functional_rb.base.description import Description
from functional_rb.base.dtypes import checked_count
from functional_rb.specs import NonTensor, freeze
from functional_rb.specs.values import Outline
from functional_rb.structures import hash_map
from functional_rb.structures.expected import Expected
from functional_rb.structures.hash_map import HashTable, MapPlan
from functional_rb.structures.key_rows import KeyRows


@dataclasses.dataclass(frozen=True, eq=False)
class HashMapSpec(Description):
    """What a map holds: frozen and hashable, without any array.

    Attributes:
        key: a nest of `ArraySpec`s.
        capacity: how many different keys fit, 1 to 2^29.
        seed: of the hash, a whole number; the same seed gives the same map on each backend and in each process.
        hash_bits: how many bits the hash has, up to 31. Fewer let different keys begin to look in the same place: they
            are still told apart, but cost more time.
        outline: derived: the key, taken apart.
        rows: derived: how a key is packed.
        plan: derived: the geometry of the map.
        arrays: derived: shapes and dtypes of a map's arrays.

    Raises:
        TypeError: if a leaf of the key is no spec of an array, or a number is no int.
        ValueError: if a number is out of range, or the key has no element.

    Example:
        >>> from functional_rb import Unbounded
        >>> HashMapSpec(key={"position": Unbounded((2,), "int32")}, capacity=1000).plan.table_size
        2048
    """

    key: Nest
    capacity: int
    seed: int = 0
    hash_bits: int = hash_map.HASH_BITS

    outline: Outline = dataclasses.field(init=False, repr=False)
    rows: KeyRows = dataclasses.field(init=False, repr=False)
    plan: MapPlan = dataclasses.field(init=False, repr=False)
    arrays: tuple[Expected, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._put(
            capacity=checked_count("HashMapSpec.capacity", self.capacity, 1, hash_map.MOST),
            hash_bits=checked_count("HashMapSpec.hash_bits", self.hash_bits, 0, hash_map.HASH_BITS),
            seed=checked_count("HashMapSpec.seed", self.seed, -(2**63), 2**64 - 1),
            outline=arrays_alone(self.key, "HashMapSpec.key"),
            key=freeze(self.key),
        )
        self._put(rows=rows_of(self.outline))
        if not self.rows.words:
            raise ValueError("HashMapSpec.key: expected at least one element, got none; all keys would be equal")
        self._put(plan=MapPlan(self.capacity, self.rows.words, self.seed, self.hash_bits))
        self._put(arrays=expected(self.plan))
        self._seal()

    @property
    def _key(self) -> tuple[object, ...]:
        return self.outline, self.capacity, self.seed, self.hash_bits

    @property
    def nbytes(self) -> int:
        """The size of a map's arrays in bytes."""
        return 4 * (self.plan.table_size + self.capacity * (self.rows.words + 1) + 2)


def arrays_alone(spec: object, who: str) -> Outline:
    """A nest of specs of arrays, taken apart."""
    outline = Outline.of(spec, who)
    for name, leaf in zip(outline.names, outline.leaves, strict=True):
        if isinstance(leaf, NonTensor):
            raise TypeError(f"{who}: leaf {name!r}: expected a spec of an array, got NonTensor; leave the leaf out")
    return outline


def expected(plan: MapPlan, prefix: str = "") -> tuple[Expected, ...]:
    """Shapes and dtypes of a map's arrays, named with a prefix."""
    named = zip(HashTable._fields, hash_map.shapes(plan), strict=True)
    return tuple(Expected(prefix + name, shape, "int32") for name, shape in named)


def rows_of(outline: Outline) -> KeyRows:
    """How values of a nest are packed."""
    leaves = zip(outline.structure.paths, outline.leaves, strict=True)
    return KeyRows(tuple((path, leaf.shape, leaf.dtype) for path, leaf in leaves))
