"""The static description of a buffer, which every state carries."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

from functional_rb.base import nest
from functional_rb.base.containers import Registered, apart, check_depth
from functional_rb.base.nest import Key, Structure
from functional_rb.base.object_arrays import is_non_tensor
from functional_rb.buffer.frame_dedup import Compact
from functional_rb.buffer.storage_kinds import Device, Storage, StorageBase
from functional_rb.core.auxiliary import AuxiliaryArray
from functional_rb.core.episodes import EpisodeBoundaries
from functional_rb.samplers import Sampler, Uniform
from functional_rb.samplers.base import SamplerBase
from functional_rb.specs import ArraySpec, Binary, Composite, NonTensor, Unbounded, freeze
from functional_rb.specs.values import Outline
from functional_rb.structures import ring, sum_tree
from functional_rb.structures import row_layout as layout
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.ring import Ring
from functional_rb.structures.row_layout import Layout
from functional_rb.transforms.base import Transform, check_transforms
from functional_rb.writers import Writer
from functional_rb.writers.base import WriterBase

_BY_SAMPLER: Any = None
"""Stands for the sampler's default writer until the spec is made."""


@dataclasses.dataclass(frozen=True, eq=False)
class BufferSpec:
    """What a buffer holds and how it is written and sampled: frozen and hashable, without any array.

    Attributes:
        item: a nest (dicts, tuples, NamedTuples, dataclasses, what is registered with `jax.tree` or torch's pytree) of
            `ArraySpec`s, and on torch of `NonTensor`s; dicts, and what is registered, become `Composite`s.
        capacity: how many items fit, 1 to 2^31 - 1.
        sampler: how items are drawn.
        writer: where new ones go; by default what the sampler needs, `RoundRobin()` for most.
        batch_size: the default for `sample`.
        lanes: E environments written in step: items come as [E, *shape] or [T, E, *shape], and each lane is a ring
            of `capacity // lanes` items. None for items without such an axis.
        compact: how successive steps share their observations in storage, `frb.Compact()`; None if they do not.
        transforms: what happens between what is added and what is sampled: `n_step`, `her`; one may stand alone.
        storage: where the rows lie: `Device()`, `Host()`, `Memmap(...)`, `Objects()`.
        outline, structure, leaves, names, layout: derived: the item taken apart, its containers, its specs in order,
            their paths as errors show them, and where they lie in storage.
        objects: derived: the positions of the leaves that are Python objects.
        frames: derived: the leaves that are stored as shared frames, if any are.
        ring, kept, counter_names: derived: the lanes' rings, and what sampler, writer and the rest keep.
        columns, stored: derived: the specs of what is stored beside each item, and which of leaves and columns lie in
            the layout, by position.
        marks: derived: what tells where trajectories end, if somebody asks.
        fused, fused_draws: derived: whether the kernels that carry whole functions out know this buffer; whether they
            know how it is drawn from, frames apart.

    Raises:
        TypeError: if a leaf of `item` is no spec, or another field is of a wrong type.
        ValueError: if a number is out of range.

    Example:
        >>> from functional_rb import Unbounded
        >>> spec = BufferSpec(item={"obs": Unbounded((3,)), "reward": Unbounded(())}, capacity=100)
        >>> spec.item["obs"].shape, spec.sampler, spec.item_bytes
        ((3,), Uniform(max_times_sampled=None), 16)
    """

    item: Any
    capacity: int
    sampler: Sampler = dataclasses.field(default_factory=Uniform)
    writer: Writer = _BY_SAMPLER
    batch_size: int | None = None
    lanes: int | None = None
    transforms: tuple[Transform, ...] | Transform = ()
    compact: Compact | None = None
    storage: Storage = dataclasses.field(default_factory=Device)

    outline: Outline = dataclasses.field(init=False, repr=False)
    structure: Structure = dataclasses.field(init=False, repr=False)
    leaves: tuple[ArraySpec | NonTensor, ...] = dataclasses.field(init=False, repr=False)
    names: tuple[str, ...] = dataclasses.field(init=False, repr=False)
    layout: Layout = dataclasses.field(init=False, repr=False)
    ring: Ring = dataclasses.field(init=False, repr=False)
    auxiliary: dict[str, AuxiliaryArray] = dataclasses.field(init=False, repr=False)
    counter_names: tuple[tuple[str, int], ...] = dataclasses.field(init=False, repr=False)
    columns: dict[str, ArraySpec] = dataclasses.field(init=False, repr=False)
    stored: tuple[int, ...] = dataclasses.field(init=False, repr=False)
    objects: tuple[int, ...] = dataclasses.field(init=False, repr=False)
    frames: Chain | None = dataclasses.field(init=False, repr=False)
    marks: EpisodeBoundaries | None = dataclasses.field(init=False, repr=False)
    fused: bool = dataclasses.field(init=False, repr=False)
    fused_draws: bool = dataclasses.field(init=False, repr=False)
    _hash: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check everything that can be known now, and plan the storage once."""
        object.__setattr__(self, "capacity", _count("capacity", self.capacity, ring.INT32_MAX))
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", _count("batch_size", self.batch_size, ring.INT32_MAX))
        _check_kind("sampler", self.sampler, SamplerBase, "frb.Uniform()")
        if self.writer is _BY_SAMPLER:
            object.__setattr__(self, "writer", self.sampler.default_writer())
        _check_kind("writer", self.writer, WriterBase, "frb.RoundRobin()")
        object.__setattr__(self, "transforms", check_transforms(self.transforms))
        _check_kind("storage", self.storage, StorageBase, "frb.Memmap()")
        if isinstance(self.item, SamplerBase | WriterBase | StorageBase):
            raise TypeError(f"BufferSpec.item: expected a spec such as frb.Unbounded(shape), got {self.item!r:.80}")
        self._plan(Outline.of(self.item, "BufferSpec.item"))

    def as_given(self) -> BufferSpec:
        """This spec with its leaves in the order in which their names were given, as `earlier` versions had them.

        It serves to read what these wrote, and is equal only to others with that order.
        """
        made = object.__new__(BufferSpec)
        for field in dataclasses.fields(self):
            if field.init:
                object.__setattr__(made, field.name, getattr(self, field.name))
        made._plan(Outline.of(self.item, "BufferSpec.item", as_given=True))
        return made

    def _plan(self, outline: Outline) -> None:
        """All that follows from the fields, and the item taken apart."""
        self._plan_lanes()
        if self.sampler.tree_rows(self.capacity) * sum_tree.FANOUT > ring.INT32_MAX:
            raise ValueError(
                f"BufferSpec.capacity: the sum tree of {self.capacity} items needs more than 2^31 nodes; "
                f"use frb.Uniform() or several buffers"
            )
        self._plan_item(outline)
        if self.compact is not None:
            _check_kind("compact", self.compact, Compact, "frb.Compact()")
        object.__setattr__(self, "frames", None if self.compact is None else self.compact.chain(self))
        self._plan_members()
        self._plan_storage()
        self.storage.check(self)
        object.__setattr__(self, "_hash", hash(self._key))

    def _plan_lanes(self) -> None:
        if self.lanes is not None:
            object.__setattr__(self, "lanes", _count("lanes", self.lanes, self.capacity))
        # A writer that chooses slots takes the items of all lanes together.
        lanes = self.lanes or 1 if self.writer.in_order else 1
        if self.capacity % lanes:
            raise ValueError(
                f"BufferSpec.capacity: expected a multiple of lanes={lanes}, got {self.capacity}; "
                f"{self.capacity - self.capacity % lanes} would do"
            )
        object.__setattr__(self, "ring", Ring(self.capacity, lanes))

    def _plan_members(self) -> None:
        """Let sampler and writer find their leaves, check the rest, and say what they keep."""
        object.__setattr__(self, "sampler", self.sampler.resolve(self))
        self.sampler.check(self)
        self.writer.check(self)
        object.__setattr__(self, "transforms", tuple(transform.resolve(self) for transform in self.transforms))
        object.__setattr__(self, "marks", self._common_marks())
        keepers: list[Any] = [*([self.marks] if self.marks else []), self.sampler, self.writer, *self.transforms]
        auxiliary: dict[str, AuxiliaryArray] = {} if self.frames is None else self.frames.auxiliary()
        for keeper in keepers:
            auxiliary |= keeper.auxiliary(self)
        object.__setattr__(self, "auxiliary", auxiliary)
        numbers = () if self.frames is None else self.frames.counters()
        numbers += tuple(pair for keeper in keepers for pair in keeper.counters(self))
        object.__setattr__(self, "counter_names", numbers)
        plain = self.ring.lanes == 1 and self.sampler.fused and self.writer.fused
        object.__setattr__(self, "fused_draws", plain)
        object.__setattr__(self, "fused", plain and self.frames is None and not self.transforms)

    def marks_for(self, end_keys: tuple[Key, ...] | None, trajectory_key: Key | None, who: str) -> EpisodeBoundaries:
        """Where trajectories end for one who names these keys, or none: then as for the sampler, or as usual."""
        if end_keys is None and trajectory_key is None and self.sampler.marks is not None:
            return self.sampler.marks
        return EpisodeBoundaries.find(end_keys, trajectory_key, self.names, who)

    def _common_marks(self) -> EpisodeBoundaries | None:
        """What tells where trajectories end: the same for all who ask, as steps have one age."""
        askers: list[Sampler | Transform] = [self.sampler, *self.transforms]
        asked = {who: who.marks for who in askers if who.marks is not None}
        if len({marks.names for marks in asked.values()}) > 1:
            raise ValueError(
                f"BufferSpec: expected the same end_keys and trajectory_key everywhere, as a step has one trajectory, "
                f"got {list(asked.values())}; leave them out of the transforms, which take over the sampler's"
            )
        return next(iter(asked.values()), None)

    def _plan_storage(self) -> None:
        """Lay out the leaves, and what transforms store beside them."""
        columns = {name: spec for transform in self.transforms for name, spec in transform.columns(self).items()}
        paths = [*self.structure.paths, *(("transforms", name) for name in columns)]
        specs: list[ArraySpec | NonTensor] = [*self.leaves, *columns.values()]
        elsewhere = frozenset() if self.frames is None else self.frames.leaves
        stored = tuple(k for k in range(len(specs)) if k not in elsewhere)
        plan = layout.plan(tuple((paths[k], specs[k].shape, specs[k].dtype) for k in stored))
        for name, value in {"columns": columns, "stored": stored, "layout": plan}.items():
            object.__setattr__(self, name, value)

    def _plan_item(self, outline: Outline) -> None:
        derived = {
            "item": freeze(self.item),
            "outline": outline,
            "structure": outline.structure,
            "leaves": outline.leaves,
            "names": outline.names,
            "objects": tuple(k for k, leaf in enumerate(outline.leaves) if isinstance(leaf, NonTensor)),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.outline, self.capacity, *self._members

    @property
    def _members(self) -> tuple[Any, ...]:
        return (
            self.sampler,
            self.writer,
            self.batch_size,
            self.lanes,
            self.transforms,
            self.compact,
            self.storage,
        )

    def __eq__(self, other: object) -> bool:
        """Whether two specs describe the same buffer. JAX asks this at every call: identity answers at once."""
        if self is other:
            return True
        return isinstance(other, BufferSpec) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        """Computed once."""
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the arguments: hashes of strings differ from process to process."""
        return BufferSpec, (self.item, self.capacity, *self._members)

    @property
    def extra_words(self) -> int:
        """Random 31-bit words that transforms take for each item of a sample."""
        return sum(transform.words for transform in self.transforms)

    def extra_shape(self, batch: int) -> tuple[int, int]:
        """How many draws transforms take for a batch, as (items, words)."""
        return math.prod(self.sampler.leading_shape(batch)), self.extra_words

    def rows(self, batch: int) -> int:
        """How many rows are written for a batch of added ones, some of them masked."""
        for transform in self.transforms:
            batch = transform.rows(self, batch)
        return batch

    @property
    def item_bytes(self) -> int:
        """Bytes of storage that an item takes, a frame of its own included."""
        return self.layout.item_bytes + (0 if self.frames is None else self.frames.layout.item_bytes)

    @property
    def tree_shape(self) -> tuple[int, int] | None:
        """The shape of the sampler's array, None if it needs none."""
        rows = self.sampler.tree_rows(self.capacity)
        return (rows, sum_tree.FANOUT) if rows else None


def _check_kind(field: str, value: Any, expected: type, example: str) -> None:
    if not isinstance(value, expected):
        hint = f"; write {value.__name__}()" if isinstance(value, type) else ""
        raise TypeError(f"BufferSpec.{field}: expected an instance such as {example}, got {value!r}{hint}")


def _count(name: str, value: Any, largest: int) -> int:
    """A Python int, as NumPy's would widen what they are computed with."""
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise TypeError(f"BufferSpec.{name}: expected an int, got {value!r}")
    if not 1 <= count <= largest:
        raise ValueError(f"BufferSpec.{name}: expected 1 to {largest}, got {count}")
    return count


def spec_of(example: Any) -> Any:
    """Derive the item spec from one item of arrays.

    Args:
        example: a nest of arrays of NumPy, JAX or torch, or of what tells their shapes and dtypes
            (`jax.ShapeDtypeStruct`), without the axis of a batch to add. Leaves become `Unbounded`, or `Binary` where
            the dtype is bool. A TensorDict or tensorclass gives a spec whose items come back as such on torch; its
            batch size becomes the `batch_shape`, which comes back behind the axes of a batch, with the names of its
            axes. It comes back with a device if it has one: that of the arrays. Its NonTensorData, and what else a
            tensorclass has in place of tensors, become `NonTensor`; a field that is None stays None.

    Returns:
        The same nest of specs, for `BufferSpec(item=...)`.

    Raises:
        TypeError: if a leaf has no shape and dtype, naming its path, or a static field cannot be hashed.

    Example:
        >>> import numpy as np
        >>> spec_of({"obs": np.zeros((3,), np.float32), "done": np.bool_(False)})
        Composite({'obs': Unbounded((3,)), 'done': Binary()})
    """
    return _spec_of(example, ())


def _spec_of(example: Any, path: nest.Path) -> Any:
    check_depth(len(path))
    if is_non_tensor(example):
        return NonTensor(tuple(example.batch_size))
    if example is None:
        return None
    is_object_array = hasattr(example, "dtype") and not hasattr(example, "batch_size") and apart(example) is None
    parts = None if is_object_array else nest.parts_of(example)
    if parts is None:
        return _leaf_of(example, path)
    outline, values = parts
    outline = dataclasses.replace(outline, children=(nest.LEAF,) * len(values))
    outline.check_names("spec_of")
    made = [_spec_of(value, (*path, key)) for key, value in zip(outline.keys, values, strict=True)]

    def mapping(container: Any, parts: dict[str, Any], _: tuple[int, ...]) -> Composite:
        if container is None:
            return Composite(parts)
        if isinstance(container, Registered):
            return Composite.like(container, parts)
        batch = tuple(example.batch_size)
        names = tuple(example.names) if batch else ()
        return Composite.like(container, parts, batch, names, example.device is not None)

    return nest.unflatten(outline, made, mapping)


def _leaf_of(leaf: Any, path: nest.Path) -> ArraySpec:
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise TypeError(
            f"spec_of: leaf {nest.show(path)!r}: expected an array, got {type(leaf).__name__}; "
            f"give NumPy, JAX or torch arrays, so that the dtype is known"
        )
    try:
        made = Unbounded(tuple(leaf.shape), leaf.dtype)
    except TypeError as error:
        raise TypeError(f"spec_of: leaf {nest.show(path)!r}: {error}") from None
    return Binary(made.shape) if made.dtype == "bool" else made
