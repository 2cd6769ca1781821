"""A progress bar for what takes more than a second."""

from __future__ import annotations

import importlib
from typing import Any

DELAY = 1.0
"""Seconds before it is shown."""


class Progress:
    """Counts bytes.

    Args:
        total: how many there are.
        what: is being done.
        shown: True, False, or None for: if standard error is a terminal and tqdm is installed.
    """

    def __init__(self, total: int, what: str, shown: bool | None) -> None:
        """Begin to count."""
        self._bar: Any = None
        if shown is False:
            return
        try:
            tqdm = importlib.import_module("tqdm").tqdm
        except ImportError as error:
            if shown:
                raise ImportError(
                    "progress=True needs the tqdm library; pip install 'functional-rb[checkpoint]'", name="tqdm"
                ) from error
            return
        hidden = False if shown else None
        self._bar = tqdm(total=total, desc=what, unit="B", unit_scale=True, delay=DELAY, disable=hidden, leave=False)

    def advance(self, nbytes: int) -> None:
        """So many more are done."""
        if self._bar is not None:
            self._bar.update(nbytes)

    def __enter__(self) -> Progress:
        """For as long as it goes on."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
