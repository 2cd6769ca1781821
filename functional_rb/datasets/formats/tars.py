"""Archives of tar, also compressed, read from front to back; nothing is written anywhere."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, Any

from functional_rb.datasets.episode import DatasetError, expecting
from functional_rb.datasets.formats import streams
from functional_rb.datasets.formats.streams import Inflated

# Bytes that the headers of a member may have: names and remarks.
HEADERS = 2**20
# Bytes that may come out of a compressed archive.
LIMIT = 2**42
# The kinds of members that are read: files and folders.
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)


def members(path: str, limit: int = LIMIT) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in an archive (tar, tar.gz, tar.xz), in its order: names, and what is read from until the next one.

    Names that lead out of a folder, links and devices are refused, and more than `limit` bytes that come out of it.
    """
    with streams.opened(path) as file:
        stream: Any = _Headers(Inflated(file, limit, path), path)
        told = expecting(f"{path}: expected an archive of tar", tarfile.TarError, EOFError)
        with told, tarfile.open(fileobj=stream, mode="r|") as archive:
            while (member := stream.next_of(archive)) is not None:
                _check(member, path)
                content = archive.extractfile(member)  # None of a folder
                if content is not None:
                    yield member.name, content


def _check(member: tarfile.TarInfo, path: str) -> None:
    name = member.name
    if name.startswith("/") or "\0" in name or "\\" in name or ".." in name.split("/") or name[1:2] == ":":
        raise DatasetError(f"{path}: member {name!r:.200} has a name that leads out of the archive's folder; refused")
    # A file with holes may claim to be of any size, and is made up of zeros by the library.
    if member.type not in PLAIN or member.sparse is not None:
        raise DatasetError(f"{path}: member {name!r:.200} is a link, a device or has holes; expected files and folders")


class _Headers:
    """A stream of which headers of archives may take so many bytes, since the library keeps them in memory."""

    def __init__(self, stream: Inflated, where: str) -> None:
        self._stream, self._where, self._left = stream, where, HEADERS

    def read(self, n: int) -> bytes:
        chunk = self._stream.read(n) or b""
        self._left -= len(chunk)
        if self._left < 0:
            raise DatasetError(f"{self._where}: expected at most {HEADERS} bytes of headers in front of a member")
        return chunk

    def next_of(self, archive: tarfile.TarFile) -> tarfile.TarInfo | None:
        """The next member; what is left of the one before is passed over."""
        member = archive.next()
        if member is not None:
            self._left = member.size + HEADERS
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep all; typeshed lacks the list
        return member
