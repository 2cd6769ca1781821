"""Names of files that others give, made paths that lie inside of a folder; and folders that files are taken from.

Nothing is ever written outside of the folder. Files are taken from mirrors on disk, and from the cache of Hugging Face,
in which a repository has snapshots and refs.
"""

from __future__ import annotations

import os
import re

from functional_rb.storage import disk

WHO = "datasets.fetch"
# The folder below the root where lie parts of files, with their journals and locks.
ASIDE = ".fetching"

REVISION = "main"


def checked(name: str) -> str:
    """A name of a file, as it is: a relative path with "/" that goes down only, or an error.

    Example:
        >>> checked("door/human-v2/main_data.hdf5")
        'door/human-v2/main_data.hdf5'
    """
    if not isinstance(name, str):
        raise TypeError(f"{WHO}: expected the name of a file as text, got {name!r:.80}")
    components = name.split("/")
    control = any(ord(character) < 32 or ord(character) == 127 for character in name)
    odd = any(x in ("", ".", "..") or len(os.fsencode(x)) > 255 or x[1:2] == ":" for x in components)
    if control or "\\" in name or components[0] == ASIDE or odd:
        raise ValueError(
            f"{WHO}: expected the name of a file below the root, such as 'door/human-v2/main_data.hdf5', got {name!r}; "
            f"a name may not be absolute, and not have '..', backslashes or control characters in it"
        )
    return name


def place(root: str, name: str) -> str:
    """The path of a file below a root, whose folder is made. No name, and no link, leads elsewhere."""
    path = os.path.join(root, *checked(name).split("/"))
    make_inside(root, os.path.dirname(path))
    return path


def make_inside(root: str, folder: str) -> None:
    """Make a folder below a root, to which no link may lead."""
    real = os.path.realpath(root)
    if os.path.commonpath([real, os.path.realpath(folder)]) != real:
        raise ValueError(f"{WHO}: {folder} leads out of {root} by a link; remove the link, or give another root")
    disk.make_directory(folder)


def is_folder(source: str) -> bool:
    return not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source)


def find(folder: str, name: str) -> str | None:
    """The path of a file in a folder, or in that of a repository in a Hugging Face cache; None if it is not there."""
    base = snapshot(folder) or folder
    path = os.path.join(base, *checked(name).split("/"))
    return path if os.path.isfile(path) else None


def snapshot(folder: str) -> str | None:
    """The folder of a snapshot in a repository's folder of a Hugging Face cache; None for other folders."""
    snapshots = os.path.join(folder, "snapshots")
    if not os.path.isdir(snapshots):
        return None
    commit = REVISION
    try:
        with open(os.path.join(folder, "refs", REVISION), encoding="ascii") as file:
            commit = file.read(100).strip()
    except (OSError, UnicodeError):
        pass
    path = os.path.join(snapshots, commit)
    return path if re.fullmatch(r"[\w.-]+", commit) and commit not in (".", "..") and os.path.isdir(path) else None


def hub_folder(repository: str) -> str:
    """Where the cache of Hugging Face has the repository of a dataset, whether it is there or not."""
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    return os.path.join(cache, "datasets--" + checked(repository).replace("/", "--"))
