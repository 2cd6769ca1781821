"""Files that torchrl wrote once (`golden_ted/write.py`), read and written again without it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from functional_rb import ted
from tests.formats.golden_ted.write import CASES
from tests.support import backends
from tests.support.ted_model import Case, same, trajectories, trajectory

GOLDEN = Path(__file__).parent / "golden_ted"


@pytest.mark.parametrize("form", ["flat", "nested", "h5"])
@pytest.mark.parametrize("name", CASES)
def test_golden_files_are_read(name: str, form: str) -> None:
    case = dataclasses.replace(CASES[name], half=form != "h5")
    place = GOLDEN / f"{name}_{form}"
    nested = ted.to_form(place / "checkpoint.h5" if form == "h5" else place, "nested")
    for got, steps in zip(nested.trajectories, trajectories(case), strict=True):
        same(got, trajectory(steps, case.flags, case.half))
    assert nested.lanes == ours(case).lanes


@pytest.mark.parametrize("name", CASES)
def test_directories_are_written_as_torchrl_does(name: str, tmp_path: Path) -> None:
    """The same files with the same bytes, empty rows too; JSON in any order."""
    flat = ours(CASES[name])
    for form, made in (("flat", flat), ("nested", ted.to_form(flat, "nested"))):
        made.save(tmp_path / form)
        got, expected = contents(tmp_path / form), contents(GOLDEN / f"{name}_{form}")
        assert got.pop("functional_rb.json")["format"] == 1
        assert got == expected


@pytest.mark.parametrize("name", CASES)
def test_hdf5_is_written_as_torchrl_does(name: str, tmp_path: Path) -> None:
    import h5py

    ours(dataclasses.replace(CASES[name], half=False)).save(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as got, h5py.File(GOLDEN / f"{name}_h5" / "checkpoint.h5") as expected:
        same(datasets(got), datasets(expected))


def ours(case: Case) -> Any:
    with backends.make("torch") as backend:
        return ted.to_form(case.filled(backend))


def contents(place: Path) -> dict[str, Any]:
    files = {str(file.relative_to(place)): file for file in place.rglob("*") if file.is_file()}
    return {name: json.loads(f.read_text()) if f.suffix == ".json" else f.read_bytes() for name, f in files.items()}


def datasets(group: Any) -> dict[str, Any]:
    return {name: x[()] if hasattr(x, "dtype") else datasets(x) for name, x in group.items()}
