"""Files that others have made, opened: pipes, which keep whoever opens them waiting, and devices are refused."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from functional_rb.base import files
from functional_rb.datasets.episode import DatasetError


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A regular file, to be read."""
    try:
        descriptor, _ = files.open_regular(path)
    except files.UnusableFileError as error:
        raise DatasetError(str(error)) from None
    with os.fdopen(descriptor, "rb") as file:
        yield file
