"""What is said of libraries that are missing or too old."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import functional_rb as frb
from tests.support.children import program

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("functional_rb", "jax_backend", "torch_backend")


def without_h5py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImportError:
    """What is said where a dataset's reader needs it."""
    (tmp_path / "walk.hdf5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError) as raised:
        frb.datasets.load(f"d4rl:{tmp_path / 'walk.hdf5'}", "torch", root=tmp_path)
    return raised.value


def test_import_tells_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    error = without_h5py(monkeypatch, tmp_path)
    assert str(error) == "datasets needs h5py: pip install '.[hdf5]' in a checkout of functional_rb"
    assert error.name == "h5py"


def test_import_tells_why_a_library_that_is_there_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dm_env.py").write_text("import nowhere_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("dm_env", "dm_env.specs"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=r"needs dm_env: pip install dm-env \(No module named 'nowhere_at_all'\)"):
        frb.convert.to_library(frb.Unbounded(()), "dm_env")


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_backends_say_what_they_need(library: str, tmp_path: Path) -> None:
    """In a fresh process: without their library, and beside an old one."""
    frb.save({"x": np.zeros(3)}, tmp_path)
    run = subprocess.run(
        program("backend_without_its_library", library, tmp_path), capture_output=True, text=True, cwd=ROOT, check=True
    )
    (bound,) = (x for x in PROJECT["optional-dependencies"][library] if x.startswith(f"{library}>="))
    missing = f"{library}_backend needs {library}: pip install '.[{library}]' in a checkout of functional_rb"
    old = f"{library}_backend needs {bound.replace('>=', ' ')} or newer, and 0.1.2 is installed: pip install '{bound}'"
    assert run.stdout.splitlines() == [missing, missing, old, old]


def test_what_names_of_missing_libraries_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that names a class of a library is read with it as `known`, and then the library must be there."""
    text = frb.convert.to_json(frb.Composite({"x": frb.Unbounded(())}))
    text = text.replace('"batch_shape"', '"container": "tensordict._td:TensorDict", "batch_shape"')
    known = r"names 'tensordict._td:TensorDict', which is not among those known, \[\]; write .*known=\(TensorDict,\)\)"
    with pytest.raises(ValueError, match=rf"{known}$"):
        frb.convert.from_json(text)
    monkeypatch.setitem(sys.modules, "tensordict", None)
    remedy = r"; tensordict is not installed: pip install '\.\[tensordict\]' in a checkout"
    with pytest.raises(ValueError, match=known + remedy):
        frb.convert.from_json(text)


def test_pages_install_as_errors_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From a checkout, until the package is published; one module of the sources says how."""
    said = str(without_h5py(monkeypatch, tmp_path))
    form = re.findall("pip install (.*) in ", said)[0]
    wanted = re.compile(re.escape(form).replace("hdf5", "([a-z0-9,]+)"))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    told = [
        (page.name, what)
        for page in pages
        for what in re.findall(r"'?(?:functional[-_]rb|(?<!\w)\.)\[[a-z0-9,]+\]'?", page.read_text())
    ]
    assert {"README.md", "install.md"} <= {name for name, _ in told}
    for name, what in told:
        found = wanted.fullmatch(what)
        assert found, f"{name} says {what}, and errors say: {said}"
        assert set(found[1].split(",")) <= set(PROJECT["optional-dependencies"])
    sources = [path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert [path for path in sources if "pip install" in (ROOT / path).read_text()] == ["functional_rb/base/extras.py"]
