"""Reports about checkpoints as plain values (JSON), from which pages and pictures are made."""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from functional_rb.base import nest
from functional_rb.base.errors import NoCheckpointError
from functional_rb.base.files import as_path
from functional_rb.base.strict_json import Json
from functional_rb.buffer.spec import BufferSpec
from functional_rb.checkpoint.listing import there
from functional_rb.checkpoint.manifest import Manifest
from functional_rb.inspection import episodes
from functional_rb.inspection.contents import Array, Contents, Files, manifest_of, parts_are_whole, read, spec_in
from functional_rb.inspection.episodes import EpisodeLeaves, Episodes

BINS = 10

# See `inspect`.
Report = Json


def inspect(path: str | os.PathLike[str], known: Iterable[object] = ()) -> Report:
    """Look at the checkpoints of a directory: the newest that is whole in detail, and every byte of all their files.

    Args:
        path: a directory that `frb.save` has written to.
        known: the user's classes that the spec names, as for `frb.convert.from_json`.

    Returns:
        Numbers, texts, lists and dicts by name, for JSON:

        - path: of the directory.
        - generations: for each checkpoint, the newest first: generation, items, bytes, time, and whether it is whole.
        - files: for each file: name, bytes, and what is wrong with it, None if nothing is.
        - checkpoint: the generation that the rest describes; None if none is whole, and then the rest is missing.
        - spec: its members and the leaves of the item, of a buffer that is dealt to shards those of its index; None if
          it names classes that are not among `known`, and then `problem` says so.
        - size, sizes, cursors, counters, bytes: numbers.
        - priorities, episodes: distributions; None if there are none. `no_episodes` says why.

    Raises:
        FileNotFoundError: if there is none; it is a `CheckpointError` as well.
        CheckpointError: if the directory cannot be read.

    Example:
        >>> import tempfile
        >>> import torch_backend as rb
        >>> with tempfile.TemporaryDirectory() as path:
        ...     saved = frb.save(rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, capacity=5)), path)
        ...     report = inspect(path)
        >>> report["size"], report["spec"]["capacity"], [file["problem"] for file in report["files"]]
        (0, 5, [None])
    """
    directory, known = os.path.abspath(as_path(path, "inspect")), tuple(known)
    present = there(directory)
    if not present:
        raise NoCheckpointError(f"{directory}: no checkpoint is there; frb.save(state, path) writes one")
    files = Files()
    generations: list[Report] = []
    chosen: Report | None = None
    for generation in present:
        manifest = manifest_of(directory, generation, files)
        if manifest is None:
            generations.append({"generation": generation, "items": None, "bytes": None, "time": None, "whole": False})
            continue
        whole, about = _of_checkpoint(directory, manifest, known, files, chosen is None)
        if whole and chosen is None:
            chosen = {"checkpoint": generation, **about}
        numbers = {"items": manifest.items, "bytes": manifest.nbytes, "time": _time(manifest.time)}
        generations.append({"generation": generation, **numbers, "whole": whole})
    listed = [
        {"name": os.path.relpath(name, directory), "bytes": files.sizes.get(name), "problem": problem}
        for name, problem in sorted(files.problems.items())
    ]
    return {"path": directory, "generations": generations, "files": listed, **(chosen or {"checkpoint": None})}


def is_whole(report: Report) -> bool:
    return all(generation["whole"] for generation in report["generations"])


def _of_checkpoint(
    directory: str, manifest: Manifest, known: tuple[object, ...], files: Files, in_detail: bool
) -> tuple[bool, Report]:
    spec_or_problem = spec_in(directory, manifest, known, files)
    if spec_or_problem is None:
        return False, {}
    of_parts = parts_are_whole(directory, manifest, files)
    if not in_detail:
        return read(directory, manifest, None, (), files)[0] and of_parts, {}
    spec, problem = (None, spec_or_problem) if isinstance(spec_or_problem, str) else (spec_or_problem, None)
    leaves = "no spec" if spec is None else episodes.find(spec)
    whole, contents = read(directory, manifest, spec, leaves.all if isinstance(leaves, EpisodeLeaves) else (), files)
    whole = whole and of_parts
    if contents is not None:
        return whole, _described(manifest, contents, leaves)
    return whole, {"spec": None, "problem": problem, "size": manifest.items}


def _described(manifest: Manifest, contents: Contents, leaves: EpisodeLeaves | str) -> Report:
    spec, counters = contents.spec, contents.counters
    cursors = [int(cursor) % spec.plan.ring.length for cursor in counters.ends.cursors]
    priorities = None
    if contents.tree is not None and spec.sampler.has_priorities:
        leaves_of_tree = contents.tree.reshape(-1)[: spec.capacity].astype(np.float64)
        priorities = distribution(leaves_of_tree[leaves_of_tree > 0])  # zeros are never drawn
    return {
        "spec": _spec(spec),
        "size": manifest.items,
        "sizes": [int(size) for size in counters.ends.sizes],
        "cursors": cursors if spec.writer.in_order else None,
        "counters": {name: int(getattr(counters, name)) for name in ("rejected", "stale", "invalid")},
        "bytes": {"item": spec.item_bytes, "files": manifest.nbytes},
        "priorities": priorities,
        "episodes": None if isinstance(leaves, str) else _episodes(episodes.count(contents, leaves)),
        "no_episodes": leaves if isinstance(leaves, str) else None,
    }


def _spec(spec: BufferSpec) -> Report:
    structure = spec.plan.structure.as_given()
    named = zip(map(nest.show, structure.paths), nest.flatten_as(structure, spec.stored), strict=True)
    members = ("sampler", "writer", "storage", "compact")
    return {
        "item": [{"leaf": name, "dtype": x.dtype, "shape": list(x.shape), "spec": repr(x)} for name, x in named],
        "capacity": spec.capacity,
        "lanes": spec.lanes,
        "batch_size": spec.batch_size,
        **{name: None if (value := getattr(spec, name)) is None else shown(value) for name in members},
        "transforms": [shown(transform) for transform in spec.transforms],
    }


def shown(member: Any) -> str:
    """The text of a part of a spec, with the fields that are not defaults.

    Example:
        >>> shown(frb.Prioritized(alpha=0.5)), shown(frb.Prioritized(0.6))
        ('Prioritized(alpha=0.5)', 'Prioritized()')
    """
    fields = dataclasses.fields(member)
    values = [(field.name, getattr(member, field.name), field.default) for field in fields if field.init]
    arguments = ", ".join(f"{name}={value!r}" for name, value, default in values if value != default)
    return f"{type(member).__name__}({arguments})"


def _episodes(held: Episodes) -> Report:
    return {
        "whole": len(held.lengths),
        "ended": held.ended,
        "going_on": held.going_on,
        "cut": held.cut,
        "lengths": distribution(held.lengths),
        "returns": None if held.returns is None else distribution(held.returns),
    }


def distribution(values: Array) -> Report:
    """The count, smallest, mean, median and largest of some numbers, and a histogram of them.

    Few whole numbers have a bin each. Else bins are of equal width; if numbers differ by more than a factor of a
    hundred, of equal ratio. A bin includes its lower edge, and the last one its upper edge too.

    Example:
        >>> numbers = distribution(np.array([1.0, 2.0, 1000.0]))
        >>> numbers["median"], numbers["histogram"]["counts"], numbers["histogram"]["edges"][1].__round__(3)
        (2.0, [1, 1, 0, 0, 0, 0, 0, 0, 0, 1], 1.995)
        >>> distribution(np.array([4, 4, 6]))["histogram"]
        {'edges': [4.0, 5.0, 6.0, 7.0], 'counts': [2, 0, 1], 'each': True}
    """
    finite = values[np.isfinite(values)]
    numbers: Report = {"count": len(values)}
    if not len(finite):
        return numbers | dict.fromkeys(("smallest", "mean", "median", "largest", "histogram"))
    low, high = float(finite.min()), float(finite.max())
    # One bin for each whole number if they are few; one bin for all if they are equal, as bins need a width.
    each = values.dtype.kind == "i" and high - low < BINS
    if each or low == high:
        edges = np.arange(low, high + 2)
    else:
        edges = np.geomspace(low, high, BINS + 1) if 0 < 100 * low < high else np.linspace(low, high, BINS + 1)
        edges[0], edges[-1] = low, high  # rounding may have left the extremes outside
    counts = np.histogram(finite, edges)[0]
    return numbers | {
        "smallest": low,
        "mean": float(finite.mean()),
        "median": float(np.median(finite)),
        "largest": high,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist(), "each": each or low == high},
    }


def _time(seconds: float) -> str | None:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return None
