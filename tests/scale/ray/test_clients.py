"""What clients of shards take and give, on each backend, as the functions of a single buffer do."""

from __future__ import annotations

import gc
import importlib
import pickle
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from tests.scale.ray.faulty_shards import SPEC, client_of, items, stored, transport_at

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")


class Step(NamedTuple):
    obs: Any
    rest: Any


NESTED = frb.BufferSpec(
    Step(
        {"image": frb.Bounded(0, 255, (40, 40), "uint8"), "speed": frb.Unbounded((3,))},
        (frb.Unbounded((), "int32"), frb.Binary(())),
    ),
    capacity=64,
    sampler=frb.Prioritized(alpha=1.0),
)


def step(n: int, start: int = 0) -> Step:
    random = np.random.default_rng(start)
    image = random.integers(0, 256, (n, 40, 40)).astype(np.uint8)
    speed = random.random((n, 3)).astype(np.float32)
    return Step({"image": image, "speed": speed}, (np.arange(start, start + n, dtype=np.int32), np.arange(n) % 2 == 0))


@pytest.mark.parametrize("name", ["jax_backend", "torch_backend", None])
def test_items_come_back_as_they_went_in(name):
    client = frb.ray.start(NESTED, shards=4, backend=name, local=True)
    batches = [step(8, 8 * k) for k in range(6)]
    for batch in batches:
        client.add(batch)
    client.flush()
    sample = client.sample(0, 40)
    assert type(sample.items) is Step
    assert type(sample) is frb.Sample
    kind = {"jax_backend": "ArrayImpl", "torch_backend": "Tensor", None: "ndarray"}[name]
    assert type(sample.items.obs["speed"]).__name__ == type(sample.weights).__name__ == kind
    numbers = np.asarray(sample.items.rest[0])
    for row, number in enumerate(numbers.tolist()):
        batch, at = batches[number // 8], number % 8
        np.testing.assert_array_equal(np.asarray(sample.items.obs["image"])[row], batch.obs["image"][at])
        np.testing.assert_array_equal(np.asarray(sample.items.obs["speed"])[row], batch.obs["speed"][at])
        assert bool(sample.items.rest[1][row]) == (at % 2 == 0)
    assert str(sample.indices.dtype).endswith("int32")
    assert tuple(sample.indices.shape) == (40, 2)
    found, live = client.get(sample.indices)
    np.testing.assert_array_equal(np.asarray(found.rest[0]), numbers)
    assert bool(np.asarray(live).all())


@pytest.mark.parametrize("name", ["jax_backend", "torch_backend"])
def test_a_backends_own_arrays_and_keys_are_taken(name):
    rb = importlib.import_module(name)
    client = frb.ray.start(SPEC, shards=2, backend=rb, local=True)
    given = rb.rand(SPEC.item, rb.key(0), (6,))
    client.add(given, priorities=rb.from_dlpack(np.arange(1, 7, dtype=np.float32), copy=True)).result()
    sample = client.sample(rb.key(1), 4)
    client.update(sample.indices, sample.weights)
    client.flush()
    assert client.counts().stale == 0
    again = client.sample(rb.key(1), 4, exact=True)
    assert set(again.items["x"].tolist()) <= set(given["x"].tolist())


def test_priorities_and_leaves_reach_their_items():
    client = frb.ray.start(NESTED, shards=4, backend=torch_backend, local=True)
    for k in range(4):
        client.add(step(8, 8 * k))
    client.flush()
    sample = client.sample(0, 32)
    numbers = sample.items.rest[0].tolist()
    client.update(sample.indices, np.array(numbers, np.float32) + 1, {"rest": {0: -sample.items.rest[0]}})
    client.flush()
    places = client._watch.transport.places
    for (k, handle), number in zip(sample.indices.tolist(), numbers, strict=True):
        rb, state = places[k]._rb, places[k]._state
        at = np.array([handle], np.int32)
        assert rb.priorities(state, at).tolist() == [number + 1]
        assert rb.get(state, at).rest[0].tolist() == [-number]


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"x": np.zeros(3, np.float64)}, TypeError, "leaf 'x': expected dtype float32, got float64"),
        ({"x": np.zeros((3, 1), np.float32)}, ValueError, r"leaf 'x': expected shape \(\) for one item"),
        ({"y": np.zeros(3, np.float32)}, ValueError, "'x' is missing"),
        ({"x": [1.0, 2.0]}, TypeError, "leaf 'x': expected an array, got list"),
    ],
)
def test_items_that_do_not_fit_are_refused_by_the_client(given, error, told):
    client = frb.ray.start(SPEC, shards=2, local=True)
    with pytest.raises(error, match=told):
        client.add(given)
    assert client.size() == 0


def test_other_arguments_that_do_not_fit_are_refused():
    client = frb.ray.start(SPEC, shards=2, local=True)
    client.add(items([1, 2, 3])).result()
    with pytest.raises(ValueError, match=r"update: indices: expected shape \(B, 2\), shard and handle"):
        client.update(np.zeros(3, np.int32), np.ones(3, np.float32))
    with pytest.raises(TypeError, match="update: indices: expected int32, got float64"):
        client.update(np.zeros((3, 2)), np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"priorities: expected shape \(3,\), one for each handle, got \(2,\)"):
        client.update(np.zeros((3, 2), np.int32), np.ones(2, np.float32))
    with pytest.raises(TypeError, match=r"sample: key: expected rb.key"):
        client.sample("seed", 4)
    with pytest.raises(ValueError, match="batch_size"):
        client.sample(0)
    with pytest.raises(ValueError, match="sample: beta: expected a number from 0 to 100, got -1"):
        client.sample(0, 4, beta=-1)
    with pytest.raises(ValueError, match=r"save: expected frb.ray.start\(..., checkpoint=directory\), got none"):
        client.save()


@pytest.mark.parametrize(
    ("spec", "arguments", "told"),
    [
        (frb.BufferSpec(SPEC.item, 10), {"shards": 4}, "capacity: expected a multiple of shards=4, got 10; 8 would do"),
        (frb.BufferSpec(SPEC.item, 8, sampler=frb.WithoutReplacement()), {}, "BufferSpec.sampler: expected one whose"),
        (frb.BufferSpec(SPEC.item, 8, sampler=frb.Prioritized(replacement=False)), {}, "BufferSpec.sampler"),
        (frb.BufferSpec({"n": frb.Unbounded((), "bfloat16")}, 8), {}, "leaf 'n': expected a dtype of NumPy"),
        (SPEC, {"shards": 0}, "start: shards"),
        (
            SPEC,
            {"options": frb.ray.Options(save_every=9)},
            r"start: checkpoint: expected a directory, as .*save_every=9",
        ),
    ],
)
def test_what_shards_cannot_do_is_refused(spec, arguments, told):
    with pytest.raises(ValueError, match=told):
        frb.ray.start(spec, local=True, **arguments)


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: frb.ray.Options(save_every=0), ValueError, r"Options\.save_every"),
        (lambda: frb.ray.Options(save_every=2**62 + 1), ValueError, r"Options\.save_every"),
        (lambda: frb.ray.Options(in_flight=0), ValueError, r"Options\.in_flight"),
        (lambda: frb.ray.Options(timeout=-1), ValueError, r"Options\.timeout: expected seconds, 0 or more, got -1"),
        (lambda: frb.ray.Options(""), ValueError, r"Options\.name: expected a str of up to 200 characters, got ''"),
        (lambda: frb.ray.Options(actors=4), TypeError, r"Options\.actors: expected a dict of Ray's options, got 4"),
        (lambda: frb.ray.start(SPEC, options="dqn"), TypeError, r"start: options: expected frb\.ray\.Options\(...\)"),
    ],
)
def test_options_that_do_not_fit_are_refused(make, error, told):
    with pytest.raises(error, match=told):
        make()


def test_what_is_no_spec_or_backend_is_refused():
    with pytest.raises(TypeError, match="start: expected a BufferSpec, got dict"):
        frb.ray.start({}, local=True)
    with pytest.raises(TypeError, match=r"frb.ray: backend: expected the module jax_backend or torch_backend"):
        frb.ray.start(SPEC, backend="numpy", local=True)


def test_a_checkpoint_of_another_spec_is_refused(tmp_path):
    client = frb.ray.start(SPEC, shards=2, local=True, checkpoint=tmp_path)
    client.add(items([1.0])).result()
    client.save()
    other = frb.BufferSpec(SPEC.item, 64, sampler=frb.Prioritized(alpha=1.0))
    with pytest.raises(
        ValueError, match=r"shard_0: expected a shard of .*start with the spec and the number of shards"
    ):
        frb.ray.start(other, shards=2, local=True, checkpoint=tmp_path)


def test_a_buffer_that_is_started_again_goes_on_from_its_checkpoint(tmp_path):
    client = frb.ray.start(SPEC, shards=2, local=True, checkpoint=tmp_path)
    client.add(items([1.0, 2.0])).result()
    client.add(items([3.0])).result()
    client.sample(0, 6)
    assert client.save() == (1, 1)
    again = frb.ray.start(SPEC, shards=2, local=True, checkpoint=tmp_path)
    counts = again.counts()
    assert (counts.size, counts.inserted, counts.sampled, counts.unsaved) == (3, 3, 6, 0)


def test_masks_write_the_marked_rows():
    client = frb.ray.start(SPEC, shards=1, local=True)
    client.add(items([1, 2, 3, 4]), mask=np.array([True, False, True, False])).result()
    assert stored(client._watch.transport.places[0]) == [1, 3]
    assert client.counts().inserted == 2


def test_a_single_item_and_python_numbers_are_taken():
    client = frb.ray.start(SPEC, shards=1, local=True)
    client.add({"x": 2.5}).result()
    client.add({"x": np.float32(3.5)}, priorities=np.array([4.0])).result()
    assert stored(client._watch.transport.places[0]) == [2.5, 3.5]


def test_items_of_older_versions_are_masked_and_counted():
    client = frb.ray.start(SPEC, shards=2, backend=torch_backend, local=True)
    for version in range(4):
        client.add(items([version] * 4), version=version)
    client.flush()
    sample = client.sample(0, 64, oldest=2)
    assert type(sample).__name__ == "MaskedSample"
    assert sample.mask.tolist() == [x >= 2 for x in sample.items["x"].tolist()]
    out = ~sample.mask
    assert sample.weights[out].tolist() == sample.probabilities[out].tolist() == [0.0] * int(out.sum())
    assert (sample.indices[out] == -1).all()
    assert (sample.weights[~out] > 0).all()
    assert client.counts().masked == int(out.sum()) > 0
    client.update(sample.indices, np.full(64, 2.0, np.float32))  # those of -1 are dropped
    client.flush()
    assert client.counts().stale == 0
    assert bool(client.sample(1, 64, oldest=0).mask.all())


def test_versions_go_with_slots_that_are_written_again():
    spec = frb.BufferSpec(SPEC.item, capacity=4)
    client = frb.ray.start(spec, shards=1, local=True)
    client.add(items([1, 2, 3]), version=1).result()
    client.add(items([4, 5]), version=2).result()
    sample = client.sample(0, 64, oldest=2)
    assert {x for x, real in zip(sample.items["x"].tolist(), sample.mask.tolist(), strict=True) if real} == {4, 5}
    client.add(items(np.arange(9)), version=3).result()
    assert bool(client.sample(0, 64, oldest=3).mask.all())


SLICES = frb.BufferSpec(
    {"x": frb.Unbounded(()), "done": frb.Binary(())},
    capacity=64,
    sampler=frb.Slices(3, end_keys="done", weighting="window"),
)


@pytest.mark.parametrize("lanes", [None, 2])
def test_slices_are_of_one_client_and_one_shard(lanes):
    spec = frb.BufferSpec(SLICES.item, 64, sampler=SLICES.sampler, lanes=lanes)
    transport = transport_at(None, spec=spec)
    first, second = (client_of(transport, spec, name=name) for name in ("a", "d"))
    assert first._outbox.turn != second._outbox.turn
    for t in range(6):
        for who, client in ((0, first), (100, second)):
            x = who + t + (0.0 if lanes is None else 50.0 * np.arange(lanes))
            done = np.full(np.shape(x), t == 5)
            shaped = np.asarray(x, np.float32)[None] if lanes is None else np.asarray(x, np.float32)
            client.add({"x": shaped, "done": done[None] if lanes is None else done})
    first.flush()
    second.flush()
    sample = first.sample(0, 32, exact=True)
    assert type(sample).__name__ == "SliceSample"
    assert tuple(sample.indices.shape) == (32, 3, 2)
    assert (sample.items["x"].diff(dim=1) == 1).all()
    assert bool(sample.mask.all())
    shards = sample.indices[:, :, 0] % 2
    assert set(shards.flatten().tolist()) == {0, 1}
    assert (shards == shards[:, :1]).all()
    windows = 2 * 4 * (lanes or 1)
    np.testing.assert_allclose(sample.probabilities, 1 / windows, rtol=1e-6)


def test_functions_of_items_are_carried_out_by_the_shards():
    spec = frb.BufferSpec(SPEC.item, 64, transforms=frb.map_items(_doubled))
    client = frb.ray.start(spec, shards=2, backend=torch_backend, local=True)
    client.add(items([1, 2, 3])).result()
    sample = client.sample(0, 8)
    assert sorted(sample.items) == ["also", "twice"]
    assert (sample.items["twice"] == 2 * sample.items["also"]).all()
    assert set(sample.items["also"].tolist()) <= {1, 2, 3}


def _doubled(given: Any) -> Any:
    return {"twice": 2 * given["x"], "also": given["x"]}


def test_batches_that_are_asked_for_ahead_are_those_of_their_numbers():
    client = frb.ray.start(SPEC, shards=2, backend=torch_backend, local=True)
    client.add(items(range(50))).result()
    client.add(items(range(50, 100))).result()
    found = [
        [sample.indices.tolist() for sample in client.iterate(torch_backend.key(3), 8, n=5, prefetch=prefetch)]
        for prefetch in (0, 2, 10)
    ]
    assert found[0] == found[1] == found[2]
    assert len({str(x) for x in found[0]}) == 5
    betas = [float(s.weights.min()) for s in client.iterate(0, 4, n=2, beta=lambda step: float(step))]
    assert len(betas) == 2
    client._watch.ask_all(1e9)
    batches = client.iterate(0, 4, n=3, prefetch=2)
    next(batches)
    assert len(batches._ahead) == 2


def test_batches_that_come_in_one_call_are_as_good_as_others():
    client = frb.ray.start(SPEC, shards=2, backend=torch_backend, local=True)
    client.add(items(range(50)), priorities=np.full(50, 3.0, np.float32)).result()
    client.add(items(range(50, 100)), priorities=np.ones(50, np.float32)).result()
    samples = list(client.iterate(1, 64, n=7, per_call=3, prefetch=1, beta=lambda step: 0.1 * step))
    assert [len(sample.indices) for sample in samples] == [64] * 7
    for k, sample in enumerate(samples):
        numbers, handles = sample.items["x"], sample.indices
        found, _ = client.get(handles)
        assert (found["x"] == numbers).all()
        chance = torch_backend.from_dlpack(np.where(numbers.numpy() < 50, 3.0, 1.0)) / 200
        np.testing.assert_allclose(sample.probabilities, chance, rtol=1e-6)
        np.testing.assert_allclose(sample.weights, (chance / chance.min()) ** (-0.1 * k), rtol=1e-5)
        # Of each shard about as many as chance has it: not the one first and then the other.
        assert 64 * 0.75 - 24 < int((numbers < 50).sum()) < 64 * 0.75 + 15
    places = [sample.items["x"].lt(50).tolist() for sample in samples[:6]]  # the last comes alone
    assert all(place != sorted(place, reverse=True) and place != sorted(place) for place in places)
    client.sample(0, 4)
    with pytest.raises(ValueError, match="iterate: per_call: expected 1 or more, got 0"):
        client.iterate(0, 4, per_call=0)


def test_what_is_given_out_does_not_change_and_may_be_written_to():
    client = frb.ray.start(SPEC, shards=1, backend=torch_backend, local=True)
    client.add(items([1.0] * 8)).result()
    sample = client.sample(0, 4)
    client.add(items([2.0] * 2048)).result()
    assert sample.items["x"].tolist() == [1.0] * 4
    sample.items["x"][...] = 7.0
    assert client.sample(0, 4).items["x"].tolist() == [2.0] * 4


def test_clearing_takes_all_items_out_and_old_handles_name_nothing():
    client = frb.ray.start(SPEC, shards=2, backend=torch_backend, local=True)
    for k in range(4):
        client.add(items([k, k])).result()
    sample = client.sample(0, 8)
    client.clear()
    client.add(items([9, 9])).result()
    client.add(items([9, 9])).result()
    client.update(sample.indices, np.full(8, 5.0, np.float32))
    client.flush()
    assert client.size() == 4
    assert client.counts().stale == 8


def test_a_client_goes_through_pickle_as_another_client_of_the_same_buffer():
    client = frb.ray.start(SPEC, shards=2, backend=torch_backend, local=True)
    function, arguments = client.__reduce__()
    other = function(*arguments)
    assert other.name != client.name
    assert other.spec == client.spec
    other.add(items([1, 2])).result()
    assert client.size() == 2
    assert type(other.sample(0, 2).weights).__name__ == "Tensor"
    assert pickle.loads(pickle.dumps(client._about)) == client._about


def test_a_client_that_is_slow_to_hear_is_held_back():
    client = frb.ray.start(SPEC, shards=1, local=True, options=frb.ray.Options(in_flight=3))
    for k in range(10):
        client.add(items([k]))
        assert client._watch.channels[0].waiting <= 3


def test_neither_a_client_nor_a_shard_grows_with_the_number_of_writes():
    client = frb.ray.start(SPEC, shards=2, local=True)

    def write(times: int) -> None:
        for k in range(times):
            client.add(items([k, k]))
            client.update(np.array([[0, 0]], np.int32), np.ones(1, np.float32))
        client.flush()

    write(50)
    tracemalloc.start()
    try:
        write(50)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        write(500)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 60_000  # 1000 writes; of each 100 bytes were once kept until a checkpoint


def test_writes_are_gathered_and_sent_in_one_call_or_before_anything_else_is_asked():
    part = frb.BufferSpec(SPEC.item, SPEC.capacity, frb.Prioritized(alpha=1.0))
    transport = transport_at(None, spec=part, shards=1)
    client = client_of(transport, part, backend=None, in_flight=6, per_call=3)

    def calls() -> list[int]:
        return [len(call.args[0]) for call in transport.queues[0] if call.method == "write"]

    for k in range(5):
        client.add(items([k]))
    assert calls() == [3]
    with pytest.raises(ValueError, match="priorities"):
        client.add(items([7]), priorities=np.ones(2, np.float32))
    sample = client.sample(0, 400)
    assert set(sample.items["x"].tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}
    receipt = client.add(items([5]))
    assert not calls()
    receipt.result()
    asks = client.flush, client.counts, client.size, lambda: client.get(sample.indices), lambda: client.sample(1, 4)
    for ask in asks:
        client.add(items([6]))
        ask()
        assert not client._watch.channels[0]._gathered
    assert client.size() == 11
    with pytest.raises(ValueError, match=r"Options\.per_call"):
        frb.ray.Options(in_flight=2, per_call=3)
