"""Whatever is public says what it is."""

import importlib
import inspect
import re
import types
from collections.abc import Iterator

import pytest

from tests.support.children import ROOT


def public_names(module: types.ModuleType) -> list[str]:
    own = {name: x for name, x in vars(module).items() if name[0] != "_" and not inspect.ismodule(x)}
    return getattr(module, "__all__", None) or [
        name for name, x in own.items() if getattr(x, "__module__", module.__name__) == module.__name__
    ]


def members(path: str, value: object) -> Iterator[tuple[str, object]]:
    """A public thing, and what is public in it."""
    yield path, value
    if inspect.ismodule(value):
        names = public_names(value)
    elif inspect.isclass(value):
        kinds = types.FunctionType | property | classmethod | staticmethod
        names = [name for name, x in vars(value).items() if name[0] != "_" and isinstance(x, kinds)]
    else:
        return
    for name in names:
        inner = getattr(value, name)
        if not inspect.ismodule(inner) or inner.__name__.startswith(str(getattr(value, "__name__", ""))):
            yield from members(f"{path}.{name}", inner)


def says(x: object) -> bool:
    """Whether it has a docstring of its own: of a class neither that of a base nor the signature that Python writes."""
    text = vars(x).get("__doc__") if inspect.isclass(x) else inspect.getdoc(x)
    return bool(text) and not str(text).startswith(f"{getattr(x, '__name__', '?')}(")


@pytest.mark.parametrize("module", ["functional_rb", "jax_backend", "torch_backend"])
def test_each_public_name_has_a_docstring(module: str) -> None:
    found = [
        (path, x)
        for path, x in members(module, importlib.import_module(module))
        if callable(x) or isinstance(x, property)
    ]
    assert len(found) > 50
    assert [path for path, x in found if not says(x)] == []


def test_the_glossary_has_each_public_name_and_no_other() -> None:
    public = set()
    for shown, package in (("frb", "functional_rb"), ("rb", "jax_backend"), ("rb", "torch_backend")):
        module = importlib.import_module(package)
        for name in public_names(module):
            value = getattr(module, name)
            public |= {(shown, name)}
            if inspect.ismodule(value):
                public |= {(f"{shown}.{name}", inner) for inner in public_names(value)}
    section = (ROOT / "docs/glossary.md").read_text().split("## The public names")[1].split("\n## ")[0]
    listed, of = set(), ""
    for line in section.splitlines():
        cell = line.split("|")[1] if line.startswith("|") else ""
        title = re.match(r" names of `(\w+)` $", cell)
        of = title[1] if title else of
        prefix = re.match(r" `(f?rb\.\w+)`: ", cell)
        names = re.findall(r"`(\w+)`", cell[prefix.end() :] if prefix else cell) if not title else []
        listed |= {(prefix[1] if prefix else of, name) for name in names}
    assert listed == public
