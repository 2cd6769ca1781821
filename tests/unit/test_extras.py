"""What is said of libraries that are missing or too old: unit tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.base import extras
from jax_backend import compat as jax_compat
from tests.support.children import program
from torch_backend import compat as torch_compat

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("functional_rb", "jax_backend", "torch_backend")
# Those that are named otherwise than their module; jax brings ml_dtypes.
DISTRIBUTIONS = {"PIL": "pillow", "transfer_queue": "transferqueue", "ml_dtypes": "jax", "google": "protobuf"}


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
def test_backends_say_what_they_need(library: str, tmp_path: Path) -> None:
    """In a fresh process: without their library, and beside an old one."""
    frb.save({"x": np.zeros(3)}, tmp_path)
    run = subprocess.run(
        program("backend_without_its_library", library, tmp_path), capture_output=True, text=True, cwd=ROOT, check=True
    )
    oldest = {"jax": jax_compat.OLDEST, "torch": torch_compat.OLDEST}[library]
    missing = f"{library}_backend needs {library}: pip install '.[{library}]' in a checkout of functional_rb"
    old = (
        f"{library}_backend needs {library} {oldest} or newer, and 0.1.2 is installed: "
        f"pip install '{library}>={oldest}'"
    )
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


def test_pages_install_as_errors_say() -> None:
    """From a checkout, until the package is published: `COMMAND` says how."""
    form, _, _ = extras.COMMAND.removeprefix("pip install ").partition(" in ")
    wanted = re.compile(re.escape(form).replace(r"\{\}", "([a-z0-9,]+)"))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    told = [
        (page.name, what)
        for page in pages
        for what in re.findall(r"'?(?:functional[-_]rb|(?<!\w)\.)\[[a-z0-9,]+\]'?", page.read_text())
    ]
    assert {"README.md", "install.md"} <= {name for name, _ in told}
    for name, what in told:
        found = wanted.fullmatch(what)
        assert found, f"{name} says {what}, and errors say {extras.COMMAND}"
        assert set(found[1].split(",")) <= set(PROJECT["optional-dependencies"])
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path != Path(extras.__file__)]
    assert [path for path in sources if "pip install" in path.read_text()] == []
