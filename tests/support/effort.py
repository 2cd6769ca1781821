"""How much the tests search: `make test` in minutes, `make test-all` for as long as it takes (TESTS=all)."""

from __future__ import annotations

import os
from typing import TypeVar

EVERYTHING = os.environ.get("TESTS") == "all"
Value = TypeVar("Value")


def effort(usual: Value, long: Value) -> Value:
    """What `make test` takes, or what `make test-all` does: numbers of examples, members of a table."""
    return long if EVERYTHING else usual
