"""What is fetched, and where it may be had; how a source fails to give it, and when to try again."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from functional_rb.datasets.fetching.paths import WHO, checked

T = TypeVar("T")


class FetchError(OSError):
    """A file could not be fetched. What had been fetched of it is kept, and the next call resumes there."""


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
    seconds, so that clients that failed together do not retry together. A try that got further than all before it does
    not count.

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


def persisted(retry: Retry, attempt: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
    """What an attempt gives, which is made again after failures that may pass, unless there were too many in a row.

    A failure counts as the first one in a row if it got further than all attempts before it.
    """
    # The loops of HTTP libraries (urllib3's `Retry`, say) repeat a request, and know nothing of a body that is resumed.
    failures, furthest = 0, progress()
    while True:
        try:
            return attempt()
        except PassingError as error:
            if progress() > furthest:
                failures, furthest = 0, progress()
            failures += 1
            if failures > retry.times:
                raise RefusedError(f"{error}; given up after {failures} tries in a row without a byte more") from None
            retry.wait(failures, error)


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a part is a part of."""

    url: str  # where it comes from
    length: int | None = None  # bytes of the whole file, None if unknown
    etag: str = ""  # the strong ETag, "" if unknown
    modified: str = ""  # Last-Modified, "" if unknown

    @property
    def same(self) -> str:
        """What tells the same file from a changed one."""
        return self.etag or self.modified

    def agrees(self, other: Origin) -> bool:
        """Whether nothing says that the other one is of a changed file."""
        pairs = ((self.length, other.length), (self.etag, other.etag), (self.modified, other.modified))
        return all(mine == theirs or not mine or not theirs for mine, theirs in pairs)


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
