"""The program that runs the tests on old and new versions: what it reads, what it refuses, and the page it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tools import PROJECT, tool

matrix = tool("matrix")
REPORT = """<testsuites><testsuite>
<testcase classname="tests.contract.test_a" name="test_x[1]" time="0.1"/>
<testcase classname="tests.contract.test_a" name="test_x[2]"><failure message="m">t</failure></testcase>
<testcase classname="tests.contract.test_a" name="test_y"><error message="m">t</error></testcase>
<testcase classname="tests.contract.test_a" name="test_z"><skipped message="m"/></testcase>
</testsuite></testsuites>"""


def test_bounds_are_those_of_the_extras_and_of_the_extras_in_them() -> None:
    found = matrix.bounds(PROJECT, ["tensordict"])
    assert found.keys() == {"numpy", "tensordict", "torch"}
    assert f"torch>={found['torch']}" in PROJECT["optional-dependencies"]["torch"]
    # Of Ray and TransferQueue the newest alone has run, and their tests skip themselves where they are not installed.
    users = set(PROJECT["optional-dependencies"]) - {"examples", "bench", "dev", "ray", "transfer-queue"}
    assert set(matrix.EXTRAS) == users


def test_a_bound_that_is_not_what_was_installed_is_refused() -> None:
    lower = {"torch": "2.8", "numpy": "1.26"}
    assert not matrix.complaints(lower, {"torch": "2.8.0+cpu", "numpy": "1.26.0"}, exact=True)
    (wrong,) = matrix.complaints(lower, {"torch": "2.8.0", "numpy": "1.26.2"}, exact=True)
    assert wrong == "pyproject.toml says numpy>=1.26, and the oldest that can be installed is 1.26.2"
    assert not matrix.complaints(lower, {"torch": "2.8.0", "numpy": "2.1.0"}, exact=False)
    assert len(matrix.complaints(lower, {"torch": "2.7.9"}, exact=False)) == 2


def test_reports_are_counted() -> None:
    found = matrix.outcome(REPORT)
    assert (found.passed, found.failed, found.skipped) == (1, 2, 1)
    assert found.failures == ("tests/contract/test_a::test_x[2]", "tests/contract/test_a::test_y")


def environment(level: str) -> Any:
    return matrix.Environment(level, "3.11", "python", Path("uv"), "")


@pytest.mark.parametrize(("jobs", "workers"), [(1, "0"), (2, "2")])
def test_one_job_runs_the_tests_without_workers(
    jobs: int, workers: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = []

    def run(self: Any, command: list[Any]) -> int:
        commands.append(command)
        (tmp_path / "oldest-3.11.xml").write_text(REPORT)
        return 1

    monkeypatch.setattr(matrix, "HOME", tmp_path)
    monkeypatch.setattr(matrix.Environment, "_run", run)
    assert environment("oldest").tests(["tests/contract"], jobs).failed == 2
    ((*_, option, number, _, _, _, path),) = commands
    assert (option, number, path) == ("-n", workers, "tests/contract")


def test_none_but_minari_is_spared_the_numpy_that_it_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pandas that asks for a newer NumPy would not even be imported."""
    calls = []

    def compiled(self: Any, text: str, *arguments: Any, overridden: Any = ()) -> str:
        calls.append((text.splitlines(), overridden))
        return "numpy==1.26.0\npandas==2.2.3"

    monkeypatch.setattr(matrix, "HOME", tmp_path)
    monkeypatch.setattr(matrix.Environment, "_direct", lambda self: "datasets==3.0\nminari==0.5.4\nnumpy==1.26.0")
    monkeypatch.setattr(matrix.Environment, "_compiled", compiled)
    environment("oldest").resolve()
    (others, none), (everything, numpy) = calls
    assert others == ["datasets==3.0", "numpy==1.26.0", *matrix.TOOLS]
    assert not none
    assert {*others, "minari==0.5.4", "pandas==2.2.3"} == {*everything}
    assert numpy == ["numpy==1.26.0"]


def test_the_selection_is_there() -> None:
    for path in [path for paths in matrix.SUITES.values() for path in paths]:
        assert (matrix.ROOT / path).exists(), path


def test_the_page_shows_what_was_run() -> None:
    text, results = matrix.PAGE.read_text(), json.loads(matrix.RESULTS.read_text())
    assert matrix.page(text, results) == text, "run python tools/matrix.py table"
    assert matrix.page(text, results[:-1]) != text


@pytest.mark.parametrize("name", ["torch", "jax", "numpy", "tensordict"])
def test_each_bound_was_run(name: str) -> None:
    (oldest,) = [x for x in json.loads(matrix.RESULTS.read_text()) if (x["level"], x["python"]) == ("oldest", "3.11")]
    bound = matrix.bounds(PROJECT, matrix.EXTRAS)[name]
    assert matrix.numbers(oldest["versions"][name]) == matrix.numbers(bound)
