"""`python -m functional_rb datasets`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from functional_rb.__main__ import main
from functional_rb.datasets import info
from tests.support.d4rl_files import write


def test_datasets_are_described_converted_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: str) -> str:
        assert main(["datasets", *arguments, "--root", str(tmp_path)]) == 0
        return capsys.readouterr().out

    path = write(tmp_path / "some.hdf5")
    before = json.loads(told("info", f"d4rl:{path}", "--json"))
    assert (before["steps"], before["episodes"], before["observation"]) == (12, 4, "Unbounded((2,))")
    assert "steps: 12\n" in told("info", f"d4rl:{path}")
    made = told("get", f"d4rl:{path}", "--infos", "*").strip()
    assert info(made).options["infos"] == ["qpos"]
    listed = json.loads(told("list", "--json"))
    assert listed["converted"] == {made: {"name": f"d4rl:{path}", "steps": 10, "episodes": 4}}
    assert {"minari", "d4rl", "gymnasium"} <= set(listed["prefixes"])
    assert "episodes: 4\n" in told("list")
    out = told("convert", f"d4rl:{path}", str(tmp_path / "out"), "--wide").strip()
    assert info(out).item["action"].dtype == "float64"
    found = json.loads(told("info", out, "--json"))
    assert found["lengths"] == {"least": 1, "quarter": 1.75, "median": 2.5, "three quarters": 3.25, "most": 4}
    assert (found["terminated"], found["dropped"]) == (2, 2)
    assert "  most: 19.5" in told("info", out)
    rows = told("export", out, str(tmp_path / "rows"), "--format", "lerobot", "--fact", "fps=10").strip()
    assert (rows, json.loads((tmp_path / "rows" / "meta" / "info.json").read_text())["fps"]) == (
        f"lerobot:{tmp_path}/rows",
        10,
    )
    named = told("export", f"d4rl:{path}", str(tmp_path / "a-v0"), "--fact", "author=A. Uthor").strip()
    assert json.loads(told("info", named, "--json"))["author"] == ["A. Uthor"]


def test_what_is_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "info", "minari:no/such-v0", "--root", str(tmp_path)]) == 1
    assert "datasets: minari:no/such-v0: no metadata.json" in capsys.readouterr().err
    assert main(["datasets", "get", "nothing", "--root", str(tmp_path)]) == 1
    assert "expected a name such as" in capsys.readouterr().err
    made = str(write(tmp_path / "some.hdf5"))
    assert main(["datasets", "convert", f"d4rl:{made}", str(tmp_path / "made")]) == 0
    assert main(["datasets", "export", str(tmp_path / "made"), str(tmp_path / "out"), "--fact", "fps"]) == 1
    assert "--fact: expected NAME=VALUE, got 'fps'" in capsys.readouterr().err
