"""Files that were written once in format 1 load on both backends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import functional_rb as frb
from tests.checkpoint.golden import write
from tests.support.backends import Backend

FILES = write.FILES
EXPECTED: dict[str, dict[str, str]] = json.loads((FILES / "expected.json").read_text())
SIZES = {"prioritized": 6, "slices": 8, "large": 3, "reservoir": 5}
EARLIER = {"prioritized": 6, "slices": 6, "large": 2, "reservoir": 5}


@pytest.mark.parametrize("folder", EXPECTED)
def test_golden_files_load(folder: str, library: Backend, tmp_path: Path) -> None:
    shutil.copytree(FILES / folder, tmp_path / folder)  # nothing may touch them
    name = folder.partition("-")[2]
    for mmap in (False, True):
        state = frb.load(tmp_path / folder, library.library, frb.checkpoint.LoadOptions(mmap=mmap))
        assert state.spec == write.SPECS[name]
        assert write.hashes(state, library.library) == EXPECTED[folder]
    stored = library.rb.items(state)
    if name == "prioritized":
        x = np.array([-0.12, -0.14, -0.04, -0.06, -0.08, -0.1], np.float32)
        assert np.asarray(stored["x"])[:, 1].tolist() == x.tolist()
        assert library.numpy(stored["image"])[:, 3, 5].tolist() == [6, 7, 2, 3, 4, 5]
    # The tree that is computed at loading is that of the file's state, and the buffer lives on.
    assert int(library.rb.size(state)) == SIZES[name]
    folder_again = tmp_path / "again"
    assert frb.save(state, folder_again).items == int(library.rb.size(state))
    assert not frb.save(state, tmp_path / folder, incremental=True).full


def test_golden_objects_load(tmp_path: Path) -> None:
    import torch_backend

    state = frb.load(FILES / "torch-notes", torch_backend)
    assert state.spec == write.NOTES
    assert repr(torch_backend.items(state)["note"].tolist()) == repr([*write.VALUES[4:], *write.VALUES[2:4]])


def test_the_older_golden_checkpoints_load_too(tmp_path: Path) -> None:
    for folder in EXPECTED:
        shutil.copytree(FILES / folder, tmp_path / folder)
        assert [found.problem for found in frb.checkpoint.checkpoints(tmp_path / folder)] == [None, None]
        newest = max((tmp_path / folder).glob("*.json"))
        newest.write_bytes(newest.read_bytes()[:-1])
        state = frb.load(tmp_path / folder, "torch", frb.checkpoint.LoadOptions(fall_back=True))
        assert int(state.counters[1]) == EARLIER[folder.partition("-")[2]]
