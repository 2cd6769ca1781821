"""What is fetched, and where it may be had; how a source fails to give it, and when to try again."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Callable

from functional_rb.datasets.fetching.paths import WHO, checked


class FetchError(OSError):
    """A file could not be fetched. What had been fetched of it is kept, and the next call goes on from there."""


class RefusedError(Exception):
    """This address does not give the file; another one may."""


class PassingError(Exception):
    """The request failed, and may succeed if it is made again; `asked` are seconds that the server asks to wait."""

    def __init__(self, reason: str, asked: float | None = None) -> None:
        super().__init__(reason)
        self.asked = asked


@dataclasses.dataclass(frozen=True)
class Retry:
    """How often a file is tried again after failures that may pass, and how long it waits in between.

    The wait after the k-th failure in a row is drawn uniformly from [d/2, d], where d = min(first * 2^(k-1), most)
    seconds, so that many who failed at once do not come back at once. A try that got further than any before it counts
    as none.

    Attributes:
        times: how often it is tried again.
        first: seconds, the longest first wait.
        most: seconds, the longest wait; also of one that a server asks for.
        sleep: waits for so many seconds.
        uniform: draws a number in [0, 1).

    Example:
        >>> Retry(times=3, most=10.0).first
        1.0
    """

    times: int = 6
    first: float = 1.0
    most: float = 60.0
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[], float] = random.random

    def wait(self, failures: int, error: PassingError) -> None:
        """Wait after so many failures in a row, at least as long as the server asks for."""
        longest = min(self.first * 2.0 ** min(failures - 1, 60), self.most)
        drawn = longest * (1 + self.uniform()) / 2
        self.sleep(drawn if error.asked is None else min(max(error.asked, drawn), self.most))


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file of a dataset, and where it may be had.

    Attributes:
        name: below the root, with "/" between its parts.
        sources: its addresses (http, https), which are tried in turn; or folders that it lies in.
        nbytes: its size, None if unknown.
        sha256: its checksum in hexadecimal digits, "" if unknown.
        inside: its name in folders, "" for the same.

    Example:
        >>> RemoteFile("door/data.hdf5", ("/data/mirror", "https://example.org/door/data.hdf5")).nbytes is None
        True
    """

    name: str
    sources: tuple[str, ...]
    nbytes: int | None = None
    sha256: str = ""
    inside: str = ""

    def __post_init__(self) -> None:
        for name in filter(None, (self.name or "/", self.inside)):
            checked(name)
        if not isinstance(self.sources, tuple):
            raise TypeError(f"{WHO}: {self.name!r}: expected a tuple of addresses or folders, got {self.sources!r:.80}")
        if not all(self.sources) or not self.sources:
            raise ValueError(f"{WHO}: {self.name!r}: expected an address or a folder, got none")
        if self.sha256 and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"{WHO}: {self.name!r}: expected 64 hexadecimal digits as sha256, got {self.sha256!r:.80}")
