"""The native code, see `functional_rb/native/src`: one function for each kernel that `kernels.cpp` lists."""

from collections.abc import Callable
from typing import Any

INSTRUCTIONS: str
"""The set of instructions that was chosen for this processor."""
RECORDS: dict[str, str]
"""The names of the fields of each record, in their order, with commas between."""
HANDLERS: dict[str, object]
"""Capsules of the functions that XLA calls."""

def __getattr__(name: str, /) -> Callable[..., Any]: ...
