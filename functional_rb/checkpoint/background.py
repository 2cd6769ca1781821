"""Saving while training goes on: one thread for each save, those to one directory in the order of their calls."""

from __future__ import annotations

import logging
import os
import threading

from functional_rb.base.errors import CheckpointError
from functional_rb.checkpoint import queue
from functional_rb.checkpoint.manifest import Checkpoint
from functional_rb.checkpoint.moment import Moment, hold
from functional_rb.checkpoint.saving import SaveOptions

_log = logging.getLogger("functional_rb")


class SaveFuture:
    """A save that goes on in the background. The process's end waits for it."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._saved: Checkpoint | None = None
        self._error: BaseException | None = None
        self._told = False
        self._finished = threading.Event()
        # Taken once, by who ends the save: its thread, or `__init__` if an interrupt came before that thread did.
        self._begun = threading.Lock()
        self._before: queue.Waiting | None = None
        self._place = os.path.realpath(moment.directory)
        # No daemon: the interpreter waits for it.
        self._thread = threading.Thread(target=self._run, name="functional_rb.save_async")
        try:
            self._before = queue.enter(self._place, self)
            self._thread.start()
        except BaseException:
            if self._begun.acquire(blocking=False):
                self._finish()
            raise

    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        return self._finished.is_set()

    def result(self, timeout: float | None = None) -> Checkpoint:
        """Wait for its end.

        Args:
            timeout: seconds to wait at most.

        Returns:
            What was written.

        Raises:
            TimeoutError: if it goes on longer.
            CheckpointError: what `save` would have raised, and its other errors.
        """
        if not self._finished.wait(timeout):
            raise TimeoutError(f"save_async: still writing to {self._moment.directory} after {timeout} s")
        self._told = True
        if self._error is not None:
            raise self._error
        assert self._saved is not None
        return self._saved

    def wait(self) -> None:
        """Wait for its end, whatever that is."""
        self._finished.wait()

    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            if self._before is not None:
                self._before.wait()
            self._saved = self._moment.write()
        except BaseException as error:
            self._error = error
        finally:
            self._finish()

    def _finish(self) -> None:
        try:
            self._moment.close()
        finally:
            self._before = None
            try:
                queue.leave(self._place, self)
            finally:
                self._finished.set()

    def lost_by_fork(self) -> None:
        """In a forked child, which has not the thread that saves: end as failed."""
        self._error = CheckpointError(
            f"save_async to {self._moment.directory}: it goes on in the process that began it; ask for its result there"
        )
        self._told, self._before, self._finished = True, None, threading.Event()
        self._finished.set()

    def __del__(self) -> None:
        if getattr(self, "_error", None) is not None and not self._told:
            _log.error("save_async to %s failed, and nobody called result(): %r", self._moment.directory, self._error)


def save_async(
    state: object,
    path: str | os.PathLike[str],
    *,
    incremental: bool = False,
    keep: int = 2,
    progress: bool | None = None,
) -> SaveFuture:
    """`save` in the background: training goes on at once, in place as ever.

    On torch the state is read piece by piece, and what is overwritten meanwhile is kept until it has been read. On JAX
    the arrays are copied to the host first, as they may be donated.

    Args:
        state: as for `save`.
        path: as for `save`.
        incremental: as for `save`.
        keep: as for `save`.
        progress: as for `save`.

    Returns:
        A handle whose `result()` waits, and raises what went wrong. Saves to one directory follow each other in the
        order of the calls, and the process's end waits for them.

    Raises:
        TypeError: for what is no state.
        ValueError: for `keep`, and for a spec that has no JSON form.

    Example:
        >>> import tempfile
        >>> state = rb.init(frb.BufferSpec((frb.Unbounded(()),), 4))
        >>> with tempfile.TemporaryDirectory() as path:
        ...     saving = frb.checkpoint.save_async(state, path)
        ...     state = rb.add(state, (1.0,))
        ...     saving.result().items
        0
    """
    return SaveFuture(hold(state, path, SaveOptions(incremental, keep, progress, "save_async", lasting=True)))
