"""Fetching: from a server that fails in every way, from folders, and into nothing but the root."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from functional_rb.base import progress
from functional_rb.datasets import RemoteFile, Retry, fetch
from functional_rb.datasets.fetching import http, paths
from functional_rb.datasets.fetching.remote import FetchError, RefusedError
from tests.datasets.file_server import Served, serving
from tests.support.effort import effort

fetching = sys.modules["functional_rb.datasets.fetching.fetch"]
partial = sys.modules["functional_rb.datasets.fetching.partial"]
ROOT = Path(__file__).parents[2]
CONTENT = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Waits:
    """Retries that keep how long it was to wait, and wait for nothing."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.retry = Retry(sleep=self.seconds.append, uniform=random.Random(0).random)


@pytest.fixture(name="waits")
def waits_fixture() -> Waits:
    return Waits()


@pytest.fixture(name="served")
def served_fixture() -> Served:
    return Served(CONTENT)


@pytest.fixture(name="url")
def url_fixture(served: Served) -> Iterator[str]:
    with serving({"/a.bin": served}) as address:
        yield f"{address}/a.bin"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PIECE", 7000)


def inside(root: Path) -> list[str]:
    """The files below a root that users see."""
    found = [path for path in root.rglob("*") if path.is_file() and ".fetching" not in path.parts]
    return sorted(str(path.relative_to(root)) for path in found)


def test_a_file_is_fetched_once(served: Served, url: str, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetch(url, tmp_path / "root") == [str(tmp_path / "root" / "a.bin")]
    assert (tmp_path / "root" / "a.bin").read_bytes() == CONTENT
    assert served.requests == [None]
    assert inside(tmp_path) == ["root/a.bin"]


def test_a_file_gets_its_name_at_one_instant(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, rename, seen = partial.disk, partial.disk.rename, []  # type: ignore[attr-defined]  # what it imports

    def watched(old: str, new: str) -> None:
        if new == str(tmp_path / "a.bin"):
            seen.append((os.path.exists(new), Path(old).read_bytes() == CONTENT))
        rename(old, new)

    monkeypatch.setattr(disk, "rename", watched)
    fetch(url, tmp_path)
    assert seen == [(False, True)]


def test_an_empty_file_is_one(served: Served, url: str, tmp_path: Path) -> None:
    served.content = b""
    assert os.path.getsize(fetch(url, tmp_path)[0]) == 0


@pytest.mark.parametrize("same", [{"etag": '"x"'}, {"etag": "", "modified": "Mon, 02 Jan 2023 00:00:00 GMT"}])
def test_cut_connections_are_gone_on_with(
    served: Served, url: str, same: dict[str, str], waits: Waits, tmp_path: Path
) -> None:
    served.etag, served.modified = same["etag"], same.get("modified", "")
    served.faults = [("cut", 50_001), 503, ("cut", 100_000), ("cut", 0)]
    assert Path(fetch(url, tmp_path, retry=waits.retry)[0]).read_bytes() == CONTENT
    assert served.requests == [None, *["bytes=50001-"] * 2, *["bytes=150001-"] * 2]
    assert len(waits.seconds) == 4


def test_tries_that_get_further_are_not_counted(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    served.faults = [("cut", 40_000)] * 6
    retry = dataclasses.replace(waits.retry, times=1)
    assert Path(fetch(url, tmp_path, retry=retry)[0]).read_bytes() == CONTENT


def test_progress_goes_on_from_where_it_was(
    served: Served, url: str, waits: Waits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[dict[str, Any]] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            bars.append(options)

        def update(self, n: int) -> None:
            bars[-1]["initial"] += n

        def close(self) -> None:
            bars[-1]["closed"] = True

    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "_bar", lambda: Bar)
    served.faults = [("cut", 50_001)]
    fetch(url, tmp_path, progress=True, retry=waits.retry)
    fetch(url, tmp_path / "other", progress=False)
    assert [(bar["desc"], bar["total"], bar["initial"], bar["closed"]) for bar in bars] == [
        ("fetch a.bin", 300_000, done, True) for done in (50_001, 300_000)
    ]


def test_what_nobody_can_tell_to_be_the_same_is_begun_anew(
    served: Served, url: str, waits: Waits, tmp_path: Path
) -> None:
    served.etag, served.faults = 'W/"weak"', [("cut", 50_001)]
    assert Path(fetch(url, tmp_path, retry=waits.retry)[0]).read_bytes() == CONTENT
    assert served.requests == [None, None]


def test_waits_grow_up_to_a_bound_and_have_jitter(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    served.faults = [503] * 9
    fetch(url, tmp_path, retry=dataclasses.replace(waits.retry, times=9, first=2.0, most=20.0))
    for waited, longest in zip(waits.seconds, [2, 4, 8, 16, 20, 20, 20, 20, 20], strict=True):
        assert longest / 2 <= waited <= longest
    assert len({waited / longest for waited, longest in zip(waits.seconds[4:], [20] * 5, strict=True)}) == 5


def test_what_a_server_asks_to_wait_is_waited(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    served.faults, served.headers = [429, 503], {"Retry-After": "17"}
    fetch(url, tmp_path, retry=waits.retry)
    assert waits.seconds == [17.0, 17.0]


def test_a_server_that_does_not_come_back_is_given_up(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    served.faults = [("cut", 60_000), *[503] * 7]
    with pytest.raises(FetchError, match=r"(?s)'a.bin'.*HTTP 503.*7 tries in a row.*60000 bytes that are there"):
        fetch(url, tmp_path, retry=waits.retry)
    assert inside(tmp_path) == []
    assert Path(fetch(url, tmp_path, retry=waits.retry)[0]).read_bytes() == CONTENT
    assert served.requests[-1] == "bytes=60000-"


def test_a_changed_file_is_begun_anew(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    served.faults = [("cut", 60_000), *[404] * 2]
    with pytest.raises(FetchError, match="404"):
        fetch(url, tmp_path, retry=waits.retry)
    served.content, served.etag, served.faults, before = CONTENT[::-1], '"second"', [], len(served.requests)
    assert Path(fetch(url, tmp_path)[0]).read_bytes() == CONTENT[::-1]
    assert served.requests[before:] == ["bytes=60000-"]  # with If-Range, the server gives all of it at once


def test_a_server_that_ignores_if_range_is_found_out(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    served.faults = [("cut", 60_000), 404]
    with pytest.raises(FetchError):
        fetch(url, tmp_path, retry=waits.retry)
    served.content, served.etag = CONTENT[::-1], '"second"'
    served.headers = {"ETag": '"second"'}
    served.etag = '"first"'  # it goes by this one, and tells the other
    assert Path(fetch(url, tmp_path, retry=waits.retry)[0]).read_bytes() == CONTENT[::-1]
    assert served.requests[-2:] == ["bytes=60000-", None]


def test_a_file_that_became_shorter_is_begun_anew(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    served.faults = [("cut", 60_000), 404]
    with pytest.raises(FetchError):
        fetch(url, tmp_path, retry=waits.retry)
    served.content = CONTENT[:1000]
    assert Path(fetch(url, tmp_path, retry=waits.retry)[0]).read_bytes() == CONTENT[:1000]


def test_a_server_without_ranges_gives_all_again(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    served.faults, served.ranges = [("cut", 60_000)], False
    assert Path(fetch(url, tmp_path, retry=waits.retry)[0]).read_bytes() == CONTENT


WRONG: dict[str, tuple[dict[str, str | None], dict[str, Any], str]] = {
    "another size": ({}, {"nbytes": 299_999}, "expected 299999 bytes, but the server has 300000"),
    "another sha256": ({}, {"sha256": SHA256[::-1]}, f"expected sha256 {SHA256[::-1]}, got {SHA256}"),
    "too long a length": ({"Content-Length": "300001"}, {}, "cut after 300000 of 300001 bytes"),
    "no length": ({"Content-Length": None}, {}, "does not tell the file's length"),
    "no number as length": ({"Content-Length": "-5"}, {}, "expected a number as Content-Length"),
    "an encoding": ({"Content-Encoding": "gzip"}, {}, "'gzip', though asked for it as it is"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_not_the_file_is_refused(
    case: tuple[dict[str, str | None], dict[str, Any], str], served: Served, url: str, waits: Waits, tmp_path: Path
) -> None:
    served.headers, known, message = case
    with pytest.raises(FetchError, match=message) as caught:
        fetch(RemoteFile("b/c.bin", (url,), **known), tmp_path, retry=waits.retry)
    assert url in str(caught.value)
    assert str(tmp_path / "b" / "c.bin") in str(caught.value)
    assert inside(tmp_path) == []


def test_a_part_of_another_file_is_found_out_by_its_sha256(
    served: Served, url: str, waits: Waits, tmp_path: Path
) -> None:
    other = Served(CONTENT[::-1], faults=[("cut", 60_000), 404])
    with serving({"/a.bin": other}) as mirror:
        with pytest.raises(FetchError):
            fetch(RemoteFile("a.bin", (f"{mirror}/a.bin",), sha256=SHA256), tmp_path, retry=waits.retry)
        fetch(RemoteFile("a.bin", (url,), sha256=SHA256), tmp_path, retry=waits.retry)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert served.requests == ["bytes=60000-", None]


def test_a_range_that_is_not_as_long_as_it_says_is_refused(
    served: Served, url: str, waits: Waits, tmp_path: Path
) -> None:
    """Its bytes may be those of another place: nobody can tell which of both numbers is right."""
    served.faults, served.headers = [("cut", 60_000)], {"Content-Range": "bytes 60000-60009/300000"}
    message = r"206 with the bytes from 60000 on, got 206 with Content-Range 'bytes 60000-60009/300000'"
    with pytest.raises(FetchError, match=message):
        fetch(url, tmp_path, retry=waits.retry)
    assert inside(tmp_path) == []


def test_a_mirror_goes_on_where_another_was_left(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    other = Served(CONTENT, etag='"of its own"', faults=[("cut", 60_000), 410])
    with serving({"/a.bin": other}) as mirror:
        fetch(RemoteFile("a.bin", (f"{mirror}/a.bin", url), sha256=SHA256), tmp_path, retry=waits.retry)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert served.requests == ["bytes=60000-"]


def test_redirects_are_followed_up_to_a_bound(served: Served, url: str, tmp_path: Path) -> None:
    moved = Served(b"", faults=[302] * 50, headers={"Location": url})
    circle = Served(b"", faults=[302] * 50)
    with serving({"/moved.bin": moved, "/circle.bin": circle}) as address:
        circle.headers = {"Location": f"{address}/circle.bin"}
        assert Path(fetch(f"{address}/moved.bin", tmp_path)[0]).read_bytes() == CONTENT
        with pytest.raises(FetchError, match="HTTP 302"):
            fetch(f"{address}/circle.bin", tmp_path)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:text/plain,a"])
def test_redirects_to_other_schemes_are_refused(location: str, tmp_path: Path) -> None:
    served = Served(b"", faults=[302], headers={"Location": location})
    with serving({"/a.bin": served}) as address, pytest.raises(FetchError, match=r"refused|not allowed"):
        fetch(f"{address}/a.bin", tmp_path)
    assert inside(tmp_path) == []


def test_redirects_away_from_https_are_refused() -> None:
    redirects = http._Redirects()  # a server with a certificate would take a library to make one
    request = urllib.request.Request("https://example.org/a")
    with pytest.raises(RefusedError, match="from https to http"):
        redirects.redirect_request(request, None, 302, "Found", {}, "http://example.org/a")
    assert redirects.redirect_request(request, None, 302, "Found", {}, "https://example.org/b") is not None


NAMES = [
    "../a",
    "/a",
    "a/../../b",
    "",
    "a//b",
    "./a",
    "a/.",
    "a\\b",
    "..",
    "a\nb",
    "C:/a",
    "C:a",
    "b/C:a",
    ".fetching/a",
    "x" * 256,
]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the name of a file below the root"):
        RemoteFile(name, ("https://example.org/a",))
    assert inside(tmp_path) == []


@pytest.mark.parametrize("url", ["http://example.org/..", "http://example.org/a/%2e%2e", "http://example.org/"])
def test_addresses_without_a_name_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the name of a file"):
        fetch(url, tmp_path)


def test_links_out_of_the_root_are_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    for name in ("root", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "root" / "a").symlink_to(tmp_path / "outside")
    (tmp_path / "other" / ".fetching").symlink_to(tmp_path / "outside")
    for name in ("root", "other"):
        with pytest.raises(ValueError, match=r"out of .* by a link"):
            fetch(RemoteFile("a/b.bin", ("https://example.org/b.bin",)), tmp_path / name)
    assert inside(tmp_path / "outside") == []


def test_what_cannot_be_a_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="tuple of addresses"):
        RemoteFile("a", "https://example.org/a")  # type: ignore[arg-type]  # the point of it
    with pytest.raises(ValueError, match="got none"):
        RemoteFile("a", ())
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        RemoteFile("a", ("b",), sha256="abc")
    with pytest.raises(ValueError, match="comes twice"):
        fetch([RemoteFile("a", ("b",)), RemoteFile("a", ("c",))], tmp_path)
    with pytest.raises(ValueError, match="expected an address"):
        fetch("/a/folder", tmp_path)
    with pytest.raises(FetchError, match="begins with https"):
        fetch("ftp://example.org/a.bin", tmp_path)


def test_folders_are_sources_offline_too(url: str, served: Served, tmp_path: Path) -> None:
    (tmp_path / "mirror" / "b").mkdir(parents=True)
    (tmp_path / "mirror" / "b" / "a.bin").write_bytes(CONTENT)
    file = RemoteFile("b/a.bin", (url, str(tmp_path / "mirror")), 300_000, SHA256)
    assert Path(fetch(file, tmp_path / "root", offline=True)[0]).read_bytes() == CONTENT
    shutil.rmtree(tmp_path / "mirror")
    fetch(file, tmp_path / "root", offline=True)  # it is there
    with pytest.raises(FetchError, match=r"(?s)not asked, since offline=True.*no such file in this folder"):
        fetch(file, tmp_path / "empty", offline=True)
    assert served.requests == []


def test_offline_nobody_is_asked_which_files_a_dataset_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []
    monkeypatch.setattr(http, "ask", lambda *given: asked.append(given))
    with pytest.raises(FetchError, match=r"human-v2: its files are listed at https.*, not asked, since offline=True"):
        fetch("minari:D4RL/door/human-v2", tmp_path, offline=True)
    assert asked == []
    assert [*tmp_path.iterdir()] == []


def test_without_a_root_files_come_to_lie_where_datasets_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUNCTIONAL_RB_DATASETS", str(tmp_path / "datasets"))
    (tmp_path / "a.bin").write_bytes(CONTENT)
    (made,) = fetch(RemoteFile("b/a.bin", (str(tmp_path),), inside="a.bin"))
    assert made == str(tmp_path / "datasets/b/a.bin")
    assert Path(made).read_bytes() == CONTENT


def test_a_root_of_another_kind_is_refused_before_anybody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(http, "ask", lambda *given: asked.append(given))
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"datasets\.fetch: expected "):
        fetch("minari:D4RL/door/human-v2", wrong)
    assert asked == []


def test_a_cache_of_hugging_face_is_a_source(tmp_path: Path) -> None:
    repository = tmp_path / "datasets--ada--doors"
    for folder in ("blobs", "refs", "snapshots/c0ffee/data"):
        (repository / folder).mkdir(parents=True)
    (repository / "blobs" / SHA256).write_bytes(CONTENT)
    (repository / "snapshots/c0ffee/data/a.bin").symlink_to(Path("../../../blobs") / SHA256)
    (repository / "refs" / "main").write_text("c0ffee")
    file = RemoteFile("data/a.bin", (str(repository),))
    assert Path(fetch(file, tmp_path / "root", offline=True)[0]).read_bytes() == CONTENT
    assert not (tmp_path / "root/data/a.bin").is_symlink()
    (repository / "refs" / "main").write_text("../../..")
    with pytest.raises(FetchError, match="no such file"):
        fetch(file, tmp_path / "again", offline=True)
    for commit in ("../../..", "..", ".", "c0ffee/../.."):
        (repository / "refs" / "main").write_text(commit)
        assert paths.snapshot(str(repository)) is None


def test_a_file_of_another_size_is_fetched_again(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old")
    fetch(RemoteFile("a.bin", (url,), len(CONTENT)), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_full_disk_is_an_error_that_names_the_place(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, write = partial.disk, partial.disk.write  # type: ignore[attr-defined]  # what it imports

    def full(fd: int, content: bytes) -> None:
        if len(content) == 7000:
            raise OSError(28, "No space left on device")
        write(fd, content)

    monkeypatch.setattr(disk, "write", full)
    with pytest.raises(OSError, match=r"no room for http://.*\.fetching") as caught:
        fetch(url, tmp_path)
    assert type(caught.value).__name__ == "StorageFullError"


def test_a_journal_that_was_damaged_costs_the_part(served: Served, url: str, waits: Waits, tmp_path: Path) -> None:
    for content in (b"", b"{", b"[]", None, b'{"synced": true}', b'{"synced": 5, "x": 1}'):
        served.faults = [("cut", 60_000), 404]
        with pytest.raises(FetchError):
            fetch(url, tmp_path, retry=waits.retry)
        journal = next(tmp_path.glob(".fetching/*.json"))
        longer = {**json.loads(journal.read_bytes()), "synced": len(CONTENT) - 1}  # more than there is of the part
        journal.write_bytes(json.dumps(longer).encode() if content is None else content)
        assert Path(fetch(url, tmp_path)[0]).read_bytes() == CONTENT
        os.unlink(tmp_path / "a.bin")


def test_threads_that_want_one_file_fetch_it_once(served: Served, url: str, tmp_path: Path) -> None:
    threads = [threading.Thread(target=fetch, args=(url, tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert served.requests == [None]


def test_kills_at_random_instants_leave_the_file_whole_or_not_there(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "tests.children.kill_fetches", str(tmp_path), "1", str(effort(5, 100))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    died, resumed = map(int, done.stdout.split())
    assert died >= effort(5, 100)
    assert resumed > 0
