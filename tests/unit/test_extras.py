"""What is said of libraries that are missing or too old: unit tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from functional_rb.base import extras
from jax_backend import compat as jax_compat
from torch_backend import compat as torch_compat

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {"PIL": "pillow", "ml_dtypes": "jax"}
"""Those that are named otherwise than their module; jax brings ml_dtypes."""


def required(extra: str) -> set[str]:
    """The names of what an extra brings, those of the extras in it too."""
    names: set[str] = set()
    for text in PROJECT["optional-dependencies"][extra]:
        found = re.match(r"functional-rb\[(.*)\]", text)
        names |= set().union(*map(required, found[1].split(","))) if found else {re.split(r"[<>=!\[; ]", text)[0]}
    return names


@pytest.mark.parametrize("module", extras.EXTRAS)
def test_extras_bring_what_the_remedy_says(module: str) -> None:
    assert DISTRIBUTIONS.get(module, module) in required(extras.EXTRAS[module])


def test_what_no_extra_brings_is_installed_by_its_name() -> None:
    assert extras.remedy("dm_env.specs") == "pip install dm-env"
    assert not extras.PACKAGES.keys() & extras.EXTRAS.keys()


def test_import_tells_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    remedy = re.escape("x needs h5py: pip install '.[hdf5]' in a checkout of functional_rb")
    with pytest.raises(ImportError, match=remedy) as raised:
        extras.imported("h5py", "x")
    assert raised.value.name == "h5py"


def test_import_tells_why_a_library_that_is_there_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dm_env.py").write_text("import nowhere_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "dm_env", raising=False)
    with pytest.raises(ImportError, match=r"needs dm_env: pip install dm-env \(No module named 'nowhere_at_all'\)"):
        extras.imported("dm_env", "x")


@pytest.mark.parametrize("version", ["2.7.1", "2.7.99+cu128", "1.13", "2.7"])
def test_older_versions_are_refused(version: str) -> None:
    library = SimpleNamespace(__name__="torch", __version__=version)
    expected = f"x needs torch 2.8 or newer, and {version} is installed: pip install 'torch>=2.8'"
    with pytest.raises(ImportError, match=re.escape(expected)):
        extras.check_version(library, "2.8", "x")


@pytest.mark.parametrize("version", ["2.8.0", "2.8.0a0+git1", "2.10.0", "3.0", "2.13.0+cpu"])
def test_newer_versions_are_taken(version: str) -> None:
    extras.check_version(SimpleNamespace(__name__="torch", __version__=version), "2.8", "x")


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_bounds_of_backends_are_those_of_the_package(library: str) -> None:
    (bound,) = [x for x in PROJECT["optional-dependencies"][library] if x.startswith(f"{library}>=")]
    oldest = {"jax": jax_compat.OLDEST, "torch": torch_compat.OLDEST}[library]
    assert bound == f"{library}>={oldest}"


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_backends_say_what_they_need(library: str) -> None:
    """In a fresh process: without their library, and beside an old one."""
    program = f"""
import sys, types
def attempt():
    try:
        import {library}_backend
    except ImportError as error:
        print(error)
    for name in [x for x in sys.modules if x.startswith("{library}_backend")]:
        del sys.modules[name]
sys.modules["{library}"] = None
attempt()
sys.modules["{library}"] = types.ModuleType("{library}")
sys.modules["{library}"].__version__ = "0.1.2"
attempt()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    oldest = {"jax": jax_compat.OLDEST, "torch": torch_compat.OLDEST}[library]
    missing, old = run.stdout.splitlines()
    assert missing.startswith(f"{library}_backend needs {library}: pip install '.[{library}]' in a checkout")
    assert old == (
        f"{library}_backend needs {library} {oldest} or newer, and 0.1.2 is installed: "
        f"pip install '{library}>={oldest}'"
    )
