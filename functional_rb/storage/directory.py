"""The directory of a `Memmap` buffer: what its files are called, whose they are, who writes to them.

`storage.json` says what the files hold. It is there before they are, so files of another buffer are always known as
such. `storage.lock` is locked (flock) for as long as a buffer writes there; the lock goes with the process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import weakref
from collections.abc import Iterator, Mapping

from functional_rb.base import files, nest
from functional_rb.base.descriptors import Descriptor
from functional_rb.base.errors import FULL, LIMIT, MANY, StorageFullError, StorageInUseError
from functional_rb.base.strict_json import Json
from functional_rb.buffer.spec import BufferSpec
from functional_rb.structures import frame_ring, stored_arrays
from functional_rb.structures.stored_arrays import Shapes

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None  # type: ignore[assignment]  # looked at before it is used

DESCRIPTION, LOCK = "storage.json", "storage.lock"


def shapes(spec: BufferSpec) -> Shapes:
    """The arrays that lie in files, by name: shape, and dtype as stored.

    Those are `rows`, `wide_0` and so on, and of compact storage the frames: `frames`, `frames_0` and so on.
    """
    arrays = stored_arrays.shapes(spec.plan.layout, spec.capacity)
    return arrays | {name: (spec.plan.auxiliary[name].shape, spec.plan.auxiliary[name].dtype) for name in filed(spec)}


def filed(spec: BufferSpec) -> tuple[str, ...]:
    """The names of the arrays beside the storage that lie in files: the frames."""
    if spec.plan.frames is None:
        return ()
    return frame_ring.ROWS, *(frame_ring.WIDE.format(k) for k in range(len(spec.plan.frames.layout.wide)))


def file_name(name: str) -> str:
    return f"{name}.bin"


def described(spec: BufferSpec) -> Json:
    """The content of `storage.json`: the arrays' names, shapes and dtypes."""
    arrays = {file_name(name): {"shape": list(shape), "dtype": dtype} for name, (shape, dtype) in shapes(spec).items()}
    packed = {
        nest.show(leaf.path): [list(leaf.shape), leaf.dtype, leaf.offset, leaf.wide] for leaf in spec.plan.layout.leaves
    }
    stacks = () if spec.plan.frames is None else spec.plan.frames.stacks
    framed = {nest.show(stack.path): [list(stack.shape), stack.dtype, stack.depth, stack.axis] for stack in stacks}
    return {"format": 1, "byteorder": sys.byteorder, "files": arrays, "leaves": packed, "frames": framed}


class Directory:
    """A directory that is locked for one buffer.

    Attributes:
        path: absolute.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._made: list[str] = []
        self._pid = os.getpid()
        with explained(self.path):
            self._made_directory = not os.path.isdir(self.path)
            os.makedirs(self.path, exist_ok=True)
            self._held: list[Descriptor] = []
            # First: an interrupt at any of the next lines lets go of the lock, too.
            self._release = weakref.finalize(self, _unlock, self._held, self._pid)
            _lock(self.join(LOCK), self._held)
            self._identity = os.stat(self.path)

    def join(self, name: str) -> str:
        return os.path.join(self.path, name)

    def describe(self, spec: BufferSpec, fresh: bool) -> None:
        """Say what the files hold, or check that it is what this buffer holds; if `fresh`, none may be there already.

        Raises:
            FileExistsError: if there are some.
            ValueError: if they are of another buffer.
        """
        wanted = described(spec)
        # Links that lead nowhere, too.
        there = [name for name in (DESCRIPTION, *wanted["files"]) if os.path.lexists(self.join(name))]
        if fresh and there:
            raise FileExistsError(
                errno.EEXIST,
                "Memmap: there are files of a buffer already; give Memmap(existsok=True) to take them as they are, "
                "or another path",
                self.join(there[0]),
            )
        if DESCRIPTION in there:
            check_layout(self.path, wanted)
        elif there:
            raise ValueError(
                f"{self.join(there[0])}: expected {DESCRIPTION} beside it, which says what it holds, got none; "
                f"give Memmap another path, or remove the file"
            )
        else:
            with explained(self.path):
                # Noted first, here and for arrays, so that an interrupt leaves no file of which `undo` does not know.
                self._made.append(DESCRIPTION)
                with files.aside(self.path) as scratch:
                    new = os.path.join(scratch, DESCRIPTION)
                    with open(new, "w", encoding="utf-8") as file:
                        json.dump(wanted, file, indent=1)
                    os.replace(new, self.join(DESCRIPTION))

    def open(self, name: str) -> Descriptor:
        """The file of an array, made if it is missing."""
        path = self.join(file_name(name))
        with explained(path):
            if os.path.lexists(path):
                return files.open_regular(path, os.O_RDWR)[0]
            self._made.append(file_name(name))
            # O_EXCL: what has come there meanwhile is not ours.
            return Descriptor(os.open, path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def undo(self) -> None:
        """Remove what was made here, as the rest could not be."""
        for name in self._made:
            _removed(self.join(name))
        self.release()

    def release(self) -> None:
        self._release()

    def is_at(self, place: str) -> bool:
        """Whether a path names it now: it may have been renamed, and another one made where it was."""
        with contextlib.suppress(OSError):
            same = os.path.samestat(self._identity, os.stat(place))
            return same and files.is_at(self._held[0].fd, os.path.join(place, LOCK))
        return False

    def remove_with(self, owner: object, spec: BufferSpec) -> None:
        """Remove the files once their owner goes, at the latest when this process ends."""
        names = [self.join(name) for name in (*described(spec)["files"], DESCRIPTION, LOCK)]
        # With a descriptor of its own, as the lock may have been given back by then.
        lock = Descriptor(os.dup, self._held[0].fd)
        weakref.finalize(owner, _remove, names, self.path if self._made_directory else None, self._pid, lock)


def _remove(paths: list[str], directory: str | None, pid: int, lock: Descriptor) -> None:
    # In the process that made the files and not in those that it forked. Where they were there may be others by now:
    # the last path is that of the lock, by which they are known.
    with lock:
        if os.getpid() != pid or not files.is_at(lock.fd, paths[-1]):
            return
    for path in paths:
        _removed(path)
    if directory is not None:
        with contextlib.suppress(OSError):  # somebody has put something there
            os.rmdir(directory)


def check_layout(path: str, wanted: Mapping[str, object]) -> None:
    """Refuse the files in a directory if they are of another buffer."""
    description = os.path.join(path, DESCRIPTION)
    actual = read_description(description)
    for key, value in wanted.items():
        if actual.get(key) != value:
            expected, got = value, actual.get(key)
            if isinstance(expected, dict) and isinstance(got, dict):  # only what differs, as the rest is long
                differ = [name for name in {**expected, **got} if expected.get(name) != got.get(name)]
                expected, got = ({name: side.get(name) for name in differ} for side in (expected, got))
            raise ValueError(
                f"{description}: the files are of another buffer: {key}: expected {expected}, got {got}; "
                f"give Memmap another path, or the BufferSpec that they were made with"
            )


def read_description(path: str) -> Json:
    """What a file says in JSON of the buffer beside it."""
    with explained(path):
        text = files.read_text(path)
    try:
        description = json.loads(text)
    except (ValueError, RecursionError):
        description = None
    if not isinstance(description, dict):
        raise ValueError(f"{path}: expected JSON that describes a buffer's files, got {text[:60]!r}")
    return description


@contextlib.contextmanager
def explained(path: str, who: str = "Memmap", argument: str = "Memmap(path=...)") -> Iterator[None]:
    """Raise errors of the system, and of files that are something else, with the file and the remedy.

    `who` is writing, and by the `argument` the directory can be given.
    """
    try:
        yield
    except (StorageFullError, StorageInUseError):
        raise
    except OSError as error:
        raise _typed(error, path, who, argument) from error
    except files.LinkedFileError as error:
        raise ValueError(str(error)) from None
    except files.UnusableFileError as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
            raise _typed(error.__cause__, path, who, argument) from error
        raise ValueError(f"{error}: the file is damaged; remove the directory, or give another path") from None


def _typed(error: OSError, path: str, who: str, argument: str) -> OSError:
    what, where = error.strerror, error.filename or path
    if error.errno in FULL:
        return full(where, what, argument=argument)
    remedy = f"give {argument} a directory that can be written to"
    if error.errno == errno.ENOENT:
        remedy = "look at the path"
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        remedy = f"give {argument} a directory, or one that can be made"
    elif error.errno == errno.ELOOP:
        remedy = "what is written would go to where the link leads: copy the directory (cp -aL) and use the copy"
    elif error.errno in MANY:
        remedy = LIMIT
    return type(error)(error.errno, f"{who}: {what}; {remedy}", where)


def full(
    path: str, what: str | None = None, needed: int | None = None, argument: str = "Memmap(path=...)"
) -> StorageFullError:
    need = "" if needed is None else f" for {needed} bytes more"
    return StorageFullError(
        errno.ENOSPC,
        f"{what or 'no room'}{need}; nothing was written: make room there (df; quota; ulimit -f) and call again, or "
        f"give {argument} on another disk",
        path,
    )


def need_posix() -> None:
    """Refuse a platform without the calls that all this stands on."""
    if fcntl is None:
        raise ImportError("Memmap: needs a POSIX system (file locks, sparse files, shared mappings); use frb.Host()")


# Hold a lock on a file that is still the one of that name; a process that removed it may have let others in since.
def _lock(path: str, held: list[Descriptor]) -> None:
    need_posix()
    while True:
        held.append(files.open_own(path))
        try:
            fcntl.flock(held[0].fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.pop().close()
            raise StorageInUseError(
                errno.EBUSY,
                "Memmap: another state, here or in another process, writes to the files of this directory; let go of "
                "it (del state), give another path, or Memmap(shared=True) for several processes",
                path,
            ) from None
        if files.is_at(held[0].fd, path):
            return
        held.pop().close()


# Give a lock back; a forked process has it too, and must not.
def _unlock(held: list[Descriptor], pid: int) -> None:
    for lock in held:
        if os.getpid() == pid:
            fcntl.flock(lock.fd, fcntl.LOCK_UN)
        lock.close()


def _removed(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
