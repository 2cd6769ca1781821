"""`make gpu`, rehearsed on the CPU: a small checkout with tests that crash, hang and break CUDA as one would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu import OF_THE_CPU
from tools.gpu import __main__ as program
from tools.gpu import packages, plan, report
from tools.gpu.stages import Stage

ROOT = plan.ROOT
FIRST = """
import ctypes, time
import pytest

def test_fails():
    assert 1 + 1 == 3

def test_crashes():
    ctypes.string_at(0)

def test_hangs():
    time.sleep(600)

def test_breaks_cuda():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

def test_passes():
    pass

@pytest.mark.skip(reason="wants two GPUs")
def test_skips():
    pass
"""
REST = """
import pathlib, time

def test_passes_too():
    pass

def test_is_at_work():
    pathlib.Path("at_work").touch()
    time.sleep(600)

def test_never_begins():
    pass
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program is made of, and tests in place of ours."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for name in ("tests/__init__.py", *(f"tests/support/{name}.py" for name in ("__init__", "gpu", "one_by_one"))):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for name, text in {"first": FIRST, "rest": REST, "broken": "import no_such_module"}.items():
        (root / f"tests/test_{name}.py").write_text(text)
    return root


@pytest.fixture(scope="module")
def run(checkout: Path) -> tuple[int, dict[str, Any], str]:
    """The exit status and both reports of a run that was ended from outside, while a test was at work."""
    options = ["--device", "cpu", "--workers", "1", "--test-limit", "3", "--budget", "300"]
    modules = ["--selection", "tests/test_broken.py", "tests/test_first.py", "--rest", "tests/test_rest.py"]
    environment = {
        **os.environ,
        "PYTHONPATH": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "xdist.plugin",
    }
    command = [sys.executable, "-m", "tools.gpu", *options, *modules]
    with subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL) as process:
        while not (checkout / "at_work").exists() and process.poll() is None:
            time.sleep(0.05)
        process.terminate()
    out = checkout / "build/gpu"
    return process.returncode, json.loads((out / "report.json").read_text()), (out / "report.md").read_text()


def test_each_test_ends_only_itself(run: tuple[int, dict[str, Any], str]) -> None:
    _, told, text = run
    outcomes = {test["test"].partition("/test_")[2]: test["outcome"] for test in told["tests"]}
    assert outcomes == {
        "broken.py": "failed",
        **{f"first.py::test_{name}": "failed" for name in ("fails", "crashes", "hangs", "breaks_cuda")},
        "first.py::test_passes": "passed",
        "first.py::test_skips": "skipped",
        "rest.py::test_passes_too": "passed",
    }
    for name, line in {
        "broken.py": r"not imported: .*No module named 'no_such_module'",
        "first.py::test_fails": r"assert \(1 \+ 1\) == 3 \(test_first.py:6\)",
        "first.py::test_crashes": r"the worker has ended: .*(Segmentation fault|access violation).* in test_crashes",
        "first.py::test_hangs": r"the worker has ended: Timeout \(0:00:03\)!.* in test_hangs",
        "first.py::test_breaks_cuda": r"the worker has ended: CUDA has failed: .*illegal memory access",
    }.items():
        assert re.search(rf"^- `tests/test_{re.escape(name)}`: {line}", text, re.MULTILINE), text
    assert "- 1: Skipped: wants two GPUs" in text
    (fails,) = (test for test in told["tests"] if test["test"].endswith("::test_fails"))
    assert re.search(r"tests/test_first.py:6: in test_fails\n(.*\n)*E +assert \(1 \+ 1\) == 3", fails["text"]), fails


def test_a_run_that_is_cut_leaves_what_was_known(run: tuple[int, dict[str, Any], str]) -> None:
    status, told, text = run
    assert status == 1
    selection, rest = told["stages"]
    assert (selection["passed"], selection["failed"], selection["skipped"], selection["not run"]) == (1, 5, 1, 0)
    assert (rest["end"], rest["passed"], rest["not run"]) == ("interrupted", 1, 2)
    assert rest["at work when it was cut"] == ["tests/test_rest.py::test_is_at_work"]
    assert "- `tests/test_rest.py::test_is_at_work`: when it was cut\n- 2 of `tests/test_rest.py`" in text
    assert told["versions"]["torch"]
    assert f"pytest {pytest.__version__}" in text


def test_a_stage_ends_at_its_limit_with_all_that_it_has_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    late = f"import time; file = open({str(tmp_path / 'fifo')!r}, 'w'); time.sleep(9); file.write('late')"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {late!r}])"
    stage, told = Stage("long", [sys.executable, "-S", "-c", child], tmp_path), list[float]()
    stage.carry_out(dict(os.environ), 1.0, lambda: told.append(stage.seconds))
    assert stage.end == "cut"
    assert told
    assert stage.seconds >= 1.0
    os.set_blocking(reader, True)
    with open(reader) as file:
        assert file.read() == ""  # it ends as there is no writer any more


def test_a_stage_that_fails_is_no_success(tmp_path: Path) -> None:
    stage = Stage("failing", [sys.executable, "-S", "-c", "print('begun'); raise SystemExit(3)"], tmp_path)
    stage.carry_out(dict(os.environ), 60.0, lambda: None)
    assert (stage.end, stage.last_line) == ("ended (3)", "begun")
    assert not report.succeeded([stage])
    stage = Stage("none", ["no such program"], tmp_path)
    stage.carry_out({}, 0.0, pytest.fail)
    assert stage.end == "not begun, as the time was over"


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({"gpus": {}, "missing": []}, "no GPU for jax and torch here"),
        ({"gpus": {"torch": "H100"}, "missing": []}, "no GPU for jax here"),
        ({"gpus": {}, "missing": ["xdist", "jax"]}, "has no jax pytest-xdist; .* wheels/ along"),
        ({"gpus": {}, "missing": [], "error": "torch and JAX could not be looked at"}, "could not be looked at"),
    ],
)
def test_where_nothing_can_be_run_it_says_why(
    seen: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "look", lambda *_: dict(seen))
    monkeypatch.setattr(packages, "installed", lambda *_: {})
    assert program.main(["--out", str(tmp_path), "--wheels", str(tmp_path)]) == 2
    assert re.search(f"^gpu: .*{told}", capsys.readouterr().err)
    assert re.search(told, (tmp_path / "report.md").read_text())
    assert re.search(told, json.loads((tmp_path / "report.json").read_text())["refused"])


def test_a_module_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["--rest", "tests/contract/test_none.py"])
    assert "got 'tests/contract/test_none.py'" in capsys.readouterr().err


def test_what_is_missing_comes_from_wheels_that_were_carried_along(tmp_path: Path) -> None:
    for name in ("brought_along", "numpy"):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            described, record = f"{name}-1.0.dist-info", f"{name}-1.0.dist-info/RECORD"
            wheel.writestr(f"{name}.py", "")
            wheel.writestr(f"{described}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{described}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(record, f"{name}.py,,\n{described}/METADATA,,\n{described}/WHEEL,,\n{record},,\n")
    notes = packages.unpack(tmp_path, {"numpy": "2.4.6"}, tmp_path / "packages")
    assert notes == ["brought-along 1.0: from a wheel"]
    assert [path.name for path in (tmp_path / "packages").glob("*.py")] == ["brought_along.py"]


def test_first_what_has_failed_then_what_is_quick(tmp_path: Path) -> None:
    assert all((ROOT / path).is_file() for path in plan.SELECTION)
    rest = plan.rest()
    assert not {*rest} & {*plan.SELECTION}
    assert {Path(path).stem for path in rest} & OF_THE_CPU == set()
    assert [path.startswith(plan.LAST) for path in rest] == sorted(path.startswith(plan.LAST) for path in rest)
    assert plan.ordered(["b", "a"], tmp_path / "report.json") == ["b", "a"]
    tests = [("slow", "passed", 9.0), ("quick", "passed", 1.0), ("bad", "failed", 99.0), ("quick", "skipped", 0.5)]
    before = [{"test": f"{name}::t", "outcome": outcome, "seconds": s} for name, outcome, s in tests]
    (tmp_path / "report.json").write_text(json.dumps({"tests": before}))
    assert plan.ordered(["slow", "new", "quick", "bad"], tmp_path / "report.json") == ["bad", "new", "quick", "slow"]


def test_make_gpu_needs_no_environment_of_ours() -> None:
    command = ["make", "-n", "-C", str(ROOT), "PYTHON=python3.12", "ARGS=--budget 100", "gpu"]
    steps = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [step for step in steps if not step.startswith("make")] == ["python3.12 -m tools.gpu --budget 100"]
