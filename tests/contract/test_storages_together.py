"""Storages met by what was written beside them: devices by name, state dicts, `iterate`, loading into files."""

from __future__ import annotations

import dataclasses
import gc
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend
from tests.support.full_disks import fill_after

ITEM = {"x": frb.Unbounded((3,)), "y": frb.Unbounded((), "int32")}
HOST = frb.BufferSpec(ITEM, 16, storage=frb.Host())


def items(value: int, n: int = 16) -> dict[str, Any]:
    return {"x": np.full((n, 3), value, np.float32), "y": np.full(n, value, np.int32)}


def numbers(rb: Any, state: Any) -> list[int]:
    return np.asarray(rb.items(state)["y"]).tolist()


def test_a_device_that_is_not_there_is_refused_by_whatever_takes_one(library: Backend, tmp_path: Path) -> None:
    rb = library.rb
    state = rb.add(rb.init(HOST), items(1))
    saved, placed = rb.state_dict(state), dataclasses.replace(HOST, storage=frb.Device("cuda:9"))
    frb.save(state, tmp_path)
    shared = dataclasses.replace(HOST, storage=frb.Memmap(shared=True))
    for call in (
        lambda device: rb.init(HOST, device=device),
        lambda device: rb.init(dataclasses.replace(HOST, storage=frb.Device()), device=device),
        lambda device: rb.init(shared, device=device),
        lambda device: rb.load_state_dict(HOST, saved, device=device),
        lambda device: rb.load_state_dict(dataclasses.replace(HOST, storage=frb.Device()), saved, device=device),
        lambda device: frb.load(tmp_path, rb, device=device),
        lambda device: frb.iterate(rb, state, rb.key(0), 4, device=device),
    ):
        with pytest.raises(ValueError, match=r"device: expected one of .*'cuda:9'"):
            call("cuda:9")
        with pytest.raises(TypeError, match=r"device: expected a .* got 2\.5"):
            call(2.5)
    for named in (lambda: rb.init(placed), lambda: rb.load_state_dict(placed, saved)):
        with pytest.raises(ValueError, match=r"device: expected one of .*'cuda:9'"):
            named()
    with pytest.raises(TypeError, match="module jax_backend or torch_backend, got 'torch'"):
        frb.iterate("torch", state, rb.key(0), 4)


def test_arrays_are_sent_to_a_device_by_name_and_objects_stay_as_they_are(library: Backend) -> None:
    transfer = importlib.import_module(f"{library.rb.__name__}.interop.transfer").Transfer("cpu")
    objects, array = np.array([object(), None]), library.array(np.float32([1, 2]))
    first, second = transfer.receive(transfer.send([objects, array]))
    assert first is objects
    assert type(second) is type(array)
    assert library.numpy(second).tolist() == [1.0, 2.0]


def test_a_state_dict_gives_nothing_out(library: Backend) -> None:
    rb = library.rb
    state = rb.add(rb.init(HOST), items(1))
    rb.state_dict(state)
    memory = state._version.own()
    assert not memory.pinned
    assert rb.add(state, items(2, 1))._version.own() is memory


def test_what_lay_in_the_files_does_not_shine_through_zeros(library: Backend, tmp_path: Path) -> None:
    rb = library.rb
    files = frb.BufferSpec(ITEM, 16, storage=frb.Memmap(tmp_path / "files", existsok=True))
    zeros = rb.add(rb.init(HOST), items(0))
    frb.save(zeros, tmp_path / "saved")
    for load in (
        lambda: frb.load(tmp_path / "saved", rb, storage=files.storage),
        lambda: rb.load_state_dict(files, rb.state_dict(zeros)),
    ):
        state = rb.add(rb.init(files), items(7))
        assert numbers(rb, state) == [7] * 16
        del state
        gc.collect()
        state = load()
        assert numbers(rb, state) == [0] * 16
        del state
        gc.collect()


def test_files_that_could_not_be_filled_are_gone(
    library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rb = library.rb
    saved = rb.state_dict(rb.add(rb.init(HOST), items(1)))
    files = frb.BufferSpec(ITEM, 16, storage=frb.Memmap(tmp_path))

    with monkeypatch.context() as patch:
        fill_after(patch, 0)
        with pytest.raises(frb.errors.StorageFullError):
            rb.load_state_dict(files, saved)
    assert numbers(rb, rb.load_state_dict(files, saved)) == [1] * 16


def test_frames_have_room_before_a_state_dict_is_written_to_them(
    library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rb = library.rb
    item = {"obs": frb.Unbounded((2,)), "next_obs": frb.Unbounded((2,))}
    spec = frb.BufferSpec(item, 16, compact=frb.Compact())
    values = np.arange(1, 18, dtype=np.float32)[:, None].repeat(2, 1)
    state = rb.add(rb.init(spec), {"obs": values[:16], "next_obs": values[1:]})
    saved, spec = rb.state_dict(state), dataclasses.replace(spec, storage=frb.Memmap(tmp_path))
    with monkeypatch.context() as patch:
        fill_after(patch, 0)
        with pytest.raises(frb.errors.StorageFullError, match=r"frames\.bin"):
            rb.load_state_dict(spec, saved)
    again = rb.load_state_dict(spec, saved)
    assert np.array_equal(np.asarray(rb.items(again)["next_obs"]), values[1:])


def test_a_shared_buffer_is_loaded_into_and_is_no_dict(library: Backend, tmp_path: Path) -> None:
    rb = library.rb
    state = rb.add(rb.init(HOST), items(1))
    frb.save(state, tmp_path)
    shared = dataclasses.replace(HOST, storage=frb.Memmap(shared=True))
    for load in (
        lambda: frb.load(tmp_path, rb, storage=shared.storage),
        lambda: rb.load_state_dict(shared, rb.state_dict(state)),
    ):
        assert numbers(rb, load()) == numbers(rb, state)
    handle = rb.add(rb.init(shared), items(3))
    for function in (lambda: rb.state_dict(handle), lambda: rb.load_state_dict(handle, rb.state_dict(state))):
        with pytest.raises(TypeError, match=r"take a copy of it, rb\.from_dlpack"):
            function()
    copied = rb.from_dlpack(handle, copy=True)
    again = rb.load_state_dict(HOST, rb.state_dict(copied))
    assert numbers(rb, again) == [3] * 16


def test_samples_go_on_to_where_those_of_the_target_go() -> None:
    rb = importlib.import_module("torch_backend")
    target = rb.init(HOST, device="meta")
    again = rb.load_state_dict(target, rb.state_dict(rb.add(rb.init(HOST), items(1))))
    assert rb.sample(again, rb.key(0), 4)[1].items["x"].device.type == "meta"


def test_a_shared_buffer_of_the_other_backend_is_joined(library: Backend, tmp_path: Path) -> None:
    spec = dataclasses.replace(HOST, storage=frb.Memmap(str(tmp_path), shared=True))
    rb, other = library.rb, importlib.import_module({"jax": "torch", "torch": "jax"}[library.library] + "_backend")
    state = other.init(spec)
    for call in (rb.size, lambda state: rb.add(state, items(1)), lambda state: rb.add_(state, items(1))):
        with pytest.raises(TypeError, match=r"expected a state of .*; join the buffer by rb\.init\(spec\)"):
            call(state)
    rb.add(rb.init(spec), items(3))
    assert numbers(other, state) == [3] * 16
