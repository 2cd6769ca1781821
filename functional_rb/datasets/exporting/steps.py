"""What is exported of a converted dataset: its units by their places, with checks that others can hold them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from functional_rb.base import nest
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.nest import Path
from functional_rb.base.steps import OBSERVATION
from functional_rb.datasets.episode import DatasetError, Episode
from functional_rb.datasets.stored import Stored
from functional_rb.specs import ArraySpec, Composite
from functional_rb.specs.base import SpecNest
from functional_rb.specs.values import Outline

WHO = "Dataset.export"


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """A number, an array or a text of each step."""

    dataset: str  # the path of the dataset
    field: str  # the field of an episode: "observations", "actions" or "infos"
    path: Path  # the path of the unit in the field
    spec: object  # the spec of one value

    def refused(self, who: str, expected: str, remedy: str) -> DatasetError:
        """The error for a unit that a format has no place for."""
        return DatasetError(
            f"{WHO}: {self.dataset}, leaf {self._name!r}: expected {expected}, which is what {who} has, got "
            f"{self.spec!r:.80}; {remedy}"
        )

    def check(self, who: str, borders: str) -> None:
        """Refuse names that a format would take apart at some signs, and arrays without any number."""
        for key in self.path:
            if isinstance(key, str) and (not key or any(sign in key for sign in borders)):
                raise DatasetError(
                    f"{WHO}: {self.dataset}, leaf {self._name!r}: expected names without "
                    f"{' and '.join(map(repr, borders))}, which {who} takes for a border between names, got {key!r}; "
                    f"rename it by Dataset.map"
                )
        if isinstance(self.spec, ArraySpec) and 0 in self.spec.shape:
            raise self.refused(who, "some number in every array", "leave it out by Dataset.map")

    @property
    def _name(self) -> str:
        return "/".join(map(str, (self.field, *self.path)))


class Fields:
    """The fields of a dataset's episodes, with an observation that is one array as it was before it got a name."""

    def __init__(self, reader: Stored) -> None:
        steps = reader.spec(narrow=False)
        observation, key = steps.observation, reader.description.options.get("observation_key")
        assert isinstance(observation, Composite)  # the observation of an item is a dict
        if steps.reward.shape != ():
            raise DatasetError(
                f"{WHO}: {reader.path}, leaf 'rewards': expected one number for each step, got shape "
                f"{steps.reward.shape}; make them one by Dataset.map"
            )
        # The name of the observation in the items, if it is a single one.
        self._alone = next(iter(observation)) if [*observation] in ([OBSERVATION], [key]) else None
        self.reward = steps.reward.dtype
        self.specs: Mapping[str, SpecNest] = {
            "observations": observation if self._alone is None else observation[self._alone],
            "actions": steps.action,
            "infos": Composite(dict(steps.infos)),
        }
        self._outlines = {field: Outline.of(spec, WHO) for field, spec in self.specs.items()}
        self.units = [
            Unit(reader.path, field, path, member.spec)
            for field, outline in self._outlines.items()
            for path, member in zip(outline.shape_of_units.paths, outline.members, strict=True)
        ]

    def values(self, piece: Episode) -> list[NumpyArray]:
        """What a piece of an episode has of each unit, arrays [n, *shape], of observations [n + 1, *shape]."""
        observations = piece.observations if self._alone is None else piece.observations[self._alone]
        parts = {"observations": observations, "actions": piece.actions, "infos": piece.infos}
        outlines = self._outlines.items()
        return [leaf for field, outline in outlines for leaf in nest.flatten_as(outline.shape_of_units, parts[field])]

    def nests(self, values: Iterable[object]) -> dict[str, object]:
        """Values of all units in the nests of their fields."""
        each = iter(values)
        return {
            field: nest.unflatten(outline.shape_of_units, [next(each) for _ in outline.members])
            for field, outline in self._outlines.items()
        }
