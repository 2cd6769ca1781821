"""A draw among rows that another system stores, by this library's samplers. It knows nothing of that system.

Of each row only tags are looked at: a small dict that says what it belongs to, who made it, and what it is worth. A
draw writes them into a buffer of its own, which lives for that draw alone, and so costs O(n) of the rows that are
ready.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from functional_rb.base.dtypes import checked_count
from functional_rb.buffer.spec import BufferSpec
from functional_rb.samplers import Groups, Prioritized
from functional_rb.specs import Unbounded

# The leaf of the buffer by which `Groups` tells groups apart: a number for each value of the rows' tag.
GROUP = "group"
# The tags that a draw writes: floats, as of `sample.probabilities` and `sample.weights`.
PROBABILITY, WEIGHT = "frb_probability", "frb_weight"
# Capacities are powers of two from here on, so that few specs are planned however many rows are ready.
LEAST_CAPACITY = 64

Tags = Mapping[str, object]
Chances = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def seed_of(seed: int, draws: int) -> int:
    """The seed of a draw, 63 bits, after so many others."""
    return int(np.random.SeedSequence((seed, draws)).generate_state(1, np.uint64)[0] >> 1)


class Drawn(NamedTuple):
    """What was drawn."""

    # Positions among the rows that were given, group by group where there are groups; none if too few of them can be
    # drawn.
    rows: list[int]
    probabilities: Chances  # float32, of each, as of a sample
    weights: Chances  # float32, of each, as of a sample
    stale: list[int]  # positions of the rows that are too old ever to be drawn


@dataclasses.dataclass(frozen=True)
class Law:
    """A law by which rows are drawn.

    Attributes:
        sampler: of this library: `Groups` with `interleaved=True`, or `Prioritized`.
        group_tag: the tag that tells a row's group, of any type that can be hashed; None where groups do not matter.
            Rows without it are not drawn.
        priority_tag: the tag that tells a row's priority, before alpha. A row without it, or whose priority is no
            positive number or 0, counts as new: it has the largest priority of those that can be drawn.
        version_tag: the tag that tells which version of a policy made a row, an int.
        max_staleness: rows that are older than so many versions are not drawn, nor are others of their group, and rows
            without a version wait; None for no limit.

    Raises:
        TypeError: for another sampler.
        ValueError: for groups that are not interleaved or have no tag, or a tag without them, or a negative limit.
    """

    sampler: Groups | Prioritized
    group_tag: str | None = None
    priority_tag: str = "priority"
    version_tag: str = "version"
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, Groups | Prioritized):
            raise TypeError(f"Law: expected frb.Groups or frb.Prioritized, got {self.sampler!r}")
        is_whole = self.sampler.interleaved if isinstance(self.sampler, Groups) else True
        if not is_whole or isinstance(self.sampler, Groups) != (self.group_tag is not None):
            raise ValueError(
                f"Law: expected frb.Groups(..., interleaved=True) with a group_tag, or frb.Prioritized without, got "
                f"{self.sampler!r} and group_tag={self.group_tag!r}"
            )
        if self.max_staleness is not None:
            checked_count("max_staleness", self.max_staleness, 0, 2**62)

    def draw(
        self, tags: Sequence[Tags], n: int, seed: int, version: int | None = None, beta: float | None = None
    ) -> Drawn:
        """Draw rows.

        Args:
            tags: of each row that is ready.
            n: how many; with groups so many rows in all.
            seed: of the draw, 64 bits.
            version: from which age is counted; by default the newest among the rows.
            beta: overrides that of the sampler.

        Raises:
            ValueError: if n is no multiple of the rows of a group.
            TypeError: for a version that is no int.
        """
        groups = [tag.get(self.group_tag) for tag in tags] if self.group_tag is not None else None
        may, stale = self._young(tags, groups, version)
        rows = self._grouped(may, groups, n) if groups is not None else may
        if not rows:
            return _NONE._replace(stale=stale)
        groups_of_rows = None if groups is None else [groups[k] for k in rows]
        drawn = self._drawn([tags[k] for k in rows], groups_of_rows, n, seed, beta)
        return drawn._replace(rows=[rows[k] for k in drawn.rows], stale=stale)

    def stale(self, tags: Sequence[Tags], version: int | None = None) -> list[int]:
        """Positions of the rows that are too old ever to be drawn; arguments as for `draw`."""
        groups = None if self.group_tag is None else [tag.get(self.group_tag) for tag in tags]
        return self._young(tags, groups, version)[1]

    # Which rows are young enough, and which are too old; those without a version are neither.
    def _young(
        self, tags: Sequence[Tags], groups: Sequence[object] | None, version: int | None
    ) -> tuple[list[int], list[int]]:
        everything = range(len(tags))
        if self.max_staleness is None:
            return list(everything), []
        known = {k: _version(tags[k], self.version_tag) for k in everything if self.version_tag in tags[k]}
        newest = version if version is not None else max(known.values(), default=0)
        old = {k for k, row_version in known.items() if newest - row_version > self.max_staleness}
        if groups is not None:
            gone = {groups[k] for k in old} - {None}
            old |= {k for k in everything if groups[k] in gone}
        return [k for k in known if k not in old], sorted(old)

    def _grouped(self, rows: list[int], groups: Sequence[object], n: int) -> list[int]:
        assert isinstance(self.sampler, Groups)
        each = self.sampler.per_group
        if n % each:
            raise ValueError(
                f"batch_size: expected a multiple of per_group={each}, got {n}; {n + each - n % each} would do"
            )
        rows = [k for k in rows if groups[k] is not None]
        sizes: dict[object, int] = {}
        for k in rows:
            sizes[groups[k]] = sizes.get(groups[k], 0) + 1
        whole = sum(size >= each for size in sizes.values())
        return rows if whole >= n // each else []

    def buffer(self, tags: Sequence[Tags], groups: Sequence[object] | None) -> tuple[Any, Places]:
        """A buffer of rows of these tags and groups, and at which place each of its handles came."""
        rb = importlib.import_module("torch_backend")
        capacity = max(1 << (len(tags) - 1).bit_length(), LEAST_CAPACITY)
        state = rb.init(_spec(self.sampler, capacity))
        if groups is not None:
            numbers: dict[object, int] = {}
            number = np.array([numbers.setdefault(group, len(numbers)) for group in groups], np.int32)
            return rb.add(state, {GROUP: number}), np.arange(len(tags))
        ranks = _priorities([tag.get(self.priority_tag) for tag in tags])
        has_priority = ~np.isnan(ranks)
        if has_priority.any():
            state = rb.add(state, {GROUP: _zeros(has_priority.sum())}, priorities=ranks[has_priority])
        if not has_priority.all():  # what an item without a priority gets is the sampler's to say
            state = rb.add(state, {GROUP: _zeros((~has_priority).sum())})
        # The buffer was empty and has room for all, so that a handle is the place at which an item was added.
        return state, np.concatenate([np.flatnonzero(has_priority), np.flatnonzero(~has_priority)])

    # Draw from a buffer of these rows.
    def _drawn(
        self, tags: Sequence[Tags], groups: Sequence[object] | None, n: int, seed: int, beta: float | None
    ) -> Drawn:
        rb = importlib.import_module("torch_backend")
        state, places = self.buffer(tags, groups)
        batch = n // self.sampler.per_group if isinstance(self.sampler, Groups) else n
        distinct = isinstance(self.sampler, Groups) or not self.sampler.replacement
        if not rb.can_sample(state, batch if distinct else 1):
            return _NONE
        more = {} if beta is None or groups is not None else {"beta": beta}
        _, sample = rb.sample(state, rb.key(seed), batch, **more)
        mask = getattr(sample, "mask", None)
        if mask is not None and not mask.all():  # as where a power of a tiny priority is 0
            return _NONE
        rows = places[sample.indices.numpy().reshape(-1)]
        each = len(rows) // batch
        chances, weights = (np.repeat(array.numpy(), each) for array in (sample.probabilities, sample.weights))
        return Drawn(rows.tolist(), chances, weights, [])


_NONE = Drawn([], np.zeros(0, np.float32), np.zeros(0, np.float32), [])


def _zeros(count: int) -> object:
    return np.zeros(int(count), np.int32)


@functools.lru_cache(256)
def _spec(sampler: Groups | Prioritized, capacity: int) -> BufferSpec:
    return BufferSpec({GROUP: Unbounded((), "int32")}, capacity, sampler=sampler)


# Priorities float32; NaN for what is none that a buffer takes.
def _priorities(values: Sequence[object]) -> Chances:
    if not set(map(type, values)) <= {int, float}:
        numbers = int | float | np.number
        values = [float(x) if isinstance(x, numbers) and not isinstance(x, bool) else math.nan for x in values]
    with np.errstate(over="ignore"):
        ranks = np.array(values, np.float64).astype(np.float32)
    return np.where((ranks >= 0) & (ranks < math.inf), ranks, np.float32(math.nan))


def _version(tag: Tags, name: str) -> int:
    version = tag[name]
    if isinstance(version, bool) or not isinstance(version, int | np.integer):
        raise TypeError(f"tag {name!r}: expected an int, the number of a policy's version, got {version!r}")
    return int(version)
