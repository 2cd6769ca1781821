"""Which items of a group are taken, by trying all choices there are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction


def spread(numbers: Iterable[float]) -> tuple[Fraction, Fraction]:
    """What choices of equal size are compared by: the variance, but for a factor, and then the sum."""
    exact = [Fraction(x) for x in numbers]
    total = sum(exact, Fraction())
    return len(exact) * sum((x * x for x in exact), Fraction()) - total * total, total


def widest(numbers: Sequence[float], k: int) -> tuple[float, ...]:
    """Of all choices of k numbers the one of the largest variance, and then of the largest sum."""
    return max(itertools.combinations(numbers, k), key=spread)


def taken(take: str, per_group: int, scores: Sequence[float]) -> list[float]:
    """The scores of the items that are taken of a group's, which come oldest first, in their order."""
    if take == "newest":
        return list(scores[::-1][:per_group])
    known = sorted(x for x in scores if not math.isnan(x))
    unknown = [math.nan] * (len(scores) - len(known))
    if take == "best":
        return (known[::-1] + unknown)[:per_group]
    if len(known) <= per_group:
        return (known + unknown)[:per_group]
    return sorted(widest(known, per_group))
