"""Where compiled kernels are kept between processes.

What lies there is run, so nobody else may be able to write to it: it has to belong to this user, or to root, which
installs what all users run.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path
from typing import NamedTuple

VARIABLE = "FUNCTIONAL_RB_CACHE"


class Folder(NamedTuple):
    """A folder for compiled kernels.

    Attributes:
        path: where, None if there is no such place.
        why_not: in that case the reason, in words.
    """

    path: Path | None
    why_not: str = ""


@functools.cache
def folder() -> Folder:
    """The folder of this process, made for its user alone if it is missing.

    The variable FUNCTIONAL_RB_CACHE names it; else it is `functional_rb` in NUMBA_CACHE_DIR, in XDG_CACHE_HOME or in
    `~/.cache`, whichever comes first.
    """
    path = _wanted()
    if path is None:
        return Folder(None, f"there is no home directory; set {VARIABLE}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        return Folder(None, str(error))
    if hasattr(os, "geteuid") and found.st_uid not in (0, os.geteuid()):
        return Folder(None, f"{path} belongs to another user; set {VARIABLE} to a folder of your own")
    if stat.S_IMODE(found.st_mode) & 0o022:
        return Folder(None, f"others may write to {path}; chmod go-w, or set {VARIABLE} to another folder")
    return Folder(path)


def _wanted() -> Path | None:
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).absolute()
    for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        parent = Path(os.environ.get(variable) or ".")
        if parent.is_absolute():  # else it is not set, or not to be heeded, says the XDG specification
            return parent / "functional_rb"
    try:
        return Path.home() / ".cache" / "functional_rb"
    except RuntimeError:
        return None
