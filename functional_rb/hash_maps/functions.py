"""Maps as values, and the public functions on them, which backends bind. Each takes a `Lib` first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from functional_rb.base import nest
from functional_rb.base.arrays import ArrayLike, BackendArray, DeviceLike, Nest
from functional_rb.base.containers import add_rule, register_record
from functional_rb.base.description import Described, refuse
from functional_rb.base.dtypes import shown
from functional_rb.base.errors import consumed
from functional_rb.hash_maps.spec import HashMapSpec
from functional_rb.lib import A, Lib
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.specs.array import Binary
from functional_rb.specs.functions import as_batch, built, outline_of
from functional_rb.specs.values import Outline
from functional_rb.structures import hash_map, key_rows
from functional_rb.structures.expected import Expected, problem_of_stack
from functional_rb.structures.hash_map import REFUSED, SIZE, HashTable, MapPlan
from functional_rb.structures.key_rows import KeyRows


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HashMap(Described):
    """A map as a value: an immutable pytree of arrays that carries its spec.

    A key's number is its place in the order in which keys first came, from 0 on; nothing is ever taken out. T is
    `spec.plan.table_size`, N the capacity and W the number of words of a key.

    Attributes:
        table: int32 [T], the number of the key in each place of the hash table, 2^31 - 1 where there is none.
        keys: int32 [N, W], the packed keys, by number.
        counts: int32 [N], how often each key was put in, by number.
        counters: int32 [2], how many keys there are, and how many were refused by a full map.
        spec: the description of the map, static.
    """

    table: BackendArray
    keys: BackendArray
    counts: BackendArray
    counters: BackendArray
    spec: HashMapSpec

    def __repr__(self) -> str:
        return f"HashMap({self.spec!r})"


# The arrays of a map, in their order.
MAP_FIELDS: Final = HashTable._fields


def problem(map: Nest) -> str | None:
    """Why a map, or a stack of them, of NumPy's arrays cannot be one; or None."""
    if not isinstance(map.spec, HashMapSpec):
        return f"its spec is that of no map but {map.spec!r:.60}"
    plan, arrays = map.spec.plan, arrays_of(map)
    return problem_of_stack(map.spec.arrays, arrays, lambda x: hash_map.problem(plan, HashTable(*x)))


register_record(HashMap, MAP_FIELDS)
add_rule(HashMap, problem)


def arrays_of(map: HashMap) -> HashTable:
    """The arrays of a map as the core has them."""
    return HashTable(map.table, map.keys, map.counts, map.counters)


class Inserted(NamedTuple):
    """What became of the keys of a batch.

    Attributes:
        ids: int32 [*batch], the number of each key; -1 where it is masked, or was refused.
        is_new: bool [*batch], whether the map got the key for the first time.
    """

    ids: BackendArray
    is_new: BackendArray


def init(lib: Lib[A], spec: HashMapSpec, device: DeviceLike = None, items: None = None) -> HashMap:
    """An empty map.

    Args:
        spec: what the map holds.
        device: where its arrays live; the backend's default if None.
        items: refused; `add` puts keys in.

    Raises:
        TypeError: for what is no `HashMapSpec`, or a dtype that the backend lacks.

    Example:
        >>> seen = rb.init(frb.HashMapSpec(key=frb.Unbounded((2,), "int32"), capacity=100))
        >>> int(rb.size(seen))
        0
    """
    refuse("init", spec, items=items)
    outline_of(lib, spec.key, "init")
    return HashMap(*hash_map.init(lib.ops, spec.plan, device), spec)


def add(lib: Lib[A], map: HashMap, keys: object, mask: ArrayLike = None) -> tuple[HashMap, Inserted]:
    """Put keys into a map; the result is that of putting them in one by one, in their order.

    Two keys are equal if all their elements are, bit for bit, but that -0.0 equals 0.0 and NaN equals NaN.

    Args:
        map: stays as it is.
        keys: a nest like `HashMapSpec.key`, leaves [*batch, *shape]; a key may come several times in a batch.
        mask: bool [*batch], which keys to put in; all if None.

    Returns:
        The new map, and what became of each key. A map that is full counts the keys it already has, and refuses others.

    Raises:
        TypeError: for what is no map, or a dtype that does not fit, naming the leaf.
        ValueError: for a structure or shape that does not fit.

    Example:
        >>> seen = rb.init(frb.HashMapSpec(key=frb.Unbounded((), "int32"), capacity=2))
        >>> seen, inserted = rb.add(seen, np.array([7, 5, 7, 9], np.int32))
        >>> inserted.ids.tolist(), inserted.is_new.tolist(), int(rb.counts(seen).refused)
        ([0, 1, 0, -1], [True, True, False, False], 1)
    """
    return _add(lib, "add", map, keys, mask, None)


def add_(lib: Lib[A], map: HashMap, keys: object, mask: ArrayLike = None) -> tuple[HashMap, Inserted]:
    """`add`, in the map's own memory: the map that is given is consumed.

    Args:
        map: consumed.
        keys: as for `add`.
        mask: as for `add`.

    Returns:
        What `add` returns.

    Raises:
        RuntimeError: for a map that was consumed before.

    Example:
        >>> seen = rb.init(frb.HashMapSpec(key=frb.Unbounded((), "int32"), capacity=10))
        >>> for state in (3, 4, 3):
        ...     seen, inserted = rb.add_(seen, np.int32(state))
        >>> rb.visits(seen, np.array([3, 4, 5], np.int32)).tolist()
        [2, 1, 0]
    """
    return _add(lib, "add_", map, keys, mask, (map, "counters"))


def _add(
    lib: Lib[A], who: str, map: HashMap, keys: object, mask: ArrayLike, consume: tuple[HashMap, str] | None
) -> tuple[HashMap, Inserted]:
    arrays = _checked(lib, map, who)
    leaves, lead = _flat(lib, map.spec.outline, keys)
    marked = checked_mask(lib, mask, lead, who)
    table: HashTable
    table, ids, fresh = lib.carry_out(_inserted, map.spec, arrays, leaves, marked, consume=consume)
    return HashMap(*table, map.spec), Inserted(ids.reshape(lead), fresh.reshape(lead))


def _inserted(ops: Ops, spec: HashMapSpec, arrays: HashTable, leaves: list[Array], mask: Array | None) -> object:
    return insert(ops, spec.rows, spec.plan, arrays, leaves, mask)


@replaceable
def insert(
    ops: Ops, keys: KeyRows, plan: MapPlan, map: HashTable, leaves: Sequence[Array], mask: Array | None
) -> tuple[HashTable, Array, Array]:
    """What `hash_map.insert` gives, of keys by their leaves [B, *shape]."""
    return hash_map.insert(ops, plan, map, rows_of_keys(ops, keys, leaves), mask)


def with_spec(lib: Lib[A], map: HashMap, spec: HashMapSpec) -> HashMap:
    """A map in arrays of another size: with more room for keys, or with less.

    Keys keep their numbers and counts.

    Args:
        map: stays as it is.
        spec: with the same keys; capacity, seed and hash_bits may differ.

    Returns:
        The new map.

    Raises:
        TypeError: for what is no map, or no `HashMapSpec`.
        ValueError: for other keys, or too little room; while that is traced, for less of it.

    Example:
        >>> spec = frb.HashMapSpec(key=frb.Unbounded((), "int32"), capacity=2)
        >>> seen, _ = rb.add(rb.init(spec), np.array([7, 5, 9], np.int32))
        >>> larger = rb.with_spec(seen, frb.HashMapSpec(key=frb.Unbounded((), "int32"), capacity=100))
        >>> larger, inserted = rb.add(larger, np.array([9, 5], np.int32))
        >>> inserted.ids.tolist(), int(rb.counts(larger).refused)
        ([2, 1], 1)
    """
    arrays = _checked(lib, map, "with_spec")
    if not isinstance(spec, HashMapSpec):
        raise TypeError(f"with_spec: expected a HashMapSpec, got {type(spec).__name__}")
    if spec.outline != map.spec.outline:
        raise ValueError(f"with_spec: expected the same key, {map.spec.key!r:.200}, got {spec.key!r:.200}")
    size = known_size(lib, map.counters, map.spec.capacity)
    if size > spec.capacity:
        raise ValueError(
            f"with_spec: expected room for {size} keys, got a spec for {spec.capacity}; give more, or begin anew"
        )
    table: HashTable = lib.carry_out(_moved, spec, (), arrays)
    return HashMap(*table, spec)


def _moved(ops: Ops, spec: HashMapSpec, owned: object, arrays: HashTable) -> HashTable:
    return hash_map.moved(ops, spec.plan, arrays)


def known_size(lib: Lib[A], counters: Array, most: int) -> int:
    """How many keys a map has, by its counters; while they are traced, how many it can have."""
    return most if lib.is_traced(counters) else int(lib.to_numpy(counters)[SIZE])


def lookup(lib: Lib[A], map: HashMap, keys: object) -> A:
    """What `rb.lookup` tells of a map."""
    arrays = _checked(lib, map, "lookup")
    leaves, lead = _flat(lib, map.spec.outline, keys)
    ids: BackendArray = lib.carry_out(_looked_up, map.spec, (), arrays, leaves)
    return ids.reshape(lead)


def _looked_up(ops: Ops, spec: HashMapSpec, owned: object, arrays: HashTable, leaves: list[Array]) -> Array:
    return find(ops, spec.rows, spec.plan, arrays, leaves)


@replaceable
def find(ops: Ops, keys: KeyRows, plan: MapPlan, map: HashTable, leaves: Sequence[Array]) -> Array:
    """What `hash_map.lookup` gives, of keys by their leaves [B, *shape]."""
    return hash_map.lookup(ops, plan, map, rows_of_keys(ops, keys, leaves))


def visits(lib: Lib[A], map: HashMap, keys: object) -> A:
    """What `rb.visits` tells of a map."""
    arrays = _checked(lib, map, "visits")
    leaves, lead = _flat(lib, map.spec.outline, keys)
    counts: BackendArray = lib.carry_out(_counted, map.spec, (), arrays, leaves)
    return counts.reshape(lead)


def _counted(ops: Ops, spec: HashMapSpec, owned: object, arrays: HashTable, leaves: list[Array]) -> Array:
    ids = find(ops, spec.rows, spec.plan, arrays, leaves)
    nothing = ops.full_like(ids, 0)
    return ops.where(ids < 0, nothing, ops.take(arrays.counts, ops.maximum(ids, nothing)))


def size(lib: Lib[A], map: HashMap) -> A:
    """How many different keys a map has, an int32 scalar."""
    check_map(lib, map, "size")
    return map.counters[..., SIZE]


def refused(lib: Lib[A], map: HashMap) -> A:
    """How many keys a full map has refused, an int32 scalar."""
    check_map(lib, map, "counts")
    return map.counters[..., REFUSED]


def items(lib: Lib[A], map: HashMap) -> Nest:
    """All keys of a map by number: a nest like `HashMapSpec.key`, leaves [capacity, *shape]; zeros behind the last.

    Example:
        >>> seen = rb.init(frb.HashMapSpec(key={"cell": frb.Unbounded((), "int32")}, capacity=3))
        >>> seen, _ = rb.add(seen, {"cell": np.array([8, 9, 8], np.int32)})
        >>> rb.items(seen)["cell"].tolist()
        [8, 9, 0]
    """
    leaves = lib.carry_out(_unpacked, map.spec.rows, (), _checked(lib, map, "items").keys)
    return built(lib, map.spec.outline, dict(enumerate(leaves)), (map.spec.capacity,))


# The arrays of a map, which are those of its spec: kernels go by that.
def _checked(lib: Lib[A], map: HashMap, who: str) -> HashTable:
    check_map(lib, map, who)
    check_sizes(lib, map.spec.arrays, arrays_of(map), who)
    return arrays_of(map)


def check_map(lib: Lib[A], map: object, who: str, remedy: str = "") -> None:
    """Refuse what is no map of the backend, or was consumed."""
    if not isinstance(map, HashMap):
        raise TypeError(f"{who}: expected a HashMap made by rb.init, got {type(map).__name__}{remedy}")
    check_arrays(lib, map.counters, who, "map")


def check_arrays(lib: Lib[A], array: object, who: str, what: str) -> None:
    """Refuse a record, by one of its arrays, that is another backend's, or whose memory has passed on."""
    if array is None:
        raise consumed()
    if not isinstance(array, lib.array):
        raise TypeError(f"{who}: expected a {what} of this backend; bring it over by rb.from_dlpack({what})")
    is_deleted = None if lib.is_traced(array) else getattr(array, "is_deleted", None)
    if is_deleted is not None and is_deleted():
        raise consumed()


def check_sizes(lib: Lib[A], expected: Sequence[Expected], arrays: Sequence[Array], who: str) -> None:
    """Refuse arrays of a record that somebody has put there: kernels go by the spec."""
    for (name, shape, dtype), array in zip(expected, arrays, strict=True):
        if not isinstance(array, lib.array) or shown(array.dtype) != dtype:
            raise TypeError(f"{who}: {name}: expected {dtype} of this backend, got {type(array).__name__}")
        if tuple(array.shape) != shape:
            raise ValueError(f"{who}: {name}: expected shape {list(shape)}, got {list(array.shape)}")


def packed(lib: Lib[A], outline: Outline, keys: KeyRows, value: object) -> tuple[Array, tuple[int, ...]]:
    """Values of a nest as rows int32 [N, W], and their batch axes."""
    leaves, lead = _flat(lib, outline, value)
    return lib.carry_out(_packed, keys, (), leaves), lead


def _flat(lib: Lib[A], outline: Outline, value: object) -> tuple[list[A], tuple[int, ...]]:
    """The leaves [N, *shape] of values of a nest, and their batch axes."""
    return as_batch(lib, outline, nest.flatten_as(outline.structure, value))


def _packed(ops: Ops, keys: KeyRows, owned: object, leaves: list[Array]) -> Array:
    return rows_of_keys(ops, keys, leaves)


@replaceable
def rows_of_keys(ops: Ops, keys: KeyRows, leaves: Sequence[Array]) -> Array:
    """The leaves [B, *shape] of keys as rows int32 [B, words]."""
    first = leaves[keys.layout.packed[0]]  # of those that have elements
    like = ops.cast(ops.bitcast(first.reshape(first.shape[0], -1), "uint8")[:, 0], "int32")
    return key_rows.pack(ops, keys, leaves, like)


def _unpacked(ops: Ops, keys: KeyRows, owned: object, rows: Array) -> list[Array]:
    return key_rows.unpack(ops, keys, rows)


def checked_mask(lib: Lib[A], mask: ArrayLike, lead: tuple[int, ...], who: str) -> Array | None:
    """A mask bool [*lead] as a vector."""
    if mask is None:
        return None
    converted = lib.convert(mask, Binary(lead), "mask")
    if tuple(converted.shape) != lead:
        raise ValueError(f"{who}: expected a mask of shape {lead}, got {tuple(converted.shape)}")
    return converted.reshape(math.prod(lead))
