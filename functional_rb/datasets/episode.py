"""What readers of datasets give: episodes, and what they are made of; with checks that name file, episode and field."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.dtypes import shown
from functional_rb.specs import ArraySpec, Unbounded, freeze
from functional_rb.specs.base import SpecNest


class DatasetError(ValueError):
    """A dataset is not what its format says, or does not fit what it is asked for. The message names the place."""


@contextlib.contextmanager
def expecting(what: str, *errors: type[Exception], remedy: str = "; fetch it again") -> Iterator[None]:
    """Raise the errors of a library, which name neither file nor place, as errors of datasets that do."""
    try:
        yield
    except (DatasetError, FileNotFoundError):
        raise
    except errors as error:
        raise DatasetError(f"{what}: {error}{remedy}") from error


@dataclasses.dataclass(frozen=True)
class StepSpec:
    """What the steps of a dataset are made of, as specs.

    Attributes:
        observation: a spec, or a nest of them.
        action: a spec, or a nest of them.
        reward: the spec of a reward.
        infos: what else there is of each step, by name: specs, or nests of them.
        encoded: whether texts and the like come in the arrays that stand for them, rather than as environments give
            them.

    Example:
        >>> StepSpec(frb.Unbounded((3,)), frb.Categorical(4)).reward
        Unbounded()
    """

    observation: SpecNest
    action: SpecNest
    reward: ArraySpec = dataclasses.field(default_factory=lambda: Unbounded(()))
    infos: Mapping[str, SpecNest] = dataclasses.field(default_factory=dict)
    encoded: bool = False

    def __post_init__(self) -> None:
        for field in ("observation", "action", "reward"):
            object.__setattr__(self, field, freeze(getattr(self, field)))
        object.__setattr__(self, "infos", {name: freeze(spec) for name, spec in self.infos.items()})


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """An episode of T steps, or a piece of one, in arrays of NumPy.

    Texts, sequences, graphs and one-hot vectors come as environments give them: sequences of T (or T + 1) values.

    Attributes:
        observations: a nest, leaves [T + 1, *shape]: what each step begins from, and what the last one led to.
        actions: a nest, leaves [T, *shape].
        rewards: numbers [T], of each action.
        terminated: bool [T], whether the step led to a terminal state: the last one only.
        truncated: bool [T], whether the episode was cut off after it: the last one only.
        infos: what else there is of each step, by name: nests with leaves [T, *shape]. A mapping may read them when
            they are asked for, until the next episode is.
        final_observed: whether the last observation was observed. If not, what stands there means nothing: then the
            last step is kept only if it led to a terminal state, after which no learner looks at it.
        goes_on: whether the next piece that the reader gives is of the same episode: its first observation is the
            last one here.
        file: the path of the file that it was read from, for errors.
        about: what is known of the whole episode, in values of JSON: its seed, a task in words. Of pieces the first has
            it. For NaN and infinities, which JSON has not, null is written.

    Example:
        >>> flags = np.zeros(4, bool)
        >>> len(Episode(np.zeros((5, 3)), np.zeros((4, 2)), np.ones(4), flags, flags))
        4
    """

    observations: Nest
    actions: Nest
    rewards: NumpyArray
    terminated: NumpyArray
    truncated: NumpyArray
    infos: Mapping[str, Nest] = dataclasses.field(default_factory=dict)
    final_observed: bool = True
    goes_on: bool = False
    file: str = ""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rewards)


def as_plain(value: object, name: str, where: str) -> NumpyArray:
    """A leaf as an array of NumPy that has numbers or truth values, and no mask."""
    try:
        array: NumpyArray = np.asanyarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # lists differ in length, or a tensor is on a GPU
        raise DatasetError(
            f"{where}: leaf {name!r}: expected what NumPy takes as an array, got {type(value).__name__}: {error}"
        ) from None
    # bfloat16 and its like have the kind V, as records have, whose dtypes have names.
    is_number = array.dtype.kind in "biufcV" and array.dtype.names is None
    if isinstance(array, np.ma.MaskedArray) or not is_number:
        got = "numpy.ma.MaskedArray, whose mask would be lost" if is_number else f"dtype {array.dtype}"
        raise DatasetError(f"{where}: leaf {name!r}: expected a plain array of numbers, got {got}; convert it")
    return array


def ends_of(episode: Episode, n: int, where: str) -> tuple[bool, bool]:
    """Whether the last of n steps is terminated, and truncated: no other step may be.

    An episode that ends without any flag was cut off where the dataset ends.
    """
    ends = []
    for name in ("terminated", "truncated"):
        flag = as_plain(getattr(episode, name), name, where)
        if flag.shape != (n,) or flag.dtype != bool:
            raise DatasetError(f"{where}, {name}: expected bool ({n},), got {shown(flag.dtype)} {flag.shape}")
        marked = np.count_nonzero(flag)
        ends.append(marked == 1 and bool(flag[-1]) and not episode.goes_on)
        if marked and not ends[-1]:
            raise DatasetError(
                f"{where}, {name}: step {int(flag.argmax())} of {n} is marked, expected the last one of an episode "
                f"only; the reader has to begin another episode after it"
            )
    terminated, truncated = ends
    return terminated, truncated or not (episode.goes_on or terminated)


def steps_of(episode: Episode, where: str) -> int:
    rewards = as_plain(episode.rewards, "rewards", where)
    if rewards.ndim == 0 or not len(rewards):
        raise DatasetError(f"{where}, rewards: expected one for each step, and some steps, got shape {rewards.shape}")
    return len(rewards)
