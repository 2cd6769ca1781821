"""What reads and writes a state comes after what other streams were asked to do with it, on the tests' own device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support import device, gpu
from tests.support.kernels_elsewhere import ITEM, batch_of
from tests.support.kernels_elsewhere import kernels as kernels

pytestmark = pytest.mark.skipif(not gpu.ELSEWHERE, reason="on a device of the tests' own alone: make test-device")
FRAMES = {"obs": frb.Bounded(0, 255, (8, 8, 4), "uint8"), "done": frb.Binary()}
SPECS = {
    "prioritized": frb.BufferSpec(ITEM, 40, frb.Prioritized()),
    "frames": frb.BufferSpec(FRAMES, 40, frb.Prioritized(), compact=frb.Compact(stack=4, axis=-1)),
    "limited": frb.BufferSpec(ITEM, 40, frb.Uniform(max_times_sampled=2)),
}


class Given:
    """What functions are called with, made and waited for before: what is ordered here is the library's alone."""

    def __init__(self, spec: frb.BufferSpec, folder: Path) -> None:
        self.spec, self.folder, self.key = spec, folder, rb.key(0)
        self.batch = {name: leaf for name, leaf in batch_of(12).items() if name in spec.item}
        if "image" not in spec.item:
            self.batch["obs"] = torch.zeros(12, 8, 8, 4, dtype=torch.uint8)
        self.handles, self.priorities = torch.arange(8, dtype=torch.int32), torch.ones(8)
        torch.accelerator.synchronize()


def mixed(state: Any, given: Given) -> Any:
    return rb.sample(frb.Mixture([state], [1.0]), given.key, 4)


def saved(state: Any, given: Given) -> None:
    frb.save(state, given.folder / "saved")


FUNCTIONS: dict[str, Callable[[Any, Given], Any]] = {
    "add": lambda state, given: rb.add(state, given.batch),
    "clear": lambda state, given: rb.clear(state),
    "copy": lambda state, given: copy.deepcopy(state),
    "counters": lambda state, given: state.counters.sum(),
    "export": lambda state, given: state.rows.sum(),
    "get": lambda state, given: rb.get(state, given.handles),
    "is_live": lambda state, given: rb.is_live(state, given.handles),
    "items": lambda state, given: rb.items(state)["obs"].sum(),
    "mixture": mixed,
    "newest": lambda state, given: rb.newest(state, 3),
    "sample": lambda state, given: rb.sample(state, given.key, 4),
    "save": saved,
    "size": lambda state, given: rb.size(state),
    "state_dict": lambda state, given: rb.state_dict(state),
    "update": lambda state, given: (
        rb.update(state, given.handles, given.priorities) if state.spec.sampler.has_priorities else state
    ),
    "with_spec": lambda state, given: rb.with_spec(
        state, frb.BufferSpec(state.spec.item, 50, compact=state.spec.compact)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("spec", "launches"), [("prioritized", True), ("frames", True), ("limited", False)])
def test_torch_functions_come_after_those_of_other_streams(
    name: str, spec: str, launches: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Of a state, and of an older one; and writes that come later, after them."""
    if launches:  # emulated; else torch's operations alone
        request.getfixturevalue("kernels")
    given, function = Given(SPECS[spec], tmp_path), FUNCTIONS[name]
    streams = [torch.Stream(device.NAME) for _ in range(3)]
    before = device.counts()
    with streams[0]:
        older = rb.add(rb.init(given.spec), given.batch)
    with streams[1]:
        state = rb.add(rb.add(older, given.batch), given.batch)
    with streams[2]:
        found = function(state, given)
    with streams[0]:
        others = function(older, given)
    with streams[1]:
        state = rb.add_(state, given.batch)
        older = rb.add(older, given.batch)
    after = device.counts()
    assert (after.races - before.races, after.blocked > before.blocked) == (0, True)
    del state, older
    torch.accelerator.synchronize()
    del found, others
    assert device.counts().lost == before.lost


def test_torch_readers_come_after_writes_to_newer_states(tmp_path: Path) -> None:
    """And these after what is read of an older one, piece by piece."""
    given, streams = Given(SPECS["prioritized"], tmp_path), [torch.Stream(device.NAME) for _ in range(2)]
    before = device.counts()
    with streams[0]:
        state = rb.add(rb.init(given.spec), given.batch)
        reader = state.reader()
    for _ in range(2):
        with streams[1]:
            state = rb.add(state, given.batch)
        with streams[0]:
            piece = reader.read("rows", 0, 40)
    reader.close()
    assert device.counts().races == before.races
    assert not piece[12:].any()


@pytest.mark.parametrize("name", ["copy", "counters", "get", "size", "state_dict"])
def test_torch_counters_are_kept_until_they_have_been_read(name: str, tmp_path: Path) -> None:
    """By another stream than that for which they were made, of which it knows nothing when the state dies."""
    given, streams = Given(SPECS["prioritized"], tmp_path), [torch.Stream(device.NAME) for _ in range(2)]
    before = device.counts()
    with streams[0]:
        state = rb.add(rb.init(given.spec), given.batch)
    with streams[1]:
        FUNCTIONS[name](state, given)
    del state
    assert (device.counts().races, device.counts().lost) == (before.races, before.lost)


def test_torch_work_without_an_order_is_seen() -> None:
    streams = [torch.Stream(device.NAME) for _ in range(2)]
    before = device.counts()
    with streams[0]:
        x = torch.ones(3)
    with streams[1]:
        x + 1
    assert device.counts().races == before.races + 1
    streams[0].wait_stream(streams[1])
    with streams[0]:
        x += 1
    assert device.counts().races == before.races + 1
    with streams[1]:
        x.record_stream(streams[1])
        streams[1].wait_stream(streams[0])
        y, z = x * 2, x * 3
    with streams[0]:
        streams[0].wait_stream(streams[1])
        y + z
    streams[1].wait_stream(streams[0])
    del x, y
    assert device.counts().lost == before.lost
    with streams[0]:
        z * 2
    del z
    assert (device.counts().races, device.counts().lost) == (before.races + 1, before.lost + 1)
