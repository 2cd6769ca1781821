"""Which checkpoints a directory has."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from typing import TypeVar

from functional_rb.base.errors import CheckpointError, NoCheckpointError
from functional_rb.base.files import as_path
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint import places
from functional_rb.checkpoint.manifest import Checkpoint
from functional_rb.checkpoint.opened import Opened, generations, read_manifest

T = TypeVar("T")
# So often another save may remove what was about to be read.
TRIES = 100


def checkpoints(path: str | os.PathLike[str]) -> list[Checkpoint]:
    """The checkpoints of a directory, damaged ones included.

    Args:
        path: a directory that `save` has written to.

    Returns:
        The checkpoints, the newest first; none for a directory that is not there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as path:
        ...     done = [frb.save(rb.init(frb.BufferSpec((frb.Unbounded(()),), 4)), path) for _ in range(3)]
        ...     [(there.generation, there.items, there.problem) for there in frb.checkpoint.checkpoints(path)]
        [(3, 0, None), (2, 0, None)]
    """
    directory = os.path.abspath(as_path(path, "checkpoints"))
    listed = []
    for generation in there(directory):
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:  # removed meanwhile
            name, problem = os.path.join(directory, manifests.name_of(generation)), None
            try:
                manifest = read_manifest(directory, generation)
            except CheckpointError as error:
                listed.append(Checkpoint(name, generation, 0, 0.0, 0, 0, False, str(error)))
                continue
            parts, written = [manifest], os.path.getsize(name)
            try:
                Opened(directory, manifest, stack)
                of_shards = 0 if manifest.shards is None else len(manifest.shards.parts)
                for place, part_manifest in places.manifests_of(directory, manifest, range(of_shards)).values():
                    Opened(place, part_manifest, stack)
                    parts.append(part_manifest)
                    written += os.path.getsize(os.path.join(place, manifests.name_of(part_manifest.generation)))
            except CheckpointError as error:
                problem = str(error)
            listed.append(
                Checkpoint(
                    path=name,
                    generation=generation,
                    items=manifest.items,
                    time=manifest.time,
                    nbytes=sum(part_manifest.nbytes for part_manifest in parts),
                    written=written + sum(part_manifest.written for part_manifest in parts),
                    full=all(part_manifest.full for part_manifest in parts),
                    problem=problem,
                )
            )
    return listed


def of_newest(directory: str, attempt: Callable[[list[int]], T], before: int | None = None) -> T:
    """What is made of the checkpoints in a directory, up to a number: of theirs, the newest first.

    Where that ends by a FileNotFoundError a save has removed what was about to be read: then there is a newer one, and
    the next attempt.

    Raises:
        NoCheckpointError: if there is none.
    """
    for tries in itertools.count():
        generations = [number for number in there(directory) if before is None or number <= before]
        if not generations:
            break
        try:
            return attempt(generations)
        except FileNotFoundError:
            if tries == TRIES:
                raise
    raise NoCheckpointError(f"{directory}: no checkpoint is there; frb.save(state, path) writes one")


def there(directory: str) -> list[int]:
    """The numbers of the checkpoints in a directory, the newest first; none if it is not there."""
    try:
        return generations(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{directory}: the directory cannot be read: {error.strerror}") from error
