"""Names that are imported when they are first used: what is loaded by then, and that nothing is missing."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

import functional_rb as frb
import jax_backend
import torch_backend
from tests.support.children import program

ROOT = Path(__file__).parents[2]


SUBMODULES = ("text", "trees")


def run(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(name), capture_output=True, text=True, cwd=ROOT, check=False)


def test_type_checkers_read_what_the_table_says() -> None:
    body = ast.parse((ROOT / "functional_rb" / "__init__.pyi").read_text()).body
    imports = [part for part in body if isinstance(part, ast.ImportFrom)]
    assert all(name.asname == name.name for part in imports for name in part.names)  # so it is exported
    told = sorted((part.module, name.name) for part in imports for name in part.names)
    assert told == sorted((home, name) for home, names in frb._HOMES.items() for name in names)
    assert frb.__all__ == sorted(name for _, name in told)


MODULES = [
    *(frb, jax_backend, torch_backend, frb.checkpoint, frb.convert, frb.datasets, frb.errors, frb.items),
    *(frb.specs, frb.ted, frb.text, frb.trees),
    *(getattr(rb, name) for rb in (jax_backend, torch_backend) for name in SUBMODULES),
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_names_are_listed_and_there(module: ModuleType) -> None:
    assert set(module.__all__) <= set(dir(module))
    assert not [name for name in module.__all__ if getattr(module, name, None) is None]
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("module", [frb, jax_backend, torch_backend])
def test_what_is_not_there_is_no_attribute(module: ModuleType) -> None:
    expected = f"^module '{module.__name__}' has no attribute 'inti'"
    with pytest.raises(AttributeError, match=expected) as raised:
        module.inti  # noqa: B018
    assert (raised.value.name, raised.value.obj) == ("inti", module)  # Python says what is meant
    assert not hasattr(module, "inti")
    with pytest.raises(ImportError, match="cannot import name 'inti'"):
        exec(f"from {module.__name__} import inti", {})


def test_functions_of_backends_are_looked_for_there() -> None:
    with pytest.raises(AttributeError, match="those of a backend: import jax_backend as rb, or torch_backend as rb"):
        frb.init  # noqa: B018


def test_names_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once = frb.Uniform
    monkeypatch.delattr(frb, "Uniform")
    assert "Uniform" in dir(frb)
    assert "Uniform" not in vars(frb)
    assert frb.Uniform is once
    assert vars(frb)["Uniform"] is once


def test_nothing_is_loaded_before_it_is_used_by_one_thread_or_many() -> None:
    last = run("late_imports").stderr.strip().splitlines()[-1]
    assert last.startswith("AttributeError: module 'functional_rb' has no attribute 'Unifrom'"), last
    assert last.endswith("Did you mean: 'Uniform'?")


def test_no_module_asks_for_a_late_name_while_it_is_imported() -> None:
    """The lock of late imports is asked for before those of modules, by every thread."""
    late = re.compile(rf"^ *from functional_rb import .*\b({'|'.join(frb.__all__)})\b", re.MULTILINE)
    assert late.search("from functional_rb import specs, ted\n")
    sources = [
        path for name in ("functional_rb", "jax_backend", "torch_backend") for path in (ROOT / name).rglob("*.py")
    ]
    assert [path for path in sources if late.search(path.read_text())] == []


def test_texts_find_all_that_any_module_registers() -> None:
    ran = run("registered_types")
    number, *forgotten = ran.stdout.split()
    assert not forgotten, ran.stderr
    assert int(number) > 85
