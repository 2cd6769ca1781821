"""Checkpoints of strangers: no file has anything written, made or removed outside of the directory that is loaded."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from functional_rb.__main__ import main
from tests.support.checkpoints import rewritten

ITEM = {"x": frb.Unbounded((3,))}
Tree = dict[str, bytes | None]


def filled(number: float, storage: Any = None) -> Any:
    spec = frb.BufferSpec(ITEM, 8, storage=frb.Device() if storage is None else storage)
    return rb.add(rb.init(spec), {"x": np.full((4, 3), number, np.float32)})


def number_of(state: Any) -> float:
    return float(rb.items(state)["x"][0, 0])


def tree_of(path: Path) -> Tree:
    """All that lies in a directory: names, links, contents."""
    found: Tree = {}
    for place in sorted(path.rglob("*")):
        name = str(place.relative_to(path))
        link = os.readlink(place).encode() if place.is_symlink() else None
        found[name] = link if link or place.is_dir() else place.read_bytes()
    return found


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Another buffer's files, with a checkpoint and what was added since."""
    path = tmp_path / "victim"
    state = filled(7, frb.Memmap(path))
    frb.save(state, path)
    state = rb.add(state, {"x": np.full((8, 3), 8, np.float32)})
    del state
    gc.collect()
    return path


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    path = tmp_path / "stranger"
    frb.save(filled(1), path)
    return path


def storing(path: Path, storage: frb.Memmap, **more: Any) -> Path:
    """Let the newest manifest say that its buffer lay there."""
    spec = json.loads(frb.convert.to_json(frb.BufferSpec(ITEM, 8, storage=storage)))
    return rewritten(path, lambda told: told.update(spec=spec, **more))


EAGER = {"existsok": True, "auto_cleanup": True}
STORAGES: dict[str, Callable[[Path, Path], frb.Memmap]] = {
    "absolute": lambda victim, _: frb.Memmap(victim, **EAGER),
    "upwards": lambda _, stranger: frb.Memmap(f"{stranger}/../victim", **EAGER),
    "relative": lambda *_: frb.Memmap("../victim", **EAGER),
    "by a link beside the manifest": lambda _, stranger: frb.Memmap(stranger / "link", **EAGER),
    "within a directory beside the manifest": lambda _, stranger: frb.Memmap(stranger / "new", **EAGER),
    "another user's home": lambda *_: frb.Memmap("~/../victim", **EAGER),
    "shared": lambda victim, _: frb.Memmap(victim, shared=True, **EAGER),
    "shared, to stay in the temporary directory": lambda *_: frb.Memmap(shared=True, auto_cleanup=False),
}


@pytest.mark.parametrize("way", STORAGES)
def test_no_path_in_a_manifest_leads_out_of_its_directory(
    way: str, victim: Path, stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (stranger / "link").symlink_to(victim)
    manifest = storing(stranger, STORAGES[way](victim, stranger))
    before = tree_of(tmp_path)
    with pytest.raises(
        ValueError, match=r"not in the checkpoint's own directory.*storage=frb\.Memmap\(a path\)"
    ) as caught:
        frb.load(stranger, rb, frb.checkpoint.LoadOptions(fall_back=True))
    assert str(caught.value).startswith(f"{manifest}: ")
    assert number_of(frb.load(stranger, rb, storage=frb.Host())) == 1
    assert number_of(frb.load(stranger, rb, spec=frb.BufferSpec(ITEM, 9))) == 1
    assert isinstance(frb.checkpoint.load_spec(stranger).storage, frb.Memmap)
    assert main(["inspect", str(stranger)]) == 0
    gc.collect()
    assert tree_of(tmp_path) == before


def test_who_loads_says_where_files_lie(victim: Path, tmp_path: Path) -> None:
    """What was saved beside its files goes on in them, or in others, if that is said."""
    files = tmp_path / "files"
    state = filled(2, frb.Memmap(files))
    frb.save(state, tmp_path / "run")
    del state
    gc.collect()
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="not in the checkpoint's own directory"):
        frb.load(tmp_path / "moved", rb)
    for path in (files, tmp_path / "others"):
        state = frb.load(tmp_path / "moved", rb, storage=frb.Memmap(path, existsok=True))
        assert number_of(state) == 2
        assert state.spec.storage.path == str(path)
        assert path.joinpath("rows.bin").stat().st_size == 8 * 12
    # Files that lay in the checkpoint's own directory move with it.
    victim.rename(tmp_path / "moved victim")
    assert number_of(frb.load(tmp_path / "moved victim", rb)) == 7


def test_a_member_of_a_mixture_is_no_way_out(victim: Path, tmp_path: Path) -> None:
    place = tmp_path / "mixture"
    frb.save(frb.Mixture([filled(1), filled(2)]), place)
    storing(place / "buffers" / "1", frb.Memmap(victim, **EAGER))
    before = tree_of(tmp_path)
    with pytest.raises(ValueError, match=r"buffers/1/0000000001\.json: .*not in the checkpoint's own"):
        frb.load(place, rb)
    loaded = frb.load(place, rb, spec=[None, frb.BufferSpec(ITEM, 8)])
    assert [number_of(state) for state in loaded] == [1, 2]
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize("link", ["buffers", "buffers/1"])
def test_a_directory_of_a_mixture_is_no_link(link: str, tmp_path: Path) -> None:
    """Else a load would roll back the files of another buffer, and a save remove its checkpoints."""
    place, mixture = tmp_path / "mixture", frb.Mixture([filled(1), filled(2)])
    frb.save(mixture, place)
    (place / link).rename(tmp_path / "elsewhere")
    (place / link).symlink_to(tmp_path / "elsewhere")
    before = tree_of(tmp_path)
    for call in (
        frb.checkpoint.load_spec,
        lambda path: frb.load(path, rb),
        lambda path: frb.save(mixture, path, keep=1),
    ):
        with pytest.raises(frb.errors.CheckpointError, match=f"{link}: a symbolic link, which leads out"):
            call(place)
    assert main(["inspect", str(place)]) == 0
    assert tree_of(tmp_path) == before


LINKS = {"a symbolic link": os.symlink, "a hard link": os.link}


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("name", ["rows.bin", "undo-00000001.bin", "storage.json", "0000000001.safetensors"])
def test_nothing_is_written_through_links_in_a_directory(name: str, kind: str, victim: Path, tmp_path: Path) -> None:
    """A link has the size and the content that the checkpoint is to have, so only what it is can tell."""
    stranger = tmp_path / "stranger"
    shutil.copytree(victim, stranger)
    (stranger / name).unlink()
    LINKS[kind](victim / name, stranger / name)
    before = tree_of(victim)
    if name == "rows.bin":
        mapped = frb.BufferSpec(ITEM, 8, storage=frb.Memmap(stranger, existsok=True))
        for call in (lambda: frb.load(stranger, rb), lambda: rb.init(mapped)):
            with pytest.raises(ValueError, match=f"{stranger / name}: .*link.*cp -a"):
                call()
    else:
        state = frb.load(stranger, rb)
        assert number_of(state) == 7
        for number in (20, 21):
            state = rb.add(state, {"x": np.full((8, 3), number, np.float32)})
            frb.save(state, stranger, keep=1)
        del state
    assert tree_of(victim) == before
    gc.collect()
    assert number_of(frb.load(stranger, rb, storage=frb.Host())) == (7 if name == "rows.bin" else 21)
    assert tree_of(victim) == before


def test_a_directory_of_symbolic_links_says_how_to_copy_it(victim: Path, tmp_path: Path) -> None:
    """As `cp -as` makes it: the lock is the first that is opened, and a link to it none through which one writes."""
    links = tmp_path / "links"
    links.mkdir()
    for file in victim.iterdir():
        (links / file.name).symlink_to(file)
    with pytest.raises(OSError, match=r"copy the directory \(cp -aL\).*storage\.lock"):
        frb.load(links, rb)
    assert number_of(frb.load(links, rb, storage=frb.Host())) == 7


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("name", ["rows.bin", "control.bin", "journal.bin", "shared.json", "lock"])
def test_a_shared_buffer_writes_through_no_links(name: str, kind: str, tmp_path: Path) -> None:
    victim, stranger = tmp_path / "victim", tmp_path / "stranger"
    mine = filled(7, frb.Memmap(victim, shared=True))
    shutil.copytree(victim, stranger)
    (stranger / name).unlink()
    LINKS[kind](victim / name, stranger / name)
    before = tree_of(victim)
    if name in ("shared.json", "lock") and (name, kind) != ("lock", "a symbolic link"):
        filled(9, frb.Memmap(stranger, shared=True))
    else:
        with pytest.raises((ValueError, OSError), match=name):
            filled(9, frb.Memmap(stranger, shared=True))
    assert tree_of(victim) == before
    assert number_of(mine) == 7
