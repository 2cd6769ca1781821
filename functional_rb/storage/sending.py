"""What it takes to send a state to another process by `multiprocessing`.

Shared memory is sent by descriptors, which mean something for as long as the sender has them. A process that is being
started inherits them at the end of its start; what goes through a queue or a pipe is fetched from the sender when it is
read. The process that started all others outlives them; one of those may put a state in a queue and end. So that one
sends bytes.
"""

from __future__ import annotations

import multiprocessing
import weakref
from multiprocessing import context, reduction
from typing import Any, NamedTuple

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.descriptors import Descriptor
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.ops.protocol import Array
from functional_rb.storage import mapped
from functional_rb.storage.mapped import MappedFiles
from functional_rb.storage.private import PrivateFiles
from functional_rb.versions.memory import Memory

_KEPT: weakref.WeakKeyDictionary[object, list[object]] = weakref.WeakKeyDictionary()


def starting() -> bool:
    """Whether what is pickled now is for a process that this thread is starting."""
    return context.get_spawning_popen() is not None


def lasting() -> bool:
    """Whether what is pickled now can be kept until the receiver has it; else it has to go as bytes."""
    return starting() or multiprocessing.parent_process() is None


def keep(thing: object) -> None:
    """Keep what a process that is being started inherits until that has happened, and as long as its `Process` lives.

    The state that is sent may be gone before: made for this alone, as by a `__getstate__`.
    """
    process = context.get_spawning_popen()
    if process is not None:
        _KEPT.setdefault(process, []).append(thing)


class Filed(NamedTuple):
    """A state whose rows lie in mapped files, as it travels."""

    # By array, either a descriptor of the same file (`reduction.DupFd`), or what was ever written: runs of rows with
    # the first of each.
    files: dict[str, Any]
    inherited: bool  # which of the two
    tree: NumpyArray | None  # float32 [rows, FANOUT], or None
    auxiliary: dict[str, NumpyArray]  # what the sampler and the writer keep in memory, by name
    counters: NumpyArray  # int32 [n]
    # Of files to which nobody writes: they are opened there once more, and `files` is empty.
    directory: str | None = None


def take_apart(memory: Memory, counters: Array) -> Filed:
    """A state as it travels, of memory in files without a name, which nobody will write to again."""
    files, inherited = memory.files, lasting()
    assert isinstance(files, MappedFiles)
    sent: dict[str, Any]
    directory = files.directory if isinstance(files, PrivateFiles) else None
    if directory is not None:
        inherited, sent = False, {}
    elif inherited:
        keep(files)
        sent = {name: reduction.DupFd(fd) for name, fd in files.descriptors().items()}
    else:
        sent = {
            name: [(first, array[first:stop]) for first, stop in files.written(name)]
            for name, array in files.arrays().items()
        }
    tree = None if memory.tree is None else memory.as_numpy(memory.tree)
    auxiliary = {name: memory.as_numpy(x) for name, x in memory.auxiliary.items() if name not in files.auxiliary}
    return Filed(sent, inherited, tree, auxiliary, memory.as_numpy(counters), directory)


def put_together(spec: BufferSpec, state: Filed) -> tuple[MappedFiles, Arrays]:
    """The files, and the arrays of the state; inherited ones may not be written."""
    if state.directory is not None:
        files: MappedFiles = PrivateFiles(spec, state.directory)
    elif state.inherited:
        files = mapped.inherited(spec, {name: Descriptor(sent.detach) for name, sent in state.files.items()})
    else:
        files = mapped.pieced(spec, state.files)
    arrays = Arrays(files.rows, files.wide, state.tree, state.counters, state.auxiliary)
    return files, mapped.within(files, arrays)
