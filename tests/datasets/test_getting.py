"""The table of sources, and the files of datasets that it knows: listed by stand-ins for those who have them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import functional_rb as frb
from functional_rb.datasets import Retry, fetch, sources
from functional_rb.datasets.fetching import listing
from functional_rb.datasets.fetching.remote import FetchError
from functional_rb.datasets.reader import open_reader, prefixes
from tests.datasets import datasets_of_others as others
from tests.datasets.file_server import Served, serving

RETRY = Retry(sleep=lambda seconds: None, uniform=lambda: 0.5)


@pytest.fixture(name="server")
def server_fixture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Served]]:
    """What the stand-ins serve."""
    files: dict[str, Served] = {}
    with serving(files) as address:
        monkeypatch.setattr(listing, "HUB", address)
        monkeypatch.setattr(listing, "STORAGE", address)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        yield files


def test_the_table_has_what_every_prefix_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("functional_rb.datasets.reader._REGISTERED", {})  # by other tests
    names = [row.names for row in sources.table()]
    assert len(set(names)) == len(names)
    for prefix in {*prefixes()} - {"gymnasium", "rlds", "stored"}:
        row = sources.source_of(f"{prefix}:any-thing/at/all")
        assert row.licence, prefix
        assert row.homepage.startswith("https://"), prefix
        assert row.urls, prefix
    for row in sources.table():
        assert row.names.partition(":")[0] in prefixes()
        for address in (*row.urls, *row.files.values()):
            assert address.startswith(("https://", "http://", "gs://"))


def test_rows_are_put_together_and_names_put_in() -> None:
    row = sources.source_of("d4rl:hopper-medium-v2")
    assert row.licence == "CC BY 4.0"
    assert [*row.files] == ["hopper-medium-v2.hdf5"]
    bigfish = sources.source_of("gen_dgrl:bigfish-level_40_S").files
    assert [*bigfish] == ["bigfish-level_40_S/bigfish.tar.xz"]
    assert next(iter(bigfish.values())).endswith("/100k/level_40/suboptimal/bigfish.tar.xz")
    assert sources.source_of("minari:D4RL/door/human-v2").hub == "farama-minari/D4RL"
    assert sources.facts_of("mine:own") == {"licence": "", "homepage": "", "urls": [], "size": "", "cite": ""}


def test_sizes_are_numbers_with_units_and_are_no_check_of_files() -> None:
    told = [row for row in sources.table() if row.size]
    assert {row.names.partition(":")[0] for row in told} == {"d4rl", "openx"}
    for row in told:
        assert re.fullmatch(r"\d+\.\d\d [MG]iB", row.size), row
        assert float(row.size.split()[0]) > 0, row
        assert "*" not in row.names, row
        assert row.nbytes is None, row
    assert sources.source_of("d4rl:halfcheetah-expert-v0").size == f"{87_495_442 / 2**20:.2f} MiB"
    assert [file.nbytes for file in listing.files_of("d4rl:halfcheetah-expert-v0", RETRY)] == [None]
    bridge = sources.source_of("openx:bridge")
    assert (bridge.size, bridge.folder) == ("387.49 GiB", "bridge")
    assert sources.source_of("openx:bridge/0.2.0").size == ""


def test_files_that_the_table_names_are_fetched_to_where_they_are_read(
    server: dict[str, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    others.gen_dgrl(tmp_path / "made")
    archive = next(iter(sorted((tmp_path / "made").rglob("*.xz")))).read_bytes()
    server["/x/bigfish.tar.xz"] = Served(archive)
    known = {"{name}/{stem}.tar.xz": f"{listing.HUB}/x/{{stem}}.tar.xz"}
    digest = {"{name}/{stem}.tar.xz": hashlib.sha256(archive).hexdigest()}
    rows = (sources.Source("gen_dgrl:*", files=known, sha256=digest),)
    monkeypatch.setattr(sources, "table", lambda: rows)
    (path,) = frb.datasets.fetch("gen_dgrl:bigfish-1M_E", tmp_path / "root")
    assert path == str(tmp_path / "root" / "gen_dgrl" / "bigfish-1M_E" / "bigfish.tar.xz")
    assert len([*open_reader("gen_dgrl:bigfish-1M_E", str(tmp_path / "root")).episodes()]) == len(others.LENGTHS)


def test_repositories_are_listed_page_by_page(server: dict[str, Served], tmp_path: Path) -> None:
    content = {"vd4rl/main/walk/64px/0.npz": b"zero", "vd4rl/main/walk/64px/a b.npz": b"one"}
    pages = []
    for path, part in content.items():
        lfs = {"oid": hashlib.sha256(part).hexdigest()}
        pages.append(
            [{"type": "directory", "path": "x"}, {"type": "file", "path": path, "size": len(part), "lfs": lfs}]
        )
        quoted = path.replace(" ", "%20")
        server[f"/datasets/conglu/vd4rl/resolve/main/{quoted}"] = Served(part)
    tree = "/api/datasets/conglu/vd4rl/tree/main/vd4rl/main/walk/64px?recursive=true"
    link = {"Link": f'<{listing.HUB}/next>; rel="next"'}
    server[tree] = Served(json.dumps(pages[0]).encode(), headers=dict(link), faults=[503])
    server["/next"] = Served(json.dumps(pages[1]).encode())
    paths = fetch("vd4rl:main/walk/64px", tmp_path, retry=RETRY)
    assert [Path(path).relative_to(tmp_path).as_posix() for path in paths] == [
        "vd4rl/main/walk/64px/0.npz",
        "vd4rl/main/walk/64px/a b.npz",
    ]
    assert [Path(path).read_bytes() for path in paths] == [b"zero", b"one"]
    assert all(file.sha256 for file in listing.files_of("vd4rl:main/walk/64px", RETRY))
    server[tree].headers["Link"] = '<https://example.org/next>; rel="next"'
    with pytest.raises(FetchError, match=r"elsewhere, at https://example.org/next"):
        listing.files_of("vd4rl:main/walk/64px", RETRY)


def test_buckets_are_listed_page_by_page(server: dict[str, Served], tmp_path: Path) -> None:
    first = "/storage/v1/b/atari-replay-datasets/o?prefix=dqn%2FPong%2F1%2Freplay_logs%2F"
    names = [f"dqn/Pong/1/replay_logs/{name}" for name in ("$store$_action_ckpt.0.gz", "add_count_ckpt.0.gz")]
    pages = [{"items": [{"name": name, "size": "3"}, {"name": "dqn/", "size": "0"}]} for name in names]
    server[first] = Served(json.dumps({**pages[0], "nextPageToken": "a/b"}).encode())
    server[f"{first}&pageToken=a%2Fb"] = Served(json.dumps(pages[1]).encode())
    for name in names:
        server[f"/atari-replay-datasets/{name.replace('$', '%24')}"] = Served(b"abc")
    paths = fetch("atari_dqn:Pong/1", tmp_path, retry=RETRY)
    assert [Path(path).parent for path in paths] == [tmp_path / "atari_dqn" / "Pong" / "1" / "replay_logs"] * 2


def test_files_in_the_cache_of_hugging_face_are_not_fetched(server: dict[str, Served], tmp_path: Path) -> None:
    entry = {"type": "file", "path": "vd4rl/main/0.npz", "size": 4}
    server["/api/datasets/conglu/vd4rl/tree/main/vd4rl/main?recursive=true"] = Served(json.dumps([entry]).encode())
    snapshot = tmp_path / "cache" / "datasets--conglu--vd4rl" / "snapshots" / "c0ffee" / "vd4rl" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "0.npz").write_bytes(b"zero")
    (snapshot.parents[3] / "refs").mkdir()
    (snapshot.parents[3] / "refs" / "main").write_text("c0ffee")
    (path,) = fetch("vd4rl:main", tmp_path / "root", retry=RETRY)
    assert Path(path).read_bytes() == b"zero"


def test_what_cannot_be_listed_is_told(
    server: dict[str, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FetchError, match="expected a list of files: HTTP 404"):
        fetch("vd4rl:main", tmp_path, retry=RETRY)
    server["/api/datasets/conglu/vd4rl/tree/main/vd4rl/main?recursive=true"] = Served(b"[]")
    with pytest.raises(FileNotFoundError, match="is the name right"):
        fetch("vd4rl:main", tmp_path, retry=RETRY)
    server["/api/datasets/conglu/vd4rl/tree/main/vd4rl/main?recursive=true"] = Served(b"no list")
    with pytest.raises(FetchError, match="expected a list of files"):
        fetch("vd4rl:main", tmp_path, retry=RETRY)
    for content in (b'{"error": "gated"}', b"[1]", b'[{"type": "file", "path": "a"}]'):
        server["/api/datasets/conglu/vd4rl/tree/main/vd4rl/main?recursive=true"] = Served(content)
        with pytest.raises(FetchError, match=r"tree/main/vd4rl/main.*: expected a list of files, got something else"):
            fetch("vd4rl:main", tmp_path, retry=RETRY)
    server["/storage/v1/b/atari-replay-datasets/o?prefix=dqn%2FPong%2F1%2Freplay_logs%2F"] = Served(b'{"items": [3]}')
    with pytest.raises(FetchError, match=r"/o\?prefix=.*: expected a list of files, got something else"):
        fetch("atari_dqn:Pong/1", tmp_path, retry=RETRY)
    with monkeypatch.context() as patch:
        patch.setattr(listing, "MOST", 5)
        with pytest.raises(FetchError, match="expected at most 5 bytes in a list of files"):
            fetch("atari_dqn:Pong/1", tmp_path, retry=RETRY)
    outside = [{"type": "file", "path": "vd4rl/main/../../../a", "size": 1}]
    server["/api/datasets/conglu/vd4rl/tree/main/vd4rl/main?recursive=true"] = Served(json.dumps(outside).encode())
    with pytest.raises(ValueError, match="may not be absolute, and not have"):
        fetch("vd4rl:main", tmp_path, retry=RETRY)
    with pytest.raises(ValueError, match=r"nobody knows where its files lie.*https://www.openml.org/d/150"):
        fetch("openml:covertype", tmp_path)
    with pytest.raises(ValueError, match="may not be absolute"):
        fetch("vd4rl:../../etc", tmp_path)
