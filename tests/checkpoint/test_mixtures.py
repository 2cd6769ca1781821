"""Checkpoints of mixtures: what loads is of one save, whoever saves meanwhile, and whenever a save stops."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from tests.support.backends import Backend
from tests.support.checkpoints import ROOT, Killed, failing, locked
from tests.support.children import program
from tests.support.effort import effort
from tests.support.numbered_mixtures import ITEM, SPECS, mixture_at


def number_of(mixture: Any) -> float:
    """The number that all of it tells."""
    told = [float(x) for state in mixture.buffers for x in state_items(state)[:3]]
    told += [float(x) - 1 for x in mixture[1].p]
    assert len(set(told)) == 1, told
    return told[0]


def state_items(state: Any) -> Any:
    return rb.items(state)["x"]


def loaded(path: Path, **options: Any) -> float:
    return number_of(frb.load(path, rb, **options))


# ------------------------------------------------------------ one save


@pytest.mark.parametrize("way", effort(["incremental", "async"], ["full", "incremental", "async"]))
def test_a_save_that_is_killed_at_any_call_leaves_the_old_or_the_new(way: str, tmp_path: Path) -> None:
    def save(number: float, path: Path) -> None:
        if way == "async":
            frb.save(mixture_at(number), path, keep=1, background=True).result(60)
        else:
            frb.save(mixture_at(number), path, incremental=way == "incremental", keep=1)

    save(1, tmp_path / "begun")
    shutil.copytree(tmp_path / "begun", tmp_path / "counted")
    with failing(None) as counted:
        save(2, tmp_path / "counted")
    seals = [name == "rename" and args[1].endswith(".json") for name, args in counted.trace]
    committed = max(k for k, seal in enumerate(seals) if seal)  # that of the small checkpoint, the last of all
    assert sum(seals) == 5
    for at in range(0, len(seals), effort(7, 1)):
        path = tmp_path / str(at)
        shutil.copytree(tmp_path / "begun", path)
        with failing(at, killed=True), pytest.raises(Killed):
            save(2, path)
        assert loaded(path) == (2 if at > committed else 1), f"call {at}"
        save(3, path)
        assert loaded(path) == 3


def test_the_whole_waits_for_the_lock(tmp_path: Path) -> None:
    """Nothing of a mixture is written while another save to its directory goes on, of another process too."""
    with locked(tmp_path / "lock"):
        handle = frb.save(mixture_at(1), tmp_path, background=True)
        with pytest.raises(TimeoutError):
            handle.result(0.05)
        assert [file.name for file in tmp_path.iterdir()] == ["lock"]
    assert handle.result(60).generation == 1
    assert loaded(tmp_path) == 1


def test_saves_at_once_are_not_mixed(tmp_path: Path) -> None:
    """Two save, each as fast as they can, and keep one checkpoint alone; whoever reads meanwhile reads one of them."""
    numbers = itertools.count(1)

    def save_some() -> None:
        for number in itertools.islice(numbers, effort(5, 100)):
            frb.save(mixture_at(number), tmp_path, incremental=True, keep=1)

    frb.save(mixture_at(0), tmp_path)
    threads = [threading.Thread(target=save_some) for _ in range(2)]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        seen |= {loaded(tmp_path), number_of_specs(frb.checkpoint.load_spec(tmp_path))}
    for thread in threads:
        thread.join()
    assert len(seen) > 1
    assert frb.checkpoint.checkpoints(tmp_path)[0].generation == 1 + 2 * effort(5, 100)


def number_of_specs(specs: Any) -> float:
    """0 of the specs that they should be."""
    assert [specs[0], *specs[1]] == [SPECS[1], *SPECS]
    return 0.0


@pytest.mark.long
def test_processes_that_save_at_once_are_not_mixed(tmp_path: Path) -> None:
    frb.save(mixture_at(0), tmp_path)
    commands = [program("saves_mixtures", tmp_path, first) for first in (1, 1001)]
    running = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    seen = set()
    while any(process.poll() is None for process in running):
        seen.add(loaded(tmp_path))
    assert [process.wait() for process in running] == [0, 0]
    assert len(seen) > 2


def test_a_reader_that_is_overtaken_begins_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it was about to read has been removed by a later save."""
    frb.save(mixture_at(1), tmp_path, keep=1)
    listed, left, at_work = os.listdir, [3], list[bool]()

    def overtaken(path: Any) -> list[str]:
        if path == str(tmp_path / "buffers" / "0") and left[0] and not at_work:
            left[0] -= 1
            at_work.append(True)
            for _ in range(2):
                frb.save(mixture_at(5 - left[0]), tmp_path, keep=1)
            at_work.clear()
        return listed(path)

    monkeypatch.setattr(os, "listdir", overtaken)
    assert loaded(tmp_path) == 5
    left[0] = 1
    assert number_of_specs(frb.checkpoint.load_spec(tmp_path)) == 0


# ------------------------------------------------------------ in the background


def test_training_goes_on_while_a_mixture_is_saved(library: Backend, tmp_path: Path) -> None:
    """What is saved is of the moment of the call, of all buffers and of the shares, whatever is consumed after it."""
    saving = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)  # as another process that saves: it is waited for
    fcntl.flock(saving, fcntl.LOCK_EX)
    backend, mixture = library.rb, mixture_at(7, library.rb)
    handles = [frb.save(mixture, tmp_path, keep=3, background=True)]
    for to in ((0,), (1, 0), (1, 1)):
        mixture = backend.add_(mixture, {"x": np.full(4, 8, np.float32)}, to=to)
    handles.append(frb.save(mixture, tmp_path, incremental=True, background=True))
    assert not handles[0].done()
    os.close(saving)
    first, second = (handle.result(60) for handle in handles)
    assert (first.generation, first.items, second.generation, second.items) == (1, 9, 2, 16)
    assert 1000 < first.nbytes < first.written
    found = frb.load(tmp_path, backend)
    assert {float(x) for state in found.buffers for x in backend.items(state)["x"][1:3]} <= {7, 8}
    (tmp_path / "0000000002.json").write_text("damaged")
    older = frb.load(tmp_path, rb, frb.checkpoint.LoadOptions(fall_back=True))
    assert number_of(older) == 7


def test_an_error_in_the_background_is_told(tmp_path: Path) -> None:
    (tmp_path / "buffers").write_text("no directory")
    with pytest.raises(frb.errors.CheckpointError, match="buffers"):
        frb.save(mixture_at(1), tmp_path, background=True).result(60)
    with pytest.raises(ValueError, match="save: keep: expected 1 or more"):
        frb.save(mixture_at(1), tmp_path, keep=0, background=True)
    consumed = mixture_at(1)
    rb.add_(consumed, {"x": np.zeros(1, np.float32)}, to=(1, 1))
    with pytest.raises(RuntimeError, match="consumed"):
        frb.save(consumed, tmp_path, background=True)


# ------------------------------------------------------------ damage, and other specs


def test_falling_back_takes_the_newest_that_is_whole(tmp_path: Path) -> None:
    for number in range(1, 4):
        frb.save(mixture_at(number), tmp_path, keep=4)
    newest = max((tmp_path / "buffers" / "1" / "buffers" / "0").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    with pytest.raises(frb.errors.CorruptCheckpointError, match=newest.name):
        frb.load(tmp_path, rb)
    assert loaded(tmp_path, options=frb.checkpoint.LoadOptions(fall_back=True)) == 2
    (tmp_path / "0000000002.json").unlink()
    assert loaded(tmp_path, options=frb.checkpoint.LoadOptions(fall_back=True)) == 1
    (tmp_path / "0000000001.json").write_text("damaged")
    with pytest.raises(frb.errors.CorruptCheckpointError):
        frb.load(tmp_path, rb, frb.checkpoint.LoadOptions(fall_back=True))


def test_specs_of_all_buffers_are_loaded_and_given(library: Backend, tmp_path: Path) -> None:
    backend, mixture = library.rb, mixture_at(3, library.rb)
    frb.save(mixture, tmp_path)
    told = frb.checkpoint.load_spec(tmp_path)
    assert number_of_specs(told) == 0
    assert (told.spec, told[1].spec) == (mixture.spec, mixture[1].spec)
    assert (told.p, told[1].p) == (None, frb.Unbounded((2,)))
    larger = frb.BufferSpec(ITEM, 20, frb.Prioritized(alpha=0.5), storage=SPECS[0].storage)
    for given in (
        backend.with_spec(mixture, [None, (larger, None)]),
        frb.load(tmp_path, backend, spec=[None, (larger, None)]),
    ):
        assert [state.spec for state in given.buffers] == [SPECS[1], larger, SPECS[1]]
        assert library.numpy(backend.size(given, each=True)).tolist() == [3, 6]
        assert given.spec == mixture.spec
    assert backend.with_spec(mixture, told)[1][1] is mixture[1][1]
    for specs, error, message in (
        (larger, TypeError, "with_spec: spec: expected a list with a spec for each of the mixture's 2 buffers"),
        ([larger], ValueError, "expected one for each of the mixture's 2 buffers, got 1"),
    ):
        with pytest.raises(error, match=message):
            backend.with_spec(mixture, specs)
    with pytest.raises(ValueError, match="load: spec: a mixture has several buffers; give a list"):
        frb.load(tmp_path, backend, spec=larger)
    with pytest.raises(ValueError, match="load: spec: expected one for each of the mixture's 2 buffers, got 1"):
        frb.load(tmp_path, backend, spec=[larger])
    frb.save(mixture[0], tmp_path / "one")
    with pytest.raises(ValueError, match="load: spec: expected one BufferSpec, as no mixture was saved, got list"):
        frb.load(tmp_path / "one", backend, spec=[larger])
