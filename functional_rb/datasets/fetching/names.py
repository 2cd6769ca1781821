"""Names of files that others give, made paths that lie inside of a folder: nothing else is ever written to."""

from __future__ import annotations

import os

from functional_rb.storage import disk

WHO = "datasets.fetch"
# The folder below the root where lie parts of files, with their journals and locks.
ASIDE = ".fetching"


def checked(name: str) -> str:
    """A name of a file, as it is: a relative path with "/" that goes down only.

    Example:
        >>> checked("door/human-v2/main_data.hdf5")
        'door/human-v2/main_data.hdf5'
    """
    if not isinstance(name, str):
        raise TypeError(f"{WHO}: expected the name of a file as text, got {name!r:.80}")
    parts = name.split("/")
    control = any(ord(character) < 32 or ord(character) == 127 for character in name)
    if control or "\\" in name or parts[0] == ASIDE or not all(parts) or not all(map(_is_plain, parts)):
        raise ValueError(
            f"{WHO}: expected the name of a file below the root, such as 'door/human-v2/main_data.hdf5', got {name!r}; "
            f"a name may not be absolute, and not have '..', backslashes or control characters in it"
        )
    return name


def _is_plain(part: str) -> bool:
    return part not in (".", "..") and len(os.fsencode(part)) <= 255 and not (len(part) == 2 and part[1] == ":")


def place(root: str, name: str) -> str:
    """The path of a file below a root, whose folder is made."""
    path = os.path.join(root, *checked(name).split("/"))
    make_inside(root, os.path.dirname(path))
    return path


def make_inside(root: str, folder: str) -> None:
    """Make a folder below a root."""
    real = os.path.realpath(root)
    if os.path.commonpath([real, os.path.realpath(folder)]) != real:
        raise ValueError(f"{WHO}: {folder} leads out of {root} by a link; remove the link, or give another root")
    disk.make_directory(folder)
