"""Converted datasets in the formats of others, at one instant."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable

from functional_rb.base.descriptors import Descriptor
from functional_rb.base.files import as_path, explained_read_only
from functional_rb.base.strict_json import Json
from functional_rb.datasets.description import Path
from functional_rb.datasets.exporting import lerobot, minari
from functional_rb.datasets.exporting.steps import WHO
from functional_rb.datasets.stored import Stored
from functional_rb.storage import disk

Write = Callable[[Stored, Json, str, str], None]
FORMATS: dict[str, Write] = {
    "minari": minari.write,
    "lerobot": functools.partial(lerobot.write, "v3.0"),
    "lerobot-2.1": functools.partial(lerobot.write, "v2.1"),
}


def export(reader: Stored, to: Path, format: str, facts: Json) -> str:
    """Write a dataset in a format of others, as `Dataset.export` does, and give the name that reads it again."""
    if format not in FORMATS:
        raise ValueError(f"{WHO}: format: expected one of {', '.join(FORMATS)}, got {format!r}")
    target = os.path.abspath(as_path(to, WHO))
    above, folder = os.path.split(target)
    aside = os.path.join(above, f".{folder}.")
    unfinished = f"{aside}exporting"
    work = functools.partial(_made, FORMATS[format], reader, facts, target, unfinished)
    with explained_read_only(WHO, "give a path in a folder that can be written to", target, aside):
        disk.make_directory(above)
        disk.while_locked(f"{aside}lock", work)
    return f"{format.partition('-')[0]}:{target}"


# Called while no other process makes the same.
def _made(write: Write, reader: Stored, facts: Json, target: str, unfinished: str) -> None:
    # A link that leads nowhere is something, too.
    if os.path.lexists(target):
        raise FileExistsError(f"{WHO}: {target} is there already; give another path")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that was killed
    os.mkdir(unfinished)
    # Written aside, the folder is there at one instant, with all that is in it.
    try:
        with disk.explained_if_full(target, "make room there (df; quota; ulimit -f) and call again"):
            write(reader, facts, target, unfinished)
            # Libraries of others have written the files, and none of them waits until they last.
            for place, _, names in os.walk(unfinished):
                for name in names:
                    with Descriptor(os.open, os.path.join(place, name), os.O_RDONLY | os.O_CLOEXEC) as file:
                        disk.fsync(file.fd)
                disk.fsync_directory(place)
            disk.rename(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    disk.fsync_directory(os.path.dirname(target))
