"""What differs between the versions of torch that this library runs on, and nothing else.

Each piece says from which version of torch on it can be replaced by what torch itself has.
"""

from __future__ import annotations

from typing import Final

from functional_rb.base import extras

OLDEST: Final = "2.8"
"""The oldest torch that the tests run on, see docs/install.md."""

extras.check_version(extras.imported("torch", "torch_backend"), OLDEST, "torch_backend")
