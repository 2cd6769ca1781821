"""The chance with which an item is drawn from several shards, and what it weighs.

A client knows the masses of the shards as it last heard of them, and chooses the shard of each row in proportion to
these. The shard then draws by its own, true masses, and tells with which probability. So the chance of an item is
known exactly, as a product, whatever the age of the masses:

    P(i) = (known mass of its shard / sum of the known masses) * (p_i / true mass of its shard)

With masses that are true this is p_i over the sum of all p: the law of one buffer that holds everything.
"""

from __future__ import annotations

import numpy as np

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def shares(masses: object) -> Floats:
    """The chance of each shard, float64 [K], in proportion to its mass; all 0 if there is none.

    Example:
        >>> shares([3.0, 0.0, 1.0]).tolist()
        [0.75, 0.0, 0.25]
    """
    numbers = np.asarray(masses, np.float64)
    positive = np.where(np.isfinite(numbers) & (numbers > 0), numbers, 0.0)
    largest = positive.max(initial=0.0)
    if largest <= 0:
        return np.zeros_like(positive)
    positive = positive / largest  # so that no sum overflows
    chances: Floats = positive / positive.sum()
    return chances


def choose(chances: Floats, uniforms: Floats) -> Ints:
    """The shard of each row, int64 [B], by uniforms float64 [B] in [0, 1); none of chance 0 is ever chosen.

    Example:
        >>> choose(shares([3.0, 0.0, 1.0]), np.array([0.0, 0.74, 0.75, 0.9999])).tolist()
        [0, 0, 2, 2]
    """
    edges = np.cumsum(chances)
    last = int(np.flatnonzero(chances > 0)[-1])
    # The last edge may lie below 1 by rounding, and what is above belongs to the last shard that has a mass.
    return np.minimum(np.searchsorted(edges, uniforms, side="right"), last)


def least_chance(chances: Floats, leasts: Floats) -> float:
    """The least chance of an item of any shard that may be chosen; 0 if there is none."""
    products = (chances * leasts)[(chances > 0) & (leasts > 0)]
    return float(products.min()) if products.size else 0.0


def weights(chance: Floats, least: float, beta: float) -> Floats:
    """Importance weights `(P(i) / P_min) ** -beta`, float64, in (0, 1] (Schaul et al., 2016, 3.4).

    A chance of 0 says that nothing was drawn, which weighs 0. The least chance of a shard which gave nothing of this
    batch may be out of date; so if a row's is less, that of the least likely row counts.
    """
    real = chance > 0
    if not real.any():
        return np.zeros_like(chance)
    floor = min(least, float(chance[real].min())) if least > 0 else float(chance[real].min())
    ratios = np.exp(-beta * (np.log(np.where(real, chance, 1.0)) - np.log(floor)))
    return np.where(real, np.minimum(ratios, 1.0), 0.0)
