"""Numbers that change with the step: pure functions of it, for beta, for the shares of a mixture, for alpha.

They are arithmetic alone, so they take Python numbers, NumPy's, and scalars of JAX and torch, traced ones among them.
A schedule of optax is such a function too, on JAX.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, TypeAlias

# A Python number, or a scalar of any library: one of its type comes out for what goes in.
Number: TypeAlias = Any
# The cosine's power series: up to pi / 2 within 1e-10.
_COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(8))


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A number that goes from one to another, as `linear`, `cosine` or `exponential` say, and stays there.

    Attributes:
        kind: the way from the one to the other.
        first: the number up to the step `after`.
        last: the number from the step `after + steps` on.
        steps: how many steps it takes.
        after: the step at which it begins to change.
    """

    kind: Literal["linear", "cosine", "exponential"]
    first: float
    last: float
    steps: int
    after: int = 0

    def __post_init__(self) -> None:
        if not self.steps > 0:
            raise ValueError(f"{self.kind}: expected steps as a positive number, got {self.steps!r}")
        for name in ("first", "last"):
            value = getattr(self, name)
            if not math.isfinite(value) or (self.kind == "exponential" and value <= 0):
                expected = "positive" if self.kind == "exponential" else "finite"
                raise ValueError(f"{self.kind}: expected {name} as a {expected} number, got {value!r}")

    def __call__(self, step: Number) -> Number:
        """The number at a step, a Python number or an array."""
        part = (step - self.after) / self.steps
        part = part * (part > 0)
        part = part * (part < 1) + (part >= 1)
        if self.kind == "exponential":
            return self.first * (self.last / self.first) ** part
        if self.kind == "cosine":
            # By arithmetic alone, as there is no cosine that all libraries' arrays take: Horner's rule in the square.
            square, cosine = (part * (math.pi / 2)) ** 2, 0.0
            for factor in reversed(_COSINE):
                cosine = cosine * square + factor
            part = 1 - cosine**2
        return self.first + (self.last - self.first) * part


def linear(first: float, last: float, steps: int, after: int = 0) -> Schedule:
    """A number that changes by the same amount at each step.

    Args:
        first: the number up to the step `after`.
        last: the number from the step `after + steps` on.
        steps: how many steps it takes.
        after: the step at which it begins to change.

    Raises:
        ValueError: for numbers that are not finite, or `steps` that are not positive.

    Example:
        >>> beta = linear(0.4, 1.0, steps=100)
        >>> [round(beta(step), 2) for step in (0, 50, 100, 1000)]
        [0.4, 0.7, 1.0, 1.0]
    """
    return Schedule("linear", first, last, steps, after)


def cosine(first: float, last: float, steps: int, after: int = 0) -> Schedule:
    """A number that changes along half of a cosine: slowly, then fast, then slowly.

    That is last + (first - last) (1 + cos(pi t)) / 2 for t from 0 to 1 (I. Loshchilov, F. Hutter, "SGDR", 2017).

    Args:
        first: the number up to the step `after`.
        last: the number from the step `after + steps` on.
        steps: how many steps it takes.
        after: the step at which it begins to change.

    Raises:
        ValueError: as `linear` does.

    Example:
        >>> [round(cosine(0.0, 1.0, steps=4)(step), 4) for step in range(5)]
        [0.0, 0.1464, 0.5, 0.8536, 1.0]
    """
    return Schedule("cosine", first, last, steps, after)


def exponential(first: float, last: float, steps: int, after: int = 0) -> Schedule:
    """A number that changes by the same factor at each step.

    Args:
        first: the number up to the step `after`, positive.
        last: the number from the step `after + steps` on, positive.
        steps: how many steps it takes.
        after: the step at which it begins to change.

    Raises:
        ValueError: as `linear` does, and for a number that is not positive.

    Example:
        >>> [round(exponential(1.0, 0.01, steps=4)(step), 4) for step in range(5)]
        [1.0, 0.3162, 0.1, 0.0316, 0.01]
    """
    return Schedule("exponential", first, last, steps, after)


__all__ = [
    "Schedule",
    "cosine",
    "exponential",
    "linear",
]
__dir__ = __all__.copy
