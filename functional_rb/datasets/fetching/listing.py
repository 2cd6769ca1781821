"""Which files a dataset has: as the table of sources says, or a repository of Hugging Face, or a bucket of Google's."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

from functional_rb.datasets.fetching.paths import REVISION, WHO, checked, hub_folder
from functional_rb.datasets.fetching.remote import FetchError, RefusedError, RemoteFile, Retry, persisted
from functional_rb.datasets.reader import split_name
from functional_rb.datasets.sources import source_of

HUB, STORAGE = "https://huggingface.co", "https://storage.googleapis.com"
# Bytes that a page of a listing may have.
MOST = 2**26
PAGES = 10_000


def files_of(name: str, retry: Retry, offline: bool = False) -> list[RemoteFile]:
    """The files of a dataset, by the table of sources; repositories and buckets are asked for theirs."""
    prefix, rest = split_name(name)
    checked(rest)
    row = source_of(name)
    into = f"{prefix}/{row.into or rest}"
    if row.files:
        files = [
            RemoteFile(f"{prefix}/{path}", (url,), sha256=row.sha256.get(path, "")) for path, url in row.files.items()
        ]
    elif not (row.hub or row.bucket):
        known = ", ".join(dict.fromkeys(filter(None, (row.homepage, *row.urls)))) or "nothing"
        raise ValueError(f"{WHO}: {name}: nobody knows where its files lie; of where it comes from: {known}")
    elif offline:
        raise FetchError(f"{WHO}: {name}: its files are listed at {', '.join(row.urls)}, not asked, since offline=True")
    elif row.hub:
        files = of_hub(row.hub, row.folder, into, retry)
    else:
        files = of_bucket(row.bucket, row.folder, into, retry)
    if not files:
        raise FileNotFoundError(f"{WHO}: {name}: there are no files at {', '.join(row.urls)}; is the name right?")
    if len(files) == 1 and row.nbytes is not None:
        return [dataclasses.replace(files[0], nbytes=row.nbytes)]
    return files


def of_hub(repository: str, folder: str, into: str, retry: Retry) -> list[RemoteFile]:
    """The files in a folder of a dataset's repository on Hugging Face, which come to lie in the folder `into`.

    Those that are in the cache of Hugging Face are taken from there.
    """
    inside, files = urllib.parse.quote(folder), []
    first = f"{HUB}/api/datasets/{checked(repository)}/tree/{REVISION}/{inside}?recursive=true"
    with _understood(first):
        for entry in itertools.chain.from_iterable(_pages(first, retry)):
            if entry.get("type") == "file":
                path = entry["path"]
                url = f"{HUB}/datasets/{repository}/resolve/{REVISION}/{urllib.parse.quote(path)}"
                # For small files the hub tells no sha256, but a checksum of Git's.
                sha256 = (entry.get("lfs") or {}).get("oid", "")
                files.append(_file(path, folder, into, (hub_folder(repository), url), entry["size"], sha256))
    return files


def of_bucket(bucket: str, folder: str, into: str, retry: Retry) -> list[RemoteFile]:
    files: list[RemoteFile] = []
    first = f"{STORAGE}/storage/v1/b/{bucket}/o?prefix={urllib.parse.quote(folder, '')}%2F"
    with _understood(first):
        for entry in itertools.chain.from_iterable(page.get("items", ()) for page in _pages(first, retry)):
            if not entry["name"].endswith("/"):
                url = f"{STORAGE}/{bucket}/{urllib.parse.quote(entry['name'])}"
                files.append(_file(entry["name"], folder, into, (url,), int(entry["size"]), ""))
    return files


@contextlib.contextmanager
def _understood(url: str) -> Iterator[None]:
    # Answers that are JSON, but no listing, as errors that name the address.
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise FetchError(f"{WHO}: {url}: expected a list of files, got something else: {error!r}") from None


def _file(path: str, folder: str, into: str, sources: tuple[str, ...], nbytes: int, sha256: str) -> RemoteFile:
    inner = path[len(folder) :].lstrip("/") if folder else path
    name = checked(f"{into}/{inner}" if into else inner)
    # What is no sha256 (Git's checksum of a small file, say) is not compared with one.
    known = sha256 if re.fullmatch("[0-9a-f]{64}", sha256) else ""
    return RemoteFile(name, sources, nbytes, known, path)


def _pages(url: str, retry: Retry) -> Iterator[Any]:
    # The pages of a listing: each tells the address of the next, or what to ask it by.
    start = url
    for _ in range(PAGES):
        page, link = _page(url, retry)
        yield page
        # Hugging Face gives the next page as a link in a header, Google a token in the page.
        following = re.search(r'<([^>]+)>;\s*rel="next"', link)
        token = page.get("nextPageToken") if isinstance(page, dict) else None
        if following is None and token is None:
            return
        url = f"{start}&pageToken={urllib.parse.quote(str(token), '')}" if following is None else following[1]
        # A server must not be able to have other machines asked, such as those of the user's own network.
        if urllib.parse.urlsplit(url)[:2] != urllib.parse.urlsplit(start)[:2]:
            raise FetchError(f"{WHO}: {start}: its next page is elsewhere, at {url}; refused")
    raise FetchError(f"{WHO}: {start}: expected at most {PAGES} pages")


def _page(url: str, retry: Retry) -> tuple[Any, str]:
    # The JSON of a page, and the header with the links to others.
    from functional_rb.datasets.fetching import http

    def asked() -> tuple[Any, str]:
        answer = http.ask(url, 0, "")
        assert answer is not None  # None comes only for requests of a later byte
        with contextlib.closing(answer.body):
            content = bytearray()
            while piece := answer.read(2**16):
                content += piece
                if len(content) > MOST:
                    raise FetchError(f"{WHO}: {url}: expected at most {MOST} bytes in a list of files")
            return json.loads(content), answer.body.headers.get("Link", "")

    try:
        return persisted(retry, asked)
    except (RefusedError, ValueError) as error:
        raise FetchError(f"{WHO}: {url}: expected a list of files: {error}") from None
