"""Converted datasets as they are read again: many short episodes at once, and each as it was."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.datasets import Episode, convert
from tests.datasets.episodes import equal, joined, open_reader, read, read_in_pieces_of
from tests.datasets.made_up import MadeUp

FIELDS = ("actions", "rewards", "terminated", "infos", "about")


# Of 40,000 bytes, episodes that are not wanted are read over where they are short.
@pytest.mark.parametrize("piece", [2**23, 40_000, 4000, 600, 1])
@pytest.mark.parametrize("compact", [True, False])
def test_any_episodes_are_read_as_they_were(
    piece: int, compact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All, some of them, and from one on; whatever is read at a time, over those that are not wanted too."""
    rng = np.random.default_rng(0)
    reader = MadeUp(rng.integers(1, 9, 40).tolist(), (2,))
    data = convert(reader, tmp_path / "made", frb.datasets.Conversion(infos=True, compact=compact))
    read_in_pieces_of(piece, monkeypatch)
    whole = joined(read(open_reader(data)))
    for told, found in zip(reader.episodes(), whole, strict=True):
        equal(found.observations["observation"], told.observations)
        equal(found.actions, told.actions)
    for count in (1, 2, 5, 20, len(whole)):
        chosen = sorted(rng.choice(len(whole), count, replace=False).tolist())
        some = data.filter(lambda episode, chosen=chosen: episode.number in chosen, tmp_path / f"some_{count}")
        for first in {0, count // 2}:
            again = joined(read(open_reader(some), first))
            assert len(again) == count - first
            for number, episode in zip(chosen[first:], again, strict=True):
                equal(episode.observations, whole[number].observations)
                for field in FIELDS:
                    equal(getattr(episode, field), getattr(whole[number], field))


def test_short_episodes_are_read_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = convert(MadeUp([3] * 500), tmp_path / "made")
    reads: list[tuple[str, int]] = []
    original = np.fromfile

    def counted(file: Any, dtype: Any, count: int = -1) -> Any:
        if count >= 0:  # not the whole table of episodes
            reads.append((Path(file.name).name, count))
        return original(file, dtype, count)

    monkeypatch.setattr(np, "fromfile", counted)
    data.statistics()
    assert len(reads) == len(dict(reads)), "each file once"
    data.split([0.5, 0.5], [tmp_path / "train", tmp_path / "test"])
    assert len(reads) == 3 * len(dict(reads))


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("piece", [2**23, 1])
def test_functions_may_change_what_they_get(
    compact: bool, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arrays of an episode are its own, though several are read at once."""
    reader = MadeUp([3, 1, 6, 2, 5], (2,))
    data = convert(reader, tmp_path / "made", frb.datasets.Conversion(compact=compact))
    read_in_pieces_of(piece, monkeypatch)

    def raised(episode: Episode) -> Episode:
        episode.observations["observation"] += 100
        episode.rewards[:] = -episode.rewards
        return dataclasses.replace(episode)

    changed = data.map(raised, tmp_path / "changed")
    for told, made in zip(reader.episodes(), joined(read(open_reader(changed))), strict=True):
        equal(made.observations["observation"], told.observations + 100)
        equal(made.rewards, -told.rewards)


def test_no_file_stays_open(tmp_path: Path) -> None:
    """Of a conversion that ended, one that failed, and of a dataset of which only some episodes were read."""
    reader = MadeUp([3] * 40)

    def fails(first: int = 0) -> Iterator[Episode]:
        yield from itertools.islice(MadeUp([3] * 40).episodes(first), 5)
        raise OSError("the network is gone")

    data = convert(reader, tmp_path / "made", frb.datasets.Conversion(infos=True))
    reader.episodes = fails  # type: ignore[method-assign]
    with pytest.raises(OSError, match="is gone"):
        convert(reader, tmp_path / "failed")
    episodes = open_reader(data).episodes(0)
    next(episodes)
    assert open_below(tmp_path)
    episodes.close()
    assert not open_below(tmp_path)


def open_below(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("descriptors cannot be listed here")
    return [path for fd in os.listdir("/proc/self/fd") if (path := link_of(fd)).startswith(str(folder))]


def link_of(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # that by which the folder was listed
        return ""
