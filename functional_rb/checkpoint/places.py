"""Directories in that of a checkpoint, each of which has the checkpoints of one of its parts."""

from __future__ import annotations

import os
from collections.abc import Iterable

from functional_rb.base.errors import CheckpointError, CorruptCheckpointError
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint.manifest import Manifest
from functional_rb.checkpoint.opened import read_manifest

SHARDS = "shards"


def inside(directory: str, folder: str, k: int) -> str:
    """The directory of the k-th part.

    Raises:
        CheckpointError: if a link has its name. Whoever wrote the directory would choose which other checkpoints are
            rolled back by a load, and removed by a save.
    """
    above = os.path.join(directory, folder)
    path = os.path.join(above, str(k))
    for place in (above, path):
        if os.path.islink(place):
            raise CheckpointError(
                f"{place}: a symbolic link, which leads out of the checkpoint's directory; put there what it leads to "
                f"(mv, cp -a, mount --bind)"
            )
    return path


def place_of(directory: str, shard: int) -> str:
    return inside(directory, SHARDS, shard)


def manifests_of(directory: str, manifest: Manifest, numbers: Iterable[int]) -> dict[int, tuple[str, Manifest]]:
    """The manifests of the parts of some shards, and where they are; a FileNotFoundError if the whole is gone."""
    if manifest.shards is None:
        return {}
    name = os.path.join(directory, manifests.name_of(manifest.generation))
    by_shard = {}
    for k in numbers:
        number, content = manifest.shards.parts[k]
        place = place_of(directory, k)
        path = os.path.join(place, manifests.name_of(number))
        try:
            part_manifest = read_manifest(place, number)
        except FileNotFoundError:
            os.stat(name)
            raise CorruptCheckpointError(
                path, f"the file is missing, in which {name} has shard {k} of {len(manifest.shards.parts)}"
            ) from None
        if part_manifest.content != content:
            raise CorruptCheckpointError(
                path,
                f"expected the part of shard {k} that {name} names, with the checksum {content}, and found that of "
                f"another buffer or moment, with {part_manifest.content}; put back the file that was saved with it",
            )
        by_shard[k] = place, part_manifest
    return by_shard
