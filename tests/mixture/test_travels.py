"""Mixtures in files, dicts, iterators, and in the other backend's arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from tests.mixture.mixtures import SKEWED, UNIFORM, filled, numbers, pair
from tests.support.backends import Backend


def nested(library: Backend) -> frb.Mixture:
    """Three buffers on two levels, with shares that are an array."""
    p = library.array(np.array([0.25, 0.75], np.float32))
    return frb.Mixture([filled(library.rb, UNIFORM, 20, 3), pair(library, p=[0.5, 0.5], how="items")], p=p)


def check_same(library: Backend, one: Any, other: Any) -> None:
    """The same is drawn from both."""
    mine, theirs = (numbers(library, library.rb.sample(m, library.rb.key(3), 16)[1]) for m in (one, other))
    for name, x in mine.items():
        np.testing.assert_array_equal(theirs[name], x)


def test_saved_and_loaded(library: Backend, tmp_path: Path) -> None:
    rb, mixture = library.rb, nested(library)
    frb.save(mixture, tmp_path)
    check_same(library, mixture, frb.load(tmp_path, rb))
    for first in range(3):
        mixture = rb.add(mixture, {"x": library.array(np.full(1, first, np.float32))}, to=(1, 0))
        frb.save(mixture, tmp_path, incremental=True)
    check_same(library, mixture, frb.load(tmp_path, rb))
    # What did not change was written once.
    assert sorted(x.name for x in (tmp_path / "buffers" / "0").glob("*.safetensors")) == ["0000000001.safetensors"]
    with pytest.raises(ValueError, match="keep: expected 1 or more"):
        frb.save(mixture, tmp_path, keep=0)


def test_loaded_to_a_device_that_numpy_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU's tensors are, what names the mixture's parts is a tensor there."""

    def refused(*_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    frb.save(frb.Mixture([filled(torch_backend, UNIFORM, 0, 5), filled(torch_backend, UNIFORM, 9, 3)]), tmp_path)
    monkeypatch.setattr(torch.Tensor, "__array__", refused)
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.numpy)
    loaded = frb.load(tmp_path, "torch")
    assert [int(torch_backend.size(state)) for state in loaded] == [5, 3]


def test_what_loads_is_of_one_save(library: Backend, tmp_path: Path) -> None:
    """However often a save stops between the buffers and the small checkpoint that names them."""
    mixture = nested(library)
    for _ in range(3):
        frb.save(mixture, tmp_path)
    changed = library.rb.add(mixture, {"x": library.array(np.ones(2, np.float32))}, to=0)
    for _ in range(4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("functional_rb.checkpoint.mixtures.record_of", stops)
            with pytest.raises(OSError, match="stopped"):
                frb.save(changed, tmp_path)
    check_same(library, mixture, frb.load(tmp_path, library.rb))
    frb.save(changed, tmp_path)
    check_same(library, changed, frb.load(tmp_path, library.rb))
    # The older ones, which nothing names, go with the next saves.
    frb.save(changed, tmp_path)
    frb.save(changed, tmp_path)
    assert len(list((tmp_path / "buffers" / "0").glob("*.json"))) <= 3
    for name in (tmp_path / "buffers" / "0").glob("*.json"):
        name.unlink()
    with pytest.raises(frb.errors.CorruptCheckpointError, match="is missing, which the mixture's names"):
        frb.load(tmp_path, library.rb)


def stops(*args: Any) -> Any:
    raise OSError("the machine has stopped")


def test_state_dicts(library: Backend) -> None:
    rb, mixture = library.rb, nested(library)
    given = rb.state_dict(mixture)
    assert sorted(given) == ["0", "1", "mixture", "p"]
    check_same(library, mixture, rb.load_state_dict(mixture, given))
    with pytest.raises(ValueError, match="expected the names"):
        rb.load_state_dict(pair(library), given)
    with pytest.raises(ValueError, match="expected a mixture of the kind"):
        rb.load_state_dict(pair(library, how="items"), rb.state_dict(pair(library)))
    with pytest.raises(TypeError, match="expected a dict"):
        rb.load_state_dict(mixture, 3)


def test_iterated(library: Backend) -> None:
    rb, mixture = library.rb, nested(library)
    key, expected = rb.key(0), []
    for _ in range(3):
        key, now = rb.split(key)
        expected.append(numbers(library, rb.sample(mixture, now, 4)[1]))
    for prefetch in (0, 2):
        for sample, wanted in zip(
            frb.iterate(rb, mixture, rb.key(0), 4, n=3, prefetch=prefetch), expected, strict=True
        ):
            np.testing.assert_array_equal(numbers(library, sample)["indices"], wanted["indices"])
    batches = frb.iterate(rb, mixture, rb.key(0), 16, n=2)
    for sample in batches:
        batches.apply(rb.update, sample.indices, library.array(np.full(16, 9, np.float32)))
    assert 9 in library.numpy(rb.priorities(batches.state, sample.indices))
    cell = frb.Cell(mixture)
    cell.apply(rb.add, {"x": library.array(np.zeros(1, np.float32))}, to=0)
    assert int(cell.read(rb.size)) == 13
    sent = next(iter(frb.iterate(rb, cell, rb.key(0), 4, n=1, device="cpu")))
    assert sent.items["x"].shape == (4,)
    with pytest.raises(ValueError, match="a mixture has none of its own"):
        frb.iterate(rb, mixture, rb.key(0))
    queue = frb.BufferSpec(UNIFORM.item, 8, frb.Queue())
    remembering = frb.Mixture([mixture[0], filled(library.rb, queue, 0, 8)])
    with pytest.raises(ValueError, match="lag=0 with Queue"):
        frb.iterate(rb, remembering, rb.key(0), 2, prefetch=frb.Prefetch(lag=1))
    drawn = [numbers(library, s)["x"] for s in frb.iterate(rb, remembering, rb.key(0), 4, n=2)]
    came = np.concatenate(drawn)[np.concatenate(drawn) < 20].tolist()
    assert came == [0, 1, 2, 3, 4, 5][: len(came)]
    assert len(came) >= 4  # of each batch 2 or 3: 2.9 of 3 and 8 items, then 2.6 of 3 and 5 or 2.5 of 3 and 6


def test_over_the_bridge() -> None:
    """A mixture crosses with all its buffers, and goes on as it was."""
    rb = torch_backend
    states = [rb.add(rb.init(spec), {"x": torch.arange(n) + 0.0}) for spec, n in ((UNIFORM, 2), (SKEWED, 3))]
    there = jax_backend.from_dlpack(frb.Mixture(states, p=[0.5, 0.5]), copy=True)
    assert jax_backend.size(there, each=True).tolist() == [2, 3]
    _, sample = jax_backend.sample(there, jax_backend.key(0), 8)
    back = rb.from_dlpack(there, copy=True)
    assert rb.get(back, np.asarray(sample.indices))["x"].tolist() == sample.items["x"].tolist()
