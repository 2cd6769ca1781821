"""The modules that classes and functions lay in when earlier versions pickled them, for `pickle` to find them by.

A pickle has the name of the module of each class that it needs. Modules that moved have no file under their earlier
name, but an entry in `sys.modules`, which asks the module of today for what it has when a pickle is read.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

MOVED = {
    "functional_rb.buffer_spec": "functional_rb.buffer.spec",
    "functional_rb.compact": "functional_rb.buffer.frame_dedup",
    "functional_rb.draft": "functional_rb.core.draft",
    "functional_rb.errors": "functional_rb.base.errors",
    "functional_rb.host.state": "functional_rb.storage.host_state",
    "functional_rb.layout": "functional_rb.structures.row_layout",
    "functional_rb.state": "functional_rb.buffer.state",
    "functional_rb.storages": "functional_rb.buffer.storage_kinds",
}
"""Where the content of each module lies now whose classes or functions are in pickles."""


class _Moved(types.ModuleType):
    """A module by its earlier name. Nothing is imported before a name of it is needed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by the import system of every module
            raise AttributeError(name)
        return getattr(importlib.import_module(MOVED[self.__name__]), name)


def name_as_earlier() -> None:
    """Let pickles of earlier versions find what they name."""
    sys.modules.update((name, _Moved(name)) for name in MOVED)
