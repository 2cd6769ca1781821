"""The static description of a buffer, which every state carries."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypedDict, TypeVar, Unpack, overload

from functional_rb.base.arrays import Nest
from functional_rb.base.description import Description
from functional_rb.base.dtypes import checked_count
from functional_rb.buffer.frame_dedup import Compact
from functional_rb.buffer.known import Known, known
from functional_rb.buffer.storage_kinds import Device, Storage, StorageBase
from functional_rb.core import episodes, frame_store
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.plan import Plan
from functional_rb.core.sample import Drawn, Gives, Sample
from functional_rb.core.strategy import Transform
from functional_rb.samplers import Uniform
from functional_rb.samplers.base import SamplerBase
from functional_rb.specs import ArraySpec, NonTensor, Spec, freeze
from functional_rb.specs.values import Outline
from functional_rb.structures import ring, row_layout, sum_tree
from functional_rb.structures.ring import Ring
from functional_rb.transforms.her import Hindsight
from functional_rb.transforms.map_items import MapItems, MapOfAdded, MapOfSampled
from functional_rb.transforms.returns import NStep
from functional_rb.writers import RoundRobin, StopWhenFull
from functional_rb.writers.base import WriterBase

# Stands for the sampler's default writer until the spec is made.
_BY_SAMPLER: Any = None


class _HasFields(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Named(Protocol):
    def _asdict(self) -> dict[str, object]: ...


# A dataclass or NamedTuple of specs: items come as another of its kind, with arrays.
_Fields = TypeVar("_Fields", bound=_HasFields | _Named)
# Transforms that leave items of the type that they are.
_Keeping = NStep | Hindsight


class _Options(TypedDict, total=False):
    batch_size: int | None
    lanes: int | None
    compact: Compact | None
    storage: Storage


class _Kept(_Options, total=False):
    transforms: _Keeping | Sequence[_Keeping]


class _Changed(_Options, total=False):
    transforms: Transform | Sequence[Transform]


@dataclasses.dataclass(frozen=True, eq=False)
class BufferSpec(Description, Generic[Drawn]):
    """What a buffer holds and how it is written and sampled: frozen and hashable, without any array.

    Attributes:
        item: what is added, a nest (dicts, tuples, NamedTuples, dataclasses, what is registered with `jax.tree` or
            torch's pytree) of `ArraySpec`s, and on torch of `NonTensor`s; dicts, and what is registered, become
            `Composite`s.
        capacity: how many items fit, 1 to 2^31 - 1.
        sampler: how items are drawn.
        writer: where new ones go; by default what the sampler needs, `RoundRobin()` for most.
        batch_size: the default for `sample`.
        lanes: E environments written in step: items come as [E, *shape] or [T, E, *shape], and each lane is a ring
            of `capacity // lanes` items. None for items without such an axis.
        compact: how successive steps share their observations in storage, `frb.Compact()`; None if they do not.
        transforms: what happens between what is added and what is sampled: `n_step`, `her`, `map_items`; one may stand
            alone.
        storage: where the rows lie: `Device()`, `Host()`, `Memmap(...)`.
        stored: derived: the spec of what is stored of an item: `item`, unless `map_items(at="add")` makes others of it.
        added: derived: the item taken apart.
        on_add, on_sample: derived: the functions of items among the transforms, which the public functions carry out.
        inner: derived: the other transforms, which the core carries out.
        plan: derived: what the strategies see of all this, and where everything lies.

    Raises:
        TypeError: if a leaf of `item` is no spec, or another field is of a wrong type.
        ValueError: if a number is out of range.

    Example:
        >>> from functional_rb import Unbounded
        >>> spec = BufferSpec(item={"obs": Unbounded((3,)), "reward": Unbounded(())}, capacity=100)
        >>> spec.item["obs"].shape, spec.sampler, spec.item_bytes
        ((3,), Uniform(max_times_sampled=None), 16)
    """

    item: Nest
    capacity: int
    sampler: SamplerBase = dataclasses.field(default_factory=Uniform)
    writer: WriterBase = _BY_SAMPLER
    batch_size: int | None = None
    lanes: int | None = None
    transforms: tuple[Transform, ...] | Transform = ()
    compact: Compact | None = None
    storage: Storage = dataclasses.field(default_factory=Device)

    stored: Nest = dataclasses.field(init=False, repr=False)
    added: Outline = dataclasses.field(init=False, repr=False)
    on_add: MapItems | None = dataclasses.field(init=False, repr=False)
    on_sample: MapItems | None = dataclasses.field(init=False, repr=False)
    inner: tuple[Transform, ...] = dataclasses.field(init=False, repr=False)
    plan: Plan = dataclasses.field(init=False, repr=False)

    if TYPE_CHECKING:
        # What type checkers know of samples. Their items are of the type of the item, in which arrays stand in place of
        # specs, unless a transform makes others of them; the sampler says the rest, `Uniform` where there is none.
        @overload
        def __init__(
            self: BufferSpec[Sample[Nest]],
            item: Spec,
            capacity: int,
            *,
            writer: WriterBase = ...,
            **more: Unpack[_Kept],
        ) -> None: ...
        @overload
        def __init__(
            self,
            item: Spec,
            capacity: int,
            sampler: Gives[Nest, Drawn],
            writer: WriterBase = ...,
            **more: Unpack[_Kept],
        ) -> None: ...
        @overload
        def __init__(
            self: BufferSpec[Sample[dict[str, Nest]]],
            item: Mapping[str, object],
            capacity: int,
            *,
            writer: WriterBase = ...,
            **more: Unpack[_Kept],
        ) -> None: ...
        @overload
        def __init__(
            self,
            item: Mapping[str, object],
            capacity: int,
            sampler: Gives[dict[str, Nest], Drawn],
            writer: WriterBase = ...,
            **more: Unpack[_Kept],
        ) -> None: ...
        @overload
        def __init__(
            self: BufferSpec[Sample[_Fields]],
            item: _Fields,
            capacity: int,
            *,
            writer: WriterBase = ...,
            **more: Unpack[_Kept],
        ) -> None: ...
        @overload
        def __init__(
            self,
            item: _Fields,
            capacity: int,
            sampler: Gives[_Fields, Drawn],
            writer: WriterBase = ...,
            **more: Unpack[_Kept],
        ) -> None: ...
        @overload
        def __init__(
            self: BufferSpec[Sample[Nest]],
            item: object,
            capacity: int,
            *,
            writer: WriterBase = ...,
            **more: Unpack[_Changed],
        ) -> None: ...
        @overload
        def __init__(
            self,
            item: object,
            capacity: int,
            sampler: Gives[Nest, Drawn],
            writer: WriterBase = ...,
            **more: Unpack[_Changed],
        ) -> None: ...
        def __init__(self, item: object, capacity: int, *args: object, **more: object) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", checked_count("BufferSpec.capacity", self.capacity, 1, ring.INT32_MAX))
        if self.batch_size is not None:
            object.__setattr__(
                self, "batch_size", checked_count("BufferSpec.batch_size", self.batch_size, 1, ring.INT32_MAX)
            )
        _check_kind("sampler", self.sampler, SamplerBase, "frb.Uniform()")
        if self.writer is _BY_SAMPLER:
            object.__setattr__(self, "writer", StopWhenFull() if self.sampler.takes_out else RoundRobin())
        _check_kind("writer", self.writer, WriterBase, "frb.RoundRobin()")
        object.__setattr__(self, "transforms", _check_transforms(self.transforms))
        _check_kind("storage", self.storage, StorageBase, "frb.Memmap()")
        if isinstance(self.item, SamplerBase | WriterBase | StorageBase):
            raise TypeError(f"BufferSpec.item: expected a spec such as frb.Unbounded(shape), got {self.item!r:.80}")
        self._make_plan()

    def _make_plan(self) -> None:
        # The order is that of `Plan`'s three steps: strategies ask what the item, and those before them, say of
        # themselves.
        object.__setattr__(self, "added", Outline.of(self.item, "BufferSpec.item"))
        object.__setattr__(self, "item", freeze(self.item))
        plan = self._plan_of_item(self._bind_first())
        object.__setattr__(self, "sampler", self.sampler.resolve(plan))
        self.sampler.check(plan)
        self.writer.check(plan)
        plan = self._with_sampler(plan)
        object.__setattr__(self, "transforms", tuple(transform.resolve(plan) for transform in self.transforms))
        self._bind_last(plan)
        plan = dataclasses.replace(plan, boundaries=self._common_boundaries())
        plan = self._with_storage(self._with_auxiliary(plan))
        self.storage.check(plan)
        object.__setattr__(self, "plan", plan)
        self._seal()

    # Bind a function of the items that are added; returns what is stored, taken apart.
    def _bind_first(self) -> Outline:
        first = next((transform for transform in self.transforms if isinstance(transform, MapOfAdded)), None)
        bound = None if first is None else first.bound(self.item, self.added, 1)
        stored = self.item if bound is None else bound.spec_after(self.item, 1)
        object.__setattr__(self, "on_add", bound)
        object.__setattr__(self, "stored", stored)
        return self.added if bound is None else Outline.of(stored, bound.who)

    # Bind a function of the items that are sampled, and tell the transforms of the core from these.
    def _bind_last(self, plan: Plan) -> None:
        last = next((transform for transform in self.transforms if isinstance(transform, MapOfSampled)), None)
        lead = len(self.sampler.leading_shape(plan.ring.lanes))
        steps = self.sampler.steps_in_a_row
        bound = None if last is None else last.bound(self.stored, plan.outline, lead, steps)
        object.__setattr__(self, "on_sample", bound)
        inner = tuple(transform for transform in self.transforms if not isinstance(transform, MapItems))
        object.__setattr__(self, "inner", inner)

    def _plan_of_item(self, outline: Outline) -> Plan:
        if self.lanes is not None:
            object.__setattr__(self, "lanes", checked_count("BufferSpec.lanes", self.lanes, 1, self.capacity))
        # A writer that chooses slots takes the items of all lanes together.
        lanes = self.lanes or 1 if self.writer.in_order else 1
        if self.capacity % lanes:
            raise ValueError(
                f"BufferSpec.capacity: expected a multiple of lanes={lanes}, got {self.capacity}; "
                f"{self.capacity - self.capacity % lanes} would do"
            )
        if self.sampler.tree_rows(self.capacity) * sum_tree.FANOUT > ring.INT32_MAX:
            raise ValueError(
                f"BufferSpec.capacity: the sum tree of {self.capacity} items needs more than 2^31 nodes; "
                f"use frb.Uniform() or several buffers"
            )
        plan = Plan(
            capacity=self.capacity,
            lanes=self.lanes,
            ring=Ring(self.capacity, lanes),
            outline=outline,
            objects=outline.objects,
            writer=str(self.writer),
            in_order=self.writer.in_order,
            overwrites=self.writer.overwrites,
        )
        if self.compact is None:
            return plan
        _check_kind("compact", self.compact, Compact, "frb.Compact()")
        return dataclasses.replace(plan, frames=self.compact.chain(plan, self.writer))

    # A plan with what transforms may ask of the sampler, and of each other.
    def _with_sampler(self, plan: Plan) -> Plan:
        rows = self.sampler.tree_rows(self.capacity)
        boundaries = self.sampler.boundaries
        return dataclasses.replace(
            plan,
            sampler=type(self.sampler).__name__,
            single_items=boundaries is None and len(self.sampler.leading_shape(plan.ring.lanes)) == 1,
            tree_shape=(rows, sum_tree.FANOUT) if rows else None,
            extra_words=sum(transform.words for transform in self.transforms),
            boundaries=boundaries,
        )

    # The episode boundaries that the sampler and the transforms share, as a step has one place in one episode.
    def _common_boundaries(self) -> EpisodeBoundaries | None:
        askers: list[SamplerBase | Transform] = [self.sampler, *self.transforms]
        asked = {who: who.boundaries for who in askers if who.boundaries is not None}
        if len({boundaries.names for boundaries in asked.values()}) > 1:
            raise ValueError(
                f"BufferSpec: expected the same end_keys and trajectory_key everywhere, as a step has one trajectory, "
                f"got {list(asked.values())}; leave them out of the transforms, which take over the sampler's"
            )
        return next(iter(asked.values()), None)

    @property
    def strategies(self) -> tuple[SamplerBase | WriterBase | Transform, ...]:
        """Sampler, writer and transforms, in the order in which what they keep lies."""
        return self.sampler, self.writer, *self.transforms

    # A plan with the arrays and counters that frames, episodes and strategies keep.
    def _with_auxiliary(self, plan: Plan) -> Plan:
        auxiliary = frame_store.auxiliary(plan) | episodes.auxiliary(plan)
        numbers = frame_store.counters(plan) + episodes.counters(plan)
        for strategy in self.strategies:
            auxiliary |= strategy.auxiliary(plan)
            numbers += strategy.counters(plan)
        return dataclasses.replace(plan, auxiliary=auxiliary, counter_names=numbers)

    def _with_storage(self, plan: Plan) -> Plan:
        columns = {name: spec for transform in self.transforms for name, spec in transform.columns(plan).items()}
        paths = [*plan.structure.paths, *(("transforms", name) for name in columns)]
        specs: list[ArraySpec | NonTensor] = [*plan.leaves, *columns.values()]
        elsewhere = frozenset() if plan.frames is None else plan.frames.leaves
        stored = tuple(k for k in range(len(specs)) if k not in elsewhere)
        layout = row_layout.plan(tuple((paths[k], specs[k].shape, specs[k].dtype) for k in stored))
        return dataclasses.replace(plan, columns=columns, stored=stored, layout=layout)

    @property
    def _key(self) -> tuple[object, ...]:
        return self.added, self.capacity, *self._members

    @property
    def _members(self) -> tuple[object, ...]:
        return (self.sampler, self.writer, self.batch_size, self.lanes, self.transforms, self.compact, self.storage)

    @functools.cached_property
    def known(self) -> Known:
        """What the native code does whole of this buffer."""
        return known(self.plan, self.sampler, self.writer, self.inner)

    def draw_shape(self, batch: int) -> tuple[int, int]:
        """How many draws the sampler takes for a batch, as (rows, words)."""
        return self.sampler.draw_shape(self.plan, batch)

    def extra_shape(self, batch: int) -> tuple[int, int]:
        """How many draws transforms take for a batch, as (items, words)."""
        return math.prod(self.sampler.leading_shape(batch)), self.plan.extra_words

    def rows(self, batch: int) -> int:
        """How many rows are written for a batch of added ones, some of them masked."""
        for transform in self.transforms:
            batch = transform.rows(self.plan, batch)
        return batch

    @property
    def item_bytes(self) -> int:
        """Bytes of storage that an item takes, a frame of its own included."""
        return self.plan.item_bytes


def _check_transforms(setting: object) -> tuple[Transform, ...]:
    transforms = setting if isinstance(setting, tuple | list) else (setting,)
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise TypeError(f"BufferSpec.transforms: expected some such as frb.n_step(3, 0.99), got {transform!r}")
    ordered = tuple(sorted(transforms, key=lambda transform: transform.order))
    if len({transform.order for transform in ordered}) < len(ordered):
        raise ValueError(
            f"BufferSpec.transforms: expected at most one of a kind, got {setting!r}; leave one out, or compose "
            f"functions of items to one"
        )
    return ordered


def _check_kind(field: str, value: object, expected: type, example: str) -> None:
    if not isinstance(value, expected):
        hint = f"; write {value.__name__}()" if isinstance(value, type) else ""
        raise TypeError(f"BufferSpec.{field}: expected an instance such as {example}, got {value!r}{hint}")
