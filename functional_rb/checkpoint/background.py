"""Saving, at once or by a thread while training goes on; saves to one directory in the order of their calls."""

from __future__ import annotations

import logging
import os
import threading
from typing import Literal, TypeAlias, TypedDict, Unpack, overload

from functional_rb.base.errors import CheckpointError
from functional_rb.checkpoint.manifest import Checkpoint
from functional_rb.checkpoint.moment import Moment, hold
from functional_rb.checkpoint.saving import SaveOptions

_log = logging.getLogger("functional_rb")
Path: TypeAlias = str | os.PathLike[str]


class SaveFuture:
    """A save that goes on in the background. The process's end waits for it."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._saved: Checkpoint | None = None
        self._error: BaseException | None = None
        self._told = False  # whether somebody has asked for the result: else its error is logged, and not lost
        self._finished = threading.Event()
        # Taken once, by who ends the save: its thread, or `__init__` if an interrupt came before that thread did.
        self._begun = threading.Lock()
        self._before: SaveFuture | None = None
        self._place = os.path.realpath(moment.directory)
        # No daemon: the interpreter waits for it.
        self._thread = threading.Thread(target=self._run, name="functional_rb.save")
        try:
            with _turn:
                waiting = _going_on.setdefault(self._place, [])
                self._before = waiting[-1] if waiting else None
                waiting.append(self)
            self._thread.start()
        except BaseException:
            if self._begun.acquire(blocking=False):
                self._finish()
            raise

    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        return self._finished.is_set()

    def result(self, timeout: float | None = None) -> Checkpoint:
        """Wait until the save has ended.

        Args:
            timeout: seconds to wait at most.

        Returns:
            What was written.

        Raises:
            TimeoutError: if it goes on longer.
            CheckpointError: what `save` would have raised, and its other errors.
        """
        if not self._finished.wait(timeout):
            raise TimeoutError(f"save: still writing to {self._moment.directory} after {timeout} s")
        self._told = True
        if self._error is not None:
            raise self._error
        assert self._saved is not None
        return self._saved

    def wait(self) -> None:
        """Wait until the save has ended, well or not."""
        self._finished.wait()

    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            if self._before is not None:
                self._before.wait()  # each save waits for the one before, and so for all of them
            self._saved = self._moment.write()
        except BaseException as error:
            self._error = error
        finally:
            self._finish()

    def _finish(self) -> None:
        try:
            self._moment.close()
        finally:
            self._before = None  # else each handle would keep all earlier ones, and what they hold
            try:
                with _turn:
                    rest = [one for one in _going_on.get(self._place, ()) if one is not self]
                    if rest:
                        _going_on[self._place] = rest
                    else:
                        _going_on.pop(self._place, None)
            finally:
                self._finished.set()

    def lost_by_fork(self) -> None:
        """In a forked child, which has not the thread that saves: end as failed."""
        self._error = CheckpointError(
            f"save to {self._moment.directory}: it goes on in the process that began it; ask for its result there"
        )
        # A new event: a thread that is not here may hold the lock of the old one.
        self._told, self._before, self._finished = True, None, threading.Event()
        self._finished.set()

    def __del__(self) -> None:
        if getattr(self, "_error", None) is not None and not self._told:
            _log.error("save to %s failed, and nobody called result(): %r", self._moment.directory, self._error)


# The saves to each directory, without links, that may still be going on, in the order of their calls.
_going_on: dict[str, list[SaveFuture]] = {}
_turn = threading.RLock()  # a signal handler that saves may come while this thread has it


def wait_for(directory: str) -> None:
    """Wait for the saves of this process to a directory that go on in the background."""
    with _turn:
        waiting = list(_going_on.get(os.path.realpath(directory), ()))
    for saving in waiting:
        saving.wait()


def _after_fork() -> None:
    global _turn
    _turn = threading.RLock()  # a thread that is not here may hold the old one
    for waiting in _going_on.values():
        for saving in waiting:
            saving.lost_by_fork()
    _going_on.clear()


os.register_at_fork(after_in_child=_after_fork)


class _Options(TypedDict, total=False):
    incremental: bool
    keep: int
    progress: bool | None


@overload
def save(state: object, path: Path, *, background: Literal[False] = False, **more: Unpack[_Options]) -> Checkpoint: ...
@overload
def save(state: object, path: Path, *, background: Literal[True], **more: Unpack[_Options]) -> SaveFuture: ...
@overload
def save(state: object, path: Path, *, background: bool, **more: Unpack[_Options]) -> Checkpoint | SaveFuture: ...
def save(
    state: object,
    path: Path,
    *,
    incremental: bool = False,
    keep: int = 2,
    progress: bool | None = None,
    background: bool = False,
) -> Checkpoint | SaveFuture:
    """Write the whole of a state, or of another nest of arrays, to a directory of checkpoints.

    All is written aside and renamed once it lasts: whenever the process or the machine stops, what loads is this
    checkpoint or the one before. A save of another process to the same directory is waited for.

    In the background, training goes on at once, in place as ever. On torch the state is read piece by piece, and what
    is overwritten meanwhile is kept until it has been read. On JAX the arrays are copied to the host first, as they may
    be donated.

    Args:
        state: of either backend; of one that is dealt to shards all processes call `save`, with the same directory, and
            each writes its own; or a `Mixture`, which loads as it was at one save, whenever a save stops; or a nest of
            arrays (dicts, tuples, NamedTuples, dataclasses), such as a `HashMap`, a `Forest`, or parameters. Of a
            nest nothing is written in parts: `incremental` writes all or nothing of it.
        path: a directory, made if it is not there.
        incremental: write only what differs from the newest checkpoint there, whosever that is.
        keep: so many checkpoints, the newest ones, stay.
        progress: whether to show a bar once it takes more than a second; None for: on a terminal.
        background: whether another thread writes, while the call returns. Saves to one directory follow each other in
            the order of the calls, and the process's end waits for them.

    Returns:
        What was written; of a mixture together, with the number and the path of the checkpoint that names the rest. In
        the background a handle, whose `result()` waits for that, and raises what went wrong.

    Raises:
        StorageFullError: if there is no room.
        CheckpointError: if the system refuses for another reason, which is an `OSError` as well, or if checkpoints of a
            future format are there.
        TypeError: for Python objects that are no JSON values, naming the leaf.
        ValueError: for `keep`, for a spec that has no JSON form (a lambda in it, say), and in the background for a
            buffer that is dealt to shards.

    Example:
        >>> import tempfile
        >>> state = rb.add(rb.init(frb.BufferSpec((frb.Unbounded(()),), 4)), (1.0,))
        >>> with tempfile.TemporaryDirectory() as path:
        ...     print(frb.save(state, path).generation, rb.items(frb.load(path, rb))[0].tolist())
        ...     saving = frb.save(state, path, background=True)
        ...     state = rb.add(state, (2.0,))
        ...     saving.result().items
        1 [1.0, 0.0, 0.0, 0.0]
        1
    """
    moment = hold(state, path, SaveOptions(incremental, keep, progress, "save", lasting=background))
    if background:
        return SaveFuture(moment)
    wait_for(moment.directory)
    return moment.write()
