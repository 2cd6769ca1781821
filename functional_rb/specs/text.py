"""Text of bounded length, as arrays of code points."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterable
from typing import Any, ClassVar

from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import Domain, whole_number

ALPHANUMERIC = "".join(sorted(string.ascii_letters + string.digits))
PADDING = 0
"""What stands behind the end: no text contains it."""


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

    arguments: ClassVar[tuple[str, ...]] = ("max_length", "min_length", "charset", "shape")

    dtype: str = dataclasses.field(default="int32", init=False)
    max_length: int = 1
    min_length: int = 1
    charset: str = ALPHANUMERIC

    def __init__(
        self,
        max_length: int,
        min_length: int = 1,
        charset: Any = ALPHANUMERIC,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """The greatest length comes first: `Text(20)`."""
        for name, value in (("max_length", max_length), ("min_length", min_length)):
            object.__setattr__(self, name, whole_number(value, f"Text: {name}"))
        if not 0 <= self.min_length <= self.max_length or self.max_length < 1:
            raise ValueError(
                f"Text: expected 0 <= min_length <= max_length and max_length >= 1, "
                f"got {self.min_length} and {self.max_length}"
            )
        if not isinstance(charset, Iterable) or not all(isinstance(c, str) and len(c) == 1 for c in charset):
            raise TypeError(f"Text: expected charset as characters, got {charset!r:.80}; write 'abc', say")
        characters = "".join(sorted(set(charset)))
        if not characters or chr(PADDING) in characters:
            raise ValueError(f"Text: expected a charset of some characters but NUL, which is the end, got {charset!r}")
        object.__setattr__(self, "charset", characters)
        object.__setattr__(self, "shape", (self.max_length,) if shape is None else shape)
        super().__post_init__()
        if not self.shape or self.shape[-1] != self.max_length:
            raise ValueError(f"Text: expected a shape whose last axis is {self.max_length}, got {self.shape}")

    @property
    def domain(self) -> Domain:
        """From the end's zero to the last character."""
        return Domain(PADDING, ord(self.charset[-1]), True)

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape without the last axis, which is one text."""
        return self.shape[:-1]

    def defaults(self) -> dict[str, Any]:
        """One text of letters and digits."""
        return {"min_length": 1, "charset": ALPHANUMERIC, "shape": (self.max_length,)}
