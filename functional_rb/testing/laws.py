"""What a sampler may do, in plain Python: what laws are made of, and the law of all that draw uniformly."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer.spec import BufferSpec

# The leaves of one item, by path, such as "obs" or "next/reward".
Leaves = dict[str, NumpyArray]
Name = TypeVar("Name", bound=Hashable)

# Between these lies what a positive priority counts, whatever it is.
SMALLEST, LARGEST = 2.0**-100, 2.0**95
# The relative error of fixed-point powers, and of float32 sums of a few hundred values.
ROUNDING = 1e-6
# Weights are normal floats, so that the least of them are larger than they should be, by this at most.
TINY = 2.0**-124


@dataclasses.dataclass
class Step:
    """An item that was added.

    Attributes:
        id: a number that no other item has.
        lane: the lane in which it is.
        slot: where it lies.
        handle: its name.
        leaves: what it holds, by path.
        value: its priority to the power alpha.
        times: how often it was drawn, where that is counted.
        episode: the number of its trajectory in its lane, where a law numbers them.
        step_in_episode: how many steps of its trajectory came before it, where a law numbers them.
        ended: whether it is known to be its trajectory's last step, where a law asks that.
        rank: what the best items are chosen by.
    """

    id: int
    lane: int
    slot: int
    handle: int
    leaves: Leaves
    value: float = 1.0
    times: int = 0
    episode: int = 0
    step_in_episode: int = 0
    ended: bool = False
    rank: float = 0.0


class SampleArrays(NamedTuple):
    """A `Sample` in NumPy's arrays, its items by path.

    Attributes:
        items: leaves [B, *shape], of slices [B, length, *shape].
        indices: int32 [B] or [B, length].
        weights: float32 [B].
        probabilities: float32 [B].
        mask: bool in the shape of the indices, or None.
        is_first: bool in the shape of the indices, of slices alone.
        is_last: bool in the shape of the indices, of slices alone.
        truncated: bool in the shape of the indices, of slices alone.
    """

    items: Leaves
    indices: NumpyArray
    weights: NumpyArray
    probabilities: NumpyArray
    mask: NumpyArray | None = None
    is_first: NumpyArray | None = None
    is_last: NumpyArray | None = None
    truncated: NumpyArray | None = None


def shares(weights: Mapping[Name, float]) -> dict[Name, float]:
    """What each weight is of all together, those of nothing left out.

    Example:
        >>> shares({"a": 3.0, "b": 1.0, "c": 0.0})
        {'a': 0.75, 'b': 0.25}
    """
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items() if weight}


class Model(Protocol):
    """A buffer as plain lists, as laws see it: `functional_rb.testing.ListModel`."""

    def steps(self) -> list[Step]:
        """All that is stored."""

    def real(self, sample: SampleArrays) -> list[Step]:
        """The items that a sample shows; what is masked is left out."""


class Law:
    """What a sampler may do: here, draw any stored item with equal probability."""

    # How many epochs are done.
    epochs_done = 0

    def __init__(self, spec: BufferSpec) -> None:
        self.spec = spec
        self.sampler = spec.sampler

    def clone(self) -> Self:
        """The same law, with a memory of its own."""
        new = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, set | list):
                setattr(new, name, type(value)(value))
        return new

    def follow(self, before: Step | None, step: Step) -> None:
        """Take note that a step is written after another of its lane, which may be gone."""

    def added(self, model: Model) -> None:
        """Take note that a batch was written."""

    def drawable(self, model: Model) -> Sequence[object]:
        """What may be drawn now."""
        return list(model.steps())

    def refuses(self, model: Model, batch: int) -> bool:
        """Whether nothing can be drawn."""
        return not self.drawable(model)

    def can(self, model: Model, n: int) -> bool:
        """What `rb.can_sample(state, n)` should say."""
        return len(model.steps()) >= n and not self.refuses(model, 1)

    def leaves(self, model: Model) -> dict[int, float] | None:
        """What the sum tree should hold by slot, zeros left out; None for samplers whose tree is their own affair."""
        return None

    def probabilities(self, model: Model) -> dict[int, float]:
        """The probability that the next draw begins with an item, by the item's id, zeros left out."""
        return shares({step.id: 1.0 for step in model.steps()})

    def check(self, model: Model, sample: SampleArrays, beta: float | None) -> None:
        """See that a sample is right, and remember what was drawn."""
        steps = self.drawable(model)
        assert sample.mask is None
        for step in model.real(sample):
            assert step in steps
        np.testing.assert_array_equal(sample.weights, np.ones(sample.indices.shape))
        np.testing.assert_allclose(sample.probabilities, np.full(sample.indices.shape, 1 / len(steps)), rtol=ROUNDING)


def assert_same_bytes(got: NumpyArray, expected: NumpyArray, name: str) -> None:
    """Leaves are stored bit for bit: each NaN is the one that was added, and a zero has its sign."""
    assert got.shape == expected.shape, name
    assert got.tobytes() == expected.astype(got.dtype).tobytes(), f"{name}: {got} instead of {expected}"
