"""What is fetched: a file, and where it may be had."""

from __future__ import annotations

import dataclasses
import re

from functional_rb.datasets.fetching.names import WHO, checked


class FetchError(OSError):
    """A file could not be fetched. What had been fetched of it is kept, and the next call goes on from there."""


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
        """Refuse what cannot be.

        Raises:
            TypeError: for a name or sources of another type.
            ValueError: for a name that leads out of the root, no source, or a checksum that is none.
        """
        for name in filter(None, (self.name or "/", self.inside)):
            checked(name)
        if not isinstance(self.sources, tuple):
            raise TypeError(f"{WHO}: {self.name!r}: expected a tuple of addresses or folders, got {self.sources!r:.80}")
        if not all(self.sources) or not self.sources:
            raise ValueError(f"{WHO}: {self.name!r}: expected an address or a folder, got none")
        if self.sha256 and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"{WHO}: {self.name!r}: expected 64 hexadecimal digits as sha256, got {self.sha256!r:.80}")
