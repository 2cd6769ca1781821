"""What a manifest claims, checked before any array is read: its spec, and how large its arrays are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from functional_rb.base.errors import CheckpointError, CorruptCheckpointError
from functional_rb.buffer.spec import BufferSpec
from functional_rb.convert.json import KnownError, OtherVersionError, from_json

# Bytes of a buffer's arrays: no machine has more.
LARGEST = 1 << 60


def spec_in(text: str, known: Iterable[object], path: str) -> BufferSpec:
    try:
        spec = from_json(text, known)
    except KnownError as error:
        raise KnownError(f"{path}: {error}") from None
    except OtherVersionError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except ValueError as error:
        raise CorruptCheckpointError(path, f"its spec is none: {error}") from None
    if not isinstance(spec, BufferSpec):
        raise CorruptCheckpointError(path, f"its spec is that of no buffer but {spec!r:.60}")
    return spec


@contextlib.contextmanager
def enough_memory(path: str, total: int) -> Iterator[None]:
    """What to say where a buffer is larger than the machine's memory."""
    try:
        if total >= LARGEST:
            raise MemoryError
        yield
    except MemoryError as error:
        raise CheckpointError(
            f"{path}: no memory for the {total} bytes of the buffer that it tells of; load it where there is more, or "
            f"give storage=frb.Memmap(path)"
        ) from error
