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

from functional_rb.base.arrays import Nest
from functional_rb.base.errors import CorruptCheckpointError
from functional_rb.base.strict_json import Json
from functional_rb.checkpoint import places
from functional_rb.checkpoint.listing import there
from functional_rb.mixture.value import Mixture, MixtureSpec, specs_of_buffers
from functional_rb.specs.base import SpecNest

# The only name in the nest that is saved of a mixture.
NAME = "functional_rb.Mixture"
# The leaf of it that holds JSON: the numbers of checkpoints, and how the buffers are mixed. Part of the format.
TEXT = "told"
BUFFERS = "buffers"
# The fields of what is said of how buffers are mixed.
NAMES = {field.name for field in dataclasses.fields(MixtureSpec)}
_log = logging.getLogger("functional_rb")


def place_of(directory: str, k: int) -> str:
    return places.inside(directory, BUFFERS, k)


def needed(directory: str, buffers: int, keep: int, record_at: Callable[[str, int], Nest]) -> list[int]:
    """How many checkpoints of each buffer have to stay beside a new one: those that the newest `keep` have named."""
    named = [_parsed(record_at(directory, number)) for number in there(directory)[:keep]]
    counts = []
    for k in range(buffers):
        # A save lets the oldest go first, so that all from the oldest that is named on have to stay.
        oldest = min((one["checkpoints"][k] for one in named if one and k < len(one["checkpoints"])), default=None)
        counts.append(0 if oldest is None else sum(number >= oldest for number in there(place_of(directory, k))))
    return counts


def record_of(numbers: Sequence[int], spec: MixtureSpec, p: object) -> dict[str, object]:
    """The nest that is saved of a mixture: the numbers of its buffers' checkpoints, what is static, and the shares."""
    text = json.dumps({"checkpoints": list(numbers), "spec": dataclasses.asdict(spec)})
    record = {TEXT: np.frombuffer(text.encode(), np.uint8)}
    return {NAME: record if p is None else record | {"p": p}}


def _parsed(record: Nest) -> Json | None:
    # None if the nest stands for no mixture, or cannot be read.
    if not is_record(record):
        return None
    try:
        text = record[NAME][TEXT]
        # A loaded tensor of torch may lie on a GPU, where NumPy cannot read it.
        content: Json = json.loads(np.asarray(text.cpu() if hasattr(text, "cpu") else text).tobytes())
        numbers, static = content["checkpoints"], content["spec"]
        whole = isinstance(numbers, list) and numbers and all(type(number) is int for number in numbers)
        return content if whole and isinstance(static, dict) and set(static) == NAMES else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def is_record(value: object) -> bool:
    """Whether a nest that was loaded, or its specs, stand for a mixture."""
    return isinstance(value, Mapping) and set(value) == {NAME}


def is_there(directory: str) -> bool:
    return os.path.isdir(os.path.join(directory, BUFFERS))


# Loads the newest checkpoint in a directory, or one by its number, with another spec or None: gives also its number.
Load = Callable[[str, int | None, Any], tuple[Nest, int]]


def loaded(directory: str, load: Load, specs: object, fall_back: bool, number: int | None = None) -> Nest:
    """What a directory holds: of a mixture all of its buffers, as they were at one save.

    `load` gives the nest that stands for a mixture. With `fall_back` an older checkpoint will do if the newest is
    damaged; `number` is that of the only one that is wanted.
    """
    wanted = number
    # Whatever the newest names may have been removed meanwhile by a save, or be damaged: then the next is tried.
    while True:
        tried = wanted
        try:
            value, tried = load(directory, wanted, specs)
            return _together(value, directory, load, specs) if is_record(value) else value
        except (CorruptCheckpointError, FileNotFoundError) as error:
            if tried is None or number is not None:
                raise
            left = there(directory)
            if left and left[0] > tried and tried not in left:  # a save has removed it: there is a newer one
                wanted = None
                continue
            older = next((one for one in left if one < tried), None)
            if not fall_back or older is None:
                raise
            _log.warning("checkpoint %d is tried, since %s", older, error)
            wanted = older


def _together(record: Nest, directory: str, load: Load, specs: object) -> Mixture:
    content = _content(record, directory)
    numbers = content["checkpoints"]
    wanted = [None] * len(numbers) if specs is None else specs_of_buffers(len(numbers), specs, "load")
    placed = _places(directory, numbers)
    states = [loaded(where, load, spec, False, number) for (where, number), spec in zip(placed, wanted, strict=True)]
    mixture = Mixture(tuple(states), record[NAME].get("p"), spec=_spec(content))
    try:
        mixture.check()
    except (TypeError, ValueError) as error:
        raise CorruptCheckpointError(directory, f"what it says of a mixture is of none: {error}") from None
    return mixture


def specs(described: SpecNest, record: Nest, directory: str, spec_at: Callable[[str, int], SpecNest]) -> Mixture:
    """A mixture with the specs of its buffers in their place, and that of its shares."""
    content = _content(record, directory)
    buffer_specs = tuple(spec_at(where, number) for where, number in _places(directory, content["checkpoints"]))
    return Mixture(buffer_specs, dict(described[NAME]).get("p"), spec=_spec(content))


def _content(record: Nest, directory: str) -> Json:
    content = _parsed(record)
    if content is None:
        raise CorruptCheckpointError(directory, "what it says of a mixture cannot be read")
    return content


def _places(directory: str, numbers: Sequence[int]) -> list[tuple[str, int]]:
    placed = [(place_of(directory, k), number) for k, number in enumerate(numbers)]
    for where, number in placed:
        if number not in there(where):
            raise CorruptCheckpointError(where, f"checkpoint {number} is missing, which the mixture's names")
    return placed


def _spec(content: Json) -> MixtureSpec:
    fields: Json = {name: tuple(x) if isinstance(x, list) else x for name, x in content["spec"].items()}
    return MixtureSpec(**fields)
