"""Files that others may have made, opened so that nothing which lies under their names does harm; and files aside.

A name may lead anywhere: to a pipe, which keeps whoever opens it waiting, to a directory, to itself; and a file of
holes may claim to be larger than any disk. All this is looked at before anything is read or memory is taken.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator

from functional_rb.base.descriptors import Descriptor

if sys.platform != "win32":
    import fcntl

# Errors that say what a process or a machine is short of, and nothing about the file.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Errors that say that a folder is not to be written to, by this user or by anybody.
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
# A file is believed to have up to so many bytes, however few of them the disk holds.
SMALL = 2**26
# Above `SMALL`, a file is believed to be at most so many times as large as what the disk holds of it: file systems do
# not compress by more.
DENSEST = 4096
# Among them O_NONBLOCK, so that opening a pipe does not wait.
_SAFE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINK | getattr(os, "O_CLOEXEC", 0)
_COPY = "copy the directory (cp -aL) and use the copy, or give frb.load(..., storage=frb.Host())"
# What the names of temporary directories begin with.
ASIDE = ".functional_rb-"
_ASIDE = re.compile(rf"{re.escape(ASIDE)}[0-9a-f]{{16}}\.part", re.ASCII)


class UnusableFileError(Exception):
    """A file cannot be read: it is of the wrong kind, or its content is.

    Attributes:
        file: its path.
        reason: why it cannot be read.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file, self.reason = file, reason


class LinkedFileError(UnusableFileError):
    """What would be written to a file would be seen under another name too."""


def as_path(path: object, who: str) -> str:
    """A path as text.

    Raises:
        TypeError: if it is no path, or given as bytes.
        ValueError: if it is empty, which names nothing, or has a zero byte in it.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(f"{who}: expected a path (str or os.PathLike), got {path!r}")
    text = os.fspath(path)
    if isinstance(text, bytes):
        raise TypeError(f"{who}: expected a path as text, got {text!r}; write os.fsdecode(path)")
    if not text or "\0" in text:
        raise ValueError(f"{who}: expected the path of a directory or file, got {text!r}; '.' is the current directory")
    return text


def cache_folder(name: str) -> str:
    """Where this library keeps what can be made again, as the XDG Base Directory Specification has caches."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "functional_rb", name)


def open_regular(path: str, flags: int = os.O_RDONLY) -> tuple[Descriptor, int]:
    """A regular file, open, and its size in bytes. Links are followed only to be read.

    Raises:
        FileNotFoundError: if there is none of that name.
        LinkedFileError: if it is a link, or has several names, and is to be written to.
        UnusableFileError: if it is no regular file, or cannot be opened.
        OSError: if the process or the machine is short of descriptors or memory.
    """
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    try:
        file = Descriptor(os.open, path, flags | _SAFE | (_NO_LINK if writes else 0))
    except OSError as error:
        if writes and os.path.islink(path):
            raise LinkedFileError(
                path, f"a symbolic link, and what is written would go to where it leads; {_COPY}"
            ) from None
        if error.errno in SHORTAGES or (isinstance(error, FileNotFoundError) and not os.path.islink(path)):
            raise
        raise UnusableFileError(path, f"cannot be opened: {error.strerror}") from error
    # Asked of what was opened, not of the name, behind which another file may have come meanwhile.
    status = os.fstat(file.fd)
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise UnusableFileError(path, "no regular file")
    if writes and status.st_nlink > 1:
        file.close()
        raise LinkedFileError(
            path,
            f"the file has {status.st_nlink} names (hard links, as cp -l and rsync --link-dest make them), and what is "
            f"written to one is written to all; {_COPY}",
        )
    return file, status.st_size


def open_own(path: str, flags: int = os.O_RDWR) -> Descriptor:
    """A regular file, open, which is made if it is missing; links are not followed.

    Raises:
        OSError: if a link, a pipe or anything else than a regular file has the name.
    """
    file = Descriptor(os.open, path, flags | os.O_CREAT | _NO_LINK | _SAFE, 0o666)
    if not stat.S_ISREG(os.fstat(file.fd).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", path)
    return file


def create(path: str) -> Descriptor:
    """A new file, open to be written. What had the name is removed, but not the target of a link."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    # O_EXCL, as somebody may put a file or a link there between the two calls.
    return Descriptor(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _SAFE, 0o666)


def read_text(path: str) -> str:
    """A regular file as text.

    Raises:
        UnusableFileError: if it is no regular file, consists mostly of holes, or is no UTF-8.
        OSError: if the process or the machine is short of descriptors or memory.
    """
    file, size = open_regular(path)
    with file:
        if not holds(file.fd, size, size):
            raise UnusableFileError(path, f"{size} bytes of little but holes")
        try:
            return stream(file).read().decode()
        except UnicodeDecodeError as error:
            raise UnusableFileError(path, f"no text in UTF-8: {error}") from None


def stream(file: Descriptor) -> io.BufferedReader:
    """An open file, to be read as Python's own are, for as long as it is open."""
    return open(file.fd, "rb", closefd=False)


def extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that hold data, as (start, stop) in bytes; all of it, where the file system cannot tell."""
    at = 0
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole until the end
                return
            yield at, size
            return
        stop = min(os.lseek(descriptor, at, os.SEEK_HOLE), size)
        if at < stop:
            yield at, stop
        at = stop


def holds(descriptor: int, size: int, claimed: int) -> bool:
    """Whether `claimed` bytes of a file of this size may be read: not if the file consists mostly of holes."""
    return claimed <= SMALL or believed(claimed, written(descriptor, size, -(-claimed // DENSEST)))


def believed(claimed: int, there: int) -> bool:
    """Whether `claimed` bytes may be read from files of which the disk holds `there` bytes."""
    return claimed <= max(SMALL, DENSEST * there)


def written(descriptor: int, size: int, enough: int) -> int:
    """How many bytes of a file the disk holds; counting stops once there are `enough`."""
    there = 0
    for start, stop in extents(descriptor, size):
        there += stop - start
        if there >= enough:
            break
    return there


@contextlib.contextmanager
def explained_read_only(who: str, remedy: str, target: str, aside: str | None = None) -> Iterator[None]:
    """Errors of a folder that is not to be written to, with the remedy.

    Args:
        who: is writing.
        remedy: what to do about it.
        target: the absolute path of what is made there.
        aside: what the paths begin with of what is written meanwhile, if that is not the target.
    """
    try:
        yield
    except OSError as error:
        there = str(error.filename)
        # An error of another folder, such as that of the files that are read, is right as it is.
        is_ours = there.startswith((target, aside or target)) or target.startswith(os.path.join(there, ""))
        if error.errno not in READ_ONLY or not is_ours:
            raise
        raise type(error)(error.errno, f"{who}: {error.strerror}; {remedy}", there) from error


@contextlib.contextmanager
def aside(directory: str) -> Iterator[str]:
    """A temporary directory inside another, for files that are renamed into place once they are whole.

    Nobody can foresee its name or look inside, and it is removed afterwards. What processes that died have left of
    theirs is removed first.

    Args:
        directory: the one that it is made in, and that the finished files will lie in.
    """
    _sweep(directory)
    path, lock = _made(directory)
    try:
        yield path
    finally:
        if lock is not None:
            lock.close()
        try:
            os.rmdir(path)  # which takes no descriptor: there may be none left
        except OSError:
            shutil.rmtree(path, ignore_errors=True)


# A new directory; where there are locks, also it as it is open, locked for as long as this process lives.
def _made(directory: str) -> tuple[str, Descriptor | None]:
    while True:
        path = os.path.join(directory, f"{ASIDE}{secrets.token_hex(8)}.part")
        os.mkdir(path, 0o700)
        if sys.platform == "win32":
            return path, None
        try:
            lock = Descriptor(os.open, path, _DIRECTORY)
        except FileNotFoundError:  # a process that sweeps took it for an abandoned one
            continue
        except OSError:
            os.rmdir(path)
            raise
        # A process that sweeps may have locked it first, and be removing it.
        if _locked(lock.fd) and is_at(lock.fd, path):
            return path, lock
        lock.close()


def is_at(descriptor: int, path: str) -> bool:
    """Whether a path still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


# Remove the directories of processes that live no more.
def _sweep(directory: str) -> None:
    for name in filter(_ASIDE.fullmatch, os.listdir(directory)) if sys.platform != "win32" else ():
        path = os.path.join(directory, name)
        # An error: it belongs to somebody else, or is gone meanwhile.
        with contextlib.suppress(OSError), Descriptor(os.open, path, _DIRECTORY) as lock:
            # Whoever works in it holds the lock, which the system lets go of when a process dies.
            if _locked(lock.fd):
                shutil.rmtree(path)


# Take a lock until the descriptor closes; whether it was free.
def _locked(descriptor: int) -> bool:
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
