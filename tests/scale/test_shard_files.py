"""Checkpoints of buffers that are dealt to shards, where one process has all shards, or threads stand for processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint import shards as saved_shards
from functional_rb.checkpoint.opened import read_manifest
from functional_rb.checkpoint.shards import Dealt
from functional_rb.core.draft import Arrays
from functional_rb.inspection import inspect
from functional_rb.sharding import regroup
from functional_rb.sharding.deal import deal
from tests.support.checkpoints import Killed, failing
from tests.support.effort import effort

LANES, LENGTH, SHARDS = 5, 8, 3
ITEM = {
    "x": frb.Unbounded((2,)),
    "image": frb.Bounded(0, 255, (40, 40), "uint8"),
    "reward": frb.Unbounded(()),
    "next": {"x": frb.Unbounded((2,)), "done": frb.Binary(())},
}
SPEC = frb.BufferSpec(ITEM, LANES * LENGTH, frb.Prioritized(), lanes=LANES, transforms=frb.n_step(2, 0.5))
# Dealt by slots.
BEST = frb.BufferSpec(ITEM, 19, frb.Prioritized(), frb.MaxValue("x"), lanes=LANES)
BACKENDS = (jax_backend, torch_backend)
both = pytest.mark.parametrize("rb", BACKENDS, ids=["jax", "torch"])


@dataclasses.dataclass
class Processes:
    """Processes, or threads in their place, that have some of the shards each."""

    number: int = 0
    count: int = 1
    shards: int = SHARDS
    own: tuple[int, ...] = tuple(range(SHARDS))
    tell: Callable[[str], list[str]] = lambda text: [text]


class Held(frb.State):
    """A buffer that is dealt to shards, all or some of which a process has."""

    def __init__(self, dealt: Dealt) -> None:
        arrays = dealt.index
        super().__init__(arrays.rows, arrays.wide, arrays.tree, arrays.counters, arrays.auxiliary, dealt.index.spec)
        object.__setattr__(self, "_dealt", dealt)

    def dealt(self) -> Dealt:
        found: Dealt = self._dealt  # type: ignore[attr-defined]  # set above
        return found


def whole(rb: Any, seed: int, spec: frb.BufferSpec = SPEC) -> Any:
    """A buffer after some steps, in which lanes have been left out here and there."""
    rng, state = np.random.default_rng(seed), rb.init(spec)
    for _ in range(3 + seed):
        lead = (2, spec.lanes)
        items = {
            "x": rng.standard_normal((*lead, 2)).astype(np.float32),
            "image": rng.integers(0, 255, (*lead, 40, 40)).astype(np.uint8),
            "reward": rng.standard_normal(lead).astype(np.float32),
            "next": {"x": rng.standard_normal((*lead, 2)).astype(np.float32), "done": rng.random(lead) < 0.3},
        }
        state = rb.add(state, items, mask=rng.random(lead) < 0.8)
    return state


def arrays_of(rb: Any, state: Any) -> Arrays:
    """The arrays of a state in NumPy."""
    found = Arrays(state.rows, state.wide, state.tree, state.counters, dict(state.auxiliary))
    return found.each(lambda x: np.array(np.asarray(x)))


def dealt(rb: Any, state: Any, group: Any = None, shards: int = SHARDS) -> Any:
    """The same buffer, dealt."""
    spec, made = state.spec, deal(state.spec, shards)
    group = Processes(shards=shards, own=tuple(range(shards))) if group is None else group
    restore = __import__(f"{rb.__name__}.engines.restore", fromlist=["restore"]).restore
    index, part = regroup.split(spec, arrays_of(rb, state))
    parts = {k: regroup.regrouped(deal(spec, 1), index, {0: part}, made, k) for k in group.own}
    states = {k: restore(made.part, arrays) for k, arrays in parts.items()}
    return Held(Dealt(spec, restore(made.index, index), states, group))


def assert_same(rb: Any, found: Any, expected: Any) -> None:
    assert found.spec == expected.spec
    for one, other in zip(flat(arrays_of(rb, found)), flat(arrays_of(rb, expected)), strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


def flat(arrays: Arrays) -> list[Any]:
    tree = [] if arrays.tree is None else [arrays.tree]
    return [arrays.rows, *arrays.wide, *tree, arrays.counters, *(x for _, x in sorted(arrays.auxiliary.items()))]


@both
@pytest.mark.parametrize(("spec", "numbers"), [(SPEC, (1, 2, 3, 8)), (BEST, (3, 8))], ids=["lanes", "slots"])
def test_what_loads_is_the_whole_on_either_backend(
    rb: Any, spec: frb.BufferSpec, numbers: tuple[int, ...], tmp_path: Path
) -> None:
    state = whole(rb, 0, spec)
    for shards in numbers:
        info = frb.save(dealt(rb, state, shards=shards), tmp_path / str(shards))
        assert info.items == int(rb.size(state))
        assert info.full
        assert info.nbytes <= info.written
        for backend in BACKENDS:
            assert_same(backend, frb.load(tmp_path / str(shards), backend), state)
        assert frb.checkpoint.load_spec(tmp_path / str(shards)) == spec
        assert len(os.listdir(tmp_path / str(shards) / "shards")) == shards


@both
def test_another_spec_and_storage(rb: Any, tmp_path: Path) -> None:
    state = whole(rb, 0)
    frb.save(dealt(rb, state), tmp_path)
    larger = dataclasses.replace(SPEC, capacity=2 * LANES * LENGTH, sampler=frb.Uniform())
    found = frb.load(tmp_path, rb, spec=larger)
    assert found.spec == larger
    assert int(rb.size(found)) == int(rb.size(state))
    on_host = frb.load(tmp_path, rb, frb.checkpoint.LoadOptions(mmap=True), storage=frb.Host())
    assert on_host.spec.storage == frb.Host()
    handles = np.asarray(rb.newest(state, 2)).reshape(-1)
    assert (
        np.asarray(rb.get(on_host, handles)["image"]).tobytes() == np.asarray(rb.get(state, handles)["image"]).tobytes()
    )
    with pytest.raises(ValueError, match="lanes"):
        frb.load(tmp_path, rb, spec=dataclasses.replace(SPEC, lanes=4))


@both
def test_only_what_has_changed_is_written_and_what_is_named_stays(rb: Any, tmp_path: Path) -> None:
    states = [whole(rb, seed) for seed in range(4)]
    first = frb.save(dealt(rb, states[0]), tmp_path, incremental=True)
    again = frb.save(dealt(rb, states[0]), tmp_path, incremental=True)
    assert not again.full
    assert again.written < first.written
    assert frb.checkpoint.checkpoints(tmp_path) == [again, first]
    for seed in (1, 2, 3):
        frb.save(dealt(rb, states[seed]), tmp_path, keep=2)
    assert [found.generation for found in frb.checkpoint.checkpoints(tmp_path)] == [5, 4]
    assert [found.items for found in frb.checkpoint.checkpoints(tmp_path)] == [int(rb.size(states[k])) for k in (3, 2)]
    for k in range(SHARDS):
        assert [found.generation for found in frb.checkpoint.checkpoints(tmp_path / "shards" / str(k))] == [5, 4, 3], (
            "the last stays until"
        )
    os.truncate(tmp_path / "shards" / "1" / "0000000005.safetensors", 100)
    with pytest.raises(frb.errors.CorruptCheckpointError, match=r"shards/1/0000000005\.safetensors"):
        frb.load(tmp_path, rb)
    assert_same(rb, frb.load(tmp_path, rb, frb.checkpoint.LoadOptions(fall_back=True)), states[2])
    for _ in range(2):
        frb.save(dealt(rb, states[0], shards=2), tmp_path)
    assert sorted(os.listdir(tmp_path / "shards")) == ["0", "1"], "nothing names the third any more"
    assert_same(rb, frb.load(tmp_path, rb), states[0])


def test_nothing_is_removed_that_a_manifest_may_name_which_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rb = torch_backend
    old, new = whole(rb, 0), whole(rb, 1)
    frb.save(dealt(rb, old), tmp_path)

    def read(directory: str, number: int) -> manifests.Manifest:
        if directory == str(tmp_path):  # as where a file system of a network has lost sight of it
            raise FileNotFoundError(directory)
        return read_manifest(directory, number)

    with monkeypatch.context() as patch:
        patch.setattr(saved_shards, "read_manifest", read)
        frb.save(dealt(rb, new, shards=2), tmp_path)
    assert_same(rb, frb.load(tmp_path, rb), new)
    (tmp_path / manifests.name_of(2)).unlink()
    assert_same(rb, frb.load(tmp_path, rb), old)


@both
def test_whenever_a_save_is_killed_the_old_or_the_new_one_loads(rb: Any, tmp_path: Path) -> None:
    old, new, place = whole(rb, 0), whole(rb, 1), tmp_path / "run"
    frb.save(dealt(rb, old), place, keep=1)
    with failing(None) as counted:
        frb.save(dealt(rb, old), tmp_path / "counted", keep=1)
        before = len(counted.trace)
        frb.save(dealt(rb, new), tmp_path / "counted", keep=1)
    trace = counted.trace[before:]
    seals = [name == "rename" and args[1].endswith(".json") for name, args in trace]
    committed = max(k for k, seal in enumerate(seals) if seal)  # that of the index, the last of all
    assert sum(seals) == SHARDS + 1
    for at in range(0, len(seals), effort(5, 1)):
        path = tmp_path / str(at)
        shutil.copytree(place, path)
        with failing(at, killed=True), pytest.raises(Killed):
            frb.save(dealt(rb, new), path, keep=1)
        assert_same(rb, frb.load(path, rb), new if at > committed else old)
        frb.save(dealt(rb, new), path)
        assert_same(rb, frb.load(path, rb), new)


@both
def test_a_part_of_another_buffer_or_moment_is_refused(rb: Any, tmp_path: Path) -> None:
    state, place = whole(rb, 0), tmp_path / "run"
    frb.save(dealt(rb, state), place)
    frb.save(dealt(rb, whole(rb, 1)), tmp_path / "other")
    part = place / "shards" / "1"
    for name in ("0000000001.json", "0000000001.safetensors"):
        shutil.copy(tmp_path / "other" / "shards" / "1" / name, part / name)
    with pytest.raises(
        frb.errors.CorruptCheckpointError,
        match=r"shards/1/0000000001\.json: expected the part of shard 1 .* with the checksum .* found .* put back",
    ):
        frb.load(place, rb)
    assert "shard 1" in str(frb.checkpoint.checkpoints(place)[0].problem)
    report = inspect(place)
    assert [one["whole"] for one in report["generations"]] == [False]
    wrong = {file["name"] for file in report["files"] if file["problem"]}
    assert wrong == {"shards/1/0000000001.json"}
    report = inspect(tmp_path / "other")
    assert report["generations"][0]["whole"]
    assert len(report["files"]) == 1 + 1 + 2 * SHARDS
    os.remove(part / "0000000001.json")
    with pytest.raises(
        frb.errors.CorruptCheckpointError, match=r"shards/1/0000000001\.json: the file is missing, .*shard 1"
    ):
        frb.load(place, rb)
    os.rename(part, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", part)
    for given in (frb.load, frb.save):
        with pytest.raises(frb.errors.CheckpointError, match="a symbolic link"):
            given(*((place, rb) if given is frb.load else (dealt(rb, state), place)))


def test_a_manifest_that_lies_is_refused(tmp_path: Path) -> None:
    """Its checksum fits, as whoever writes one can make it fit."""
    rb = BACKENDS[0]
    frb.save(dealt(rb, whole(rb, 0)), tmp_path)
    told = read_manifest(str(tmp_path), 1)
    assert told.shards is not None
    one, two, three = told.shards.parts
    another = frb.convert.to_json(dataclasses.replace(SPEC, lanes=8))
    lies = {
        "of another buffer or moment": dataclasses.replace(told.shards, parts=(two, one, three)),
        "expected a part of": dataclasses.replace(told.shards, parts=(one, two)),
        "its index is not that of its spec": dataclasses.replace(told.shards, spec=another),
        "the file is missing": dataclasses.replace(told.shards, parts=((9, one[1]), two, three)),
        "cannot be dealt": dataclasses.replace(
            told.shards, spec=frb.convert.to_json(dataclasses.replace(SPEC, storage=frb.Memmap("/nowhere")))
        ),
    }
    for reason, lie in lies.items():
        with open(tmp_path / "0000000001.json", "wb") as file:
            file.write(manifests.encode(dataclasses.replace(told, shards=lie)))
        with pytest.raises(frb.errors.CorruptCheckpointError, match=reason):
            frb.load(tmp_path, rb)
    swapped = dataclasses.replace(told.shards, parts=(two, one, three))
    (tmp_path / "0000000001.json").write_bytes(manifests.encode(dataclasses.replace(told, shards=swapped)))
    for source, name in (("0", "aside"), ("1", "0"), ("aside", "1")):
        os.rename(tmp_path / "shards" / source, tmp_path / "shards" / name)
    with pytest.raises(
        frb.errors.CorruptCheckpointError, match=r"shards/0/.* its lanes hold .* items, and by the index"
    ):
        frb.load(tmp_path, rb)


# --- several processes ----------------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[Processes], Any]) -> list[Any]:
    """What each of some processes makes, an error if it raises that; threads stand for them."""
    barrier, said, made = threading.Barrier(count, timeout=30), [""] * count, [None] * count

    def tell_of(number: int) -> Callable[[str], list[str]]:
        def tell(text: str) -> list[str]:
            said[number] = text
            barrier.wait()
            found = list(said)
            barrier.wait()
            return found

        return tell

    def run(number: int) -> None:
        own = tuple(range(number, SHARDS, count))
        try:
            made[number] = work(Processes(number, count, SHARDS, own, tell_of(number)))
        except Exception as error:
            made[number] = error  # type: ignore[call-overload]  # an error in place of a result
            barrier.abort() if isinstance(error, threading.BrokenBarrierError) else None

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


@both
def test_each_process_writes_its_own_and_all_fail_together(rb: Any, tmp_path: Path) -> None:
    old, new = whole(rb, 0), whole(rb, 1)
    saved = in_threads(2, lambda group: frb.save(dealt(rb, old, group), tmp_path))
    assert saved[0] == saved[1]
    assert_same(rb, frb.load(tmp_path, rb), old)

    place = tmp_path / "shards" / "1"
    shutil.rmtree(place)
    place.write_text("no directory")  # which the second process alone meets
    found = in_threads(2, lambda group: frb.save(dealt(rb, new, group), tmp_path))
    assert isinstance(found[1], OSError)
    assert type(found[0]) is frb.errors.CheckpointError
    assert "process 1 of 2 has failed" in str(found[0])
    assert [one.generation for one in frb.checkpoint.checkpoints(tmp_path)] == [1]
    place.unlink()
    saved = in_threads(2, lambda group: frb.save(dealt(rb, new, group), tmp_path))
    assert saved[0].generation == 2
    assert_same(rb, frb.load(tmp_path, rb), new)

    # The first cannot hold the directory.
    lock = tmp_path / "lock"
    lock.unlink()
    lock.mkdir()
    found = in_threads(2, lambda group: frb.save(dealt(rb, old, group), tmp_path))
    assert isinstance(found[0], OSError)
    assert "process 0 of 2 has failed" in str(found[1])
    lock.rmdir()
    assert_same(rb, frb.load(tmp_path, rb), new)


def test_processes_that_are_not_at_the_same_moment(tmp_path: Path) -> None:
    rb = BACKENDS[0]
    found = in_threads(2, lambda group: frb.save(dealt(rb, whole(rb, group.number), group), tmp_path / "a"))
    for error in found:
        assert isinstance(error, ValueError)
        assert "processes [1] have others than process 0" in str(error)
    found = in_threads(2, lambda group: frb.save(dealt(rb, whole(rb, 0), group), tmp_path, keep=1 - group.number))
    assert "keep" in str(found[1])
    assert "process 1 of 2 has failed" in str(found[0])
    apart = in_threads(2, lambda group: frb.save(dealt(rb, whole(rb, 0), group), tmp_path / str(group.number)))
    assert "give a directory that all processes share" in str(apart[0])
    assert "process 0 of 2 has failed" in str(apart[1])
    assert not frb.checkpoint.checkpoints(tmp_path / "0")
    with pytest.raises(ValueError, match=r"leave background out"):
        frb.save(dealt(rb, whole(rb, 0)), tmp_path, background=True)
    with contextlib.suppress(FileNotFoundError):
        assert frb.load(tmp_path / "1", rb) is None
