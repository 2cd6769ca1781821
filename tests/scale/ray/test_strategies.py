"""Trajectories, frames and Python objects in shards: nothing goes on over what another client added or a crash took."""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import functional_rb as frb
import torch_backend
from functional_rb.core.strategy import Transform
from functional_rb.structures import row_layout
from tests.scale.ray.faulty_shards import FaultyTransport, client_of, stored, transport_at
from tests.support.effort import effort

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")

ITEM = {"x": frb.Unbounded(()), "reward": frb.Unbounded(()), "next_obs": frb.Unbounded(()), "done": frb.Binary(())}
SLICES = frb.BufferSpec(ITEM, 64, frb.Slices(3, end_keys="done", weighting="window"))
RETURNS, ADDED = (
    frb.BufferSpec(ITEM, 64, transforms=frb.n_step(3, gamma=0.5, end_keys="done", at=at)) for at in ("sample", "add")
)


def steps(first: float, n: int, done: bool = False) -> dict[str, np.ndarray]:
    x = np.arange(first, first + n, dtype=np.float32)
    return {"x": x, "reward": x, "next_obs": x + 1, "done": np.arange(n) == (n - 1 if done else n)}


def in_one_shard(transport: FaultyTransport, spec: frb.BufferSpec, *names: str) -> list[frb.ray.Client]:
    clients = [client_of(transport, spec, name=name) for name in names]
    for client in clients:
        client._outbox.turn = 0
    return clients


@pytest.mark.parametrize("spec", [SLICES, RETURNS, ADDED], ids=["slices", "returns", "returns of added"])
def test_no_trajectory_goes_on_over_the_steps_of_another_client(spec):
    transport = transport_at(None, spec=spec)
    first, second = in_one_shard(transport, spec, "a", "b")
    for k in range(3):  # amid episodes, which none of both ends
        first.add(steps(4 * k, 4)).result()
        second.add(steps(100 + 4 * k, 4)).result()
    check(first.sample(0, 64, exact=True), lambda x: 4 * (x // 4) + 4)


@pytest.mark.parametrize("spec", [SLICES, RETURNS, ADDED], ids=["slices", "returns", "returns of added"])
def test_steps_of_one_client_follow_on_each_other_over_its_adds(spec):
    transport = transport_at(None, spec=spec)
    (client,) = in_one_shard(transport, spec, "a")
    for k in range(3):
        client.add(steps(4 * k, 4)).result()
    check(client.sample(0, 64, exact=True), lambda x: np.full_like(x, 12), whole=True)


@pytest.mark.parametrize("spec", [SLICES, RETURNS, ADDED], ids=["slices", "returns", "returns of added"])
def test_no_trajectory_goes_on_over_what_a_crash_took(spec, tmp_path):
    transport = transport_at(str(tmp_path), spec=spec)
    (client,) = in_one_shard(transport, spec, "a")
    client.add(steps(0, 5)).result()
    client.save()
    client.add(steps(5, 1)).result()
    transport.kill(0)
    client.add(steps(6, 4)).result()
    assert client.counts().lost == 1
    there = [0, 1, 2, 3, 4, 6, 7] if spec is ADDED else [0, 1, 2, 3, 4, 6, 7, 8, 9]  # the others wait for theirs
    assert stored(transport.alive[0]) == there
    check(client.sample(0, 64, exact=True), lambda x: np.where(x < 6, 5, 10))


def test_a_client_that_comes_back_by_its_name_begins_another_trajectory():
    transport = transport_at(None, spec=SLICES)
    (client,) = in_one_shard(transport, SLICES, "a")
    client.add(steps(0, 4)).result()
    (again,) = in_one_shard(transport, SLICES, "a")
    again.add(steps(4, 4)).result()
    check(again.sample(0, 64, exact=True), lambda x: 4 * (x // 4) + 4)


@pytest.mark.parametrize("storage", [frb.Device(), frb.Host(), frb.Memmap()], ids=["device", "host", "memmap"])
@settings(max_examples=effort(8, 300))
@given(data=st.data())
def test_returns_of_added_steps_are_those_of_each_clients_own_unbroken_steps(storage, data):
    """Beside lists: whoever adds, whatever ends, dies and comes back, the steps between two breaks are a trajectory."""
    item, n = (
        {"x": frb.Unbounded(()), "reward": frb.Unbounded((2,)), "done": frb.Binary(())},
        data.draw(st.integers(1, 4)),
    )
    nstep = frb.n_step(n, gamma=0.5, end_keys="done", terminated_key="done", next_keys=[], at="add")
    spec = frb.BufferSpec(item, 256, transforms=nstep, storage=storage)
    with tempfile.TemporaryDirectory() as path:
        transport, first = transport_at(path, spec=spec), 1
        clients = in_one_shard(transport, spec, "a", "b")
        trajectories: list[list[int]] = [[]]
        whose: int | None = None
        for operation in data.draw(
            st.lists(st.sampled_from(["add", "add", "add", "crash", "connect", "clear"]), max_size=10)
        ):
            who = data.draw(st.integers(0, 1))
            if operation == "add":
                count, ends = data.draw(st.integers(1, 5)), data.draw(st.booleans())
                x = np.arange(first, first + count, dtype=np.float32)
                done = np.arange(count) == (count - 1 if ends else count)
                mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
                rewards = np.stack([x, x + 1], 1)
                clients[who].add({"x": x, "reward": rewards, "done": done}, mask=mask).result()
                if who != whose:
                    trajectories.append([])
                trajectories[-1] += [int(k) for k in x[mask]]
                first, whose = first + count, who
                if ends and mask[-1]:
                    trajectories.append([])
            elif operation == "crash":
                clients[0].save()
                transport.kill(0)
                transport.heal()
                whose = None
            elif operation == "connect":
                (clients[who],) = in_one_shard(transport, spec, "ab"[who])
                whose = None if whose == who else whose
            else:
                clients[who].clear()
                clients[who].flush()
                trajectories = [[]]
        shard = transport.alive[0]
        expected, lengths = [], {}
        for t, trajectory in enumerate(trajectories):
            whole = len(trajectory) if t + 1 < len(trajectories) else max(len(trajectory) - n + 1, 0)
            for k, x in enumerate(trajectory[:whole]):
                lengths[x] = len(trajectory[k : k + n])
                expected.append((x, sum(0.5**j * later for j, later in enumerate(trajectory[k : k + n]))))
        found = shard._rb.items(shard._state)
        by_step = dict(zip(found["x"].tolist(), found["reward"].tolist(), strict=True))
        assert int(shard._rb.size(shard._state)) == len(expected)
        for x, reward in expected:
            assert by_step[x] == pytest.approx([reward, reward + sum(0.5**j for j in range(lengths[x]))])
        transport.settle()


def test_steps_that_waited_in_lanes_are_stored_by_their_own_version_where_another_client_comes():
    spec = frb.BufferSpec(ITEM, 64, lanes=2, transforms=frb.n_step(3, gamma=0.5, end_keys="done", at="add"))
    transport = transport_at(None, spec=spec)
    first, second = in_one_shard(transport, spec, "a", "b")

    def of_lanes(start: float) -> dict[str, np.ndarray]:
        one, other = steps(start, 2), steps(start + 50, 2)
        return {name: np.stack([one[name], other[name]], 1) for name in one}

    first.add(of_lanes(1), version=7).result()
    before = transport.alive[0]._state
    second.add(of_lanes(100), version=9).result()
    found = second.sample(0, 64, oldest=8)
    assert not found.mask.any()  # of the first client, and what the second added waits
    assert second.sample(0, 64, oldest=7).mask.all()
    assert dict(zip(found.items["x"].tolist(), found.items["reward"].tolist(), strict=True)) == {
        1.0: 1 + 0.5 * 2, 2.0: 2.0, 51.0: 51 + 0.5 * 52, 52.0: 52.0
    }  # fmt: skip
    assert int(torch_backend.size(before)) == 0
    assert not before.rows.any()


def test_steps_that_waited_are_saved_where_they_are_stored_though_the_add_behind_them_is_refused(tmp_path):
    added, returns = (dataclasses.replace(spec, sampler=frb.Prioritized()) for spec in (ADDED, RETURNS))
    transport = transport_at(str(tmp_path), spec=added)
    first, second = in_one_shard(transport, added, "a", "b")
    (other,) = in_one_shard(transport, returns, "c")  # which takes it for another buffer
    first.add(steps(1, 2)).result()
    first.save()
    with pytest.raises(ValueError, match="priorities"):
        other.add(steps(9, 1), priorities=np.ones(1, np.float32)).result()
    second.save()
    transport.kill(0)
    transport.heal()
    assert stored(transport.alive[0]) == [1, 2]


def test_of_single_steps_none_waits():
    spec = frb.BufferSpec(ITEM, 64, transforms=frb.n_step(1, gamma=0.5, end_keys="done", at="add"))
    transport = transport_at(None, spec=spec)
    for k, client in enumerate(in_one_shard(transport, spec, "a", "b")):
        client.add(steps(10 * k, 2)).result()
    assert stored(transport.alive[0]) == [0, 1, 10, 11]


def check(sample: Any, end: Any, whole: bool = False) -> None:
    """Whether windows, or returns, stop before the end of the trajectory of their first step."""
    if type(sample).__name__ == "SliceSample":
        x = sample.items["x"].numpy()
        assert (np.diff(x, axis=1) == 1).all()
        assert (x[:, -1] < end(x[:, 0])).all()
        assert not whole or (x[:, 0] == 2).any()  # a window over two adds
        return
    x, found = (sample.items[name].numpy() for name in ("x", "reward"))
    length = np.minimum(end(x) - x, 3)
    expected = sum(np.where(k < length, 0.5**k * (x + k), 0) for k in range(3))
    np.testing.assert_allclose(found, expected)
    np.testing.assert_array_equal(sample.items["next_obs"].numpy(), x + length)
    assert len(set(x.tolist())) > 5


def test_frames_that_successive_steps_share_come_back_whatever_comes_between_them(tmp_path):
    item = {"obs": frb.Unbounded((2, 3), "int32"), "next_obs": frb.Unbounded((2, 3), "int32"), "x": frb.Unbounded(())}
    spec = frb.BufferSpec(item, 64, compact=frb.Compact(stack=2, spare=32))  # where clients meet frames come twice
    transport = transport_at(str(tmp_path), spec=spec)
    first, second = in_one_shard(transport, spec, "a", "b")

    def batch(start: int, n: int) -> dict[str, np.ndarray]:
        frames = 10 * np.arange(start, start + n + 2, dtype=np.int32)[:, None] + np.arange(3, dtype=np.int32)
        pairs = np.stack([frames[:-1], frames[1:]], 1)
        return {"obs": pairs[:-1], "next_obs": pairs[1:], "x": np.arange(start, start + n, dtype=np.float32)}

    for k in range(3):
        first.add(batch(4 * k, 4)).result()
        second.add(batch(500 + 4 * k, 4)).result()
    first.save()
    first.add(batch(12, 4)).result()
    transport.kill(0)
    first.add(batch(16, 4)).result()
    sample = first.sample(0, 512, exact=True)
    numbers = sample.items["x"].numpy()
    assert set(numbers.tolist()) == {*range(12), *range(16, 20), *range(500, 512)}
    for row, x in enumerate(numbers.astype(int)):
        for name in ("obs", "next_obs"):
            np.testing.assert_array_equal(sample.items[name][row].numpy(), batch(x, 1)[name][0])
    assert sample.probabilities.tolist() == pytest.approx([1 / 28] * 512)


OBJECTS = frb.BufferSpec(
    {"text": frb.specs.NonTensor(), "x": frb.Unbounded(())}, 64, frb.Prioritized(alpha=1.0), storage=frb.Host()
)


@pytest.mark.parametrize("name", ["jax_backend", "torch_backend", None])
def test_python_objects_come_back_as_they_went_in(name, tmp_path):
    client = frb.ray.start(OBJECTS, shards=2, backend=name, checkpoint=tmp_path, local=True)
    for k in range(4):
        x = np.arange(3 * k, 3 * k + 3, dtype=np.float32)
        client.add({"text": [f"t{n:.0f}" for n in x], "x": x})
    client.flush()
    sample = client.sample(0, 40)
    assert list(sample.items["text"]) == [f"t{float(n):.0f}" for n in sample.items["x"]]
    batches = list(client.iterate(0, 8, n=4, per_call=2))
    assert all(list(b.items["text"]) == [f"t{float(n):.0f}" for n in b.items["x"]] for b in batches)
    one = np.asarray(sample.indices)[:1]
    client.update(one, np.array([5.0], np.float32), {"text": np.array([["new"]], object)[0]})
    client.flush()
    found, live = client.get(one)
    assert list(found["text"]) == ["new"]
    assert bool(np.asarray(live).all())
    client.save()
    again = frb.ray.start(OBJECTS, shards=2, backend=name, checkpoint=tmp_path, local=True)
    assert again.size() == 12
    assert "new" in list(again.sample(1, 64).items["text"])


def test_an_object_that_no_checkpoint_can_hold_stops_no_shard(tmp_path):
    options = frb.ray.Options(save_every=1)
    client = frb.ray.start(OBJECTS, shards=1, checkpoint=tmp_path, options=options, local=True)
    for k in range(3):
        client.add({"text": [object()], "x": np.array([k], np.float32)}).result()
        if client._watch.transport.places[0]._saving is not None:
            client._watch.transport.places[0]._saving[0].wait()
    counts = client.counts()
    assert counts.size == 3
    assert counts.save_failures > 0
    with pytest.raises((TypeError, ValueError)):
        client.save()


@pytest.mark.parametrize("storage", [frb.Host(), frb.Memmap()])
def test_rows_lie_where_the_spec_says_after_a_restart_too(storage, tmp_path):
    spec = frb.BufferSpec(ITEM, 64, storage=storage)
    transport = transport_at(str(tmp_path), spec=spec)
    (client,) = in_one_shard(transport, spec, "a")
    client.add(steps(0, 5)).result()
    client.save()
    transport.kill(0)
    client._outbox.turn = 0
    client.add(steps(5, 3)).result()
    assert sorted(stored(transport.alive[0]) + stored(transport.alive[1])) == list(range(8))
    assert transport.alive[0]._state.spec.storage == storage


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (frb.BufferSpec(ITEM, 64, frb.InOrder()), "draws do not depend on each other nor on the order over all shards"),
        (
            frb.BufferSpec({"policy_version": frb.Unbounded((), "int32")}, 64, frb.Staleness()),
            r"Staleness.* shards hear no versions .*sample\(oldest=",
        ),
        (frb.BufferSpec(ITEM, 64, writer=frb.MaxValue("reward")), "MaxValue.* decides by all items of the buffer"),
        (frb.BufferSpec(ITEM, 64, writer=frb.Reservoir()), "Reservoir.* decides by all items of the buffer"),
        (frb.BufferSpec(ITEM, 64, storage=frb.Memmap("/nowhere/replay")), "names files that all shards would write to"),
    ],
)
def test_what_is_no_law_over_shards_is_refused_with_a_remedy(spec, told):
    with pytest.raises(ValueError, match=told):
        frb.ray.start(spec, shards=1, local=True)


class Keeps(Transform):
    def carried(self) -> dict[str, row_layout.Layout]:
        return {"waiting": row_layout.plan(())}


def test_a_transform_that_carries_items_has_to_say_what_a_cut_makes_of_them():
    with pytest.raises(TypeError, match=r"Keeps: it carries \['waiting'\] .* define `interrupted`"):
        Keeps().interrupted(ops=None, draft=None)  # type: ignore[arg-type]  # nothing is read of them
