"""`datasets.fetch`: the files of a dataset below a root, from the first of their sources that gives them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import urllib.parse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from functional_rb.base.files import explained_read_only
from functional_rb.base.progress import Progress
from functional_rb.datasets.fetching import listing, paths
from functional_rb.datasets.fetching.partial import Partial
from functional_rb.datasets.fetching.paths import WHO, place
from functional_rb.datasets.fetching.remote import (
    FetchError,
    Origin,
    PassingError,
    RefusedError,
    RemoteFile,
    Retry,
    persisted,
)
from functional_rb.datasets.reader import ROOT, folder_of, prefixes
from functional_rb.storage import disk

if TYPE_CHECKING:
    import ssl

PIECE = 2**20


def fetch(
    sources: str | RemoteFile | Sequence[str | RemoteFile],
    root: str | os.PathLike[str] | None = None,
    *,
    offline: bool = False,
    retry: Retry | None = None,
    progress: bool | None = None,
    certificates: ssl.SSLContext | None = None,
) -> list[str]:
    """Fetch the files of datasets, or any others, those that are not there yet.

    An unfinished file is resumed as long as ETag or Last-Modified say that it is the same; a file that has changed is
    begun anew. A file is whole, or not there: it is checked against its length, and its size and sha256
    where they are known, and renamed into place. Processes that want the same file at once wait for one of them.

    Args:
        sources: datasets by their names, "minari:D4RL/door/human-v2", whose files come to lie where `load` looks for
            them; or files; an address stands for a file of that name with that one source.
        root: the folder below which they come to lie, that of datasets by default, as for `load`. Nothing outside of
            it is written to.
        offline: whether to do without the network: what is neither below the root nor in a folder is an error.
        retry: how often failures that may pass are tried again, and when.
        progress: whether to show a bar for a file that takes more than a second; None for: on a terminal.
        certificates: the certificates that are believed; by default the system's.

    Returns:
        The paths of the files, in their order.

    Raises:
        FetchError: if no source gives a file, naming it, each source, and why not, or if the files of a dataset cannot
            be listed. What there is of a file is kept.
        StorageFullError: if there is no room; the next call resumes the fetch.
        TypeError, ValueError: for names that lead out of the root, or come twice, before anything is fetched; for a
            dataset whose files have no known address.

    Example:
        >>> fetch("d4rl:hopper-medium-v2")  # doctest: +SKIP
        ['/home/ada/.cache/functional_rb/datasets/d4rl/hopper-medium-v2.hdf5']
        >>> fetch("https://example.org/door/data.hdf5", "datasets")  # doctest: +SKIP
        ['/home/ada/datasets/data.hdf5']
    """
    requested: Any = sources  # users give anything
    folder = folder_of(root, WHO)
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"{WHO}: expected retry as frb.datasets.Retry(...), got {retry!r:.80}")
    how = _How(offline, retry or Retry(), progress, certificates)
    is_one = isinstance(requested, str | RemoteFile) or not hasattr(requested, "__iter__")
    # All are listed before any is fetched: a name that is refused must not leave half a dataset.
    wanted = [file for source in ([requested] if is_one else requested) for file in _files(source, how)]
    names = set[str]()
    for file in wanted:
        if file.name in names:
            raise ValueError(f"{WHO}: {file.name!r} comes twice; expected another name for each file")
        names.add(file.name)
    with explained_read_only(WHO, f"what is fetched is to lie there: give another root=, or set {ROOT}", folder):
        disk.make_directory(folder)
        return [_one(file, folder, how) for file in wanted]


@dataclasses.dataclass(frozen=True)
class _How:
    offline: bool
    retry: Retry
    progress: bool | None
    certificates: ssl.SSLContext | None


def _files(source: str | RemoteFile, how: _How) -> list[RemoteFile]:
    if isinstance(source, RemoteFile):
        return [source]
    if not isinstance(source, str):
        raise TypeError(f"{WHO}: expected a dataset's name, an address or a RemoteFile, got {source!r:.80}")
    if not paths.is_folder(source):
        return [RemoteFile(urllib.parse.unquote(urllib.parse.urlsplit(source).path).rpartition("/")[2], (source,))]
    if source.partition(":")[0] not in prefixes():
        raise ValueError(
            f"{WHO}: expected an address that begins with https:// or http://, or a dataset's name, such as "
            f"'d4rl:hopper-medium-v2', got {source!r:.200}"
        )
    return listing.files_of(source, how.retry, how.offline)


def _one(file: RemoteFile, root: str, how: _How) -> str:
    target = place(root, file.name)

    def is_there() -> bool:
        return os.path.isfile(target) and file.nbytes in (None, os.path.getsize(target))

    if not is_there():
        partial = Partial(root, file.name)

        def work() -> None:
            if not is_there():  # another process may have fetched it meanwhile
                with partial:
                    _from_any(file, partial, how, target)

        partial.while_locked(work)
    return target


def _from_any(file: RemoteFile, partial: Partial, how: _How, target: str) -> None:
    reasons = []
    for source in file.sources:
        try:
            if paths.is_folder(source):
                _copy(file, source, partial)
            elif how.offline:
                raise RefusedError("not asked, since offline=True")
            else:
                persisted(how.retry, functools.partial(_try, file, source, partial, how), lambda: partial.size)
        except RefusedError as error:
            reasons.append(f"{source}: {error}")
            continue
        partial.finish(target)
        return
    raise FetchError(
        f"{WHO}: {file.name!r}: expected the file from one of its sources, got it from none:\n  "
        + "\n  ".join(reasons)
        + f"\nCall again to go on with the {partial.size} bytes that are there, or put the file at {target}"
    )


def _copy(file: RemoteFile, folder: str, partial: Partial) -> None:
    # A copy goes by the same part as a download: it is whole or not there, and checked.
    path = paths.find(folder, file.inside or file.name)
    if path is None:
        raise RefusedError("no such file in this folder")
    partial.begin(Origin(path, os.path.getsize(path)))
    with open(path, "rb") as source:
        while piece := source.read(PIECE):
            partial.append(piece)
    _verify(file, partial, resumed=False)


def _try(file: RemoteFile, url: str, partial: Partial, how: _How) -> None:
    # Ask once for what is missing of a file, and append what comes.
    from functional_rb.datasets.fetching import http

    begun = partial.origin
    # What is there is the begin of what the address gives now if that has not changed; a known sha256 tells in the end.
    resumes = partial.size > 0 and bool(file.sha256 or (begun.url == url and begun.same))
    if resumes and partial.size == begun.length:
        return _verify(file, partial, resumes)
    start = partial.size if resumes else 0
    answer = http.ask(url, start, begun.same if begun.url == url else "", how.certificates)
    if answer is None:
        partial.drop()
        raise PassingError(f"the server has no byte {start}, so that the file has changed")
    with contextlib.closing(answer.body):
        came = answer.origin
        if None not in (file.nbytes, came.length) and file.nbytes != came.length:
            raise RefusedError(f"expected {file.nbytes} bytes, but the server has {came.length}")
        if not (came.length is not None or file.nbytes is not None or file.sha256 or answer.body.chunked):
            raise RefusedError("the server does not tell the file's length, so nobody can tell whether it is whole")
        if answer.start == 0:  # also where the end was asked for, of a file that has changed
            resumes = False
            partial.begin(came)
        elif begun.url == url and not begun.agrees(came):
            partial.drop()
            raise PassingError("the file has changed since it was begun")
        length = file.nbytes if came.length is None else came.length
        with Progress(length, f"fetch {file.name}", how.progress) as shown:
            shown.advance(partial.size)
            while piece := answer.read(PIECE):
                partial.append(piece)
                shown.advance(len(piece))
                if length is not None and partial.size > length:
                    partial.drop()
                    raise RefusedError(f"expected {length} bytes, and more came")
        if length is not None and partial.size < length:
            raise PassingError(f"the connection was cut after {partial.size} of {length} bytes")
    _verify(file, partial, resumes)


def _verify(file: RemoteFile, partial: Partial, resumed: bool) -> None:
    # Forget what is not the file; if the begin of it came earlier, it is worth another try.
    wrong = ""
    if file.nbytes not in (None, partial.size):
        wrong = f"expected {file.nbytes} bytes, got {partial.size}"
    elif file.sha256 and (checksum := partial.sha256()) != file.sha256:
        wrong = f"expected sha256 {file.sha256}, got {checksum}: another file than is known"
    if wrong:
        partial.drop()
        raise (PassingError if resumed else RefusedError)(wrong)
