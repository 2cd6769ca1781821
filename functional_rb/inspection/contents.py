"""Reading checkpoints piece by piece: every byte of every file is verified, and only what a report needs is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.errors import CheckpointError, CorruptCheckpointError
from functional_rb.buffer import soundness
from functional_rb.buffer.spec import BufferSpec
from functional_rb.checkpoint import in_place, places
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint.blocks import stored_arrays
from functional_rb.checkpoint.claims import enough_memory
from functional_rb.checkpoint.claims import spec_in as spec_told_in
from functional_rb.checkpoint.manifest import Manifest
from functional_rb.checkpoint.opened import Opened, read_manifest
from functional_rb.convert.json import KnownError
from functional_rb.core import counters
from functional_rb.core.counters import Counters
from functional_rb.storage.directory import filed
from functional_rb.structures.row_layout import kept_dtype
from functional_rb.structures.stored_arrays import AUXILIARY, auxiliary_name, own_name

Array = NumpyArray


@dataclasses.dataclass
class Files:
    """The files that were read."""

    # What is wrong with each file, by path; None if nothing is.
    problems: dict[str, str | None] = dataclasses.field(default_factory=dict)
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)  # the bytes of each file, by path

    def note(self, path: str, problem: str | None) -> None:
        """Note a file, with the first problem that was found with it."""
        if self.problems.get(path) is None:
            self.problems[path] = problem
        with contextlib.suppress(OSError):
            self.sizes[path] = os.stat(path).st_size


@dataclasses.dataclass(frozen=True)
class Contents:
    """What is read of a checkpoint."""

    spec: BufferSpec  # the spec of the buffer
    counters: Counters  # the counters of the state
    tree: Array | None  # the leaves of the sampler's tree, float32 [slots or more], or None
    rows: dict[int, Array]  # the leaves of items that were asked for, by position, [capacity, *shape]


def manifest_of(directory: str, generation: int, files: Files) -> Manifest | None:
    path = os.path.join(directory, manifests.name_of(generation))
    try:
        manifest = read_manifest(directory, generation)
    except (CheckpointError, OSError) as error:
        files.note(path, reason(error))
        return None
    files.note(path, None)
    return manifest


def spec_in(directory: str, manifest: Manifest, known: Iterable[object], files: Files) -> BufferSpec | str | None:
    """The spec of a manifest; a text if it cannot be made, which says why; None if it is damaged."""
    path = os.path.join(directory, manifests.name_of(manifest.generation))
    try:
        return spec_told_in(manifest.spec, known, path)
    except CorruptCheckpointError as error:
        files.note(path, error.reason)
        return None
    except KnownError as error:
        return str(error).removeprefix(f"{path}: ")  # which the report names
    except CheckpointError as error:
        return str(error)


def read(
    directory: str, manifest: Manifest, spec: BufferSpec | None, wanted: Iterable[int], files: Files
) -> tuple[bool, Contents | None]:
    """Whether a checkpoint's files are whole, and what was read of it: the wanted leaves, by their positions.

    Without a spec nothing is read; `files` notes the files and their problems.
    """
    path = os.path.join(directory, manifests.name_of(manifest.generation))
    vector = np.array(manifest.counters, np.int32)
    if spec is not None:
        problem = None if manifest.arrays == stored_arrays(spec) else "its arrays are not those of its spec"
        if problem := problem or soundness.problem_of_counters(spec.plan, vector):
            files.note(path, problem)
            return False, None
    with contextlib.ExitStack() as stack:
        try:
            opened = Opened(directory, manifest, stack)
            opened.check_content()
        except (CheckpointError, OSError) as error:
            files.note(str(getattr(error, "file", path)), reason(error))
            return False, None
        total = sum(stored.rows * stored.row_bytes for stored in manifest.arrays.values())
        # Without a spec the files are verified piece by piece, and nothing of them is kept.
        with enough_memory(path, 0 if spec is None else total):
            rows = {}
            if spec is not None:
                for k in wanted:
                    leaf = spec.plan.leaves[k]
                    rows[k] = np.zeros((spec.capacity, *leaf.shape), kept_dtype(leaf.dtype))
            reading = _Reading(spec, rows, opened)
            parts = [reading.segment(k, files) for k in range(len(opened.paths))]
            parts.append(reading.in_place(files))
    if spec is None or not all(parts):
        return all(parts), None
    if problem := soundness.problem_of_arrays(spec, vector, reading.auxiliary, reading.tree):
        files.note(path, problem)
        return False, None
    return True, Contents(spec, counters.read(spec.plan, vector), reading.tree, reading.rows)


def parts_are_whole(directory: str, manifest: Manifest, files: Files) -> bool:
    """Verify the files of the parts, if it is that of a buffer that is dealt to shards."""
    of_shards = 0 if manifest.shards is None else len(manifest.shards.parts)
    whole = True
    for k in range(of_shards):
        try:
            ((place, part_manifest),) = places.manifests_of(directory, manifest, [k]).values()
        except (CheckpointError, OSError) as error:
            files.note(str(getattr(error, "file", directory)), reason(error))
            whole = False
            continue
        files.note(os.path.join(place, manifests.name_of(part_manifest.generation)), None)
        whole = read(place, part_manifest, None, (), files)[0] and whole
    return whole


class _Reading:
    """Reads a checkpoint, the oldest segment first, so that newer blocks overwrite older ones."""

    def __init__(self, spec: BufferSpec | None, rows: dict[int, Array], opened: Opened) -> None:
        self.spec, self.rows, self.opened = spec, rows, opened
        has_tree = spec is not None and spec.plan.tree_shape is not None
        arrays = opened.manifest.arrays
        self.tree = np.zeros(arrays["tree"].shape, np.float32) if has_tree else None
        in_memory = [] if spec is None else [name for name in spec.plan.auxiliary if name not in filed(spec)]
        names = [name for name in in_memory if auxiliary_name(name) in arrays]
        self.auxiliary = {name: arrays[auxiliary_name(name)].blank_array() for name in names}

    def segment(self, k: int, files: Files) -> bool:
        path = self.opened.paths[k]
        stored_segment = self.opened.manifest.segments[k]
        if self.spec is None and path in files.problems:  # verified for another checkpoint that shares it
            return files.problems[path] is None
        try:
            for name in stored_segment.arrays:
                stored = self.opened.manifest.arrays[name]
                if name in self.opened.manifest.in_place:
                    self.opened.table(k, name)  # its checksums alone are here: `in_place` compares the rows with them
                    continue
                for run, content in self.opened.verified(k, name):
                    start, stop = stored.span(run)
                    rows = np.frombuffer(content, stored.dtype).reshape(stop - start, *stored.shape[1:])
                    self.keep(name, start, stop, rows)
            self.opened.objects(k)
        except (CheckpointError, OSError) as error:
            files.note(path, reason(error))
            return False
        files.note(path, None)
        return True

    def in_place(self, files: Files) -> bool:
        if self.spec is None or not self.opened.manifest.undo:
            return True
        try:
            rows = in_place.read(self.opened, self.spec, lambda nbytes: None)["rows"]
        except (CheckpointError, OSError) as error:
            files.note(str(getattr(error, "file", self.opened.directory)), reason(error))
            return False
        self.keep("rows", 0, len(rows), rows)
        return True

    def keep(self, name: str, start: int, stop: int, rows: Array) -> None:
        if name == "tree" and self.tree is not None:
            self.tree[start:stop] = rows
        if name.startswith(AUXILIARY) and own_name(name) in self.auxiliary:
            self.auxiliary[own_name(name)][start:stop] = rows
        if name != "rows" or self.spec is None:
            return
        content = rows.view(np.uint8).reshape(stop - start, -1)
        for position, column in self.rows.items():
            leaf = self.spec.plan.layout.leaves[self.spec.plan.stored.index(position)]
            assert leaf.offset is not None  # as of all that is `readable`
            leaf_bytes = np.ascontiguousarray(content[:, leaf.offset : leaf.offset + leaf.nbytes])
            column[start:stop] = leaf_bytes.view(column.dtype).reshape(column[start:stop].shape)


def readable(spec: BufferSpec, position: int) -> bool:
    """Whether a leaf lies in rows: a small array that is not stored as shared frames."""
    if position in spec.plan.objects or position not in spec.plan.stored:
        return False
    leaf = spec.plan.layout.leaves[spec.plan.stored.index(position)]
    return leaf.offset is not None and leaf.nbytes > 0


def reason(error: Exception) -> str:
    """What went wrong, without the name of the file, and without advice for programs."""
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
