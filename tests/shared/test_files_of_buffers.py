"""Files of buffers that processes share: reads are of one moment, and what others left is repaired or refused."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb import _native
from functional_rb.native import descriptor
from functional_rb.native import shared_control as control
from functional_rb.shared import files
from functional_rb.shared.buffer import SharedBuffer
from tests.shared.buffers import NAMES, batch_of, spec_at
from tests.support.children import ROOT, program

PAIR = {"reward": frb.Unbounded(()), "value": frb.Unbounded(())}
OTHER_ITEMS = {
    "a dtype of the same size": (PAIR | {"value": frb.Unbounded((), "int32")}, r"spec/item/parts/value/dtype.*int32"),
    "shapes exchanged": (
        {"reward": frb.Unbounded((3, 2)), "value": frb.Unbounded((2, 3))},
        r"spec/item/parts/(reward|value)/shape: expected \[(3, 2|2, 3)\], got \[\]",
    ),
    "other bounds": (
        PAIR | {"value": frb.Bounded(0.0, 1.0, ())},
        r'spec/item/parts/value: expected {"type": "Bounded"',
    ),
    "another name": (
        {"reward": PAIR["reward"], "values": PAIR["value"]},
        r'spec/item/parts: expected \["reward", "values"\]',
    ),
    "a tuple": ((PAIR["reward"], PAIR["value"]), r"spec/item: expected"),
    "one level more": ({"in": PAIR}, r'spec/item/parts: expected \["in"\]'),
}


@pytest.mark.parametrize("name", OTHER_ITEMS)
def test_another_item_is_refused_by_its_path(name: str, tmp_path: Path) -> None:
    item, message = OTHER_ITEMS[name]
    shared = SharedBuffer.open(spec_at(tmp_path, item=PAIR))
    shared.add([np.ones(1, np.float32), np.zeros(1, np.float32)], 1, None, None)
    spec = spec_at(tmp_path, item=item)
    for come in (lambda: SharedBuffer.open(spec), lambda: SharedBuffer.attach(spec, str(tmp_path))):
        with pytest.raises(ValueError, match=f"another spec; {message}"):
            come()


def light(tmp_path: Path, **fields: Any) -> SharedBuffer:
    return SharedBuffer.open(spec_at(tmp_path / "buffer", **({"item": (frb.Unbounded((), "int32"),)} | fields)))


def numbers(*values: int) -> list[np.ndarray]:
    return [np.array(values, np.int32)]


def test_a_write_that_fails_is_taken_back_at_once(tmp_path: Path) -> None:
    command = program("write_without_memory", tmp_path / "buffer")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "0 [3 0] [6] False\n[7]\n", done.stderr


def test_a_signal_handler_may_not_write_within_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = light(tmp_path)

    def raised(*args: Any) -> None:
        shared.add(numbers(1), 1, None, None)

    with monkeypatch.context() as patch:
        patch.setattr(files.SharedFiles, "reserve", raised)
        with pytest.raises(RuntimeError, match="do not use it in a signal handler"):
            shared.add(numbers(1), 1, None, None)
    shared.add(numbers(2), 1, None, None)
    assert shared.counters()[:2].tolist() == [1, 1]


def test_a_copy_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = light(tmp_path)
    shared.add(numbers(1, 2), 2, None, None)
    copied, other, calls = SharedBuffer._copied, SharedBuffer.attach(shared.spec, shared.files.directory), []

    def meanwhile(self: SharedBuffer, counters: Any) -> Any:
        found = copied(self, counters)
        if not calls:
            calls.append(other.add(numbers(3), 1, None, None))
        return found

    monkeypatch.setattr(SharedBuffer, "_copied", meanwhile)
    found = shared.snapshot()
    assert found.counters[:2].tolist() == [3, 3]
    assert found.rows[:, 0].tolist() == [1, 2, 3, 0, 0, 0]


class Words:
    """The words and the rows of a shared buffer of int32, whose sequence number a kernel writes over as it reads.

    For what it tells is to be written there: so a write comes to its end amid each try, at the same step of it.
    """

    def __init__(self, **counters: tuple[int, int]) -> None:
        """Take the cursor and the size by the sequence numbers 0 and 2, which are those modulo 4."""
        self.plan = descriptor.encode(frb.BufferSpec((frb.Unbounded((), "int32"),), 8))
        self.rows, self.words = np.arange(8, dtype=np.int32), np.zeros(control.BYTES // 8, np.int64)
        self.storage = [self.rows]
        self.sequence = self.words[control.SEQUENCE :].view(np.int32)
        first = control.COUNTERS
        self.counters = [self.words[first + k * control.SLOT_WORDS :].view(np.int32) for k in (0, 1)]
        for found, name in zip(self.counters, ("even", "odd"), strict=True):
            found[:2] = counters[name]

    def draw(self, handles: np.ndarray, leaf: np.ndarray) -> tuple[int, float]:
        """Draw the oldest item; the result, and how likely it was."""
        chance, weight = np.empty(1, np.float32), np.empty(1, np.float32)
        given = self.words, self.plan, np.empty(0, np.float32), np.zeros((1, 2), np.int32), 0.0
        found = _native.shared_draw(self.storage, [leaf], *given, handles, weight, chance)
        return found, float(chance[0])

    def fetch(self, handle: int, leaf: np.ndarray) -> tuple[int, bool]:
        """Read an item; the result, and whether it is live."""
        live, given = np.empty(1, np.uint8), (self.words, self.plan, np.array([handle], np.int32))
        return _native.shared_fetch(self.storage, [leaf], *given, live), bool(live[0])


def test_a_sample_is_of_one_moment() -> None:
    """What a try finds is thrown away if there was a write before it had chosen items, or before it had read them."""
    one, handles = np.zeros(1, np.int32), np.zeros(1, np.int32)
    words = Words(even=(7, 1), odd=(8, 2))  # the oldest item is the seventh either way
    assert words.draw(handles, one) == (control.DRAWN, 1.0)
    assert (handles[0], one[0], words.sequence[0]) == (6, 6, 0)
    assert words.draw(handles, words.sequence[:1]) == (control.DRAWN, 0.5)
    assert (handles[0], words.sequence[0]) == (6, 6)
    # Where the slots that it has chosen are none any more, nothing is read: that would change the counters.
    words = Words(even=(7, 1), odd=(8, 2))
    words.rows[6] = 1
    assert words.draw(words.sequence[:1], words.counters[1][1:2]) == (control.DRAWN, 0.5)
    assert words.sequence[0] == 6


def test_what_is_read_by_handles_is_of_one_moment() -> None:
    one = np.zeros(1, np.int32)
    words = Words(even=(7, 1), odd=(15, 1))
    assert words.fetch(6, one) == (control.DRAWN, True)
    assert words.fetch(6, words.sequence[:1]) == (control.DRAWN, False)
    assert words.fetch(14, one) == (control.DRAWN, True)


def test_the_counters_that_are_read_are_of_one_moment() -> None:
    words = Words(even=(6, 0), odd=(6, 0))
    words.counters[0][2], words.counters[1][2] = 8, 9
    assert _native.shared_read_counters(words.words, words.sequence[:3]) == 6
    assert words.sequence[:3].tolist() == [6, 0, 9]


def test_who_meets_a_write_at_each_try_is_told() -> None:
    one = np.zeros(1, np.int32)
    words = Words(even=(3, 1), odd=(5, 1))
    words.rows[[2, 4]] = 2, 4  # of what is written at an even number comes an odd one, and the other way round
    assert words.draw(one, words.sequence[:1])[0] == control.TORN
    assert words.fetch(2, words.sequence[:1])[0] == control.TORN
    words = Words(even=(2, 0), odd=(4, 0))
    assert _native.shared_read_counters(words.words, words.sequence[:2]) % 2


@pytest.mark.parametrize("begun", [1, 2**40 + 1])
def test_amid_a_write_nothing_is_read(begun: int) -> None:
    one, words = np.full(1, -5, np.int32), Words(even=(7, 1), odd=(8, 2))
    words.words[control.SEQUENCE] = begun
    assert words.draw(one, one)[0] == words.fetch(6, one)[0] == control.TORN
    assert _native.shared_read_counters(words.words, one) % 2
    assert one[0] == -5


def test_room_is_made_in_steps_and_else_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = light(tmp_path, capacity=100)
    monkeypatch.setattr(files, "STEP_BYTES", 40)
    asked: list[tuple[int, int]] = []
    free = [4 * 23]

    def allocate(descriptor: int, start: int, size: int) -> None:
        asked.append((start // 4, size // 4))
        if start + size > free[0]:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files, "allocate", allocate)
    for _ in range(22):
        shared.add(numbers(1), 1, None, None)
    assert asked == [(0, 1), (1, 2), (3, 4), (7, 8), (15, 10), (15, 1), (16, 10), (16, 1), (17, 10), (17, 1), (18, 10),
                     (18, 1), (19, 10), (19, 1), (20, 10), (20, 1), (21, 10), (21, 1)]  # fmt: skip
    shared.add(numbers(1), 1, None, None)
    with pytest.raises(frb.errors.StorageFullError, match=r"rows\.bin"):
        shared.add(numbers(1), 1, None, None)
    free[0] = 4 * 1000
    for _ in range(100):  # once around nothing more is asked for
        shared.add(numbers(1), 1, None, None)
    assert asked[-1][0] + asked[-1][1] == 100
    assert shared.counters()[:2].tolist() == [123, 100]


def test_a_directory_is_refused_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    light(tmp_path)
    description = json.loads((path / "shared.json").read_text())
    assert (description["format"], description["version"]) == ("functional_rb.shared", 1)
    for fields in ({"capacity": 7}, {"sampler": frb.Prioritized()}, {"item": (frb.Unbounded(()),)}):
        with pytest.raises(ValueError, match="another spec"):
            light(tmp_path, **fields)
    for change, message in (
        ({"version": 2}, "version 2"),
        ({"boot": "x"}, "started last"),
        ({"format": "y"}, "format"),
    ):
        (path / "shared.json").write_text(json.dumps(description | change))
        with pytest.raises(ValueError, match=message):
            light(tmp_path)
    (path / "shared.json").write_text(json.dumps(description))
    os.truncate(path / "rows.bin", 4)
    with pytest.raises(ValueError, match=r"rows\.bin.*expected 24 bytes, got 4"):
        light(tmp_path)
    (path / "shared.json").unlink()
    with pytest.raises(FileExistsError, match="no shared buffer's file"):
        light(tmp_path)


@pytest.mark.parametrize("name", ["boot_id", "lock", "making", "shared.json"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_an_error_at_any_file_of_the_directory_is_typed_and_passes(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(original: Any) -> Any:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if os.path.basename(path) == name:
                raise OSError(number, os.strerror(number), path)
            return original(path, *args, **kwargs)

        return call

    spec = spec_at(tmp_path / "buffer")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing(os.open))
        patch.setattr("builtins.open", refusing(open))
        with pytest.raises(OSError, match=name) as caught:
            SharedBuffer.open(spec)
    assert isinstance(caught.value, frb.errors.StorageFullError) == (number == errno.ENOSPC)
    assert ("ulimit -n" in str(caught.value)) == (number == errno.EMFILE)
    if number == errno.ENOSPC and name != "shared.json":
        assert list((tmp_path / "buffer").iterdir()) == []
    assert SharedBuffer.open(spec).counters()[:2].tolist() == [0, 0]


def test_who_comes_when_it_is_gone_is_told(tmp_path: Path) -> None:
    shared = light(tmp_path)
    sent = pickle.dumps(shared)
    shared.add(numbers(5), 1, None, None)
    files.remove(shared.files.directory)
    assert not (tmp_path / "buffer").exists()
    files.remove(shared.files.directory)
    with pytest.raises(FileNotFoundError, match="gone"):
        pickle.loads(sent)
    assert shared.get(np.zeros(1, np.int32))[0].tolist() == [5]  # who has it open goes on
    shared.add(numbers(6), 1, None, None)
    assert shared.counters()[1] == 2


def test_files_of_others_are_left_where_a_buffer_is_removed(tmp_path: Path) -> None:
    directory = Path(light(tmp_path).files.directory)
    others = {"notes.bin", f"{files.WIDE}notes"}
    for name in others:
        (directory / name).touch()
    files.remove(str(directory))
    assert {path.name for path in directory.iterdir()} == others


def test_who_waited_for_a_lock_that_was_removed_begins_anew(tmp_path: Path) -> None:
    shared, found = light(tmp_path), []
    path = shared.files.directory
    comer = threading.Thread(target=lambda: found.append(light(tmp_path)))

    def remove_meanwhile() -> None:
        comer.start()
        time.sleep(0.1)  # it waits by now; else there is nothing to see, but nothing wrong either
        files._remove_files(path)

    shared.files.lock.hold(remove_meanwhile, lambda: None)
    comer.join()
    assert found[0].files.lock.is_at(f"{path}/lock")
    found[0].add(numbers(1), 1, None, None)
    assert light(tmp_path).counters()[1] == 1


WORDS = {
    "sequence": control.SEQUENCE,
    "reserved": control.RESERVED,
    "kind": control.KIND,
    "first": control.FIRST,
    "count": control.COUNT,
    "has rows": control.HAS_ROWS,
    **{f"counters {k}": control.COUNTERS + k for k in range(2 * control.SLOT_WORDS)},
}


NONSENSE = [-1, -(2**63), 2**63 - 1, 2**31, 2**40 + 7, -(2**33), 6, 7, 2**20, 2**31 - 1]


def died_in(shared: SharedBuffer, kind: int) -> None:
    """Leave what a process does that dies in a write of two items, for which it had taken room."""
    words = shared.files.control
    words[control.SEQUENCE] += 1
    words[control.RESERVED] = 6  # an add has room before it begins
    words[control.KIND], words[control.COUNT], words[control.FIRST], words[control.HAS_ROWS] = kind, 2, 4, 1


def repaired_or_refused(shared: SharedBuffer, name: str) -> bool:
    """Whether a repair refuses, naming the file; else the buffer is sound and is used."""
    try:
        shared.exclusively(lambda: None)
    except ValueError as error:
        assert os.path.join(shared.files.directory, name) in str(error)  # noqa: PT017 - it may be repaired
        assert "remove the directory" in str(error)  # noqa: PT017
        before = shared.files.control.copy(), shared.files.rows.copy()
        with pytest.raises(ValueError, match=name):
            shared.add(numbers(1), 1, None, None)
        assert np.array_equal(before[0], shared.files.control)
        assert np.array_equal(before[1], shared.files.rows)
        return True
    assert 0 <= int(shared.counters()[1]) <= 6
    shared.get(np.arange(-2, 9, dtype=np.int32))
    shared.update(np.arange(-2, 9, dtype=np.int32), np.ones(11, np.float32), {})
    return False


@pytest.mark.parametrize("kind", [control.ADD, control.UPDATE, control.CLEAR])
def test_what_control_says_of_a_dead_writer_is_not_believed(kind: int, tmp_path: Path) -> None:
    """Any word of it may be anything: it is repaired, or refused by name; no memory is read or written elsewhere."""
    shared = light(tmp_path, sampler=frb.Prioritized())
    shared.add(numbers(1, 2, 3, 4), 4, None, None)
    sound = shared.files.control.copy()
    refused = set()
    for name, place in WORDS.items():
        for value in NONSENSE:
            shared.files.control[:] = sound
            died_in(shared, kind)
            shared.files.control[place] = value
            if repaired_or_refused(shared, "control.bin"):
                refused.add(name)
    assert {"sequence", "reserved", "kind", "counters 8", "counters 10"} <= refused
    assert not {"counters 0", "counters 15"} & refused  # what is not in force, or not used
    assert ("first" in refused) == (kind == control.ADD)
    assert ("count" in refused) == (kind != control.CLEAR)
    assert ("has rows" in refused) == (kind == control.UPDATE)


def test_what_the_journal_says_is_not_believed(tmp_path: Path) -> None:
    shared = light(tmp_path, sampler=frb.Prioritized())
    shared.add(numbers(1, 2, 3, 4), 4, None, None)
    places, values = shared.files.journal[0].view(np.int32), shared.files.journal[1].view(np.float32)
    sound = shared.files.control.copy()
    for slots, priorities, good in [
        ([0, 1], [1, 2], True),
        ([-1, 1], [1, 2], False),
        ([0, 6], [1, 2], False),
        ([2**31 - 1, 0], [1, 2], False),
        ([0, -(2**31)], [1, 2], False),
        *(([0, 1], [1, bad], False) for bad in (np.nan, np.inf, -1, 3e38)),
    ]:
        shared.files.control[:] = sound
        places[:2], values[:2] = slots, priorities
        died_in(shared, control.UPDATE)
        assert repaired_or_refused(shared, "journal.bin") != good


def test_nothing_is_repaired_where_no_room_was_taken(tmp_path: Path) -> None:
    """Writing to a hole of a mapped file kills the process where the disk is full, and in a tmpfs reading it does."""
    shared = light(tmp_path, sampler=frb.Prioritized())
    shared.add(numbers(1, 2, 3, 4), 4, None, None)
    shared.files.journal[0].view(np.int32)[:2] = 0, 4
    sound = shared.files.control.copy()
    for kind, reserved, name in (
        (control.ADD, 5, "control"),
        (control.ADD, 3, "control"),
        (control.UPDATE, 4, "journal"),
        (control.CLEAR, 3, "control"),
    ):
        shared.files.control[:] = sound
        died_in(shared, kind)
        shared.files.control[control.RESERVED] = reserved
        assert repaired_or_refused(shared, f"{name}.bin")


def test_room_that_is_only_said_to_be_reserved_is_reserved(tmp_path: Path) -> None:
    """A file that was copied, or changed, may have holes there: writing to these would need room again."""
    spec = {"item": (frb.Unbounded((4096,), "uint8"),), "capacity": 100}
    shared = light(tmp_path, **spec)
    rows = Path(shared.files.directory, "wide_0.bin")
    assert not rows.stat().st_blocks
    shared.files.control[control.RESERVED] = 100
    light(tmp_path, **spec)
    assert rows.stat().st_blocks * 512 >= 100 * 4096


def test_a_damaged_buffer_is_not_opened(tmp_path: Path) -> None:
    shared = light(tmp_path)
    shared.add(numbers(1, 2), 2, None, None)
    shared.files.control[control.COUNTERS + control.SLOT_WORDS] = -1
    with pytest.raises(ValueError, match=r"control\.bin: its cursor, size.*remove the directory"):
        light(tmp_path)


def test_who_dies_as_he_empties_a_shared_buffer_has_emptied_it(tmp_path: Any, monkeypatch: Any) -> None:
    shared = SharedBuffer.open(spec_at(tmp_path / "shared", sampler=frb.Prioritized()))
    shared.add([batch_of(1, 2)[name] for name in NAMES], 2, None, None)

    def dies(*args: Any) -> None:
        shared.files.tree[0, 0] = 0
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("functional_rb._native.shared_commit", dies)
        with pytest.raises(KeyboardInterrupt):
            shared.clear()
    # Whoever comes next finds a write under way, and ends it.
    assert shared.files.control[control.SEQUENCE] % 2 == 0
    assert shared.counters()[:2].tolist() == [2, 0]
    assert not shared.files.tree.any()
    assert shared.lost().tolist() == [0]
