"""How strongly replies are held to the reference model: the coefficient of the KL divergence, as a value."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from functional_rb.base.arrays import ArrayLike, BackendArray
from functional_rb.ops.protocol import Array, FloatOps
from functional_rb.text.computing import Computing, computed
from functional_rb.text.losses import checked_mask

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

    def update(self, coefficient: ArrayLike, kl: ArrayLike, mask: ArrayLike = None) -> BackendArray:
        """The next coefficient, after some replies.

        Args:
            coefficient: float32 [] as this method gave it; at first `initial`.
            kl: float [N], the KL divergence of each whole reply: the sum over its own tokens, padding left out, such as
                `rollout(...).kl`. NaN and infinities do not count.
            mask: bool [N], which replies count; all if None.

        Returns:
            float32 [], of the library of the arrays, NumPy's too. Torch has no gradients of it.

        Raises:
            ValueError: for `kl` that is not one number a reply; for a coefficient that is negative or not finite, where
                that is known (not while tracing).
            TypeError: for `kl` that is no float, and a coefficient that is no number.

        Example:
            >>> controller = KLController(0.2, target=6.0, horizon=1000)
            >>> round(float(controller.update(controller.initial, np.full(100, 12, np.float32))), 4)
            0.204
        """
        return computed(_update, (kl, coefficient, mask), self, coefficient, kl, mask)


WHO = "KLController.update"


def _update(
    lib: Computing, controller: KLController, coefficient: ArrayLike, kl: ArrayLike, mask: ArrayLike
) -> BackendArray:
    values = lib.converted(kl, "float32", "kl")
    if values.ndim != 1:
        raise ValueError(
            f"{WHO}: expected kl [N], one number for each reply, got shape {tuple(values.shape)}; sum over the tokens "
            f"of each reply, not over padding"
        )
    real = checked_mask(lib, WHO, 1, [values], mask)
    # A coefficient that had its history would lead each backward pass through those of all steps before.
    with lib.without_gradients():
        number = _coefficient(lib, coefficient, values)
        return lib.run(_updated, number, values, real, static=(controller,))


def _coefficient(lib: Computing, coefficient: object, like: Array) -> Array:
    # A negative coefficient would reward what it is to hold back.
    plain = isinstance(coefficient, int | float | np.generic) and not isinstance(coefficient, bool | np.bool_)
    if not plain and not hasattr(coefficient, "shape"):
        raise TypeError(f"{WHO}: expected coefficient as a number, got {coefficient!r:.80}")
    number = lib.number(coefficient, "float32", like)
    if tuple(number.shape):
        raise ValueError(f"{WHO}: expected coefficient as one number, got shape {tuple(number.shape)}")
    known = lib.values(number)
    if known is not None and not 0 <= float(known) < math.inf:
        raise ValueError(
            f"{WHO}: expected coefficient as a finite number that is not negative, got {float(known)}; begin with "
            f"controller.initial"
        )
    return number


def _updated(ops: FloatOps, coefficient: Array, kl: Array, mask: Array | None, controller: KLController) -> Array:
    if controller.target is None or controller.horizon is None:
        return coefficient
    real = (kl == kl) & (kl < math.inf) & (kl > -math.inf)
    real = real if mask is None else real & mask
    none = ops.full_like(kl, 0)
    n = ops.total(ops.cast(real, "float32"))
    one = ops.full_like(n, 1)
    mean = ops.total(ops.where(real, kl, none)) / ops.maximum(n, one)
    error = ops.maximum(ops.minimum(mean / controller.target - 1, one * LARGEST_ERROR), -one * LARGEST_ERROR)
    return coefficient * (one + error * ops.minimum(n / controller.horizon, one))
