"""Specs of texts of bounded length, which are arrays of code points."""

from __future__ import annotations

import dataclasses
import functools
import math
import string
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from functional_rb.base.arrays import Array, NumpyArray
from functional_rb.base.dtypes import whole_number
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import allowed, random_numbers
from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import Domain
from functional_rb.specs.choices import check_last_axis

ALPHANUMERIC = "".join(sorted(string.ascii_letters + string.digits))
# The code point behind the end of a text; no text contains it.
PADDING = 0


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Text(ArraySpec):
    """Text of min_length to max_length characters: Unicode code points int32 [*axes, max_length], zeros behind the end.

    Attributes:
        max_length: the longest text, in characters.
        min_length: the shortest one.
        charset: the characters that occur, sorted; by default ASCII letters and digits, as in Gymnasium.
        shape: its last axis is max_length.

    Raises:
        TypeError: for a charset that is not of characters.
        ValueError: for lengths out of order, an empty charset, or one with the character NUL.

    Example:
        >>> Text(8, charset="abc").shape, Text(8, charset="cab") == Text(8, charset="abc")
        ((8,), True)
    """

    host_only: ClassVar[bool] = True
    arguments: ClassVar[tuple[str, ...]] = ("max_length", "min_length", "charset", "shape")

    dtype: str = dataclasses.field(default="int32", init=False)
    max_length: int = 1
    min_length: int = 1
    charset: str = ALPHANUMERIC

    def __init__(
        self,
        max_length: int,
        min_length: int = 1,
        charset: Iterable[str] = ALPHANUMERIC,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        for name, value in (("max_length", max_length), ("min_length", min_length)):
            object.__setattr__(self, name, whole_number(value, f"Text: {name}"))
        if not 0 <= self.min_length <= self.max_length or self.max_length < 1:
            raise ValueError(
                f"Text: expected 0 <= min_length <= max_length and max_length >= 1, "
                f"got {self.min_length} and {self.max_length}"
            )
        letters: object = charset  # users pass anything
        if not isinstance(letters, Iterable) or not all(isinstance(c, str) and len(c) == 1 for c in letters):
            raise TypeError(f"Text: expected charset as characters, got {charset!r:.80}; write 'abc', say")
        characters = "".join(sorted(set(charset)))
        if not characters or chr(PADDING) in characters:
            raise ValueError(f"Text: expected a charset of some characters but NUL, which is the end, got {charset!r}")
        object.__setattr__(self, "charset", characters)
        self._begin((self.max_length,) if shape is None else shape, self.dtype)
        check_last_axis(self, self.max_length)

    @property
    def domain(self) -> Domain:
        """The code points from zero, which stands behind the end, to the last character."""
        return Domain(PADDING, ord(self.charset[-1]), True)

    @property
    def axes(self) -> tuple[int, ...]:
        return self.shape[:-1]

    @property
    def value_counts(self) -> NumpyArray:
        count = sum(len(self.charset) ** n for n in range(self.min_length, self.max_length + 1))
        return np.full(self.axes, count, object)

    def defaults(self) -> dict[str, object]:
        return super().defaults() | {"shape": (self.max_length,)}

    @property
    def words(self) -> int:
        return math.prod(self.axes) * self._lengths.words + self.size * self._characters.words

    def draw(self, ops: SpecOps, bits: Array) -> Array:
        # Lengths are uniform, and so are characters: not the texts, of which nearly all have the greatest length.
        cut = random_numbers.Cut(bits)
        length = cut.numbers(ops, self._lengths, self.axes)
        which = cut.numbers(ops, self._characters, self.shape)
        points = ops.take(ops.table(self._points, "int32", bits), which.reshape(-1)).reshape(which.shape)
        return ops.where(self._positions(ops, bits) < length[..., None], points, which * PADDING)

    def inside(self, ops: SpecOps, x: Array) -> Array:
        return ops.all_rows((x == self.nearest(ops, x)).reshape(x.shape[0], self.size))

    def nearest(self, ops: SpecOps, x: Array) -> Array:
        # The nearest characters up to the first zero, filled up to `min_length`.
        # A table of all code points up to the last: so the nearest character is one look-up, on every backend.
        in_charset = np.zeros(self._points[-1] + 1, bool)
        in_charset[self._points] = True
        characters = ops.where(x < 1, x * 0 + 1, x)
        last = ops.table(self._points[-1:], "int32", x)
        characters = ops.where(characters > last, last, characters)
        nearest = ops.table(allowed.nearest_true(in_charset).astype(np.int32), "int32", x)
        characters = ops.take(nearest, characters.reshape(-1)).reshape(x.shape)
        ended = ops.cumsum(ops.cast(x == PADDING, "int32")) > 0
        filled = ops.where(self._positions(ops, x) < self.min_length, x * 0 + int(self._points[0]), x * 0 + PADDING)
        return ops.where(ended, filled, characters)

    def from_host(self, value: object, batch: tuple[int, ...]) -> NumpyArray:
        texts = np.asarray(value, object)
        lead = texts.shape[: texts.ndim - len(self.axes)]
        if texts.shape != ((*batch, *self.axes) if batch else (*lead, *self.axes)):
            raise ValueError(f"expected texts in axes {(*batch, *self.axes)}, got {texts.shape}; tell the batch")
        points = np.zeros((texts.size, self.max_length), np.int32)
        for row, text in zip(points, texts.reshape(-1), strict=True):
            if not isinstance(text, str):
                raise TypeError(f"expected a str, got {type(text).__name__}")
            if not self.min_length <= len(text) <= self.max_length:
                wanted = f"{self.min_length} to {self.max_length}"
                raise ValueError(f"expected {wanted} characters, got {len(text)}: {text!r}")
            foreign = set(text) - set(self.charset)
            if foreign:
                raise ValueError(f"expected characters of the charset, got {''.join(sorted(foreign))!r} in {text!r}")
            row[: len(text)] = [ord(character) for character in text]
        return points.reshape(*texts.shape, self.max_length)

    def to_host(self, x: NumpyArray) -> object:
        points = x.astype(np.uint32).astype("<u4").reshape(-1, self.max_length)
        texts = np.empty(len(points), object)
        for i, row in enumerate(points):
            text = row[: np.argmax(row == PADDING)] if (row == PADDING).any() else row
            try:
                texts[i] = text.tobytes().decode("utf-32-le", "surrogatepass")
            except UnicodeDecodeError:
                raise ValueError(f"expected code points of characters, got {row}; rb.project makes some") from None
        return texts.reshape(x.shape[:-1]).tolist()

    @functools.cached_property
    def _lengths(self) -> random_numbers.Whole:
        return random_numbers.between(self.min_length, self.max_length)

    @functools.cached_property
    def _characters(self) -> random_numbers.Whole:
        return random_numbers.between(0, len(self.charset) - 1)

    @property
    def _points(self) -> NumpyArray:
        return np.asarray([ord(character) for character in self.charset], np.int32)

    def _positions(self, ops: SpecOps, like: Array) -> Array:
        return ops.table(np.arange(self.max_length, dtype=np.int32), "int32", like)
