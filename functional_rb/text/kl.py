"""How strongly replies are held to the reference model: the coefficient of the KL divergence, as a value."""

from __future__ import annotations

import dataclasses
import math

from functional_rb.ops.protocol import Array, TreeOps

LARGEST_ERROR = 0.2


@dataclasses.dataclass(frozen=True)
class KLController:
    """The coefficient of the KL divergence: it stays what it is, or follows a target.

    With a target, it goes up where replies are further from the reference than wanted, and down where they are nearer:
    with the mean KL of n replies, `error = clip(KL / target - 1, -0.2, 0.2)`, and the coefficient is multiplied by
    `1 + error * n / horizon` (D. M. Ziegler et al., "Fine-Tuning Language Models from Human Preferences", 2019, section
    2.2, with n / horizon for its 0.1). A batch larger than the horizon counts as one horizon, so the coefficient stays
    positive.

    Attributes:
        initial: the coefficient to begin with.
        target: the KL divergence that is wanted, of a whole reply, in nats; None for a constant coefficient.
        horizon: after so many replies that are 20 percent off, the coefficient has changed by 20 percent; None for a
            constant coefficient.

    Raises:
        ValueError: for a number that is not positive or not finite (a constant coefficient may be 0), and for a target
            or a horizon without the other.

    Example:
        >>> KLController(0.2, target=6.0, horizon=10_000).initial
        0.2
        >>> KLController(0.1)
        KLController(initial=0.1, target=None, horizon=None)
    """

    initial: float
    target: float | None = None
    horizon: float | None = None

    def __post_init__(self) -> None:
        if (self.target is None) != (self.horizon is None):
            raise ValueError(
                f"KLController: expected target and horizon together, or none for a constant coefficient, got "
                f"target={self.target!r} and horizon={self.horizon!r}"
            )
        constant = self.target is None
        for name in ("initial",) if constant else ("initial", "target", "horizon"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not is_number or value < 0 or (value == 0 and not constant):
                kind = "a number that is not negative" if constant else "a positive number"
                raise ValueError(f"KLController: expected {name} as {kind}, got {value!r}")

    def updated(self, ops: TreeOps, coefficient: Array, kl: Array, real: Array) -> Array:
        """The next coefficient float32 [], of the KL float32 [N] of replies, of which real bool [N] count."""
        if self.target is None or self.horizon is None:
            return coefficient
        none = ops.full_like(kl, 0)
        n = ops.total(ops.cast(real, "float32"))
        one = ops.full_like(n, 1)
        mean = ops.total(ops.where(real, kl, none)) / ops.maximum(n, one)
        error = ops.maximum(ops.minimum(mean / self.target - 1, one * LARGEST_ERROR), -one * LARGEST_ERROR)
        return coefficient * (one + error * ops.minimum(n / self.horizon, one))
