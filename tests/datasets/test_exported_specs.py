"""Minari's datasets that were exported by us: their specs come back, also where several have one space."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.datasets import Dataset, Episode, StepSpec, convert
from tests.datasets.episodes import open_reader
from tests.datasets.made_up import MadeUp


class Zeros:
    """An episode of three steps, all zeros, which all specs take."""

    name, files, counts = "zeros", (), {"episodes": 1, "steps": 3}

    def __init__(self, steps: StepSpec) -> None:
        self.steps, self.facts = steps, dict[str, object]()

    def spec(self, narrow: bool) -> StepSpec:
        return self.steps

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        def zeros(spec: object, n: int) -> Any:
            if isinstance(spec, Mapping):
                return {name: zeros(child, n) for name, child in spec.items()}
            assert isinstance(spec, frb.specs.ArraySpec)
            return np.zeros((n, *spec.shape), spec.dtype)

        flags = np.zeros(3, bool)
        of = self.steps
        yield Episode(
            zeros(of.observation, 4), zeros(of.action, 3), zeros(of.reward, 3), flags, flags, zeros(of.infos, 3)
        )


SAME_SPACES = {
    "pixels": frb.Bounded(0, 255, (2,), "uint8"),
    "bytes": frb.Unbounded((2,), "uint8"),
    "flags": frb.Binary((2,), "int32"),
    "sides": frb.specs.MultiCategorical((6, 6), dtype="int64"),
    "all": frb.Bounded(-np.inf, np.inf, (2,)),
}


@pytest.mark.parametrize("name", SAME_SPACES)
def test_specs_that_share_a_space_are_themselves_again(name: str, tmp_path: Path) -> None:
    spec = SAME_SPACES[name]
    steps = StepSpec({name: spec}, spec, infos={"inner": {name: spec, "level": frb.Bounded(0, 1, (2,))}})
    convert(Zeros(steps), tmp_path / "made", frb.datasets.Conversion(infos=True, narrow=False))
    named = Dataset(tmp_path / "made").export(tmp_path / "walk-v0")
    again = open_reader(named).spec(narrow=False)
    assert (again.observation, again.action) == (steps.observation, steps.action)
    assert again.infos == steps.infos


@pytest.mark.parametrize("text", ["{", "[]", frb.convert.to_json(frb.Bounded(0, 1)), 3])
def test_spaces_are_read_where_exported_specs_are_not(text: object, tmp_path: Path) -> None:
    convert(MadeUp([3]), tmp_path / "made")
    named = Dataset(tmp_path / "made").export(tmp_path / "walk-v0")
    path = tmp_path / "walk-v0" / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"functional_rb_specs": text}))
    assert open_reader(named).spec(narrow=False).observation == frb.Unbounded(())
