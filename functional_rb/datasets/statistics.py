"""Numbers that describe a converted dataset: of its leaves, and of its episodes."""

from __future__ import annotations

import dataclasses

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.strict_json import Json
from functional_rb.datasets.stored import Stored

# Bytes of which moments are taken at once, about.
ROOM = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """How many values there are, and of each number in them the mean, the squared deviations, and the extremes.

    Example:
        >>> both = Moments.of(np.array([1.0, 3.0])).joined(Moments.of(np.array([8.0])))
        >>> float(both.mean), float(both.std), float(both.most)
        (4.0, 2.943920288775949, 8.0)
    """

    count: int  # how many values
    mean: NumpyArray  # float64 [*shape]
    m2: NumpyArray  # the sum of squared deviations from it, float64 [*shape]
    least: NumpyArray  # float64 [*shape]
    most: NumpyArray  # float64 [*shape]

    @classmethod
    def of(cls, rows: NumpyArray) -> Moments:
        """The moments of values [n, *shape]."""
        # Two passes, about the mean: sums of squares would lose all digits where the mean is large.
        values = rows.astype(np.float64)
        mean = values.mean(0)
        with np.errstate(invalid="ignore"):  # the deviation of infinities is NaN
            m2 = np.square(values - mean).sum(0)
        return cls(len(rows), mean, m2, values.min(0), values.max(0))

    def joined(self, other: Moments) -> Moments:
        """The moments of these values and of others together (Chan et al., 1979)."""
        total = self.count + other.count
        with np.errstate(invalid="ignore"):
            delta = other.mean - self.mean
            mean = self.mean + delta * other.count / total
            m2 = self.m2 + other.m2 + np.square(delta) * self.count * other.count / total
        return Moments(total, mean, m2, np.minimum(self.least, other.least), np.maximum(self.most, other.most))

    @property
    def std(self) -> NumpyArray:
        return np.asarray(np.sqrt(self.m2 / self.count))

    def by_name(self) -> dict[str, NumpyArray]:
        """The numbers that `statistics` gives, by the names that it gives them."""
        return {"mean": self.mean, "std": self.std, "min": self.least, "max": self.most}


def statistics_of(reader: Stored) -> Json:
    """The numbers that `Dataset.statistics` gives."""
    names: dict[str, list[str]] = {}  # the names of the leaves of each field
    moments: dict[str, Moments] = {}
    gathered: dict[str, list[NumpyArray]] = {}
    nbytes, goes_on = 0, False

    def take() -> None:
        for name, leaves in gathered.items():
            new = Moments.of(np.concatenate(leaves))
            moments[name] = moments[name].joined(new) if name in moments else new
        gathered.clear()

    for piece in reader.pieces():
        for field, (structure, leaves) in piece.parts.items():
            if field in ("terminated", "truncated"):
                continue
            if field not in names:
                names[field] = ["/".join(map(str, (field, *path))) for path in structure.paths]
            # The first observation of a piece that goes on was the last one of the piece before.
            first = int(field == "observations" and goes_on)
            for name, leaf in zip(names[field], leaves, strict=True):
                if len(leaf) > first and dtypes.kind_of(dtypes.shown(leaf.dtype)) in ("int", "float"):
                    gathered.setdefault(name, []).append(leaf[first:])
                    nbytes += leaf[first:].nbytes
        goes_on = piece.goes_on
        # Taking moments of a few steps at a time would cost more than reading them.
        if nbytes >= ROOM:
            take()
            nbytes = 0
    take()
    summaries = list(reader.description.summaries())
    return {
        "steps": reader.description.steps,
        "episodes": reader.description.episodes,
        "returns": _of_numbers([summary.total for summary in summaries]),
        "lengths": _of_numbers([summary.steps for summary in summaries]),
        "terminated": float(np.mean([summary.terminated for summary in summaries])),
        "leaves": {name: of_leaf.by_name() for name, of_leaf in moments.items()},
    }


def _of_numbers(numbers: list[float]) -> dict[str, float]:
    return {name: float(value) for name, value in Moments.of(np.asarray(numbers)).by_name().items()}
