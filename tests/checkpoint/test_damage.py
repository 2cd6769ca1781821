"""What lies under the names of files: pipes, directories, links, holes. Errors name the file, and nobody waits."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from functional_rb.__main__ import main
from tests.checkpoint.mapped_lives import KILLED, STEP_ROWS, agree, stepped
from tests.support.checkpoints import on_host
from tests.support.damage import KINDS, refused

LOG = "undo-00000002.bin"
HEAD = 40  # bytes of a log's record before the slots of its rows


def load(place: Path, fall_back: bool = False) -> Any:
    return frb.load(place, rb, frb.checkpoint.LoadOptions(fall_back=fall_back), storage=frb.Host())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints: an ordinary one, and two in mapped files, with logs since both."""
    path = tmp_path_factory.mktemp("whole")
    frb.save(stepped(on_host(KILLED), 1), path)
    state = on_host(dataclasses.replace(KILLED, storage=frb.Memmap(path, existsok=True)))
    for k in range(1, 10):
        state = stepped(state, k)
        if k in (3, 6):
            frb.save(state, path, incremental=True, keep=3)
    return path


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "place"))


@pytest.mark.parametrize("name", ["0000000003.json", "0000000003.safetensors", "rows.bin", "wide_0.bin", LOG])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_named_and_fallen_back_from(
    name: str, kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / name).unlink()
    with KINDS[kind](place / name):
        with pytest.raises(frb.errors.CorruptCheckpointError) as caught:
            load(place)
        assert caught.value.file == str(place / name)
        found = load(place, fall_back=True)
        steps = 3 if name.startswith("0") else 1  # the others belong to both that lie in mapped files
        assert int(rb.counts(found).cursor) == steps * STEP_ROWS
        if name != LOG:  # which is not looked at before it is taken back
            assert name in str(frb.checkpoint.checkpoints(place)[0].problem)
        assert main(["inspect", str(place)]) == 1
        assert name in capsys.readouterr().out


@pytest.mark.parametrize("name", ["undo-9.bin", "undo-٠٠٠٠٠٠٠٩.bin", "undo-000000009.bin", "undo-+0000009.bin"])
def test_files_that_are_called_almost_as_logs_are_left_alone(name: str, place: Path) -> None:
    (place / name).write_bytes(b"no log")
    assert agree(place) == 6
    (place / "undo-00000009.bin").write_bytes(b"no log, but called so" * 3)
    with pytest.raises(frb.errors.CorruptCheckpointError, match=r"undo-00000009\.bin: at byte 0"):
        load(place)


def test_a_damaged_end_of_a_log_is_told_from_damaged_rows(place: Path) -> None:
    log, rows = place / LOG, place / "rows.bin"
    content = log.read_bytes()
    ends = [0]
    while ends[-1] < len(content):
        n, row = np.frombuffer(content, np.int64, 2, ends[-1] + 16)
        ends.append(ends[-1] + HEAD + int(n * (8 + row)))
    last = ends[-2]
    for at in np.linspace(last + HEAD, len(content) - 1, 12).astype(int).tolist():
        log.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        with pytest.raises(
            frb.errors.CorruptCheckpointError, match=rf"its last record, at byte {last}, is not"
        ) as caught:
            load(place)
        assert caught.value.file == str(log)
    log.write_bytes(content[:-1])
    with pytest.raises(
        frb.errors.CorruptCheckpointError, match=r"is cut short, and without it the rows in \w+\.bin"
    ) as caught:
        load(place)
    assert caught.value.file == str(log)
    log.write_bytes(content)
    with rows.open("r+b") as file:
        file.seek(100 * 160)  # a row that nobody has overwritten since
        file.write(b"\xff")
    with pytest.raises(frb.errors.CorruptCheckpointError) as caught:
        load(place)
    assert caught.value.file == str(rows)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("name", ["0000000003.json", "0000000003.safetensors", LOG])
def test_what_the_process_is_short_of_is_no_damage(name: str, number: int, place: Path) -> None:
    """Falling back would give up a checkpoint that is whole."""
    with (
        refused(place / name, number),
        pytest.raises(frb.errors.CheckpointError, match=f"{name}: cannot be opened") as caught,
    ):
        load(place, fall_back=True)
    assert not isinstance(caught.value, frb.errors.CorruptCheckpointError)
    assert agree(place) == 6


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loop"
    path.symlink_to(path)
    for look in (frb.checkpoint.checkpoints, load):
        with pytest.raises(frb.errors.CheckpointError, match=f"{path}: the directory cannot be read"):
            look(path)  # type: ignore[operator]  # both are called so
    assert main(["inspect", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"inspect: {path}: ")
