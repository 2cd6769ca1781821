"""Values of one of several specs."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import ClassVar

import numpy as np

from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import random_numbers, rows
from functional_rb.specs.base import SpecNest
from functional_rb.specs.categorical import Categorical
from functional_rb.specs.composite import Composite, cardinality
from functional_rb.specs.padded import all_of, in_front, in_rows
from functional_rb.specs.varying import Varying


@dataclasses.dataclass(frozen=True, repr=False)
class OneOf(Varying):
    """A value of one of several specs.

    Stored as `choice` int32 and `options`, a tuple with an entry for each spec; only the chosen entry has a meaning.

    Attributes:
        options: the specs, at least one, or nests of them.
        batch_shape: leading axes.

    Example:
        >>> from functional_rb import Unbounded
        >>> OneOf([Unbounded((2,)), Categorical(3)]).dtype
        {'choice': 'int32', 'options': ('float32', 'int32')}
    """

    arguments: ClassVar[tuple[str, ...]] = ("options", "batch_shape")
    __hash__ = Varying.__hash__

    options: tuple[SpecNest, ...]
    batch_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.options, tuple | list):
            raise TypeError(f"OneOf: expected options as a sequence of specs, got {self.options!r:.80}")
        object.__setattr__(self, "options", tuple(self.options))
        if not self.options:
            raise ValueError("OneOf: expected at least one option, got none")
        self._check()

    @property
    def nests(self) -> tuple[str, ...]:
        return ("options",)

    def _parts(self) -> Composite:
        lead = self.batch_shape
        options = tuple(in_front(option, lead) for option in self.options)
        return Composite({"choice": Categorical(len(options), shape=lead), "options": options}, batch_shape=lead)

    def _cardinality_of_one(self) -> int | float:
        counts = [cardinality(option) for option in self.options]
        return math.inf if math.inf in counts else sum(counts)

    @property
    def words(self) -> int:
        return self._many * (self._choices.words + sum(rows.words(option) for option in self.options))

    @property
    def _choices(self) -> random_numbers.Whole:
        return random_numbers.between(0, len(self.options) - 1)

    def draw(self, ops: SpecOps, bits: Array) -> dict[str, Nest]:
        cut = random_numbers.Cut(bits)
        choice = cut.numbers(ops, self._choices, self.batch_shape)
        options = []
        for i, option in enumerate(self.options):
            option_bits = cut(self._many * rows.words(option)).reshape(bits.shape[0] * self._many, rows.words(option))
            drawn = rows.regrouped(option, rows.draw(ops, option, option_bits), 1, (bits.shape[0], *self.batch_shape))
            options.append(rows.cleared(ops, option, drawn, choice == i))
        return {"choice": choice, "options": tuple(options)}

    def inside(self, ops: SpecOps, x: Nest) -> Array:
        choice = x["choice"]
        valid = (choice >= 0) & (choice < len(self.options))
        for i, (option, value) in enumerate(zip(self.options, x["options"], strict=True)):
            flat = rows.regrouped(option, value, 1 + len(self.batch_shape), (choice.shape[0] * self._many,))
            # `choice == choice` is true everywhere, in an array of the values' own library.
            valid_option = rows.inside(ops, option, flat, (choice == choice).reshape(choice.shape[0] * self._many))
            valid = valid & (valid_option.reshape(choice.shape) | (choice != i))
        return all_of(ops, valid, self._many)

    def nearest(self, ops: SpecOps, x: Nest) -> dict[str, Nest]:
        choice = ops.clamp(x["choice"], 0, len(self.options) - 1)
        options = []
        for i, (option, value) in enumerate(zip(self.options, x["options"], strict=True)):
            near = in_rows(functools.partial(rows.nearest, ops, option), option, value, choice.shape)
            options.append(rows.cleared(ops, option, near, choice == i))
        return {"choice": choice, "options": tuple(options)}

    def from_host(self, value: object, batch: tuple[int, ...]) -> dict[str, Nest]:
        lead = (*batch, *self.batch_shape)
        values = rows.listed(value, lead)
        for one in values:
            if not isinstance(one, tuple | list) or len(one) != 2:
                raise TypeError(f"expected a pair (option, value), got {one!r:.80}")
        choice = np.asarray([operator.index(number) for number, _ in values], np.int32)
        self._check_choice(choice)
        options = []
        for i, option in enumerate(self.options):
            stored = rows.from_host(option, [option_value for number, option_value in values if number == i])
            options.append(rows.regrouped(option, rows.scattered(option, stored, choice == i), 1, lead))
        return {"choice": choice.reshape(lead), "options": tuple(options)}

    def to_host(self, x: Nest) -> object:
        lead = x["choice"].shape
        choice = x["choice"].reshape(-1)
        self._check_choice(choice)
        pairs: list[object] = [None] * len(choice)
        for i, (option, value) in enumerate(zip(self.options, x["options"], strict=True)):
            positions = np.flatnonzero(choice == i)
            flat = rows.regrouped(option, value, len(lead), (len(choice),))
            chosen = rows.each_array(lambda leaf, array, positions=positions: array[positions], option, flat)
            for k, one in zip(positions, rows.to_values(option, chosen, len(positions)), strict=True):
                pairs[k] = (i, one)
        return rows.nested(pairs, lead)

    def _check_choice(self, choice: NumpyArray) -> None:
        wrong = choice[(choice < 0) | (choice >= len(self.options))]
        if wrong.size:
            raise ValueError(f"expected the number of one of {len(self.options)} options, got {wrong[0]}")
