"""The converter: what is stored of any reader's episodes, whatever happens on the way; and the states opened of it."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
from functional_rb.datasets import Dataset, Episode, StepSpec, convert
from tests.datasets.made_up import LENGTHS, READERS, MadeUp, contents, expected
from tests.support.backends import Backend
from tests.support.effort import effort

converting, reading, staging = (
    sys.modules[f"functional_rb.datasets.{name}"] for name in ("convert", "reader", "stage")
)
ROOT = Path(__file__).parents[2]


def of(library: Backend, path: Path, **more: Any) -> Any:
    return frb.datasets.load(path, library.rb, **more)


def table(library: Backend, items: Any) -> dict[str, np.ndarray]:
    """Items as `expected` has them."""
    after = items["next"]
    leaves = {"observation": items["observation"], "after": after["observation"], "action": items["action"]}
    leaves |= {name: after[name] for name in ("reward", "terminated", "truncated")}
    found = {name: library.numpy(leaf) for name, leaf in leaves.items()}
    for name in ("observation", "after"):
        flat = found[name].reshape(len(found[name]), -1)
        assert (flat == flat[:, :1]).all()
        found[name] = flat[:, 0]
    return found


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_steps_are_stored_as_they_were(library: Backend, reader: MadeUp, compact: bool, tmp_path: Path) -> None:
    made = convert(reader, tmp_path / "made", frb.datasets.Conversion(compact=compact))
    wanted = expected(reader)
    state = of(library, tmp_path / "made")
    items = library.rb.items(state)
    frb.ted.check(items, time_axis=0)
    found = table(library, items)
    for name, column in wanted.items():
        np.testing.assert_array_equal(found[name], column, name)
    assert made.steps == len(wanted["reward"]) == int(library.rb.size(state)) == state.spec.capacity
    assert made.steps + made.dropped == sum(LENGTHS)
    assert made.frames == (made.steps + made.episodes if compact else 0)


@pytest.mark.parametrize("compact", [True, False])
def test_steps_are_the_same_however_many_are_gathered(
    compact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One or some at a time, all in the same memory, and a piece that is larger than that."""
    monkeypatch.setattr(converting, "CHUNK", 300)
    for name, reader in READERS.items():
        convert(reader, tmp_path / name, frb.datasets.Conversion(compact=compact, infos=True))
        whole = contents(tmp_path / name)
        for room in (1, 300):
            with monkeypatch.context() as patch:
                patch.setattr(staging, "ROOM", room)
                convert(reader, tmp_path / f"{name} {room}", frb.datasets.Conversion(compact=compact, infos=True))
            assert contents(tmp_path / f"{name} {room}") == whole


def test_readers_may_use_their_memory_again(tmp_path: Path) -> None:
    class Again(MadeUp):
        def episodes(self, first: int = 0) -> Iterator[Episode]:
            memory = np.zeros((10, 3))
            for episode in super().episodes(first):
                observations = memory[: len(episode) + 1]
                observations[...] = episode.observations
                yield dataclasses.replace(episode, observations=observations)

    convert(Again([4, 7, 9], (3,)), tmp_path / "again")
    convert(MadeUp([4, 7, 9], (3,)), tmp_path / "made")
    assert contents(tmp_path / "again") == contents(tmp_path / "made")


def test_slices_and_n_steps_know_the_episodes(library: Backend, tmp_path: Path) -> None:
    reader = READERS["in pieces"]
    convert(reader, tmp_path / "made", frb.datasets.Conversion(infos=True))
    slices = of(library, tmp_path / "made", sampler=frb.Slices(3))
    slices, drawn = library.rb.sample(slices, library.rb.key(0), 64)
    observation, after = (library.numpy(x["observation"]) for x in (drawn.items, drawn.items["next"]))
    assert (np.diff(observation, axis=1) == 1).all()
    assert (after - observation == 1).all()
    assert {0, 6, 7, 8, 9, 16, 17, 18} == set(observation[:, 0].astype(int))

    # Of varying length: whole episodes, where none is longer than a slice.
    whole = of(library, tmp_path / "made", sampler=frb.Slices(8, strict_length=False))
    _, drawn = library.rb.sample(whole, library.rb.key(0), 64)
    lengths = library.numpy(drawn.mask).sum(1)
    firsts = library.numpy(drawn.items["observation"])[:, 0]
    assert {*zip(firsts.tolist(), lengths.tolist(), strict=True)} == {(0, 3), (4, 1), (6, 6), (13, 2), (16, 5)}

    summed = of(library, tmp_path / "made", transforms=frb.n_step(2, 0.5))
    summed, drawn = library.rb.sample(summed, library.rb.key(0), 64)
    items = {name: library.numpy(leaf) for name, leaf in drawn.items["next"].items()}
    t, wanted = library.numpy(drawn.items["observation"]), expected(reader)
    last = np.isin(t, wanted["observation"][wanted["terminated"] | wanted["truncated"]])
    np.testing.assert_array_equal(items["reward"], t + 0.25 + np.where(last, 0, 0.5 * (t + 1.25)))
    np.testing.assert_array_equal(items["observation"], np.where(last, t + 1, t + 2))
    np.testing.assert_array_equal(library.numpy(drawn.items["info"]["at"]), t)


SAMPLERS = (frb.Prioritized(), frb.WithoutReplacement(), frb.Uniform(max_times_sampled=2), frb.Recency(4))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_every_sampler_draws_all_steps(library: Backend, sampler: Any, tmp_path: Path) -> None:
    convert(MadeUp([5, 3]), tmp_path / "made")
    state, seen = of(library, tmp_path / "made", sampler=sampler), set[float]()
    for k in range(4):
        state, drawn = library.rb.sample(state, library.rb.key(k), 4)
        if sampler.has_priorities:
            state = library.rb.update(state, drawn.indices, drawn.weights * 0 + 0.01)
        seen |= {float(x) for x in library.numpy(drawn.items["observation"])}
    there = set(expected(MadeUp([5, 3]))["observation"])
    assert seen <= there
    assert seen == there or not isinstance(sampler, frb.WithoutReplacement)


def overwritten(library: Backend, state: Any) -> Any:
    """A state that may be written to, in which the oldest step is one with the reward -1 now."""
    state = library.rb.with_spec(state, dataclasses.replace(state.spec, writer=frb.RoundRobin()))
    handles = library.rb.newest(state, 8).reshape(-1)
    item = library.rb.get(state, handles[:1])
    item["next"]["reward"] = item["next"]["reward"] * 0 - 1
    return library.rb.add(state, item)


def test_states_are_apart_and_files_stay(library: Backend, tmp_path: Path) -> None:
    convert(MadeUp([5, 3]), tmp_path / "made", frb.datasets.Conversion(compact=False))
    before = contents(tmp_path / "made")
    first, second = (of(library, tmp_path / "made") for _ in range(2))
    changed = overwritten(library, first)
    assert table(library, library.rb.items(changed))["reward"].tolist() == [-1, *expected(MadeUp([5, 3]))["reward"][1:]]
    for other in (first, second):  # an older state reads as it was, and so does who else has the files open
        np.testing.assert_array_equal(
            table(library, library.rb.items(other))["reward"], expected(MadeUp([5, 3]))["reward"]
        )
    assert contents(tmp_path / "made") == before
    with pytest.raises(ValueError, match="Immutable"):
        library.rb.add(second, library.rb.get(second, library.rb.newest(second, 1).reshape(-1)))


def test_changed_states_are_saved_and_copied_as_they_are(library: Backend, tmp_path: Path) -> None:
    convert(MadeUp([5, 3]), tmp_path / "made", frb.datasets.Conversion(compact=False))
    state = overwritten(library, of(library, tmp_path / "made", sampler=frb.Prioritized()))
    wanted = [-1, *expected(MadeUp([5, 3]))["reward"][1:]]
    in_memory = library.rb.with_spec(state, dataclasses.replace(state.spec, storage=frb.Host()))
    frb.save(state, tmp_path / "saved")
    loaded = frb.load(tmp_path / "saved", library.rb, storage=frb.Host())
    for other in (in_memory, loaded):
        assert table(library, library.rb.items(other))["reward"].tolist() == wanted
    # What is exported is a copy, in which the change is.
    np.testing.assert_array_equal(library.numpy(state.rows), library.numpy(loaded.rows))


def test_states_are_sent_by_the_directory_of_their_files(library: Backend, tmp_path: Path) -> None:
    convert(MadeUp([100] * 40, (30,)), tmp_path / "made")
    state = of(library, tmp_path / "made")
    sent = bytes(ForkingPickler.dumps(state))
    assert len(sent) < 10_000
    other = pickle.loads(sent)
    drawn = [library.rb.sample(one, library.rb.key(0), 8)[1].items["observation"] for one in (state, other)]
    np.testing.assert_array_equal(*map(library.numpy, drawn))

    changed = library.rb.with_spec(state, dataclasses.replace(state.spec, writer=frb.RoundRobin()))
    changed = library.rb.add(changed, library.rb.get(state, library.rb.newest(state, 3).reshape(-1)))
    other = pickle.loads(pickle.dumps(changed))
    for one in (changed, other):
        np.testing.assert_array_equal(library.numpy(one.rows), library.numpy(changed.rows))
    assert not np.array_equal(library.numpy(changed.rows), library.numpy(state.rows))


def test_mixes_with_a_buffer_of_ones_own(library: Backend, tmp_path: Path) -> None:
    convert(MadeUp([5, 3]), tmp_path / "made")
    offline = of(library, tmp_path / "made")
    online = library.rb.init(frb.BufferSpec(offline.spec.item, 10, storage=frb.Host()))
    online = library.rb.add(online, library.rb.items(offline))
    mixture = frb.Mixture((offline, online), p=(0.5, 0.5))
    _, drawn = library.rb.sample(mixture, library.rb.key(0), 8)
    assert sorted(library.numpy(drawn.extras["buffer_ids"])) == [0] * 4 + [1] * 4


class Nested(MadeUp):
    """Parts of steps in dicts: the observation at "arm" and "angle"; and so on."""

    def spec(self, narrow: bool) -> StepSpec:
        steps = super().spec(narrow)
        whole = {"arm": {"angle": steps.observation}}
        return StepSpec(whole, {"turn": steps.action}, steps.reward, {"told": {"at": steps.infos["at"]}})

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        for episode in super().episodes(first):
            observations, infos = {"arm": {"angle": episode.observations}}, {"told": episode.infos}
            yield dataclasses.replace(
                episode, observations=observations, actions={"turn": episode.actions}, infos=infos
            )


def test_parts_of_steps_may_be_nests_of_dicts(library: Backend, tmp_path: Path) -> None:
    convert(Nested(LENGTHS), tmp_path / "made", frb.datasets.Conversion(infos=True))
    items, wanted = library.rb.items(of(library, tmp_path / "made")), expected(MadeUp(LENGTHS))
    frb.ted.check(items, time_axis=0)
    np.testing.assert_array_equal(library.numpy(items["arm"]["angle"]), wanted["observation"])
    np.testing.assert_array_equal(library.numpy(items["next"]["arm"]["angle"]), wanted["after"])
    np.testing.assert_array_equal(library.numpy(items["action"]["turn"]), wanted["action"])
    np.testing.assert_array_equal(library.numpy(items["info"]["told"]["at"]), wanted["observation"])


class Stops(MadeUp):
    """A reader that fails before it gives an episode, and keeps from which ones on it was asked."""

    stops_at: int | None = None
    asked: list[int]

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        self.asked.append(first)
        for k in range(first, len(self.lengths)):
            if k == self.stops_at:
                raise OSError("the net is gone")
            yield from self._pieces(k, sum(self.lengths[:k]) + k)


def test_goes_on_from_the_last_line_that_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "CHUNK", 100)
    reader = Stops([4, 7, 2, 9, 3, 5], piece=3, blind=[5])
    reader.asked = []
    convert(reader, tmp_path / "whole")
    for reader.stops_at in range(6):
        path = tmp_path / f"stopped {reader.stops_at}"
        reader.asked = []
        with pytest.raises(OSError, match="the net"):
            convert(reader, path)
        assert not path.exists()
        part = Path(f"{path}.part")
        for name in ("rows.bin", "journal.jsonl"):  # what a kill in the midst of writing leaves
            with open(part / name, "ab") as file:
                file.write(b'{"episodes":')
        reached, reader.stops_at = reader.stops_at, None
        if reached == 4:  # and a power failure: what the last line speaks of is not there
            content = bytearray((part / "rows.bin").read_bytes())
            content[-40] ^= 1
            (part / "rows.bin").write_bytes(content)
        convert(reader, path)
        assert reader.asked == [0, reached if reached != 4 else 3]
        assert contents(path) == contents(tmp_path / "whole")
        assert not part.exists()


def test_begins_anew_if_the_source_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "CHUNK", 100)
    source = tmp_path / "source"
    source.write_text("one")
    reader = Stops([4, 7, 2], files=[str(source)])
    reader.asked, reader.stops_at = [], 2
    with pytest.raises(OSError, match="the net"):
        convert(reader, tmp_path / "made")
    source.write_text("another")
    reader.stops_at = None
    convert(reader, tmp_path / "made")
    assert reader.asked == [0, 0]
    convert(reader, tmp_path / "made")  # which is there
    assert reader.asked == [0, 0]


def test_who_wants_the_same_dataset_waits_for_the_one_that_makes_it(tmp_path: Path) -> None:
    begun, asked = threading.Event(), []

    class Slow(MadeUp):
        def episodes(self, first: int = 0) -> Iterator[Episode]:
            asked.append(first)
            begun.set()
            time.sleep(0.2)  # the other one comes meanwhile
            yield from super().episodes(first)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(convert, Slow([4, 7]), tmp_path / "made")
        begun.wait()
        other = pool.submit(convert, Slow([4, 7]), tmp_path / "made")
        assert one.result().steps == other.result().steps == 11
    assert asked == [0]


def test_a_full_disk_names_the_place_and_is_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "CHUNK", 2000)
    reader = MadeUp([10] * 20, (30,))
    convert(reader, tmp_path / "whole")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, limits[1]))
    try:
        with pytest.raises(frb.errors.StorageFullError, match="make room") as caught:
            convert(reader, tmp_path / "made")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "made.part" / "rows.bin")
    assert len((tmp_path / "made.part" / "journal.jsonl").read_text().splitlines()) > 3
    convert(reader, tmp_path / "made")
    assert contents(tmp_path / "made") == contents(tmp_path / "whole")


def test_kills_change_nothing_and_memory_is_bounded(tmp_path: Path) -> None:
    """In a process of its own, as it starts and kills others. 220 MB are converted in less than 100 MB."""
    arguments = [str(tmp_path), "0", str(effort(3, 100)), str(effort(220, 3000))]
    run = [sys.executable, "-m", "tests.children.kill_conversions", *arguments]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    died, peak = map(int, done.stdout.split())
    assert died >= effort(3, 100)
    assert peak < 100


ONE = next(MadeUp([4]).episodes())
WRONG = {
    ": leaf 'observations': expected shape (5,)": {"observations": ONE.observations[1:]},
    ": leaf 'observations': expected a plain array of numbers, got dtype object": {
        "observations": {"x": ONE.observations}
    },
    ": leaf 'actions': expected shape (4,)": {"actions": np.zeros((5,))},
    ": leaf 'actions': expected 0 or 1 for each bool": {"actions": np.array([0, 1, 2, 0], np.uint8).view(bool)},
    ": leaf 'actions': expected dtype float32 or what it can hold, got complex128": {"actions": np.zeros(4, complex)},
    ": leaf 'actions': expected a plain array of numbers, got dtype object": {"actions": np.zeros(4, object)},
    ": leaf 'rewards': expected a plain array of numbers, got numpy.ma.MaskedArray": {
        "rewards": np.ma.array(np.zeros(4), mask=[0, 1, 0, 0])
    },
    ", about: expected a dict of JSON's values: Object of type int64": {"about": {"seed": np.int64(1)}},
    ", about: expected a dict of JSON's values: expected texts as keys, got 1; write '1'": {"about": {"of": {1: 2}}},
    ", rewards: expected one for each step": {"rewards": 1.0},
    ": leaf 'rewards': expected shape (4,), got (4, 2)": {"rewards": np.zeros((4, 2))},
    ": leaf 'rewards': 1e+300 does not fit": {"rewards": np.array([0, 0, 0, 1e300])},
    ", terminated: expected bool (4,), got float64": {"terminated": np.zeros(4)},
    ", truncated: step 1 of 4 is marked": {"truncated": np.array([False, True, False, True])},
    ", terminated: step 3 of 4 is marked": {"goes_on": True},
    ", infos: expected 'at'": {"infos": {}},
    ": leaf 'infos/at': 4294967296 does not fit": {"infos": {"at": np.full(4, 2**32)}},
    ": the last piece says that it goes on": {"goes_on": True, "terminated": np.zeros(4, bool)},
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_named(what: str, tmp_path: Path) -> None:
    class Wrong(MadeUp):
        def episodes(self, first: int = 0) -> Iterator[Episode]:
            yield ONE
            yield dataclasses.replace(ONE, **WRONG[what])

    place = f"made_up:episodes{' (made up)' * ('piece' not in what)}, episode 1{what}"
    with pytest.raises(ValueError, match=re.escape(place)):
        convert(Wrong([4, 4]), tmp_path / "made", frb.datasets.Conversion(infos=["at"]))


def test_episodes_may_be_of_torchs_tensors(tmp_path: Path) -> None:
    class Tensors(MadeUp):
        def episodes(self, first: int = 0) -> Iterator[Episode]:
            for episode in MadeUp.episodes(self, first):
                fields = ("observations", "actions", "rewards", "terminated", "truncated")
                yield dataclasses.replace(episode, **{name: torch.tensor(getattr(episode, name)) for name in fields})

    convert(MadeUp([4, 2]), tmp_path / "arrays")
    convert(Tensors([4, 2]), tmp_path / "tensors")
    assert contents(tmp_path / "tensors")["rows.bin"] == contents(tmp_path / "arrays")["rows.bin"]


def test_damage_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "CHUNK", 1000)
    convert(MadeUp([9] * 30, (20,)), tmp_path / "made", frb.datasets.Conversion(compact=True))
    Dataset(tmp_path / "made", verify=True)
    for name in sorted(set(contents(tmp_path / "made")) - {"dataset.json"}):
        path = tmp_path / "made" / name
        whole = path.read_bytes()
        for at in (len(whole) // 2, -45 if name != "frames.bin" else -300):  # its end is room, and holds zeros
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at:][1:])
            # In the journal a checksum is that of another file.
            named = r"\w+\.(bin|jsonl)" if name == "journal.jsonl" else name.replace(".", r"\.")
            with pytest.raises(ValueError, match=rf"made/{named}: .*(damaged|convert the dataset again)"):
                Dataset(tmp_path / "made", verify=True)
        path.write_bytes(whole)
    Dataset(tmp_path / "made", verify=True)


TOLD = [
    ("dataset.json", b'"steps": 9', b'"steps": "9"', "steps is '9'"),
    ("dataset.json", b'"steps": 9', b'"steps": 0', "0 steps"),
    ("dataset.json", b'"episodes": 2', b'"episodes": true', "episodes is True"),
    ("dataset.json", b'"episodes": 2', b'"episodes": 1099511627776', r"episodes\.bin: expected 1099511627776 episodes"),
    ("dataset.json", b'"dropped": 0', b'"dropped": -1', "dropped is -1"),
    ("dataset.json", b'"frames": 0', b'"frames": 10', "9 steps and 10 frames"),
    ("dataset.json", b'"facts": {}', b'"facts": []', r"facts is \[\]"),
    ("episodes.bin", b"\x05", b"\x06", r"episodes\.bin: expected episodes of 9 steps in all, got 10"),
    ("episodes.bin", b"\x04", b"\xff", r"episodes\.bin: expected 2 episodes, one after the other"),
    ("about.jsonl", b'{"seed": 1}\n', b"", r"about\.jsonl: expected in line 1 what is known of that episode, got b''"),
    ("about.jsonl", b"0}", b"0", r"about\.jsonl: expected in line 0 .*damaged"),
]


@pytest.mark.parametrize("case", TOLD, ids=[case[3] for case in TOLD])
def test_what_a_dataset_tells_of_itself_has_to_be_true(case: tuple[str, bytes, bytes, str], tmp_path: Path) -> None:
    name, old, new, message = case
    convert(MadeUp([4, 5]), tmp_path / "made")
    path = tmp_path / "made" / name
    whole = path.read_bytes()
    assert old in whole
    path.write_bytes(whole.replace(old, new, 1))
    for ask in (lambda data: [*data.summaries()], Dataset.statistics):
        with pytest.raises(ValueError, match=message):
            ask(Dataset(tmp_path / "made"))


def test_only_what_a_conversion_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has a folder of that name, or has made a link of it to another's."""
    precious = tmp_path / "made.part" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine")
    (tmp_path / "linked.part").symlink_to(tmp_path / "made.part")
    (tmp_path / "file.part").write_text("mine")
    for name in ("made", "linked", "file"):
        with pytest.raises(FileExistsError, match=rf"{name}\.part is there already, and no unfinished conversion"):
            convert(MadeUp([1]), tmp_path / name)
    assert precious.read_text() == "mine"

    # Of another dataset everything is removed, the journal last: who is killed meanwhile begins with the rest.
    reader = Stops([4, 7, 2])
    reader.asked, reader.stops_at = [], 2
    monkeypatch.setattr(converting, "CHUNK", 100)
    with pytest.raises(OSError, match="the net"):
        convert(reader, tmp_path / "other")
    (tmp_path / "another.part").symlink_to(tmp_path / "other.part")
    with pytest.raises(FileExistsError, match=r"another\.part is there already"):
        convert(MadeUp([1], name="made_up:others"), tmp_path / "another")
    gone, unlink = [], os.unlink
    monkeypatch.setattr("functional_rb.datasets.journal.os.unlink", lambda path: (gone.append(path), unlink(path)))
    convert(MadeUp([1], name="made_up:others"), tmp_path / "other")
    names = [Path(path).name for path in gone if not path.endswith("dataset.json")]  # which is made anew later
    assert names[-1] == "journal.jsonl"
    assert len(names) > 1


@pytest.mark.parametrize("key", [b'"files"', b'"steps"'])
def test_a_journal_whose_lines_have_other_keys_is_damaged(key: bytes, tmp_path: Path) -> None:
    convert(MadeUp([3]), tmp_path / "made")
    path = tmp_path / "made" / "journal.jsonl"
    whole = path.read_bytes()
    at = whole.rindex(key) + len(key) - 2  # so that their order, which is that of the alphabet, stays
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(ValueError, match=r"journal\.jsonl"):
        Dataset(tmp_path / "made", verify=True)


def test_steps_are_as_many_as_can_be_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "INT32_MAX", 7)
    assert convert(MadeUp([4, 3]), tmp_path / "made").steps == 7
    with pytest.raises(ValueError, match="expected at most 7 steps; write several datasets"):
        convert(MadeUp([4, 4]), tmp_path / "more")


def test_what_is_no_dataset_is_refused(library: Backend, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no steps"):
        convert(MadeUp([]), tmp_path / "empty")
    with pytest.raises(ValueError, match=r"infos: there is no 'speed', expected some of \['at'\]"):
        convert(MadeUp([1]), tmp_path / "infos", frb.datasets.Conversion(infos=["speed"]))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="give another path"):
        convert(MadeUp([1]), tmp_path / "file")
    with pytest.raises(ValueError, match=r"expected a name such as .*, got 'unknown:thing'"):
        frb.datasets.load("unknown:thing", library.rb)
    with pytest.raises(ValueError, match="no converted dataset is there"):
        Dataset(tmp_path)
    with pytest.raises(ValueError, match="expected jax_backend or torch_backend"):
        frb.datasets.load(tmp_path, "numpy")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValueError, match="expected a prefix such as 'mine'"):
        frb.datasets.register("a:b", MadeUp)
    with pytest.raises(TypeError, match="expected a function"):
        frb.datasets.register("a", None)  # type: ignore[arg-type]  # what is tested

    convert(MadeUp([3]), tmp_path / "made")
    added = frb.map_items(lambda item: item, at="add", gives=Dataset(tmp_path / "made").item)
    with pytest.raises(ValueError, match=r"datasets\.load: transforms: .* changes what is added"):
        of(library, tmp_path / "made", transforms=added)
    rows = tmp_path / "made" / "rows.bin"
    rows.write_bytes(rows.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"rows\.bin: expected 72 bytes.*got 71"):
        of(library, tmp_path / "made")
    (tmp_path / "made" / "dataset.json").write_text("{}")
    with pytest.raises(ValueError, match=r"dataset\.json: expected the description of a dataset"):
        of(library, tmp_path / "made")


def test_datasets_are_found_by_name_and_options(
    library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_REGISTERED", {})
    opened = []

    def open_made_up(rest: str, root: str, **options: Any) -> MadeUp:
        opened.append((rest, root, options))
        return MadeUp([3, 2], **options)

    frb.datasets.register("made_up", open_made_up)

    def load(**options: Any) -> Any:
        return frb.datasets.load("made_up:some/thing", library.rb, root=tmp_path, **options)

    first, again = (
        load(conversion=frb.datasets.Conversion(infos=())),
        load(conversion=frb.datasets.Conversion(infos=[])),
    )
    other = load(conversion=frb.datasets.Conversion(infos=["at"], observation_key="seen"), ends=[1])
    assert opened == [("some/thing", str(tmp_path), {}), ("some/thing", str(tmp_path), {"ends": [1]})]
    assert first.spec == again.spec
    assert set(other.spec.item) == {"seen", "action", "done", "terminated", "truncated", "next", "info"}
    if library.library == "torch":
        assert load(conversion=frb.datasets.Conversion(narrow=False)).spec.item["observation"].dtype == "float64"
    else:
        with pytest.raises(TypeError, match="float64"):  # which JAX lacks now
            load(conversion=frb.datasets.Conversion(narrow=False))
    moved = tmp_path / "elsewhere"
    os.rename(first.spec.storage.path, moved)
    state = of(library, moved)
    assert state.spec.storage == frb.Memmap(str(moved))
    assert Dataset(moved).name == "made_up:episodes"


def test_infos_are_named_in_a_list(tmp_path: Path) -> None:
    one = convert(MadeUp([2]), tmp_path / "one", frb.datasets.Conversion(infos="at"))
    assert one.options["infos"] == ["at"]
    with pytest.raises(TypeError, match=r"infos: a tuple of names .*write \['at', 'speed'\] for several, or \['at'\]"):
        convert(MadeUp([2]), tmp_path / "two", frb.datasets.Conversion(infos=("at", "speed")))
    with pytest.raises(TypeError, match="infos: expected a list of names, or True for all, got 3"):
        convert(MadeUp([2]), tmp_path / "three", frb.datasets.Conversion(infos=3))  # type: ignore[arg-type]
