"""The flat and the nested form of a buffer in TED, against lists of steps; files of both."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import functional_rb as frb
from functional_rb import ted
from tests.support import backends
from tests.support.backends import Backend
from tests.support.children import ROOT, program
from tests.support.effort import effort
from tests.support.ted_model import (
    EDGES,
    GOES_ON,
    TERMINATED,
    Case,
    Step,
    arrays,
    cases,
    fixed,
    host,
    observations,
    same,
    same_form,
    trajectories,
    trajectory,
)


def check_case(case: Case, backend: Backend) -> None:
    """Everything that the model tells of a buffer, and all ways back."""
    state = case.filled(backend)
    nested = ted.to_form(state, "nested")
    expected = trajectories(case)
    assert len(nested) == sum(map(len, expected))
    assert len(nested.trajectories) == len(expected)
    for got, steps in zip(nested.trajectories, expected, strict=True):
        same(got, trajectory(steps, case.flags))

    flat = ted.to_form(state)
    assert flat.lengths.tolist() == [len(steps) for steps in expected]
    same_form(ted.to_form(flat, "nested"), nested)
    same_form(ted.to_form(nested, "flat"), flat)
    numbers = [k for steps in expected for k in [*(step.before for step in steps), steps[-1].after]]
    same({key: flat.data[key] for key in ("observation", "more")}, observations(numbers))
    held = [step for lane in case.held for step in lane]
    same(ted.from_form(flat, order="time"), arrays(held, case.flags))

    # The way back: the same items in the same slots, and a cursor that goes on at the same slot.
    items = host(backend, backend.rb.items(state))
    same(ted.from_form(flat), items)
    same(ted.from_form(nested), items)
    again = ted.from_form(flat, backend.rb)
    same(host(backend, backend.rb.items(again)), items)
    same_form(ted.to_form(again), flat)


def check_files(flat: Any) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        flat.save(place / "flat")
        same_form(ted.to_form(place / "flat"), flat)
        nested = ted.to_form(flat, "nested")
        nested.save(place / "nested")
        same_form(ted.to_form(place / "nested", "nested"), nested)
        same_form(ted.to_form(place / "nested"), flat)
        nested.save(place / "x.h5")
        same_form(ted.to_form(place / "x.h5", "nested"), nested)
        flat.save(place / "y.h5", compression="gzip")
        same_form(ted.to_form(place / "y.h5"), flat)
        assert sorted(file.name for file in place.iterdir()) == ["flat", "nested", "x.h5", "y.h5"]


@hypothesis.settings(max_examples=40)
@hypothesis.given(case=cases())
def test_forms_are_what_lists_of_steps_are(case: Case) -> None:
    with backends.make("torch") as backend:
        check_case(case, backend)


@hypothesis.settings(max_examples=effort(8, 15))
@hypothesis.given(case=cases())
def test_files_come_back(case: Case) -> None:
    with backends.make("torch") as backend:
        check_files(ted.to_form(case.filled(backend)))


ON_JAX = ("empty", "wrapped, cut at both ends", "lanes, filled unlike")  # it compiles for every shape


@pytest.mark.parametrize(
    ("library", "edge"), [*(("torch", edge) for edge in EDGES), *(("jax", edge) for edge in ON_JAX)]
)
def test_edges(library: str, edge: str) -> None:
    with backends.make(library) as backend:
        check_case(EDGES[edge], backend)
        check_files(ted.to_form(EDGES[edge].filled(backend)))


def test_full_lanes_with_cursors_of_their_own(tmp_path: Path) -> None:
    """No one shift rolls them back, so TorchRL gets them in the order of time."""
    with backends.make("torch") as backend:
        flat = ted.to_form(fixed([GOES_ON] * 5, 2, lanes=2, skipped=((0, 1),)).filled(backend))
        assert flat.lanes.cursors == (1, 0)
        flat.save(tmp_path / "flat")
        files = [tmp_path / "flat" / name / "meta.json" for name in ("is_full", "shift", "_storage_shape")]
        assert [json.loads(file.read_text())["data"] for file in files] == [True, -2, [2, 2]]
        check_files(flat)


def test_the_state_goes_on_from_where_it_was(library: Backend) -> None:
    """The next step overwrites the oldest one, in the same slot, and continues the trajectory that was open."""
    case = fixed([GOES_ON, TERMINATED, GOES_ON, GOES_ON, GOES_ON], 4)
    state = case.filled(library)
    again = ted.from_form(ted.to_form(state), library.rb)
    following = library.tree(arrays([Step(6, 9, 7)], case.flags))
    both = [library.add(x, following) for x in (state, again)]
    same(*(host(library, library.rb.items(x)) for x in both))
    assert ted.to_form(both[1]).lengths.tolist() == [4]


def test_samplers_find_the_same_ends_in_what_comes_back(library: Backend) -> None:
    """Steps that are put ahead to be overwritten are no part of a trajectory."""
    case = fixed([GOES_ON] * 6, 4)
    spec = dataclasses.replace(case.spec, sampler=frb.Slices(2))
    flat = ted.to_form(case.filled(library))
    state = ted.from_form(flat, library.rb, spec=spec)
    assert library.numpy(state.auxiliary["step_in_episode"]).tolist() == [2, 3, 0, 1]


def test_reading_a_state_does_not_make_it_copy() -> None:
    """On torch, what is given out pins the memory; the forms are read without."""
    with backends.make("torch") as backend:
        state = EDGES["full, nothing overwritten"].filled(backend)
        ted.to_form(state)
        assert not state._version.own().pinned


def test_compacted_buffers() -> None:
    """On one backend: frames are read by `get`, which both have."""
    case = EDGES["wrapped, cut at both ends"]
    with backends.make("torch") as backend:
        plain = ted.to_form(case.filled(backend))
        spec = dataclasses.replace(case.spec, compact=frb.Compact())
        items, _ = case.batch()
        state = backend.add(backend.init(spec), backend.tree(items))
        flat = ted.to_form(state)
        same(flat.data, plain.data)
        again = ted.from_form(flat, backend.rb)
        same(host(backend, backend.rb.items(again)), host(backend, backend.rb.items(state)))


def test_pieces_of_a_large_buffer() -> None:
    """Of which 65,536 steps are read at a time, around the end of the ring."""
    steps, capacity = 90_000, 70_000
    number, done = np.arange(steps, dtype=np.float32), np.arange(steps) % 7 == 6
    after = np.where(done, -number, number + 1)  # what is seen at the end of a trajectory, and next in it
    items = {"observation": number, "done": np.zeros(steps, bool), "next": {"observation": after, "done": done}}
    items["next"]["reward"] = number / 2
    x, flag = frb.Unbounded(()), frb.Binary()
    item = {"observation": x, "done": flag, "next": {"observation": x, "done": flag, "reward": x}}
    with backends.make("torch") as backend:
        state = backend.init(frb.BufferSpec(item, capacity))
        flat = ted.to_form(backend.add(state, backend.tree(items)))
    number, done, after = (x[steps - capacity :] for x in (number, done, after))
    done[-1] = True  # nothing follows
    same(flat.data["reward"], number / 2)
    same(flat.data["observation"], np.insert(number, np.flatnonzero(done) + 1, after[done]))


def test_a_shared_buffer_that_is_written_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with backends.make("torch") as backend:
        case = fixed([GOES_ON] * 4, 4)
        spec = dataclasses.replace(case.spec, storage=frb.Memmap(str(tmp_path / "shared"), shared=True))
        items, _ = case.batch()
        state = backend.add(backend.init(spec), backend.tree(items))
        plain = ted.to_form(case.filled(backend))
        same(ted.to_form(state).data, plain.data)
        get = backend.rb.get

        def slowly(state: Any, handles: Any) -> Any:
            found = get(state, handles)
            backend.add(state, backend.tree(items))
            return found

        monkeypatch.setattr(backend.rb, "get", slowly)
        with pytest.raises(ValueError, match="another process has overwritten steps while they were read"):
            ted.to_form(state)


def test_rewards_and_flags_by_another_name(tmp_path: Path) -> None:
    """The reward may be a nest; flags within nests are observations, as TED2Flat has them."""
    with backends.make("torch") as backend:
        flags = {"done": frb.Binary(), "terminated": frb.Binary()}
        agents = {"obs": frb.Unbounded((2,)), "done": frb.Binary()}
        item = {"agents": agents, **flags, "next": {"agents": {**agents, "reward": frb.Unbounded(())}, **flags}}
        spec = frb.BufferSpec(item, capacity=3)
        seen = {"obs": np.arange(4, dtype=np.float32).reshape(2, 2), "done": np.array([False, True])}
        after = {"obs": np.arange(2, 6, dtype=np.float32).reshape(2, 2), "done": np.array([True, False])}
        no = {"done": np.zeros(2, bool), "terminated": np.zeros(2, bool)}
        steps = {"agents": seen, **no, "next": {"agents": {**after, "reward": np.ones(2, np.float32)}, **no}}
        state = backend.add(backend.init(spec), backend.tree(steps))
        flat = ted.to_form(state, reward_key=("agents", "reward"))
        same(flat.data["agents"]["obs"], np.arange(6, dtype=np.float32).reshape(3, 2))
        assert flat.data["agents"]["done"].tolist() == [False, True, False]
        assert flat.data["agents"]["reward"].shape == (2,)
        same(ted.from_form(flat, order="time"), steps)
        check_files(flat)
        flat.save(tmp_path / "theirs")
        (tmp_path / "theirs" / "functional_rb.json").unlink()  # TorchRL writes none
        same(ted.from_form(tmp_path / "theirs", order="time", reward_key=("agents", "reward")), steps)
        with pytest.raises(ValueError, match="leaf 'next/agents/reward': expected a leaf 'agents/reward' at the root"):
            ted.to_form(state)


def test_what_cannot_be_shared_is_refused(library: Backend) -> None:
    case = fixed([GOES_ON, GOES_ON, TERMINATED], 4)
    items, _ = case.batch()
    items["more"]["image"] = items["more"]["image"].copy()
    items["more"]["image"][1, 2] += 1
    state = library.add(library.init(case.spec), library.tree(items))
    with pytest.raises(ValueError, match=r"^ted.to_form: leaf 'next/more/image': step 0 .*the 'more/image' of"):
        ted.to_form(state, "nested")


def test_zeros_of_either_sign_are_different() -> None:
    with backends.make("torch") as backend:
        case = fixed([GOES_ON, GOES_ON], 2, lanes=2)
        items, _ = case.batch()
        items["observation"] = np.zeros_like(items["observation"])
        items["next"]["observation"] = np.zeros_like(items["observation"])
        items["observation"][1, 1, 0] = -0.0
        state = backend.add(backend.init(case.spec), backend.tree(items))
        with pytest.raises(ValueError, match="leaf 'next/observation': step 0 of lane 1"):
            ted.to_form(state)


def test_flags_at_the_root_are_refused() -> None:
    with backends.make("torch") as backend:
        case = fixed([TERMINATED, GOES_ON], 2)
        items, _ = case.batch()
        items["truncated"] = np.array([[False], [True]])
        state = backend.add(backend.init(case.spec), backend.tree(items))
        with pytest.raises(ValueError, match=r"leaf 'truncated': expected False in every step.* step 1 of lane 0"):
            ted.to_form(state)


def without(nest: dict[str, Any], *path: str) -> dict[str, Any]:
    name, *more = path
    return {k: without(v, *more) if more and k == name else v for k, v in nest.items() if more or k != name}


ITEM = dict(fixed([], 4).spec.item)
REFUSED = {
    "no next": (without(ITEM, "next"), {}, ValueError, "expected the part 'next'"),
    "no done": (without(ITEM, "next", "done"), {}, ValueError, "expected a leaf 'next/done'"),
    "done of two": ({**ITEM, "next": {**ITEM["next"], "done": frb.Binary((2,))}}, {}, ValueError, "got bool \\(2,\\)"),
    "a flag in next only": (without(ITEM, "truncated"), {}, ValueError, "'truncated' both at the root and in 'next'"),
    "a reward at the root": ({**ITEM, "reward": frb.Unbounded(())}, {}, ValueError, "leaf 'reward' is out of place"),
    "no observation at the root": (without(ITEM, "observation"), {}, ValueError, "leaf 'next/observation': expected a"),
    "objects": ({**ITEM, "text": frb.specs.NonTensor()}, {}, TypeError, "leaf 'text' holds Python objects"),
    "slots that are chosen": (ITEM, {"writer": frb.Reservoir()}, ValueError, "Reservoir.*chooses slots"),
}


@pytest.mark.parametrize(("item", "more", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_buffers_that_are_not_in_ted_are_refused(item: Any, more: Any, error: Any, message: str) -> None:
    with backends.make("torch") as backend:
        state = backend.init(frb.BufferSpec(item, capacity=4, **more))
        with pytest.raises(error, match=f"^ted.to_form: .*{message}"):
            ted.to_form(state)


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^ted.to_form: expected a State, what is in a form, or its path, got dict"):
        ted.to_form({})  # type: ignore[arg-type]  # refused


def test_specs_that_do_not_fit_are_refused() -> None:
    with backends.make("torch") as backend:
        case = fixed([GOES_ON], 4)
        flat = ted.to_form(case.filled(backend))
        with pytest.raises(ValueError, match="expected a spec with capacity=4 and 1 lanes"):
            ted.from_form(flat, backend.rb, spec=dataclasses.replace(case.spec, capacity=5))
        other = {**ITEM, "action": frb.Unbounded((1,), "int64")}
        with pytest.raises(TypeError, match=r"leaf 'action': expected int64 \(1,\) as in the spec, got int32"):
            ted.from_form(flat, backend.rb, spec=dataclasses.replace(case.spec, item=other))
        with pytest.raises(ValueError, match=r"expected the leaves .*of the spec"):
            ted.from_form(flat, backend.rb, spec=dataclasses.replace(case.spec, item=without(ITEM, "mask")))
        with pytest.raises(ValueError, match="does not tell the buffer's spec"):
            ted.from_form(dataclasses.replace(flat, spec=None), backend.rb)
        with pytest.raises(ValueError, match="order='slots' or 'time'"):
            ted.from_form(flat, order="age")  # type: ignore[arg-type]  # refused


@pytest.fixture
def flat() -> Any:
    with backends.make("torch") as backend:
        return ted.to_form(EDGES["wrapped, cut at both ends"].filled(backend))


def as_it_is(item: Any) -> Any:
    return item


def test_functions_that_the_spec_names_are_given_as_known(tmp_path: Path) -> None:
    with backends.make("torch") as backend:
        state = EDGES["wrapped, cut at both ends"].filled(backend)
        state = backend.rb.with_spec(state, dataclasses.replace(state.spec, transforms=frb.map_items(as_it_is)))
        ted.to_form(state).save(tmp_path / "flat")
        for read in (ted.to_form, lambda path: ted.from_form(path, backend.rb)):
            with pytest.raises(ValueError, match=r"as_it_is.*known=\(as_it_is"):
                read(tmp_path / "flat")
        again = ted.from_form(tmp_path / "flat", backend.rb, known=[as_it_is])
        assert again.spec == state.spec == ted.to_form(tmp_path / "flat", known=[as_it_is]).spec
        same(host(backend, backend.rb.items(again)), host(backend, backend.rb.items(state)))


@pytest.mark.parametrize("name", ["is_full", "shift", "_storage_shape"])
def test_names_that_files_have_for_something_else_are_refused(name: str, flat: Any, tmp_path: Path) -> None:
    more = {"data": flat.data | {name: flat.data["done"]}, "dtypes": flat.dtypes | {name: "bool"}}
    form = dataclasses.replace(flat, **more)
    with pytest.raises(ValueError, match=f"Form.save: leaf '{name}': files have '{name}' for something else; rename"):
        form.save(tmp_path / "flat")
    assert not (tmp_path / "flat").exists()


def test_files_are_never_overwritten(flat: Any, tmp_path: Path) -> None:
    flat.save(tmp_path / "flat")
    flat.save(tmp_path / "x.h5")
    with pytest.raises(FileExistsError, match="flat is there already"):
        flat.save(tmp_path / "flat")
    with pytest.raises(FileExistsError, match=r"x\.h5 is there already"):
        flat.save(tmp_path / "x.h5")
    with pytest.raises(ValueError, match=r"compression is of files of HDF5, and '.*none' does not end with"):
        flat.save(tmp_path / "none", compression="gzip")
    (tmp_path / "empty").mkdir()
    flat.save(tmp_path / "empty")
    same_form(ted.to_form(tmp_path / "empty"), flat)


def test_a_failure_leaves_nothing_behind(flat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("functional_rb.ted.memmaps._write_metas", fails)
    monkeypatch.setattr("functional_rb.ted.hdf5.rows_of", fails)
    with pytest.raises(OSError, match="no space left"):
        flat.save(tmp_path / "flat")
    with pytest.raises(OSError, match="no space left"):
        flat.save(tmp_path / "x.h5")
    assert list(tmp_path.iterdir()) == []


def test_names_that_files_have_for_something_else() -> None:
    with backends.make("torch") as backend, tempfile.TemporaryDirectory() as scratch:
        for name, where in (("shift", "flat"), ("device", "flat"), (".", "x.h5"), ("a/b", "x.h5")):
            state = backend.init(frb.BufferSpec({**ITEM, name: frb.Binary()}, capacity=2))
            made = ted.to_form(state)
            with pytest.raises(ValueError, match="rename"):
                made.save(Path(scratch) / where)


def test_odd_names_come_back(tmp_path: Path) -> None:
    with backends.make("torch") as backend:
        names = ["a b", "a/b", "%", "..", "é", "a.b", "x:y"]
        state = backend.init(frb.BufferSpec({**ITEM, **{name: frb.Unbounded((2,)) for name in names}}, capacity=2))
        made = ted.to_form(state)
        made.save(tmp_path / "flat")
        same_form(ted.to_form(tmp_path / "flat"), made)


def test_rows_of_empty_slots_take_no_space(tmp_path: Path) -> None:
    with backends.make("torch") as backend:
        state = backend.init(frb.BufferSpec(ITEM, capacity=10_000_000 // 12))
        ted.to_form(state).save(tmp_path / "flat")
        files = list((tmp_path / "flat").rglob("*.memmap"))
        assert sum(file.stat().st_size for file in files) > 20_000_000
        assert sum(file.stat().st_blocks * 512 for file in files) < 100_000


def test_files_need_numpy_alone(flat: Any, tmp_path: Path) -> None:
    flat.save(tmp_path / "flat")
    subprocess.run(program("numpy_alone", "forms", tmp_path / "flat", tmp_path / "again"), check=True, cwd=ROOT)
    same_form(ted.to_form(tmp_path / "again"), flat)


def test_hdf5_without_h5py_is_told(flat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"Form\.save needs h5py: pip install '\.\[hdf5\]' in a checkout"):
        flat.save(tmp_path / "x.h5")
    with pytest.raises(ImportError, match=r"ted\.to_form needs h5py"):
        ted.to_form(tmp_path / "x.h5")
    with pytest.raises(ImportError, match=r"ted\.from_form needs h5py"):
        ted.from_form(tmp_path / "x.h5")


def test_forms_show_their_outline(flat: Any) -> None:
    assert repr(flat).startswith("Flat(4 steps in 3 trajectories, observation (7, 2), more/half (7,)")
    assert repr(ted.to_form(flat, "nested")).startswith("Nested(4 steps in 3 trajectories, observation (0, 2)")
