"""Files that TorchRL wrote, read here, and the other way round; the tests need torchrl, which the extra "bench" brings.

Without it, `test_ted_golden` reads what it wrote once.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from functional_rb import ted
from tests.formats.golden_ted.write import CASES, dumped, storage_of
from tests.support import backends
from tests.support.ted_model import (
    BOTH,
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    Case,
    arrays,
    fixed,
    same,
    trajectories,
    trajectory,
)

data = pytest.importorskip("torchrl.data", reason="needs torchrl, which the extra bench brings")
checkpointers = pytest.importorskip("torchrl.data.replay_buffers.checkpointers")

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
)
MORE = {
    "one step": fixed([GOES_ON], 4),
    "one that ends": fixed([BOTH], 4),
    "full": fixed([GOES_ON, TERMINATED, GOES_ON, GOES_ON], 4),
    "lanes": fixed([GOES_ON, TRUNCATED, GOES_ON], 5, lanes=2),
    "lanes, full": fixed([GOES_ON, GOES_ON, TERMINATED, GOES_ON, GOES_ON], 3, lanes=2),
}
ALL = CASES | MORE
FORMS = {
    "flat": checkpointers.FlatStorageCheckpointer,
    "nested": checkpointers.NestedStorageCheckpointer,
    "h5": checkpointers.H5StorageCheckpointer,
}


def without_half(case: Case, form: str) -> Case:
    """HDF5 has no bfloat16."""
    return dataclasses.replace(case, half=form != "h5")


def form_of(case: Case, form: str) -> Any:
    with backends.make("torch") as backend:
        # A file of HDF5 has a group for each trajectory.
        return ted.to_form(case.filled(backend), "nested" if form == "h5" else form)


def slots_of(case: Case) -> tuple[list[list[int]], list[list[Any]]]:
    """The rows of a storage in which a lane's steps lie, and the steps."""
    times = [[time for time, row in enumerate(case.added) if row[k] is not None] for k in range(case.lanes or 1)]
    return [[time % case.length for time in lane[-case.length :]] for lane in times], case.held


def check_storage(got: Any, case: Case, root_flags: bool = True) -> None:
    """Live rows of what TorchRL has, [length] or [length, lanes]."""
    rows, held = slots_of(case)
    for lane, (at, steps) in enumerate(zip(rows, held, strict=True)):
        own = got[at] if case.lanes is None else got[at, lane]
        expected = arrays(steps, case.flags, case.half)
        same(as_numpy(own), expected)


def as_numpy(nest: Any) -> Any:
    if isinstance(nest, torch.Tensor):
        return (
            nest.contiguous().view(torch.int16).numpy().view(np.uint16)
            if nest.dtype == torch.bfloat16
            else (nest.contiguous().numpy())
        )
    return {key: as_numpy(value) for key, value in nest.items()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_what_torchrl_wrote_is_read(case: Case, form: str, tmp_path: Path) -> None:
    case = without_half(case, form)
    storage = storage_of(case)
    storage.checkpointer = FORMS[form]()
    dumped(storage, tmp_path / "theirs")
    nested = ted.to_form(tmp_path / "theirs" / "checkpoint.h5" if form == "h5" else tmp_path / "theirs", "nested")
    expected = trajectories(case)
    assert len(nested.trajectories) == len(expected)
    for got, steps in zip(nested.trajectories, expected, strict=True):
        same(got, trajectory(steps, case.flags, case.half))
    ours = form_of(case, form)
    assert (nested.lanes, nested.dtypes, nested.shared) == (ours.lanes, ours.dtypes, ours.shared)
    with backends.make("torch") as backend:
        state = ted.from_form(nested, backend.rb, spec=case.spec)
        again = ted.to_form(state, "nested")
    for own, other in zip(again.trajectories, nested.trajectories, strict=True):
        same(own, other)


@pytest.mark.parametrize("there", [False, True], ids=["into a new storage", "into one that is filled"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_what_we_wrote_is_read_by_torchrl(case: Case, form: str, there: bool, tmp_path: Path) -> None:
    case = without_half(case, form)
    made = form_of(case, form)
    place = tmp_path / "ours"
    if form == "h5":
        place.mkdir()
        made.save(place / "checkpoint.h5")
    else:
        made.save(place)
    if there:
        other = dataclasses.replace(case, added=case.added[:1] * (case.length + 1))
        storage = storage_of(other)
    else:
        storage = storage_of(dataclasses.replace(case, added=()))
    storage.checkpointer = FORMS[form]()
    storage.loads(place)
    assert storage._len == sum(map(len, case.held))
    check_storage(storage._storage, case)


@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_the_hooks_read_what_tensordict_loads(case: Case, tmp_path: Path) -> None:
    """As TorchRL's documentation does it."""
    form_of(case, "flat").save(tmp_path / "flat")
    form_of(case, "nested").save(tmp_path / "nested")
    check_storage(data.Flat2TED()(TensorDict.load(tmp_path / "flat")), case)
    check_storage(data.Nested2TED()(TensorDict.load(tmp_path / "nested")), case)


def test_lanes_that_are_filled_unlike(tmp_path: Path) -> None:
    """Where lanes are shorter than others, TorchRL reads steps of zeros after theirs."""
    case = fixed([GOES_ON, TERMINATED, GOES_ON, GOES_ON], 6, lanes=2, skipped=((0, 1), (3, 1)))
    form_of(case, "flat").save(tmp_path / "flat")
    got = data.Flat2TED()(TensorDict.load(tmp_path / "flat"))
    for lane, steps in enumerate(case.held):
        same(as_numpy(got[: len(steps), lane]), arrays(steps, case.flags))
    assert not got[2:4, 1]["action"].any()


def test_full_lanes_with_cursors_of_their_own(tmp_path: Path) -> None:
    case = fixed([GOES_ON] * 5, 2, lanes=2, skipped=((0, 1),))
    form_of(case, "flat").save(tmp_path / "flat")
    got = data.Flat2TED()(TensorDict.load(tmp_path / "flat"))
    for lane, steps in enumerate(case.held):
        same(as_numpy(got[:, lane]), arrays(steps, case.flags))


def test_names_and_numbers_as_tensordict_has_them(tmp_path: Path) -> None:
    import functional_rb as frb

    with backends.make("torch") as backend:
        odd = {name: frb.Unbounded((2,)) for name in ("a b", "a/b", "%", "é", "a.b")}
        more = {dtype: frb.Binary((2,)) if dtype == "bool" else frb.Unbounded((2,), dtype) for dtype in DTYPES}
        nothing = {"nothing": frb.Unbounded((0,)), "nest": {"nothing": frb.Unbounded((2, 0))}}
        item = {**dict(MORE["one step"].spec.item), **odd, **more, **nothing}
        state = backend.init(frb.BufferSpec(item, capacity=3))
        step = backend.rb.rand(state.spec.item, backend.rb.key(0), 1)
        step["next"] = {**step["next"], "observation": step["observation"], "more": step["more"]}
        step |= {name: torch.zeros_like(step[name]) for name in ("done", "terminated", "truncated")}
        state = backend.add(state, step)
        ted.to_form(state).save(tmp_path / "flat")
        loaded = TensorDict.load(tmp_path / "flat")
        for name in (*odd, *more):
            assert loaded.get(name).dtype == step[name].dtype
            assert loaded.get(name)[:1].contiguous().view(torch.uint8).equal(step[name].contiguous().view(torch.uint8))
        assert loaded["nothing"].shape == (3, 0)
        assert loaded["nest", "nothing"].shape == (3, 2, 0)
        same(ted.to_form(tmp_path / "flat").data, ted.to_form(state).data)
