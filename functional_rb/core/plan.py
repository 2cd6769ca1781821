"""All that is static about a buffer and follows from its spec."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from functional_rb.base.nest import Structure
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.specs import ArraySpec, NonTensor
from functional_rb.specs.values import Outline
from functional_rb.structures import row_layout
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.ring import Ring
from functional_rb.structures.row_layout import Layout

# The layout of no leaves.
NOTHING = row_layout.plan(())


class AuxiliaryArray(NamedTuple):
    """An array that is kept beside the storage.

    Attributes:
        shape: of the array.
        dtype: its name.
        fill: what it holds at first; other numbers than 0 cost the time to write them.
    """

    shape: tuple[int, ...]
    dtype: str = "int32"
    fill: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What a buffer holds and where, computed once by its `BufferSpec`: `spec.plan`.

    This is what strategies (samplers, writers, transforms) and all that works on a state's arrays see of a spec. What
    strategies ask of one another stands here as plain data. A spec makes its plan in three steps, and fields of a later
    step are empty while strategies are asked in an earlier one: (1) the item and what the writer says of itself, then
    the sampler and the writer are resolved and checked; (2) what the sampler says of itself, then the transforms are;
    (3) what all of them keep.

    Attributes:
        capacity: how many items fit.
        lanes: E environments written in step, None for items without such an axis.
        ring: the rings of the lanes; one for all lanes together where the writer chooses slots.
        outline: the item taken apart.
        structure, leaves, names: of the outline: the item's containers, its specs in the order in which they are
            stored, and their paths as errors show them.
        objects: the positions of the leaves that are Python objects.
        writer: the writer, as errors show it.
        in_order: whether items lie in the order of their adding, around a ring for each lane.
        overwrites: whether a new item may take the place of an old one.
        frames: the leaves that are stored as shared frames, if any are.

        sampler: the kind of the sampler, as errors show it.
        single_items: whether a sample consists of single items, rather than of windows of steps.
        tree_shape: the shape of the sum tree float32 [rows, FANOUT], None if the sampler needs none.
        extra_words: random 31-bit words that transforms take for each item of a sample.
        boundaries: the episode boundaries: in step (2) those of the sampler, at the end also those of transforms.

        auxiliary: the arrays that are kept beside the storage, by name.
        counter_names: the counters that are kept beside those of every buffer: names, and how many int32 each.
        columns: the specs of what transforms store beside each item, by name.
        stored: which of leaves and columns lie in the layout, by position; the others are stored as frames.
        layout: where they lie.
    """

    capacity: int
    lanes: int | None
    ring: Ring
    outline: Outline
    objects: tuple[int, ...]
    writer: str
    in_order: bool
    overwrites: bool
    frames: Chain | None = None

    sampler: str = ""
    single_items: bool = True
    tree_shape: tuple[int, int] | None = None
    extra_words: int = 0
    boundaries: EpisodeBoundaries | None = None

    auxiliary: dict[str, AuxiliaryArray] = dataclasses.field(default_factory=dict)
    counter_names: tuple[tuple[str, int], ...] = ()
    columns: dict[str, ArraySpec] = dataclasses.field(default_factory=dict)
    stored: tuple[int, ...] = ()
    layout: Layout = NOTHING

    structure: Structure = dataclasses.field(init=False, repr=False)
    leaves: tuple[ArraySpec | NonTensor, ...] = dataclasses.field(init=False, repr=False)
    names: tuple[str, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("structure", "leaves", "names"):
            object.__setattr__(self, name, getattr(self.outline, name))

    @property
    def first_object(self) -> str:
        """The name of the first leaf that is Python objects, for errors; there is one."""
        return self.names[self.objects[0]]

    @property
    def item_bytes(self) -> int:
        """Bytes of storage that an item takes, a frame of its own included."""
        return self.layout.item_bytes + (0 if self.frames is None else self.frames.layout.item_bytes)
