"""How strongly replies are held to the reference model: coefficients of the KL divergence, as values."""

from __future__ import annotations

import dataclasses
import math

from functional_rb.ops.protocol import Array, TreeOps

LARGEST_ERROR = 0.2


@dataclasses.dataclass(frozen=True)
class ConstantKL:
    """The coefficient stays what it is.

    Attributes:
        initial: the coefficient.

    Raises:
        ValueError: if it is negative or not finite.

    Example:
        >>> ConstantKL(0.1)
        ConstantKL(initial=0.1)
    """

    initial: float

    def __post_init__(self) -> None:
        _check(self, 0.0, "initial")

    def updated(self, ops: TreeOps, coefficient: Array, kl: Array, real: Array) -> Array:
        """The same coefficient float32 []."""
        return coefficient


@dataclasses.dataclass(frozen=True)
class AdaptiveKL:
    """The coefficient goes up where replies are further from the reference than wanted, and down where they are nearer.

    With the mean KL of n replies, `error = clip(KL / target - 1, -0.2, 0.2)`, and the coefficient is multiplied by
    `1 + error * n / horizon` (D. M. Ziegler et al., "Fine-Tuning Language Models from Human Preferences", 2019, section
    2.2, with n / horizon for its 0.1). A batch larger than the horizon counts as one horizon, so the coefficient stays
    positive.

    Attributes:
        initial: the coefficient to begin with.
        target: the KL divergence that is wanted, of a whole reply, in nats.
        horizon: after so many replies that are 20 percent off, the coefficient has changed by 20 percent.

    Raises:
        ValueError: for a number that is not positive or not finite.

    Example:
        >>> AdaptiveKL(0.2, target=6.0, horizon=10_000).initial
        0.2
    """

    initial: float
    target: float
    horizon: float

    def __post_init__(self) -> None:
        _check(self, math.ulp(0.0), "initial", "target", "horizon")

    def updated(self, ops: TreeOps, coefficient: Array, kl: Array, real: Array) -> Array:
        """The next coefficient float32 [], of the KL float32 [N] of replies, of which real bool [N] count."""
        none = ops.full_like(kl, 0)
        n = ops.total(ops.cast(real, "float32"))
        one = ops.full_like(n, 1)
        mean = ops.total(ops.where(real, kl, none)) / ops.maximum(n, one)
        error = ops.maximum(ops.minimum(mean / self.target - 1, one * LARGEST_ERROR), -one * LARGEST_ERROR)
        return coefficient * (one + error * ops.minimum(n / self.horizon, one))


KLController = ConstantKL | AdaptiveKL


def _check(controller: KLController, least: float, *names: str) -> None:
    for name in names:
        value = getattr(controller, name)
        good = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
        if not (good and value >= least):
            kind = "a positive number" if least else "a number that is not negative"
            raise ValueError(f"{type(controller).__name__}: expected {name} as {kind}, got {value!r}")
