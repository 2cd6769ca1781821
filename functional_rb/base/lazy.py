"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Homes = Mapping[str, Sequence[str]]
"""The names of each module; those of the package itself are modules in it."""


def namespace(package: str, homes: Homes, hint: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What a package is given as `__getattr__` and `__dir__`, so that a name is imported when it is first used.

    It is then an attribute like any other. Threads that use it at once find the same: the import system lets one go on.

    Args:
        package: its name.
        homes: what is imported so.
        hint: what is said besides where there is no such name.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            told = f"module {package!r} has no attribute {name!r}" + (hint and f"; {hint}")
            raise AttributeError(told, name=name, obj=sys.modules[package])
        if home == package:
            return importlib.import_module(f"{package}.{name}")  # which makes it an attribute
        found = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, found)
        return found

    def names_there() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names_there
