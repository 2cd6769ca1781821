"""The checksum of everything that lies in files: xxh3-128."""

from __future__ import annotations

import functools
from typing import Any

DIGEST = 16
"""Bytes of a checksum."""


def digest(content: Any) -> bytes:
    """The checksum xxh3-128 of a buffer, in its canonical (big-endian) form."""
    return hasher()(content)


@functools.cache
def hasher() -> Any:
    """The function of the xxhash library.

    Raises:
        ImportError: if it is missing, saying what to install.
    """
    try:
        import xxhash
    except ImportError as error:
        raise ImportError(
            "checkpoints need the xxhash library; pip install 'functional-rb[checkpoint]'", name="xxhash"
        ) from error
    return xxhash.xxh3_128_digest
