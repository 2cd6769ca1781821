"""Packages whose names are imported when they are first used, by one thread at a time.

Python locks each module by itself. A thread that imports `package.module` has the lock of the module before it asks for
that of the package, and one that imports the package asks for them the other way round: then Python raises an error. So
what is imported late is imported under one lock, which no module asks for while it is being imported itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from functional_rb.base import forks

_LOCK = forks.lock()

# The names of each module; those of the package itself are modules in it.
Homes = Mapping[str, Sequence[str]]


def imported(module: str) -> ModuleType:
    """A module, imported after the packages that it is in, which other threads may be importing by themselves."""
    with _LOCK:
        package, _, _ = module.rpartition(".")
        if package:
            imported(package)
        return importlib.import_module(module)


def namespace(package: str, homes: Homes, hint: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What a package is given as `__getattr__` and `__dir__`, so that a name is imported when it is first used.

    It is then an attribute like any other.

    Args:
        package: its name.
        homes: what is imported so.
        hint: what is said besides where there is no such name.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            message = f"module {package!r} has no attribute {name!r}" + (hint and f"; {hint}")
            raise AttributeError(message, name=name, obj=sys.modules[package])
        if home == package:
            return imported(f"{package}.{name}")  # which makes it an attribute
        module = imported(home)
        # What is no attribute is a package that is shown one level higher.
        attribute = getattr(module, name, None) or imported(f"{home}.{name}")
        setattr(sys.modules[package], name, attribute)
        return attribute

    def public() -> list[str]:
        return sorted(getattr(sys.modules[package], "__all__", home_of))

    return get, public
