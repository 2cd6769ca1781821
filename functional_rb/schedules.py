"""Numbers that change with the step: for beta, for the shares of a mixture, for alpha."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final, Literal, TypeAlias, get_args

# A Python number, or a scalar of any library: one of its type comes out for what goes in.
Number: TypeAlias = Any
Kind = Literal["linear", "cosine", "exponential"]
# The cosine's power series: up to pi / 2 within 1e-10.
_COSINE: Final = tuple((-1) ** k / math.factorial(2 * k) for k in range(8))


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A number that goes from one to another while steps are taken, and stays there: a pure function of the step.

    It is arithmetic alone, so it takes Python numbers, NumPy's, and arrays of JAX and torch, traced ones among them. A
    schedule of optax is such a function too, on JAX.

    | kind | the number after the part t of the steps, 0 <= t <= 1 |
    |---|---|
    | "linear" | `first + (last - first) t` |
    | "cosine" | `last + (first - last) (1 + cos(pi t)) / 2` (I. Loshchilov, F. Hutter, "SGDR", 2017) |
    | "exponential" | `first (last / first)^t`, of positive numbers |

    Attributes:
        first: the number up to the step `after`.
        last: the number from the step `after + steps` on.
        steps: how many steps it takes.
        after: the step at which it begins to change.
        kind: the way from the one to the other.

    Raises:
        ValueError: for another kind, for numbers that are not finite, or not positive where they have to be, and for
            `steps` that are not positive.

    Example:
        >>> beta = Schedule(0.4, 1.0, steps=100)
        >>> [round(beta(step), 2) for step in (0, 50, 100, 1000)]
        [0.4, 0.7, 1.0, 1.0]
        >>> [round(Schedule(1.0, 0.01, steps=4, kind="exponential")(step), 4) for step in range(5)]
        [1.0, 0.3162, 0.1, 0.0316, 0.01]
    """

    first: float
    last: float
    steps: int
    after: int = 0
    kind: Kind = "linear"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"Schedule: expected kind as one of {list(get_args(Kind))}, got {self.kind!r}")
        if not self.steps > 0:
            raise ValueError(f"Schedule: expected steps as a positive number, got {self.steps!r}")
        for name in ("first", "last"):
            value = getattr(self, name)
            if not math.isfinite(value) or (self.kind == "exponential" and value <= 0):
                expected = "positive" if self.kind == "exponential" else "finite"
                raise ValueError(f"Schedule: expected {name} as a {expected} number, got {value!r}")

    def __call__(self, step: Number) -> Number:
        """The number at a step, a Python number or an array."""
        fraction = (step - self.after) / self.steps
        fraction = fraction * (fraction > 0)
        fraction = fraction * (fraction < 1) + (fraction >= 1)
        if self.kind == "exponential":
            return self.first * (self.last / self.first) ** fraction
        if self.kind == "cosine":
            # By arithmetic alone, as there is no cosine that all libraries' arrays take: Horner's rule in the square.
            square, cosine = (fraction * (math.pi / 2)) ** 2, 0.0
            for factor in reversed(_COSINE):
                cosine = cosine * square + factor
            fraction = 1 - cosine**2
        return self.first + (self.last - self.first) * fraction
