"""Numbers that describe a converted dataset: of its leaves, and of its episodes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from functional_rb.base import dtypes, nest
from functional_rb.datasets.episode import Array
from functional_rb.datasets.stored import Stored
from functional_rb.ted.check import as_dict, is_leaf

Moments = tuple[float, Array, Array, Array, Array]
"""How many values were met; and of them mean, squared deviations from it, least and largest, float64 [*shape]."""


def statistics(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Mean, deviation, minimum and maximum of all numbers of a dataset, and how long and how good its episodes are.

    The steps are read once, piece by piece.

    Args:
        path: the directory of a converted dataset.

    Returns:
        - steps, episodes: how many.
        - returns, lengths: of the episodes: mean, std, min, max, floats. Returns are sums of rewards.
        - terminated: the share of episodes that led to a terminal state.
        - leaves: for each leaf of numbers, by its name in an episode ("observations/...", "actions", "rewards"): mean,
          std, min, max, arrays float64 [*shape]: over steps, and of observations over all T + 1 of an episode. So
          `frb.items.normalize(mean, std, keys)`.

    Raises:
        DatasetError: if no dataset is there.
    """
    reader = Stored(path)
    found: dict[str, Moments] = {}
    goes_on = False
    for piece in reader.episodes():
        observed = _rows_from(piece.observations, 1 if goes_on else 0)
        parts = {"observations": observed, "actions": piece.actions, "rewards": piece.rewards, "infos": piece.infos}
        for field, values in parts.items():
            leaves, structure = nest.flatten(values, is_leaf)
            for path_, leaf in zip(structure.paths, leaves, strict=True):
                if dtypes.kind_of(dtypes.shown(leaf.dtype)) in ("int", "float") and len(leaf):
                    name = "/".join(map(str, (field, *path_)))
                    found[name] = _joined(found.get(name), leaf)
        goes_on = piece.goes_on
    summaries = list(reader.summaries())
    return {
        "steps": reader.description.steps,
        "episodes": reader.description.episodes,
        "returns": _of_numbers([summary.total for summary in summaries]),
        "lengths": _of_numbers([summary.steps for summary in summaries]),
        "terminated": float(np.mean([summary.terminated for summary in summaries])),
        "leaves": {name: _told(moments) for name, moments in found.items()},
    }


def _rows_from(values: Any, first: int) -> Any:
    """A nest of arrays [n, ...] from one row on."""
    leaves, structure = nest.flatten(values, is_leaf)
    return nest.unflatten(structure, [leaf[first:] for leaf in leaves], as_dict)


def _joined(moments: Moments | None, rows: Array) -> Moments:
    """Moments with some rows more (Chan et al., 1979)."""
    n, values = len(rows), rows.astype(np.float64)
    mean = values.mean(0)
    m2, least, most = np.square(values - mean).sum(0), values.min(0), values.max(0)
    if moments is None:
        return n, mean, m2, least, most
    before, old_mean, old_m2, old_least, old_most = moments
    total, delta = before + n, mean - old_mean
    mean, m2 = old_mean + delta * n / total, old_m2 + m2 + np.square(delta) * before * n / total
    return total, mean, m2, np.minimum(old_least, least), np.maximum(old_most, most)


def _told(moments: Moments) -> dict[str, Array]:
    n, mean, m2, least, most = moments
    return {"mean": mean, "std": np.sqrt(m2 / n), "min": least, "max": most}


def _of_numbers(numbers: list[float]) -> dict[str, float]:
    values = np.asarray(numbers, np.float64)
    told = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    return {name: float(value) for name, value in told.items()}
