"""Checkpoints when things go wrong: the disk, the process, the files."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb import inspection
from functional_rb.base.checksum import digest
from functional_rb.checkpoint import blocks, manifest, opened
from tests.children import kill_saves
from tests.support.checkpoints import (
    SPEC,
    Bits,
    Killed,
    advanced,
    bits,
    failing,
    files,
    locked,
    numpy_state,
    rewritten,
    small_blocks,
    stored_bits,
)
from tests.support.children import program
from tests.support.effort import effort

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


@pytest.fixture(scope="module")
def states() -> list[frb.State]:
    """Some that follow each other."""
    rng = np.random.default_rng(5)
    made = [numpy_state(SPEC)]
    for rows in (15, 3, 4, 2):
        made.append(advanced(made[-1], rng, rows))
    return made[1:]


def save_in_background(state: frb.State, path: Path, **options: Any) -> Any:
    return frb.save(state, path, **options, background=True).result(60)


WAYS: dict[str, Callable[..., Any]] = {
    "full": frb.save,
    "incremental": lambda state, path: frb.save(state, path, incremental=True),
    "async": save_in_background,
    "async, incremental": lambda state, path: save_in_background(state, path, incremental=True),
    "keeping one": lambda state, path: frb.save(state, path, incremental=True, keep=1),
}


def begun(path: Path, states: list[frb.State]) -> list[Bits]:
    """A directory with some checkpoints, and what is in the last of them."""
    for state in states:
        frb.save(state, path, incremental=True)
    return [bits_of(state) for state in states]


def bits_of(state: frb.State) -> Bits:
    """As they come from a checkpoint: with the nodes of the tree that follow from its leaves."""
    return bits(state)


# ------------------------------------------------------------ failures


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("killed", [False, True], ids=["error", "killed"])
def test_a_failure_at_any_call_leaves_the_old_or_the_new(
    way: str, killed: bool, states: list[frb.State], tmp_path: Path
) -> None:
    save, old, new = WAYS[way], bits(states[1]), bits(states[2])
    with failing(None) as counted:
        begun(tmp_path / "count", states[:2])
        first = len(counted.trace)
        save(states[2], tmp_path / "count")
        calls = counted.trace[first:]
    names = [name for name, _ in calls]
    assert {"create", "write", "fsync", "rename", "unlink", "fsync_directory", "make_directory"} <= set(names)
    committed = [k for k, (name, args) in enumerate(calls) if name == "rename" and args[1].endswith(".json")]
    for at in range(len(way) % effort(3, 1), len(names), effort(3, 1)):  # each kind of call comes on some of the ways
        name = names[at]
        path = tmp_path / str(at)
        begun(path, states[:2])
        before = sorted(file.name for file in path.iterdir())
        with failing(at, killed):
            if killed:
                with pytest.raises(Killed):
                    save(states[2], path)
            elif name == "unlink":  # what is not needed stays for the next save to remove
                save(states[2], path)
            else:
                with pytest.raises(frb.errors.CheckpointError, match="as they were"):
                    save(states[2], path)
        assert stored_bits(path) == (new if at > committed[0] else old), f"call {at}, {name}"
        assert stored_bits(path, fall_back=True) == stored_bits(path)
        if not killed and at <= committed[0]:
            left = sorted(file.name for file in path.iterdir())
            aside = {name for name in left if name not in before}
            assert name == "rename" or not aside, f"call {at}, {name}: {aside} are left"
        frb.save(states[3], path, incremental=True, keep=1)
        assert stored_bits(path) == bits(states[3])
        needed = json.loads(files(path)[-1 if files(path)[-1].suffix == ".json" else -2].read_text())["manifest"]
        names_there = {file.name for file in files(path)}
        assert names_there == {part["file"] for part in needed["segments"]} | {f"{needed['generation']:010d}.json"}


def test_nothing_is_named_before_it_lasts(states: list[frb.State], tmp_path: Path) -> None:
    begun(tmp_path, states[:1])
    with failing(None) as counted:
        frb.save(states[1], tmp_path)
        frb.save(states[2], tmp_path, incremental=True, keep=1)
    paths: dict[int, str] = {}
    lasting: set[str] = set()
    unsynced: set[str] = set()
    for name, args in counted.trace:
        if name == "create":
            opened = args[0]
        elif name == "write":
            paths[args[0]] = opened
            lasting.discard(opened)
        elif name == "fsync":
            lasting.add(paths[args[0]])
        elif name == "rename":
            assert args[0] in lasting, "content lasts before its name does"
            if args[1].endswith(".json"):
                assert not unsynced, "and the segments' names before the manifest's"
            unsynced.add(args[1])
        elif name == "fsync_directory":
            unsynced.clear()
        elif name == "unlink":
            assert not unsynced, "nothing is removed before the checkpoint lasts"
    assert not unsynced
    removed = [os.path.splitext(args[0])[1] for name, args in counted.trace if name == "unlink"]
    assert {".json", ".safetensors"} == set(removed)
    assert removed == sorted(removed), "manifests go first"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, frb.errors.StorageFullError),
        (errno.EDQUOT, frb.errors.StorageFullError),
        (errno.EROFS, OSError),
        (errno.EACCES, OSError),
    ],
)
def test_errors_of_the_system_are_typed(
    number: int, kind: type[OSError], states: list[frb.State], tmp_path: Path
) -> None:
    begun(tmp_path, states[:1])
    for at in (1, 2, 5):
        with failing(at, number=number), pytest.raises(kind, match=r"as (it was|they were)") as caught:
            frb.save(states[1], tmp_path)
        assert isinstance(caught.value, frb.errors.CheckpointError)
        assert isinstance(caught.value, OSError)
        assert caught.value.errno == number
        assert stored_bits(tmp_path) == bits(states[0])


def test_a_directory_that_is_a_file(states: list[frb.State], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(frb.errors.CheckpointError, match="file"):
        frb.save(states[0], tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        stored_bits(tmp_path / "file")


def in_namespace(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A shell that may mount, in a namespace of its own; skip where there is none."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("needs a mount namespace: unshare -rm")
    command = ["unshare", "-rm", "sh", "-ec", script, "sh", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_a_full_disk(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=2m none "$1" && shift && "$@"'
    run = in_namespace(script, str(tmp_path), *program("saves_to_a_full_disk", tmp_path))
    assert run.stdout.startswith("full"), run.stderr
    assert "free some room" in run.stdout


def test_a_read_only_directory(tmp_path: Path) -> None:
    script = 'path="$1"; shift; mount -t tmpfs none "$path"; "$@" write; mount -o remount,ro "$path"; "$@" read'
    run = in_namespace(script, str(tmp_path), *program("saves_to_a_read_only_disk", tmp_path))
    assert run.stdout.startswith("refused"), run.stderr
    assert run.stdout.endswith("1\n"), run.stderr


def test_killed_at_random_instants(tmp_path: Path) -> None:
    # On a file system in memory there is no waiting for the disk: more of the instants fall where something happens.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as directory:
        command = [sys.executable, "-m", "tests.children.kill_saves", directory, "11", effort("24", "70")]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    told = [line.split() for line in run.stdout.splitlines()]
    assert [line[0] for line in told] == list(kill_saves.WAYS)
    assert all(int(line[2]) >= 4 for line in told), "kills fell at different saves"


# ------------------------------------------------------------ damaged files


def damaged(path: Path, file: Path, content: bytes, expected: Bits) -> bool:
    """Whether a file's other content was refused; if not, what loads must be what was saved."""
    before = file.read_bytes()
    file.write_bytes(content)
    refused = None
    try:
        assert stored_bits(path) == expected
    except frb.errors.CorruptCheckpointError as error:
        refused = error
    file.write_bytes(before)
    assert refused is None or (refused.file == str(file) and str(file) in str(refused))
    return refused is not None


def test_flipped_bits_and_cut_files_are_refused(states: list[frb.State], tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    begun(tmp_path, states)
    expected = bits(states[-1])
    there = files(tmp_path)
    newest = there[-1] if there[-1].suffix == ".json" else there[-2]
    named = {part["file"] for part in json.loads(newest.read_text())["manifest"]["segments"]} | {newest.name}
    assert len(named) >= 3, "a base, deltas, a manifest"
    for file in there:
        whole = file.read_bytes()
        ends = [0, 1, 7, 8, 9, 15, len(whole) // 2, len(whole) - 1]
        places = sorted({*ends, *rng.integers(0, len(whole), effort(20, 60)).tolist()})
        refused = 0
        for at in places:
            flipped = bytearray(whole)
            flipped[at] ^= 1 << int(rng.integers(8))
            refused += damaged(tmp_path, file, bytes(flipped), expected)
        cuts = sorted({*ends, *rng.integers(0, len(whole), effort(6, 20)).tolist()})
        cut = sum(damaged(tmp_path, file, whole[:at], expected) for at in cuts)
        longer = damaged(tmp_path, file, whole + b"\0", expected)
        if file.name not in named:
            assert refused == cut == longer == 0
        else:
            assert cut == len(cuts)
            assert longer
            # Blocks that a later segment has again are not read.
            assert refused == len(places) if file == newest else refused > len(places) // 3


def test_falling_back_takes_the_newest_that_is_whole(states: list[frb.State], tmp_path: Path) -> None:
    for state in states[:3]:
        frb.save(state, tmp_path, keep=3)
    (tmp_path / "0000000003.safetensors").write_bytes(b"")
    assert stored_bits(tmp_path, fall_back=True) == bits(states[1])
    manifest_2 = tmp_path / "0000000002.json"
    manifest_2.write_bytes(manifest_2.read_bytes()[:-1])
    assert stored_bits(tmp_path, fall_back=True) == bits(states[0])
    (tmp_path / "0000000001.safetensors").unlink()
    with pytest.raises(
        frb.errors.CorruptCheckpointError, match=r"0000000003\.safetensors: expected \d+ bytes, found 0"
    ):
        stored_bits(tmp_path, fall_back=True)


def _of(told: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = told["segments"][0]
    return found


def nested(depth: int) -> Any:
    made: Any = {"type": "Binary", "shape": [], "dtype": "bool"}
    for _ in range(depth):
        made = {"type": "dict", "parts": {"x": made}}
    return {"format": "functional_rb.spec", "version": 1, "spec": made}


def split(runs: list[list[int]]) -> None:
    """The first run as two that touch, which tell of the same blocks."""
    start, stop = runs[0]
    runs[:1] = [[start, start + 1], [start + 1, stop]]


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a file elsewhere": lambda told: _of(told).update(file="../0000000001.safetensors"),
    "an absolute file": lambda told: _of(told).update(file="/0000000001.safetensors"),
    "a file of another kind": lambda told: _of(told).update(kind="pickle"),
    "a name with other digits": lambda told: _of(told).update(file="\u0660" * 9 + "1.safetensors"),
    "a huge array": lambda told: told["arrays"]["rows"].update(shape=[2**61, 2]),
    "an array without rows": lambda told: told["arrays"]["rows"].update(shape=[]),
    "rows without bytes": lambda told: told["arrays"]["rows"].update(shape=[20, 0]),
    "an array more": lambda told: told["arrays"].update(more={"shape": [2**40], "dtype": "int32", "fill": 0}),
    "another dtype": lambda told: told["arrays"]["rows"].update(dtype="float64"),
    "no dtype": lambda told: told["arrays"]["rows"].update(dtype="O,O"),
    "a dtype that no segment has": lambda told: told["arrays"]["rows"].update(dtype="complex64"),
    "no time": lambda told: told.update(time=float("nan")),
    "a time too large": lambda told: told.update(time=10**400),
    "another fill": lambda told: told["arrays"]["rows"].update(fill=2**31),
    "blocks out of bounds": lambda told: _of(told)["arrays"]["rows"].update(runs=[[0, 2**50]]),
    "blocks from behind": lambda told: _of(told)["arrays"]["rows"].update(runs=[[2, 3], [0, 1]]),
    "blocks that are none": lambda told: _of(told)["arrays"]["rows"].update(runs=[[0, 0]]),
    "blocks that touch": lambda told: split(_of(told)["arrays"]["rows"]["runs"]),
    "half a run": lambda told: _of(told)["arrays"]["rows"].update(runs=[[0]]),
    "more runs than blocks": lambda told: _of(told)["arrays"]["rows"].update(runs=[[0, 1]] * 40),
    "blocks that are half numbers": lambda told: _of(told)["arrays"]["rows"].update(runs=[[0, 1.5]]),
    "blocks that are True": lambda told: _of(told)["arrays"]["rows"].update(runs=[[False, True]]),
    "blocks that are huge": lambda told: _of(told)["arrays"]["rows"].update(runs=[[0, 2**63]]),
    "blocks in blocks": lambda told: _of(told)["arrays"]["rows"].update(runs=[[[0, 1]]]),
    "blocks by text": lambda told: _of(told)["arrays"]["rows"].update(runs="0-3"),
    "fewer blocks": lambda told: _of(told)["arrays"]["rows"].update(runs=[[0, 1]]),
    "objects without end": lambda told: _of(told).update(objects=[2**60, ""]),
    "objects below zero": lambda told: _of(told).update(objects=[-1, ""]),
    "a size": lambda told: _of(told).update(size=2**50),
    "a size that is none": lambda told: _of(told).update(size=True),
    "another checksum": lambda told: _of(told)["arrays"]["rows"].update(checksum="00"),
    "cursors out of range": lambda told: told["counters"].__setitem__(0, -5),
    "sizes out of range": lambda told: told["counters"].__setitem__(1, 21),
    "numbers out of range": lambda told: told["counters"].__setitem__(0, 2**31),
    "numbers that are none": lambda told: told["counters"].__setitem__(0, 1.5),
    "a counter more": lambda told: told["counters"].append(0),
    "another generation": lambda told: told.update(generation=7),
    "no spec": lambda told: told.update(spec={"format": "functional_rb.spec", "version": 1, "spec": None}),
    "a spec of nonsense": lambda told: told["spec"]["spec"].update(capacity=-1),
    "a spec that is a text": lambda told: told.update(spec="spec"),
    "a spec that is too deep": lambda told: told.update(spec=nested(300)),
    "a spec larger than memory": lambda told: told["spec"]["spec"].update(capacity=2**31 - 1),
    "a spec of another buffer": lambda told: told["spec"]["spec"].update(capacity=2**30),
    "no segments": lambda told: told.pop("segments"),
    "a text for everything": lambda told: told.update(arrays="rows"),
}


OF_MANIFESTS = [lie for lie in LIES if "spec" in lie or "dtype" in lie or "time" in lie]


def inspected(path: Path) -> None:
    """Raise what a report tells."""
    damaged = [file for file in inspection.inspect(path)["files"] if file["problem"]]
    for file in damaged[:1]:
        raise frb.errors.CorruptCheckpointError(str(path / file["name"]), file["problem"])


@pytest.mark.parametrize("lie", LIES)
def test_manifests_that_lie_are_refused(lie: str, states: list[frb.State], tmp_path: Path) -> None:
    frb.save(states[0], tmp_path)
    file = rewritten(tmp_path, LIES[lie])
    for look in (stored_bits, inspected):
        with pytest.raises(frb.errors.CorruptCheckpointError) as caught:
            look(tmp_path)
        assert Path(caught.value.file).parent == tmp_path
        assert lie not in OF_MANIFESTS or caught.value.file == str(file)
    assert all(Path(found.path) == file for found in frb.checkpoint.checkpoints(tmp_path))
    # What a save takes of it is true.
    frb.save(states[1], tmp_path, incremental=True)
    assert stored_bits(tmp_path) == bits(states[1])


def test_more_runs_than_the_files_can_have_are_refused_before_they_are_parsed(
    states: list[frb.State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frb.save(states[0], tmp_path)
    many = [[2 * k, 2 * k + 1] for k in range(opened.FEW_RUNS + 5000)]
    rewritten(tmp_path, lambda told: _of(told)["arrays"]["rows"].update(runs=many))
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "decode", None)
        with pytest.raises(
            frb.errors.CorruptCheckpointError, match=r"0000000001\.json: \d+ runs of blocks are more than"
        ):
            stored_bits(tmp_path)
    # As many as the files have are none too many.
    frb.save(states[1], tmp_path)
    monkeypatch.setattr(opened, "FEW_RUNS", 1)
    assert stored_bits(tmp_path) == bits(states[1])


def test_many_runs_are_no_work_for_python(tmp_path: Path) -> None:
    """Every other of 400,000 blocks: a tenth of a second, and some operations of NumPy."""
    stored = blocks.Stored("rows", (800_000, 12), "int32", 0)
    runs = [(2 * k, 2 * k + 1) for k in range(200_000)]
    told = {"runs": runs, "checksum": ""}
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and "functional_rb" in frame.f_code.co_filename  # and not whoever collects garbage

    sys.setprofile(count)
    try:
        found = manifest._blocks(json.loads(json.dumps(told)), stored)
        mask = blocks.marked(found.runs, stored.count)
        rows = stored.length(found.runs)
    finally:
        sys.setprofile(None)
    assert calls < 100
    assert found.runs == runs
    assert blocks.runs_of(mask) == runs
    assert rows == 200_000


def test_names_that_come_twice_are_refused(states: list[frb.State], tmp_path: Path) -> None:
    frb.save(states[0], tmp_path)
    file = rewritten(tmp_path, lambda told: None)
    body = file.read_bytes().partition(b'"manifest":')[2][:-2].replace(b'{"format":1,', b'{"format":1,"items":0,', 1)
    file.write_bytes(b'{"checksum":"' + digest(body).hex().encode() + b'","manifest":' + body + b"}\n")
    with pytest.raises(frb.errors.CorruptCheckpointError, match="a name comes twice"):
        stored_bits(tmp_path)


def test_specs_of_a_newer_library_are_no_damage(states: list[frb.State], tmp_path: Path) -> None:
    """Falling back would give them up."""
    for state in states[:2]:
        frb.save(state, tmp_path)
    file = rewritten(tmp_path, lambda told: told["spec"]["spec"]["sampler"].update(type="Clairvoyant"))
    with pytest.raises(frb.errors.CheckpointError, match=rf"{file}: .*there is no type 'Clairvoyant'") as caught:
        stored_bits(tmp_path, fall_back=True)
    assert not isinstance(caught.value, frb.errors.CorruptCheckpointError)


def test_what_is_known_is_the_callers(states: list[frb.State], tmp_path: Path) -> None:
    class Known:
        pass

    frb.save(states[0], tmp_path)
    leaf = {"type": "dataclass", "name": "there:Known", "parts": {}}
    file = rewritten(tmp_path, lambda told: told["spec"]["spec"].update(item=leaf))
    for known, message in ([], "not among those known"), ([lambda: 0], "a class or function with a name"):
        with pytest.raises(ValueError, match=rf"{file}: from_json: .*{message}"):
            stored_bits(tmp_path, known=known, fall_back=True)
    Known.__module__, Known.__qualname__ = "there", "Known"
    with pytest.raises(ValueError, match=rf"{file}: from_json: .*expected a dataclass of \[\]"):
        stored_bits(tmp_path, known=[Known])


def test_a_manifest_that_nobody_would_read_is_not_written(
    states: list[frb.State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, states[:1])
    before = files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "LARGEST", 500)
        with pytest.raises(frb.errors.CheckpointError, match="larger than the 500 that are read"):
            frb.save(states[1], tmp_path)
    assert files(tmp_path) == before
    assert stored_bits(tmp_path) == bits(states[0])


def test_formats_of_the_future_are_left_alone(states: list[frb.State], tmp_path: Path) -> None:
    frb.save(states[0], tmp_path)
    rewritten(tmp_path, lambda told: told.update(format=2))
    before = {file.name: file.read_bytes() for file in files(tmp_path)}
    with pytest.raises(frb.errors.CheckpointError, match=r"format 2.*newer functional_rb"):
        stored_bits(tmp_path)
    with pytest.raises(frb.errors.CheckpointError, match="format 2"):
        frb.save(states[1], tmp_path)
    assert {file.name: file.read_bytes() for file in files(tmp_path)} == before
    assert "format 2" in (frb.checkpoint.checkpoints(tmp_path)[0].problem or "")


def test_what_is_no_file_is_no_checkpoint(states: list[frb.State], tmp_path: Path) -> None:
    frb.save(states[0], tmp_path)
    os.mkfifo(tmp_path / "0000000002.json")
    with pytest.raises(frb.errors.CorruptCheckpointError, match="no regular file"):
        stored_bits(tmp_path)
    (tmp_path / "0000000002.json").unlink()
    with (tmp_path / "0000000002.json").open("wb") as file:
        file.truncate(manifest.LARGEST + 1)
    with pytest.raises(frb.errors.CorruptCheckpointError, match="too many"):
        stored_bits(tmp_path)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("name", ["0000000002.json", "0000000002.safetensors"])
@pytest.mark.parametrize("make", [link_to_nothing, link_to_itself, Path.mkdir])
def test_what_cannot_be_opened_is_damaged(
    name: str, make: Callable[[Path], None], states: list[frb.State], tmp_path: Path
) -> None:
    begun(tmp_path / "x", states[:1])
    frb.save(states[1], tmp_path / "x")
    file = tmp_path / "x" / name
    file.unlink()
    make(file)
    with pytest.raises(frb.errors.CorruptCheckpointError, match=re.escape(name)):
        stored_bits(tmp_path / "x")
    assert stored_bits(tmp_path / "x", fall_back=True) == bits(states[0])
    assert frb.checkpoint.checkpoints(tmp_path / "x")[0].problem
    frb.save(states[2], tmp_path / "x", incremental=True)
    assert stored_bits(tmp_path / "x") == bits(states[2])


def test_more_segments_than_can_be_open_are_refused(states: list[frb.State], tmp_path: Path) -> None:
    frb.save(states[0], tmp_path)
    rewritten(tmp_path, lambda told: told.update(segments=told["segments"] * 5000))
    with pytest.raises(frb.errors.CorruptCheckpointError, match="5000 segments are too many"):
        stored_bits(tmp_path)


def test_no_save_gets_a_number_that_nobody_would_find(states: list[frb.State], tmp_path: Path) -> None:
    frb.save(states[0], tmp_path)
    (tmp_path / "9999999999.json").write_text("")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(frb.errors.CheckpointError, match=r"9999999999\.json: no number"):
        frb.save(states[1], tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "9999999999.json").unlink()
    frb.save(states[1], tmp_path)
    assert stored_bits(tmp_path) == bits(states[1])


# ------------------------------------------------------------ at once


def test_processes_that_save_to_one_place_wait_for_each_other(tmp_path: Path) -> None:
    running = [subprocess.Popen(program("saves_states", tmp_path), cwd=ROOT) for _ in range(2)]
    seen = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 1 << 16)
        while any(process.poll() is None for process in running):
            try:  # reading meanwhile needs no lock
                found = kill_saves.read(tmp_path)[1]
            except FileNotFoundError:
                continue
            k = int(found.counters[0]) // 100 - 1
            kill_saves.check(found, kill_saves.state_at(k))
            seen.add(k)
    assert [process.wait() for process in running] == [0, 0]
    assert len(seen) > 1
    assert frb.checkpoint.checkpoints(tmp_path)[0].generation == 24


def test_a_save_waits_for_the_lock(states: list[frb.State], tmp_path: Path) -> None:
    with locked(tmp_path / "lock"):
        handle = frb.save(states[0], tmp_path, background=True)
        with pytest.raises(TimeoutError):
            handle.result(0.1)
        assert [file.name for file in tmp_path.iterdir()] == ["lock"]
    assert handle.result(60).generation == 1


def test_what_a_killed_save_left_goes_before_anything_is_written(states: list[frb.State], tmp_path: Path) -> None:
    (tmp_path / "0000000004.safetensors.part").write_bytes(b"half")
    with failing(None) as counted:
        assert frb.save(states[0], tmp_path).generation == 5
    names = [name for name, _ in counted.trace]
    assert names.index("unlink") < names.index("create")


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    subprocess.run(program("fork_beside_the_lock", tmp_path), cwd=ROOT, check=True)


def test_a_forked_child_does_not_wait_for_the_parents_saves(tmp_path: Path) -> None:
    subprocess.run(program("fork_beside_a_save", tmp_path), cwd=ROOT, check=True)
