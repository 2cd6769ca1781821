"""The checksum of everything that lies in files: xxh3-128."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from functional_rb.base.extras import imported

# Bytes of a checksum.
DIGEST = 16


def digest(content: object) -> bytes:
    """The checksum xxh3-128 of a buffer, in its canonical (big-endian) form."""
    return hasher()(content)


def running() -> Any:
    """A checksum that grows: `update(content)` as often as wanted, then `digest()`."""
    return _xxhash().xxh3_128()


@functools.cache
def hasher() -> Callable[[object], bytes]:
    """The function of the xxhash library."""
    digest: Callable[[object], bytes] = _xxhash().xxh3_128_digest
    return digest


def _xxhash() -> ModuleType:
    return imported("xxhash", "a checksum of files")
