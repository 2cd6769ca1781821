"""Checkpoints of mixtures: one of each buffer, in a directory of its own, and a small one that names them.

    path/0000000007.json ...    the mixture: how it is mixed, and the numbers of its buffers' checkpoints
    path/buffers/0/ ...         the checkpoints of its first buffer, or of a mixture in it

The small one is written last, so that what loads is all of a mixture as it was at one save, whenever a save stops. What
its checkpoints name is kept for as long as these are. A save holds `path/lock` from its first buffer to the small one.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.errors import CorruptCheckpointError
from functional_rb.checkpoint import places
from functional_rb.checkpoint.listing import there
from functional_rb.mixture.value import Mixture, MixtureSpec, specs_of_buffers

# The only name in the nest that is saved of a mixture.
NAME = "functional_rb.Mixture"
BUFFERS = "buffers"
# What is told of how buffers are mixed.
NAMES = {field.name for field in dataclasses.fields(MixtureSpec)}
_log = logging.getLogger("functional_rb")


def place_of(directory: str, k: int) -> str:
    """The directory of the k-th buffer.

    Raises:
        CheckpointError: if a link has its name.
    """
    return places.inside(directory, BUFFERS, k)


def needed(directory: str, buffers: int, keep: int, record_at: Callable[[str, int], Any]) -> list[int]:
    """How many checkpoints of each buffer have to stay beside a new one: those that the newest `keep` have named."""
    named = [_told(record_at(directory, number)) for number in there(directory)[:keep]]
    counts = []
    for k in range(buffers):
        oldest = min((one["checkpoints"][k] for one in named if one and k < len(one["checkpoints"])), default=None)
        counts.append(0 if oldest is None else sum(number >= oldest for number in there(place_of(directory, k))))
    return counts


def record_of(numbers: Sequence[int], spec: MixtureSpec, p: object) -> dict[str, object]:
    """The nest that is saved of a mixture: the numbers of its buffers' checkpoints, what is static, and the shares."""
    told = {"checkpoints": list(numbers), "spec": dataclasses.asdict(spec)}
    record = {"told": np.frombuffer(json.dumps(told).encode(), np.uint8)}
    return {NAME: record if p is None else record | {"p": p}}


def _told(record: Any) -> dict[str, Any] | None:
    """What a nest that was loaded tells of a mixture; None if it stands for none, or cannot be read."""
    if not is_record(record):
        return None
    try:
        told = json.loads(_on_host(record[NAME]["told"]).tobytes())
        numbers, static = told["checkpoints"], told["spec"]
        whole = isinstance(numbers, list) and numbers and all(type(number) is int for number in numbers)
        return told if whole and isinstance(static, dict) and set(static) == NAMES else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _on_host(array: object) -> NumpyArray:
    """An array that was loaded: a tensor of torch goes where samples go, and NumPy reads the host's memory only."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def is_record(found: object) -> bool:
    """Whether a nest that was loaded, or its specs, stand for a mixture."""
    return isinstance(found, Mapping) and set(found) == {NAME}


def is_there(directory: str) -> bool:
    return os.path.isdir(os.path.join(directory, BUFFERS))


# Loads the newest checkpoint in a directory, or one by its number, with another spec or None: and tells the number.
Load = Callable[[str, int | None, Any], tuple[Any, int]]


def loaded(directory: str, load: Load, specs: object, fall_back: bool, number: int | None = None) -> Any:
    """What a directory holds: of a mixture all of its buffers, as they were at one save.

    Args:
        directory: where from.
        load: see `Load`; of a mixture it gives the nest that stands for it.
        specs: another spec, of a mixture one for each buffer, or None.
        fall_back: whether an older checkpoint will do if the newest is damaged.
        number: of the only checkpoint that is wanted; None for the newest.

    Raises:
        CorruptCheckpointError: if a buffer's checkpoint is gone, or what is said of the mixture is of none.
        CheckpointError: if a buffer's directory is a link.
    """
    wanted = number
    while True:
        found = wanted
        try:
            value, found = load(directory, wanted, specs)
            return _together(value, directory, load, specs) if is_record(value) else value
        except (CorruptCheckpointError, FileNotFoundError) as error:
            if found is None or number is not None:
                raise
            left = there(directory)
            if left and left[0] > found and found not in left:  # a save has removed it: there is a newer one
                wanted = None
                continue
            older = next((one for one in left if one < found), None)
            if not fall_back or older is None:
                raise
            _log.warning("checkpoint %d is tried, since %s", older, error)
            wanted = older


def _together(record: Any, directory: str, load: Load, specs: object) -> Mixture:
    told = _told(record)
    if told is None:
        raise CorruptCheckpointError(directory, "what it says of a mixture cannot be read")
    numbers = told["checkpoints"]
    given = [None] * len(numbers) if specs is None else specs_of_buffers(len(numbers), specs, "load")
    found = _places(directory, numbers)
    states = [loaded(where, load, spec, False, number) for (where, number), spec in zip(found, given, strict=True)]
    mixture = Mixture(tuple(states), record[NAME].get("p"), spec=_spec(told))
    try:
        mixture.check()
    except (TypeError, ValueError) as error:
        raise CorruptCheckpointError(directory, f"what it says of a mixture is of none: {error}") from None
    return mixture


def specs(described: Any, record: Any, directory: str, spec_at: Callable[[str, int], Any]) -> Mixture:
    """A mixture with the specs of its buffers in their place, and that of its shares."""
    told = _told(record)
    if told is None:
        raise CorruptCheckpointError(directory, "what it says of a mixture cannot be read")
    found = tuple(spec_at(where, number) for where, number in _places(directory, told["checkpoints"]))
    return Mixture(found, dict(described[NAME]).get("p"), spec=_spec(told))


def _places(directory: str, numbers: Sequence[int]) -> list[tuple[str, int]]:
    found = [(place_of(directory, k), number) for k, number in enumerate(numbers)]
    for where, number in found:
        if number not in there(where):
            raise CorruptCheckpointError(where, f"checkpoint {number} is missing, which the mixture's names")
    return found


def _spec(told: dict[str, Any]) -> MixtureSpec:
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in told["spec"].items()}
    return MixtureSpec(**fields)
