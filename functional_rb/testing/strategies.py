"""Hypothesis strategies: item specs, items and batches of them, priorities, and histories of a buffer."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from functional_rb.base import nest
from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.specs import Binary, Bounded, Categorical, NonTensor, OneHot, Unbounded, numpy_ops, values
from functional_rb.specs.base import SpecNest
from functional_rb.specs.values import Outline
from functional_rb.writers import Immutable

# The dtypes that every backend has without being asked.
NUMBERS = ("float32", "float16", "int8", "int32", "uint8", "uint16")
# Zero, a subnormal number and large ones, and those that are refused.
ODD_PRIORITIES = (0.0, 1.0, 1e-40, 1e30, 1e-3, math.nan, math.inf, -1.0)
# Random words lie below this number.
BITS = 2**31


class Add(NamedTuple):
    """A batch is added.

    Attributes:
        items: the batch, a nest of NumPy's arrays [B, *shape]; row `t * lanes + e` is step t of lane e.
        mask: bool [B], which rows are written; None for all.
        priorities: float32 [B], or None.
        seed: the seed of the random bits, for a writer that takes any.
    """

    items: Nest
    mask: NumpyArray | None
    priorities: NumpyArray | None
    seed: int


class Sample(NamedTuple):
    """A batch is drawn.

    Attributes:
        batch_size: as `rb.sample` takes it.
        seed: the seed of the random bits.
        beta: as `rb.sample` takes it; None for the sampler's own.
    """

    batch_size: int
    seed: int
    beta: float | None


class Update(NamedTuple):
    """Priorities are set, and leaves exchanged, of items of any age.

    Attributes:
        which: int [n], whom: k names slot `k % capacity`, and where `k >= capacity` what was there before.
        priorities: float32 [n], or None.
        items: a nest of NumPy's arrays [n, *shape], or None.
    """

    which: NumpyArray
    priorities: NumpyArray | None
    items: Nest


class Clear(NamedTuple):
    """All items are taken out."""


Action = Add | Sample | Update | Clear


def item_specs(depth: int = 2) -> st.SearchStrategy[SpecNest]:
    """Specs of items: leaves of several kinds, dtypes and shapes, in dicts and tuples.

    Example:
        >>> from hypothesis import given
        >>> @given(item_specs())
        ... def test(item):
        ...     BufferSpec(item, capacity=3)
        >>> test()
    """
    shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
    leaves = st.one_of(
        st.builds(Unbounded, shapes, st.sampled_from(NUMBERS)),
        st.builds(Binary, shapes),
        st.builds(Bounded, st.just(-1.0), st.just(2.0), shapes),
        st.builds(Categorical, st.integers(1, 5)),
        st.builds(OneHot, st.integers(1, 5)),
    )
    if not depth:
        return leaves
    parts = leaves | item_specs(depth - 1)
    return st.dictionaries(st.sampled_from("abcd"), parts, min_size=1) | st.lists(parts, min_size=1, max_size=3).map(
        tuple
    )


@st.composite
def batches(draw: st.DrawFn, item: SpecNest, size: int | None = None) -> Nest:
    """Batches of items: values in the domains of their specs, NumPy arrays [size, *shape] in the spec's containers.

    Args:
        draw: given by hypothesis.
        item: a nest of specs, as `BufferSpec` takes it, of arrays alone.
        size: how many items; any number up to 5, if not given.

    Raises:
        TypeError: for leaves that are Python objects.

    Example:
        >>> from hypothesis import given
        >>> @given(batches({"obs": Bounded(0.0, 1.0, (2,))}, size=3))
        ... def test(batch):
        ...     assert batch["obs"].shape == (3, 2) and (batch["obs"] <= 1).all()
        >>> test()
    """
    count = draw(st.integers(0, 5)) if size is None else size
    return some_items(item, count, draw(seeds()))


@st.composite
def items(draw: st.DrawFn, item: SpecNest) -> Nest:
    """Single items: values as in `batches`, NumPy arrays [*shape]."""
    outline = Outline.of(item, "items")
    leaves = nest.flatten_as(outline.structure, draw(batches(item, 1)))
    return nest.unflatten(outline.structure, [leaf[0] for leaf in leaves])


def priorities(size: int) -> st.SearchStrategy[NumpyArray]:
    """Priorities float32 [size]: among them zeros, very small and very large ones, and bad ones, which are refused.

    Example:
        >>> priorities(3).example().shape  # doctest: +SKIP
        (3,)
    """
    one = st.sampled_from(ODD_PRIORITIES) | st.floats(0.0625, 16.0, width=32)
    return st.lists(one, min_size=size, max_size=size).map(lambda some: np.array(some, np.float32))


def seeds() -> st.SearchStrategy[int]:
    """Seeds of keys and of NumPy's generators."""
    return st.integers(0, 2**32 - 1)


class Decisions:
    """Random decisions by the methods of NumPy's generators, each of which hypothesis draws: a failing test shrinks.

    A single integer, or a number from 0 to 1, is drawn by itself and shrinks to the least integer, or towards 1. Arrays
    come from a generator whose seed is drawn, as do all that the other methods of `numpy.random.Generator` give.
    """

    def __init__(self, random: random.Random) -> None:
        self._random = random

    def numbers(self) -> np.random.Generator:
        """A generator for many numbers, of which none is drawn by itself."""
        return np.random.default_rng(self._random.randrange(2**32))

    # The types are NumPy's: a number, or an array where a size is given.
    def integers(self, low: int, high: int | None = None, size: Any = None, **settings: Any) -> Any:
        """An integer, or an array of them, as `numpy.random.Generator.integers` gives it."""
        if size is not None:
            return self.numbers().integers(low, high, size, **settings)
        return self._random.randrange(low) if high is None else self._random.randrange(low, high)

    def random(self, size: Any = None) -> Any:
        """A number in [0, 1), or an array of them; one alone is a multiple of 1 / 1024."""
        return 1 - self._random.randrange(1, 1025) / 1024 if size is None else self.numbers().random(size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.numbers(), name)


def decisions() -> st.SearchStrategy[Decisions]:
    """Random decisions for a test that makes them as it goes, and shrinks all the same.

    Example:
        >>> from hypothesis import given
        >>> @given(decisions())
        ... def test(rng):
        ...     assert 0 <= rng.integers(3) < 3 and rng.normal(size=2).shape == (2,)
        >>> test()
    """
    return st.randoms(use_true_random=False).map(Decisions)


@st.composite
def histories(
    draw: st.DrawFn,
    spec: BufferSpec,
    *,
    steps: int = 10,
    sizes: Sequence[int] = (1, 2, 3),
    batch_sizes: Sequence[int] = (1, 6),
    alike: bool = False,
) -> list[Action]:
    """What may happen to a buffer: lists of `Add`, `Sample`, `Update` and `Clear`.

    A leaf "id" of integers numbers the items from 0 on, whatever else they hold.

    Args:
        draw: given by hypothesis.
        spec: the spec of the buffer.
        steps: how many at most.
        sizes: how many steps of all lanes a batch may have.
        batch_sizes: how many may be drawn at a time.
        alike: whether all calls of a kind have the same arguments, so that there is little to compile: masks, where
            there are priorities these, and leaves to exchange.

    Example:
        >>> from hypothesis import given
        >>> @given(histories(BufferSpec({"id": Unbounded((), "int32")}, capacity=4), steps=3))
        ... def test(history):
        ...     assert len(history) <= 3
        >>> test()
    """
    lanes, added = spec.lanes or 1, 0
    history: list[Action] = []
    kinds: list[type] = [Add, Add, Add, Sample, Sample, Update, Update, Clear]
    if isinstance(spec.writer, Immutable):
        kinds = [Sample]
    for _ in range(draw(st.integers(1, steps))):
        kind = draw(st.sampled_from(kinds)) if history else kinds[0]
        some_priorities = spec.sampler.has_priorities and (alike or draw(st.booleans()))
        if kind is Add:
            size = draw(st.sampled_from(sizes)) * lanes
            mask = None
            if alike or draw(st.booleans()):
                mask = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.bool_)
            batch = numbered(spec.item, some_items(spec.item, size, draw(seeds())), added)
            added += size
            history.append(Add(batch, mask, draw(priorities(size)) if some_priorities else None, draw(seeds())))
        elif kind is Sample:
            beta = draw(st.sampled_from([None, 0.0, 1.0])) if spec.sampler.has_priorities else None
            history.append(Sample(draw(st.sampled_from(batch_sizes)), draw(seeds()), beta))
        elif kind is Update:
            which = np.array(draw(st.lists(st.integers(0, 2 * spec.capacity - 1), min_size=4, max_size=4)), np.int32)
            change = alike or not some_priorities or draw(st.booleans())
            new = numbered(spec.item, some_items(spec.item, 4, draw(seeds())), added) if change else None
            added += 4
            history.append(Update(which, draw(priorities(4)) if some_priorities else None, new))
        else:
            history.append(Clear())
    return history


def some_items(item: SpecNest, size: int, seed: int) -> Nest:
    """A batch of items [size, *shape], values of the specs by chance, from a seed."""
    outline = Outline.of(item, "batches")
    for name, leaf in zip(outline.names, outline.leaves, strict=True):
        if isinstance(leaf, NonTensor):
            raise TypeError(f"batches: leaf {name!r}: expected a spec of arrays, got {leaf!r}; leave it out")
    bits = np.random.default_rng(seed).integers(0, BITS, (size, outline.words), np.int32)
    drawn = values.draw(numpy_ops.OPS, outline, bits)
    return nest.unflatten(outline.structure, [np.asarray(drawn[k]) for k in range(len(outline.leaves))])


def numbered(item: SpecNest, batch: Nest, first: int) -> Nest:
    """A batch whose leaf "id", if the item is a dict with one, numbers the items from `first` on."""
    if not (isinstance(item, Mapping) and "id" in item):
        return batch
    return batch | {"id": np.arange(first, first + len(batch["id"])).astype(item["id"].dtype)}
