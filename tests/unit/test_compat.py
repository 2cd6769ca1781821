"""Libraries that are missing or too old: what brings each, and what the backends' `compat` does on old ones.

Newer versions are told that they are old; `make test-oldest` runs the rest.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_backend
from functional_rb.base import extras
from jax_backend import compat as jax_compat
from torch_backend import compat as torch_compat

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# Those that are named otherwise than their module; jax brings ml_dtypes.
DISTRIBUTIONS = {"PIL": "pillow", "transfer_queue": "transferqueue", "ml_dtypes": "jax", "google": "protobuf"}


def required(extra: str) -> set[str]:
    """The names of what an extra brings, those of the extras in it too."""
    names: set[str] = set()
    for text in EXTRAS[extra]:
        found = re.match(r"functional-rb\[(.*)\]", text)
        names |= set().union(*map(required, found[1].split(","))) if found else {re.split(r"[<>=!\[; ]", text)[0]}
    return names


@pytest.mark.parametrize("module", extras.EXTRAS)
def test_extras_bring_what_the_remedy_says(module: str) -> None:
    assert DISTRIBUTIONS.get(module, module) in required(extras.EXTRAS[module])


def test_what_no_extra_brings_is_installed_by_its_name() -> None:
    assert extras.remedy("dm_env.specs") == "pip install dm-env"
    assert not extras.PACKAGES.keys() & extras.EXTRAS.keys()


def test_older_versions_are_refused() -> None:
    library = SimpleNamespace(__name__="torch", __version__="2.7.1")
    expected = "x needs torch 2.8 or newer, and 2.7.1 is installed: pip install 'torch>=2.8'"
    with pytest.raises(ImportError, match=re.escape(expected)):
        extras.check_version(library, "2.8", "x")


@pytest.mark.parametrize(
    ("found", "asked", "is_it"),
    [
        *(("0.7.2", "0.7", True), ("0.6.9", "0.7", False), ("0.10.0", "0.9", True), ("2.11.0+cpu", "2.11", True)),
        *(("0.6.0", "0.6.1", False), ("0.6.1", "0.6.1", True), ("0.10.0", "0.6.1", True), ("2.8.0a0", "2.8.0", True)),
        *(("2.7.99+cu128", "2.8", False), ("1.13", "2.8", False), ("2.7", "2.8", False), ("3.0", "2.8", True)),
    ],
)
def test_versions_are_compared_as_numbers(found: str, asked: str, is_it: bool) -> None:
    assert extras.is_version(SimpleNamespace(__version__=found), asked) is is_it


def twice(x: Any) -> Any:
    """A public function, of a module as of a package."""
    return x * 2


def test_what_is_not_traced_is_called_or_refused_by_name() -> None:
    package, inner = ModuleType("package"), ModuleType("inner")
    package.__dict__.update(__all__=["twice", "inner", "CONSTANT"], twice=twice, inner=inner, CONSTANT=1)
    inner.__dict__.update(twice=twice, _hidden=twice, Kind=int)
    torch_compat.untrace_all(package)
    assert (package.CONSTANT, inner.Kind, inner._hidden) == (1, int, twice)
    x = torch.arange(3)
    for function in (package.twice, inner.twice):
        assert function(x).tolist() == [0, 2, 4]
        torch._dynamo.reset()
        # Its own log says what the graph was broken for.
        assert torch.compile(lambda x, f=function: f(x) + 1, backend="eager")(x).tolist() == [1, 3, 5]
        assert torch.compile(function, backend="eager")(x).tolist() == [0, 2, 4]
        expected = f"twice of torch_backend is traced whole from torch {torch_compat.TRACED} on"
        for whole in (lambda x, f=function: f(x) + 1, function):
            torch._dynamo.reset()
            with pytest.raises(Exception, match=expected):
                torch.compile(whole, fullgraph=True, backend="eager")(x)


def test_mapping_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import functional_rb as frb

    monkeypatch.setattr(torch_compat, "IS_MAPPED", False)
    state = torch_backend.init(frb.BufferSpec({"x": frb.Unbounded(())}, 4))
    state = torch_backend.add(state, {"x": torch.ones(2)})
    expected = (
        f"sample: torch.func maps over it from torch {torch_compat.MAPPED} on, and {torch.__version__} is installed"
    )
    with pytest.raises(NotImplementedError, match=re.escape(expected)):
        torch.vmap(lambda key: torch_backend.sample(state, key, 2)[1].indices)(
            torch_backend.split(torch_backend.key(0), 3)
        )


def test_meshes_with_explicit_axes_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    explicit = SimpleNamespace(explicit_axes=("d",), axis_names=("d", "e"))
    automatic = SimpleNamespace(axis_names=("d",))
    if jax_compat.IS_EXPLICIT:
        assert jax_compat.explicit_axes(explicit) == ("d",)
        assert not jax_compat.is_explicit(explicit)
    monkeypatch.setattr(jax_compat, "IS_EXPLICIT", False)
    assert jax_compat.explicit_axes(automatic) == ()
    with pytest.raises(NotImplementedError, match=r"explicit axes \(d\): .* from JAX 0\.7\.2 on, and .*AxisType\.Auto"):
        jax_compat.explicit_axes(explicit)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_memory_that_would_be_copied_is_refused(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = torch.ones(16) if library == "torch" else np.ones(64, np.float32)
    assert jax_compat.shared(torch.zeros(0)).shape == (0,)
    monkeypatch.setattr(jax.dlpack, "from_dlpack", lambda x, copy: jnp.array(np.asarray(x), copy=True))
    with pytest.raises(ValueError, match="not aligned as JAX needs it"):
        jax_compat.shared(given)
