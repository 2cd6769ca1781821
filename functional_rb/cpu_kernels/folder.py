"""Where compiled kernels are kept between processes.

What lies there is run, so nobody else may be able to write to it, or to put another folder in its place: the folder and
every directory above it have to belong to this user, or to root, which can do anything. All is looked at by descriptor,
so what was looked at is what is read, whatever a path leads to a moment later.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import stat
from pathlib import Path
from typing import Final, NamedTuple

VARIABLE: Final = "FUNCTIONAL_RB_CACHE"
PART: Final = ".part"
"""What the names of files that are not whole yet end with."""
MOST_LINKS: Final = 40
"""So many symbolic links are followed on the way to a folder, as systems do."""
_WALK: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Folder(NamedTuple):
    """A folder for compiled kernels.

    Attributes:
        path: where, None if there is no such place.
        why_not: in that case the reason, in words.
    """

    path: Path | None
    why_not: str = ""


class UnsafeError(OSError):
    """Others may write to a file or a directory, or put another one in its place."""


@functools.cache
def folder() -> Folder:
    """The folder of this process, made for its user alone if it is missing.

    The variable FUNCTIONAL_RB_CACHE names it; else it is `functional_rb` in NUMBA_CACHE_DIR, in XDG_CACHE_HOME or in
    `~/.cache`, whichever comes first. What root makes may be read by all.
    """
    path = _wanted()
    if path is None:
        return Folder(None, f"there is no home directory; set {VARIABLE}")
    if os.open not in os.supports_dir_fd or not hasattr(os, "geteuid"):
        return Folder(None, "this system cannot tell whether others may write there")
    try:
        os.close(opened(path))
    except UnsafeError as error:
        return Folder(None, str(error))
    except OSError as error:
        return Folder(None, f"{path}: {error.strerror}")
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


def opened(path: Path) -> int:
    """The descriptor of a folder, after every directory and link on the way to it was looked at. It is made if missing.

    Raises:
        UnsafeError: if others may write to one of these.
        OSError: if it cannot be made or opened.
    """
    left, links = [*reversed(path.parts)], 0
    at: int | None = None
    here = Path()
    try:
        while left:
            name = left.pop()
            if (target := _link(name, at, here / name)) is not None:
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                left += reversed(Path(target).parts)  # one that is absolute begins at the root again
                continue
            below = os.open(name, _WALK | os.O_CLOEXEC, dir_fd=at)
            if at is not None:
                os.close(at)
            at, here = below, here / name
            # In a directory such as /tmp only whoever owns an entry may exchange it, and that is looked at next.
            check(os.fstat(at), here, may_be_sticky=bool(left))
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    finally:
        if at is not None:
            os.close(at)


def _link(name: str, at: int | None, shown: Path) -> str | None:
    """Where a link in a directory leads, None for anything else; a directory is made if nothing is there."""
    try:
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # another process is as far as this one
            os.mkdir(name, 0o700, dir_fd=at)
            if os.geteuid() == 0:  # whatever the umask says
                os.chmod(name, 0o755, dir_fd=at)
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    check_owner(found, shown)
    return os.readlink(name, dir_fd=at)


def check(found: os.stat_result, shown: Path, may_be_sticky: bool = False) -> None:
    """Refuse what others may write to; in a sticky directory they may do so, where that is allowed.

    Raises:
        UnsafeError: naming it, and what to do.
    """
    check_owner(found, shown)
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022 and not (may_be_sticky and mode & stat.S_ISVTX):
        raise UnsafeError(f"others may write to {shown}; chmod go-w, or set {VARIABLE} to another folder")


def check_owner(found: os.stat_result, shown: Path) -> None:
    """Refuse what is another user's."""
    if found.st_uid not in (0, os.geteuid()):
        raise UnsafeError(f"{shown} belongs to another user; set {VARIABLE} to a folder of your own")


def read(name: str, at: int, shown: Path) -> bytes:
    """The content of a file in a folder, if it is a regular one that nobody else could have written.

    Raises:
        UnsafeError: if somebody else could.
        OSError: if it cannot be read, or is something else.
    """
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC | _FILE, dir_fd=at), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(shown / name))
        check(found, shown / name)
        return file.read()


def write(name: str, content: bytes, at: int) -> None:
    """Write a file in a folder, which others see once it is whole; what root writes all may read.

    Raises:
        OSError: if that cannot be done; then nothing is left.
    """
    part = f"{name}.{secrets.token_hex(8)}{PART}"
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _FILE, 0o600, dir_fd=at)
    try:
        with open(handle, "wb") as file:
            if os.geteuid() == 0:
                os.fchmod(handle, 0o644)
            file.write(content)
        os.replace(part, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        os.unlink(part, dir_fd=at)
        raise
