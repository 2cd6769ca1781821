"""Trajectories, frames and Python objects in shards: nothing goes on over what another client added or a crash took."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from functional_rb.scale.ray.client import About, Client
from tests.support.faulty_shards import FaultyTransport, stored, transport_at

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")

ITEM = {"x": frb.Unbounded(()), "reward": frb.Unbounded(()), "next_obs": frb.Unbounded(()), "done": frb.Binary(())}
SLICES = frb.BufferSpec(ITEM, 64, frb.Slices(3, end_keys="done", weighting="window"))
RETURNS = frb.BufferSpec(ITEM, 64, transforms=frb.n_step(3, gamma=0.5, end_keys="done"))


def steps(first: float, n: int, done: bool = False) -> dict[str, np.ndarray]:
    x = np.arange(first, first + n, dtype=np.float32)
    return {"x": x, "reward": x, "next_obs": x + 1, "done": np.arange(n) == (n - 1 if done else n)}


def in_one_shard(transport: FaultyTransport, spec: frb.BufferSpec, *names: str) -> list[Client]:
    clients = [Client(transport, About(spec), torch_backend, name) for name in names]
    for client in clients:
        client._outbox.turn = 0
    return clients


@pytest.mark.parametrize("spec", [SLICES, RETURNS])
def test_no_trajectory_goes_on_over_the_steps_of_another_client(spec):
    transport = transport_at(None, spec=spec)
    first, second = in_one_shard(transport, spec, "a", "b")
    for k in range(3):  # amid episodes, which none of both ends
        first.add(steps(4 * k, 4)).result()
        second.add(steps(100 + 4 * k, 4)).result()
    check(first.sample(0, 64, exact=True), lambda x: 4 * (x // 4) + 4)


@pytest.mark.parametrize("spec", [SLICES, RETURNS])
def test_steps_of_one_client_follow_on_each_other_over_its_adds(spec):
    transport = transport_at(None, spec=spec)
    (client,) = in_one_shard(transport, spec, "a")
    for k in range(3):
        client.add(steps(4 * k, 4)).result()
    check(client.sample(0, 64, exact=True), lambda x: np.full_like(x, 12), whole=True)


@pytest.mark.parametrize("spec", [SLICES, RETURNS])
def test_no_trajectory_goes_on_over_what_a_crash_took(spec, tmp_path):
    transport = transport_at(str(tmp_path), spec=spec)
    (client,) = in_one_shard(transport, spec, "a")
    client.add(steps(0, 5)).result()
    client.save()
    client.add(steps(5, 1)).result()
    transport.kill(0)
    client.add(steps(6, 4)).result()
    assert client.counts().lost == 1
    assert stored(transport.alive[0]) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    check(client.sample(0, 64, exact=True), lambda x: np.where(x < 6, 5, 10))


def test_a_client_that_comes_back_by_its_name_begins_another_trajectory():
    transport = transport_at(None, spec=SLICES)
    (client,) = in_one_shard(transport, SLICES, "a")
    client.add(steps(0, 4)).result()
    (again,) = in_one_shard(transport, SLICES, "a")
    again.add(steps(4, 4)).result()
    check(again.sample(0, 64, exact=True), lambda x: 4 * (x // 4) + 4)


def check(sample: Any, end: Any, whole: bool = False) -> None:
    """Whether windows, or returns, stop before the end of the trajectory of their first step."""
    if isinstance(sample, frb.types.SliceSample):
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
    {"text": frb.specs.NonTensor(), "x": frb.Unbounded(())}, 64, frb.Prioritized(alpha=1.0), storage=frb.Objects()
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
    saving = frb.ray.Checkpoints(tmp_path, every=1)
    client = frb.ray.start(OBJECTS, shards=1, checkpoint=saving, local=True)
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
        (frb.BufferSpec(ITEM, 64, frb.Queue()), "Queue.* takes out what it gives, and an answer that is lost"),
        (frb.BufferSpec(ITEM, 64, frb.InOrder()), "draws do not depend on each other nor on the order over all shards"),
        (frb.BufferSpec(ITEM, 64, writer=frb.MaxValue("reward")), "MaxValue.* decides by all items of the buffer"),
        (frb.BufferSpec(ITEM, 64, writer=frb.Reservoir()), "Reservoir.* decides by all items of the buffer"),
        (
            frb.BufferSpec(ITEM, 64, transforms=frb.n_step(3, gamma=0.5, at="add")),
            r"n_step\(at='add'\) keeps the last steps.*give n_step\(at='sample'\)",
        ),
        (frb.BufferSpec(ITEM, 64, storage=frb.Memmap("/nowhere/replay")), "names files that all shards would write to"),
    ],
)
def test_what_is_no_law_over_shards_is_refused_with_a_remedy(spec, told):
    with pytest.raises(ValueError, match=told):
        frb.ray.start(spec, shards=1, local=True)
