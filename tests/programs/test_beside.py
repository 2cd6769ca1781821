"""Installed beside others: our ranges meet what their published metadata requires, kept in beside/, offline."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.tools import PROJECT, tool

matrix = tool("matrix")
FILES = sorted((Path(__file__).parent / "beside").glob("*.txt"))
PAGE = matrix.PAGE.read_text()
OURS = matrix.bounds(PROJECT, matrix.EXTRAS)
NAMED = {"flashbax", "lerobot", "stable-baselines3", "torchrl", "verl", "vllm"}


def required(text: str) -> dict[str, SpecifierSet]:
    """What a file of requirements says of each name on Linux with Python 3.12, and of Python itself."""
    found: dict[str, SpecifierSet] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.12"}):
                name = canonicalize_name(requirement.name)
                found[name] = found.get(name, SpecifierSet()) & requirement.specifier
    return found


def meeting(bound: str, theirs: SpecifierSet) -> bool:
    """Whether some version from a bound on is one of theirs: if any is, one that their ranges name, or the bound."""
    named = [Version(specifier.version.removesuffix(".*")) for specifier in theirs]
    beyond = [Version(f"{x}.1") for x in named]  # where the version that is named is itself left out
    candidates = [x for x in [Version(bound), *named, *beyond] if x >= Version(bound)]
    return any(theirs.contains(x, prereleases=True) for x in candidates)


def together(text: str) -> dict[str, dict[str, str]]:
    """By Python, the versions that a resolver took for both: none, where it took none."""
    lines = re.findall(r"^#   Python (\S+): (.*)$", text, re.MULTILINE)
    return {python: dict(re.findall(r"(\S+)==(\S+)", line)) for python, line in lines}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_ranges_meet(file: Path) -> None:
    theirs = required(file.read_text())
    shared = theirs.keys() & OURS.keys()
    assert shared, "nothing of ours is among what it requires"
    for name in shared:
        assert meeting(OURS[name], theirs[name]), f"{name}: ours is >={OURS[name]}, theirs {theirs[name]}"
    ours = SpecifierSet(PROJECT["requires-python"])
    assert any(ours.contains(x) and theirs["python"].contains(x) for x in ("3.11", "3.12", "3.13", "3.14"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_was_resolved_is_what_both_require(file: Path) -> None:
    theirs, found = required(file.read_text()), together(file.read_text())
    assert list(found) == list(matrix.PYTHONS)
    assert any(found.values())
    for python, versions in found.items():
        assert not versions or theirs["python"].contains(python)
        for name, version in versions.items():
            assert theirs.get(name, SpecifierSet()).contains(version), f"{name} {version}: theirs is {theirs[name]}"
            assert Version(version) >= Version(OURS.get(name, "0")), f"{name} {version}: ours is >={OURS[name]}"


def test_all_that_are_promised_are_there_and_on_the_page() -> None:
    assert {file.stem for file in FILES} >= NAMED
    for file in FILES:
        name, version = re.match(r"# (\S+) (\S+): ", file.read_text()).groups()  # type: ignore[union-attr]
        assert re.search(rf"^\| {re.escape(name)} {re.escape(version)} \|", PAGE, re.MULTILINE), (name, version)


def test_ranges_that_do_not_meet_are_seen() -> None:
    assert not meeting("2.8", SpecifierSet("<2.8"))
    assert not meeting("2.8", SpecifierSet("==2.7.1"))
    assert not meeting("2.8", SpecifierSet("<2.12,>=2.7,!=2.8,<2.8.0.1"))
    assert meeting("0.8", SpecifierSet("!=0.9.0,<=0.10.0,>=0.8.0"))
    assert meeting("1.26", SpecifierSet(">2.0,<3"))
