"""A progress bar for what takes more than a second."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from functional_rb.base.extras import imported, is_there

# Seconds before it is shown.
DELAY = 1.0


class Progress:
    """Counts bytes, or something else.

    Args:
        total: how many there are; None if that is not known.
        what: is being done.
        shown: True, False, or None for: if standard error is a terminal and tqdm is installed.
        unit: what is counted.
    """

    def __init__(self, total: int | None, what: str, shown: bool | None, unit: str = "B") -> None:
        self._total, self._what, self._done, self._unit = total, what, 0, unit
        self._bar: Any = None
        self._make: Callable[..., object] | None = None
        if shown is None:
            shown = sys.stderr is not None and sys.stderr.isatty() and is_there("tqdm")
        if shown:
            self._make = _bar()
        self._begun = time.monotonic()

    def advance(self, more: int) -> None:
        """Count so many more as done."""
        self._done += more
        if self._bar is not None:
            self._bar.update(more)
        elif self._make is not None and time.monotonic() - self._begun >= DELAY:
            self._bar = self._make(
                total=self._total, initial=self._done, desc=self._what, unit=self._unit, unit_scale=True, leave=False
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


@functools.cache
def _bar() -> Any:
    bar: Any = type("Bar", (imported("tqdm", "progress=True").tqdm,), {})
    # tqdm's own lock is also one between processes, for which it takes a semaphore of the system.
    bar.set_lock(threading.RLock())
    return bar
