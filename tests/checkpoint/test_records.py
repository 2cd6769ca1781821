"""Nests of arrays in checkpoints: saved by one backend, loaded by either."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from tests.support.backends import Backend


class Layer(NamedTuple):
    weights: Any
    bias: Any


@dataclasses.dataclass(frozen=True)
class Run:
    parameters: Any
    step: Any


def nest_of(array: Any) -> Any:
    """A nest with leaves of all kinds."""
    rng = np.random.default_rng(0)
    layer = Layer(array(rng.normal(size=(3, 4)).astype(np.float32)), array(np.zeros((0, 2), np.float32)))
    images = array(rng.integers(0, 255, (2, 40, 40)).astype(np.uint8))
    return Run({"z": [layer, (array(np.float16([1, np.nan])),)], "a": None, "images": images}, array(np.int32(7)))


def leaves_of(run: Run) -> list[Any]:
    return [run.step, run.parameters["images"], *run.parameters["z"][0], *run.parameters["z"][1]]


@pytest.mark.parametrize("other", ["jax", "torch"])
def test_any_nest_comes_back_on_either_backend(library: Backend, tmp_path: Path, other: str) -> None:
    given = nest_of(library.array)
    assert frb.save(given, tmp_path).items == 1
    found = frb.load(tmp_path, other, frb.checkpoint.LoadOptions(known=(Run, Layer)))
    assert type(found) is Run
    assert list(found.parameters) == ["z", "a", "images"]
    assert found.parameters["a"] is None
    assert type(found.parameters["z"][0]) is Layer
    kind = torch.Tensor if other == "torch" else jax.Array
    flat = [leaves_of(run) for run in (found, given)]
    for ours, theirs in zip(*flat, strict=True):
        assert isinstance(ours, kind)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


def test_bfloat16_comes_back(library: Backend, tmp_path: Path) -> None:
    values = library.array(np.array([1.5, -0.0, np.nan, 3e38], np.float32))
    low = values.astype("bfloat16") if library.library == "jax" else values.bfloat16()
    frb.save({"x": low}, tmp_path)
    found = frb.load(tmp_path, library.rb)["x"]
    assert found.dtype == low.dtype
    assert library.numpy(found).tobytes() == library.numpy(low).tobytes()


SPEC = frb.HashMapSpec({"at": frb.Unbounded((2,), "int32")}, 20, seed=4)
FOREST = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(3), 20, 3)


@pytest.mark.parametrize("other", [jax_backend, torch_backend])
def test_maps_and_forests_go_on_on_either_backend(library: Backend, tmp_path: Path, other: Any) -> None:
    rb = library.rb
    keys = {"at": np.array([[1, 2], [3, 4], [1, 2]], np.int32)}
    rows = [np.array(x, np.int32) for x in ([0, 1, 2], [1, 2, 0], [1, 2, 0])]
    steps = frb.ted.from_transitions(*rows[:2], np.ones(3, np.float32), rows[2], done=np.zeros(3, bool))
    made = {
        "seen": rb.add(rb.init(SPEC), keys)[0],
        "forest": rb.add(rb.init(FOREST), steps),
    }
    frb.save(made, tmp_path)
    found = frb.load(tmp_path, other)
    assert (found["seen"].spec, found["forest"].spec) == (SPEC, FOREST)
    assert other.visits(found["seen"], keys).tolist() == [2, 1, 2]
    seen, inserted = other.add(found["seen"], {"at": np.array([[9, 9], [3, 4]], np.int32)})
    assert inserted.ids.tolist() == [2, 1]
    assert int(other.size(seen)) == 3
    trees = other.trees.view(found["forest"], np.int32(0)), rb.trees.view(made["forest"], np.int32(0))
    assert trees[0].to_string() == trees[1].to_string()


def test_dicts_of_maps_and_forests(library: Backend) -> None:
    rb = library.rb
    keys = {"at": np.array([[1, 2], [3, 4]], np.int32)}
    steps = frb.ted.from_transitions(np.int32(0), np.int32(1), np.float32(1), np.int32(2), np.bool_(False))
    seen, forest = rb.add(rb.init(SPEC), keys)[0], rb.add(rb.init(FOREST), steps)
    both = {"seen": seen, "forest": forest}
    found = rb.load_state_dict({"seen": rb.init(SPEC), "forest": rb.init(FOREST)}, rb.state_dict(both))
    assert rb.visits(found["seen"], keys).tolist() == [1, 1]
    assert int(rb.size(found["forest"])) == 2
    with pytest.raises(TypeError, match=r"^load_state_dict: device is for a buffer's spec; a record is loaded where"):
        rb.load_state_dict(seen, rb.state_dict(seen), device="cpu")
    named = rb.state_dict(seen), rb.state_dict(forest)
    rb.add_(seen, keys)
    rb.add_(forest, steps)
    for gone in (seen, forest, both):
        with pytest.raises(RuntimeError, match=r"this state was consumed by an in-place function \(add_, sample_, "):
            rb.state_dict(gone)
    if library.library == "torch":  # of JAX's arrays shapes and dtypes are left, which are all that is asked for
        for gone, given in zip((seen, forest), named, strict=True):
            with pytest.raises(RuntimeError, match="this state was consumed"):
                rb.load_state_dict(gone, given)


def test_maps_and_forests_are_loaded_with_more_room(library: Backend, tmp_path: Path) -> None:
    rb = library.rb
    spec, larger = frb.HashMapSpec(frb.Unbounded((), "int32"), 2), frb.HashMapSpec(frb.Unbounded((), "int32"), 9)
    full, _ = rb.add(rb.init(spec), np.array([5, 6, 7], np.int32))
    frb.save(full, tmp_path / "map")
    found, inserted = rb.add(frb.load(tmp_path / "map", rb, spec=larger), np.array([6, 7], np.int32))
    assert (found.spec, inserted.ids.tolist()) == (larger, [1, 2])
    steps = frb.ted.from_transitions(np.int32(0), np.int32(1), np.float32(1), np.int32(2), np.bool_(False))
    forest = rb.add(rb.init(FOREST), steps)
    frb.save(forest, tmp_path / "forest")
    wide = dataclasses.replace(FOREST, capacity=50, outcomes=5)
    forest = frb.load(tmp_path / "forest", rb, spec=wide)
    assert (forest.spec, int(rb.size(forest))) == (wide, 2)
    frb.save({"forest": forest}, tmp_path / "both")
    tree = frb.trees.TreeSpec(frb.Unbounded(()), capacity=4, children=2)
    for name, given, kind in (
        ("map", wide, "HashMap"),
        ("forest", larger, "Forest"),
        ("both", wide, "dict"),
        ("map", tree, "HashMap"),
    ):
        with pytest.raises(ValueError, match=rf"got a {type(given).__name__}, and what was saved is a {kind}; leave"):
            frb.load(tmp_path / name, rb, spec=given)
    with pytest.raises(TypeError, match=r"expected a BufferSpec as spec \(of a hash map a HashMapSpec.*got int"):
        frb.load(tmp_path / "map", rb, spec=3)


def test_search_trees_are_records_too(library: Backend, tmp_path: Path) -> None:
    rb = library.rb
    spec = frb.trees.TreeSpec(frb.Unbounded((2,)), capacity=5, children=3)
    root = frb.trees.Expansion(np.ones((1, 2), np.float32), np.zeros((1, 3), np.float32), np.zeros(1, np.float32))
    tree = rb.init(spec, items=root)
    frb.save(tree, tmp_path)
    found = frb.load(tmp_path, rb)
    assert found.spec == spec
    assert rb.trees.view(found.at(0)).node_observation().tolist() == [1.0, 1.0]


def test_records_are_checksummed_and_kept_as_states_are(tmp_path: Path) -> None:
    for k in range(3):
        frb.save({"x": np.full(1000, k)}, tmp_path, keep=2, background=True).result()
    assert len(frb.checkpoint.checkpoints(tmp_path)) == 2
    assert frb.load(tmp_path, "torch")["x"].tolist() == [2] * 1000
    newest = max(tmp_path.glob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.raises(frb.errors.CorruptCheckpointError):
        frb.load(tmp_path, "torch")
    assert frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(fall_back=True))["x"].tolist() == [1] * 1000


def test_how_a_checkpoint_is_read_is_told_by_a_record(tmp_path: Path) -> None:
    wrong: Any
    for wrong in ({}, None, True, frb.checkpoint.LoadOptions):
        with pytest.raises(TypeError, match=r"load: expected options as frb\.checkpoint\.LoadOptions\(\.\.\.\), got"):
            frb.load(tmp_path, "torch", wrong)


def test_what_is_no_nest_of_arrays_is_refused(tmp_path: Path) -> None:
    state = torch_backend.init(frb.BufferSpec(frb.Unbounded(()), 2))
    for given, text in (
        (
            {"state": state, "x": np.zeros(2)},
            "got dict with a State in it; give each a directory of its own, or several states as a frb.Mixture",
        ),
        ({"x": "a name"}, "or a nest of arrays, got str"),
        ({}, "got dict without any"),
    ):
        with pytest.raises(TypeError, match=text):
            frb.save(given, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    frb.save(np.zeros(2), tmp_path)
    with pytest.raises(TypeError, match="float64 needs JAX's 64-bit mode"):
        frb.load(tmp_path, "jax")
    assert frb.load(tmp_path, "torch").tolist() == [0.0, 0.0]
