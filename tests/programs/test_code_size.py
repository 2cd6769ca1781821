"""`tools/code_size.py` counts a folder that is no checkout, and says where there is nothing to count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tools import tool

code_size = tool("code_size")
SOURCE = '''"""Of one number."""

# The number.
X = 1
'''


def told(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    monkeypatch.setattr("sys.argv", ["code_size", str(folder)])
    code_size.main()
    return dict(line.strip("| ").rsplit(" | ", 1) for line in capsys.readouterr().out.splitlines()[2:])


def test_a_folder_has_one_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "module.py").write_text(SOURCE)
    found = told(tmp_path, monkeypatch, capsys)
    assert (found["lines"], found["lines of code"], found["lines of docstrings"]) == ("4", "1", "1")
    assert (found["functions"], found["lines of a function"]) == ("0", "0.0")
    (tmp_path / "other.py").write_text("def f(x, y):\n    return x\n")
    found = told(tmp_path, monkeypatch, capsys)
    assert (found["functions"], found["lines of a function"]) == ("1", "2.0")
    assert found["functions of more than 8 arguments"] == "0 (most: 2)"


def test_a_folder_without_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["code_size", str(tmp_path)])
    with pytest.raises(
        SystemExit, match=r"expected a checkout, or a folder with Python in it; there are no \*\.py files"
    ):
        code_size.main()
