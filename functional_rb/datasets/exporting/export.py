"""`datasets.export`: converted datasets in the formats of others, at one instant."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Mapping

from functional_rb.base.errors import FULL, StorageFullError
from functional_rb.base.files import as_path
from functional_rb.base.strict_json import Json
from functional_rb.datasets.description import Dataset
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


def export(
    dataset: Dataset, to: str | os.PathLike[str], format: str = "minari", *, facts: Mapping[str, object] | None = None
) -> str:
    """Write a dataset in a format of others, so that they can read it.

    It is read and written piece by piece. The folder is complete, or not there. A process that was killed
    begins anew.

    Args:
        dataset: the directory of a converted one, or a state that `load` gave.
        to: the folder that is made. For Minari its name is the identity of the dataset, with a version: "doors-v0";
            below the folder where Minari looks, `minari.load_dataset` finds it.
        format: "minari" (HDF5); "lerobot", of version 3.0; "lerobot-2.1".
        facts: metadata of the dataset, beside those that are known of where it comes from. Minari: dataset_id, author,
            description, ..., whatever its metadata may have. LeRobot: fps, steps a second, which has to be known;
            robot_type; task, in words, of episodes of which the reader has told none.

    Returns:
        The name that reads it again, "minari:/data/doors-v0".

    Raises:
        FileExistsError: if something is at `to`.
        ImportError: for a library that is missing, naming the extra to install.
        StorageFullError: if there is no room.
        TypeError: for a spec that no space describes exactly (Minari), naming the leaf.
        ValueError: for what the format has no place for, naming the leaf; for an unknown format, or facts that are
            missing or wrong; if no dataset is there.
    """
    if format not in FORMATS:
        raise ValueError(f"{WHO}: format: expected one of {', '.join(FORMATS)}, got {format!r}")
    reader, target = Stored(dataset), os.path.abspath(as_path(to, WHO))
    above, folder = os.path.split(target)
    disk.make_directory(above)
    unfinished = os.path.join(above, f".{folder}.exporting")
    work = functools.partial(_made, FORMATS[format], reader, dict(facts or {}), target, unfinished)
    disk.while_locked(os.path.join(above, f".{folder}.lock"), work)
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
        write(reader, facts, target, unfinished)
        # Libraries of others have written the files, and none of them waits until they last.
        for place, _, names in os.walk(unfinished):
            for name in names:
                fd = os.open(os.path.join(place, name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    disk.fsync(fd)
                finally:
                    disk.close(fd)
            disk.fsync_directory(place)
        disk.rename(unfinished, target)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in FULL:
            hint = f"{error.strerror}; make room there (df; quota; ulimit -f) and call again"
            raise StorageFullError(error.errno, hint, error.filename or target) from error
        raise
    disk.fsync_directory(os.path.dirname(target))
