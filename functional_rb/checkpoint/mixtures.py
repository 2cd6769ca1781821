"""Checkpoints of mixtures: one of each buffer, in a directory of its own, and a small one that names them.

    path/0000000007.json ...    the mixture: how it is mixed, and the numbers of its buffers' checkpoints
    path/buffers/0/ ...         the checkpoints of its first buffer, or of a mixture in it

The small one is written last, so that what loads is all of a mixture as it was at one save, whenever a save stops. What
its checkpoints name is kept for as long as these are.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from functional_rb.base.errors import CorruptCheckpointError
from functional_rb.checkpoint.listing import there
from functional_rb.mixture.value import Mixture, MixtureSpec

NAME = "functional_rb.Mixture"
"""The only name in the nest that is saved of a mixture."""
BUFFERS = "buffers"


def place_of(directory: str, k: int) -> str:
    """The directory of the k-th buffer."""
    return os.path.join(directory, BUFFERS, str(k))


def saved(
    mixture: Mixture,
    directory: str,
    keep: int,
    save: Callable[[Any, str, int], Any],
    record_at: Callable[[str, int], Any],
) -> Any:
    """Save the buffers, each only as far as it has changed where `save` does that, and then how they are mixed.

    Args:
        mixture: what is saved.
        directory: where to.
        keep: so many checkpoints of the whole mixture stay.
        save: saves a state, mixture or nest to a directory and keeps so many checkpoints there.
        record_at: the nest of one checkpoint in a directory, by its number.
    """
    named = [_told(record_at(directory, number)) for number in there(directory)[:keep]]
    numbers = []
    for k, state in enumerate(mixture.states):
        where = place_of(directory, k)
        oldest = min((one["checkpoints"][k] for one in named if one and k < len(one["checkpoints"])), default=None)
        needed = 0 if oldest is None else sum(number >= oldest for number in there(where))
        numbers.append(save(state, where, needed + 1).generation)
    told = {"checkpoints": numbers, "spec": dataclasses.asdict(mixture.spec)}
    record: dict[str, Any] = {"told": np.frombuffer(json.dumps(told).encode(), np.uint8)}
    if mixture.p is not None:
        record["p"] = mixture.p
    return save({NAME: record}, directory, keep)


def _told(record: Any) -> dict[str, Any] | None:
    """What a nest that was loaded tells of a mixture; None if it stands for none, or cannot be read."""
    if not is_record(record):
        return None
    try:
        told: dict[str, Any] = json.loads(np.asarray(record[NAME]["told"]).tobytes())
        return told
    except (ValueError, TypeError, KeyError):
        return None


def is_record(found: Any) -> bool:
    """Whether a nest that was loaded stands for a mixture."""
    return isinstance(found, Mapping) and set(found) == {NAME}


def loaded(record: Any, directory: str, load: Callable[[str, int], Any]) -> Mixture:
    """A mixture of what was loaded.

    Args:
        record: the nest.
        directory: where from.
        load: loads a checkpoint in a directory, by its number.

    Raises:
        CorruptCheckpointError: if a buffer's checkpoint is gone, or what is said of the mixture is of none.
    """
    told = _told(record)
    if told is None:
        raise CorruptCheckpointError(directory, "what it says of a mixture cannot be read")
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in told["spec"].items()}
    spec = MixtureSpec(**fields)
    states = []
    for k, number in enumerate(told["checkpoints"]):
        where = place_of(directory, k)
        if number not in there(where):
            raise CorruptCheckpointError(where, f"checkpoint {number} is missing, which the mixture's names")
        states.append(load(where, number))
    return Mixture(tuple(states), record[NAME].get("p"), spec=spec)
