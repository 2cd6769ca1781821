"""What is exported of a converted dataset: its units by their places, with checks that others can hold them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from functional_rb.base import nest
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.nest import Path
from functional_rb.base.steps import OBSERVATION
from functional_rb.datasets.episode import DatasetError, Episode
from functional_rb.datasets.stored import Stored
from functional_rb.specs import ArraySpec, Composite
from functional_rb.specs.base import SpecNest
from functional_rb.specs.values import Outline

WHO = "datasets.export"


@dataclasses.dataclass(frozen=True)
class Unit:
    """A number, an array or a text of each step."""

    field: str  # of an episode: "observations", "actions" or "infos"
    path: Path  # in it
    spec: object  # of a value

    @property
    def name(self) -> str:
        """As errors name it, "observations/task"."""
        return "/".join(map(str, (self.field, *self.path)))


@dataclasses.dataclass(frozen=True, eq=False)
class Fields:
    """The fields of a dataset's episodes, with an observation that is one array as it was before it got a name."""

    path: str  # of the dataset
    alone: str | None  # the name of the observation in the items, if it is a single one; else None
    specs: Mapping[str, SpecNest]  # of observations, actions and infos

    @classmethod
    def of(cls, reader: Stored) -> Fields:
        steps = reader.spec(narrow=False)
        observation, key = steps.observation, reader.description.options.get("observation_key")
        assert isinstance(observation, Composite)  # as items have it
        names = list(observation)
        alone = names[0] if len(names) == 1 and names[0] in (OBSERVATION, key) else None
        if steps.reward.shape != ():
            raise DatasetError(
                f"{WHO}: {reader.path}, leaf 'rewards': expected one number for each step, got shape "
                f"{steps.reward.shape}; make them one by datasets.map"
            )
        specs = {"observations": observation if alone is None else observation[alone], "actions": steps.action}
        return cls(reader.path, alone, {**specs, "infos": Composite(dict(steps.infos))})

    def outline(self, field: str) -> Outline:
        return Outline.of(self.specs[field], WHO)

    def units(self) -> list[Unit]:
        units = []
        for field in self.specs:
            outline = self.outline(field)
            for path, member in zip(outline.shape_of_units.paths, outline.members, strict=True):
                units.append(Unit(field, path, member.spec))
        return units

    def leaves(self, field: str, piece: Episode) -> list[NumpyArray]:
        """What a piece of an episode has of the units of a field, in the order of `units`."""
        values = getattr(piece, field)
        if field == "observations" and self.alone is not None:
            values = values[self.alone]
        return nest.flatten_as(self.outline(field).shape_of_units, values)

    def refused(self, unit: Unit, who: str, expected: str, remedy: str) -> DatasetError:
        """The error for a unit that a format has no place for."""
        return DatasetError(
            f"{WHO}: {self.path}, leaf {unit.name!r}: expected {expected}, which is what {who} has, got "
            f"{unit.spec!r:.80}; {remedy}"
        )

    def check_names(self, unit: Unit, who: str, without: str) -> None:
        """Refuse names that a format would take apart."""
        for key in unit.path:
            if isinstance(key, str) and (not key or any(sign in key for sign in without)):
                raise DatasetError(
                    f"{WHO}: {self.path}, leaf {unit.name!r}: expected names without {' and '.join(map(repr, without))}"
                    f", which {who} takes for a border between names, got {key!r}; rename it by datasets.map"
                )

    def check_arrays(self, unit: Unit, who: str) -> None:
        """Refuse arrays without any number."""
        if isinstance(unit.spec, ArraySpec) and 0 in unit.spec.shape:
            raise self.refused(unit, who, "some number in every array", "leave it out by datasets.map")
