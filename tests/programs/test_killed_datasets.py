"""Processes that are killed as they make datasets: what they leave is no dataset, and who calls again gets one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import functional_rb as frb
from functional_rb.datasets import Dataset
from tests.datasets.made_up import MadeUp, contents
from tests.support.children import die, ended, forked

converting = sys.modules["functional_rb.datasets.convert"]
Make = Callable[[Dataset, Path], object]
MAKERS: dict[str, Make] = {
    "convert": lambda made, to: frb.datasets.convert(MadeUp([3, 1, 6, 2]), to),
    "map": lambda made, to: made.map(lambda episode: episode, to),
    "map by threads": lambda made, to: made.map(lambda episode: episode, to, workers=2),
    "filter": lambda made, to: made.filter(lambda episode: episode.steps > 1, to),
    "split": lambda made, to: made.split([0.5], [to]),
    "concat": lambda made, to: made.concat(made, to=to),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("at", ["a line of the journal", "the rename"])
def test_what_a_killed_process_leaves(name: str, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = MAKERS[name], frb.datasets.convert(MadeUp([3, 1, 6, 2]), tmp_path / "made")
    monkeypatch.setattr(converting, "CHUNK", 1)  # a line for each episode
    make(made, tmp_path / "whole")
    # The journal's second line is of the first episode.
    owner, function, before = (os, "rename", 0) if at == "the rename" else (converting._Writing, "note", 1)

    def killed() -> None:
        original, left = getattr(owner, function), [before]

        def dies(*args: object) -> object:
            left[0] -= 1
            return original(*args) if left[0] >= 0 else die()

        monkeypatch.setattr(owner, function, dies)
        make(made, tmp_path / "x")

    ended(forked(killed), killed=True)
    with pytest.raises(ValueError, match=r"x: no converted dataset is there; .*x\.part is an unfinished one: the call"):
        Dataset(tmp_path / "x")
    make(made, tmp_path / "x")
    assert not (tmp_path / "x.part").exists()
    found, wanted = contents(tmp_path / "x"), contents(tmp_path / "whole")
    differ = {name for name in wanted if found[name] != wanted[name]}
    # Which call it was is a fact of what a function was applied to.
    assert differ <= ({"dataset.json", "journal.jsonl"} if "map" in name else set())
    Dataset(tmp_path / "x", verify=True)


def test_a_process_that_is_asked_to_end_leaves_the_same(tmp_path: Path) -> None:
    made = frb.datasets.convert(MadeUp([3, 1, 6, 2]), tmp_path / "made")

    def ends() -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        with pytest.raises(SystemExit):
            made.map(lambda episode: signal.raise_signal(signal.SIGTERM), tmp_path / "x")
        with pytest.raises(ValueError, match="no converted dataset is there"):
            Dataset(tmp_path / "x")
        assert made.map(lambda episode: episode, tmp_path / "x").steps == made.steps

    ended(forked(ends))
