"""Queues and full buffers in shards: each item is given once, and what does not fit waits or is told."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import functional_rb as frb
import torch_backend
from tests.scale.ray.faulty_shards import FAULTS, SHARDS, FaultyTransport, client_of, items, stored, transport_at
from tests.support.effort import effort

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")

ITEM = {"x": frb.Unbounded(())}
QUEUE = frb.BufferSpec(ITEM, 48, frb.Queue())
FULL = frb.BufferSpec(ITEM, 16, writer=frb.StopWhenFull())


def clients_of(transport: FaultyTransport, spec: frb.BufferSpec, *names: str, **options: Any) -> list[frb.ray.Client]:
    return [client_of(transport, spec, name=name, **options) for name in names]


def numbers(sample: Any) -> list[float]:
    found: list[float] = sample.items["x"].reshape(-1).tolist()
    return found


# ---------------------------------------------------------------- whatever fails


class Walk:
    """Operations on the shards of a queue that fail, beside what was added and given, in plain lists.

    Attributes:
        given: all items that learners got.
        dead_letters: items in answers that a shard had not heard to have arrived when it died.
        promised: items that were there at some save.
        sent_again: items of adds that were not acknowledged when a shard died.
    """

    def __init__(self, path: str | None, save_every: int | None, per_call: int) -> None:
        self.transport = transport_at(path, save_every, QUEUE)
        self.saves = path is not None
        given = {"in_flight": 3, "per_call": per_call, "timeout": 3.0}
        self.actor, *self.learners = clients_of(self.transport, QUEUE, "actor", "one", "two", **given)
        self.next, self.sent = 0, []
        self.given: list[float] = []
        self.dead_letters: set[float] = set()
        self.promised: set[float] = set()
        self.sent_again: set[float] = set()
        kill = self.transport.kill

        def noting(k: int) -> None:
            self.dead_letters |= set(self.transport.kept_answers(k))
            self.sent_again |= {x for batch, receipt in self.sent if not receipt.done() for x in batch}
            kill(k)

        self.transport.kill = noting

    def add(self, n: int) -> None:
        batch = [float(self.next + k) for k in range(n)]
        self.next += n
        with contextlib.suppress(TimeoutError):
            self.sent.append((batch, self.actor.add(items(batch))))

    def take(self, who: int, n: int) -> int:
        try:
            found = numbers(self.learners[who].sample(0, n, timeout=0.5))
        except TimeoutError:
            return 0
        assert len(found) == n
        self.given += found
        return n

    def save(self) -> None:
        if not self.saves:
            return
        with contextlib.suppress(TimeoutError, frb.ray.ShardDiedError):  # one dies meanwhile, or a write waits for room
            self.actor.save(timeout=1.0)
            if not self.transport.down:
                self.promised |= {x for k in range(SHARDS) for x in stored_in(self.transport, k)}

    def carry_out(self, operation: str, argument: Any) -> None:
        match operation:
            case "add":
                self.add(argument)
            case "take":
                self.take(argument % 2, 1 + argument // 2)
            case "ahead":
                batches = self.learners[0].iterate(0, 2, n=argument, prefetch=3)
                with contextlib.suppress(TimeoutError):
                    for batch in batches:
                        self.given += numbers(batch)
            case "kill":
                self.transport.kill(argument)
            case "faults":
                self.transport.faults.extend(argument)
            case _:
                self.save()

    def end(self) -> None:
        """All is well from now on, and all that is left is taken."""
        self.transport.heal()
        while True:
            with contextlib.suppress(TimeoutError):
                self.actor.flush(0.5)
            left = sum(self.take(who, 1) for who in (0, 1))
            if not left and all(receipt.done() for _, receipt in self.sent):
                break
        twice = {x for x in self.given if self.given.count(x) > 1}
        assert twice <= self.sent_again, "an item was given twice, though its add had been acknowledged"
        acknowledged = {x for batch, _ in self.sent for x in batch}
        assert set(self.given) <= acknowledged
        gone = acknowledged - set(self.given)
        assert self.transport.deaths or not gone, "an item is gone, and no shard has died"
        assert self.promised - set(self.given) <= self.dead_letters, "an item is gone that a checkpoint had"
        event(f"deaths {min(self.transport.deaths, 3)}, gone {bool(gone)}")


def stored_in(transport: FaultyTransport, k: int) -> list[float]:
    """What a shard stores of its queue, oldest first."""
    shard = transport.alive[k]
    begins, size = int(shard._begins()[0]), int(torch_backend.size(shard._state))
    x = torch_backend.items(shard._state)["x"].tolist()
    return [x[(begins + j) % len(x)] for j in range(size)]


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 5)),
    st.tuples(st.just("add"), st.integers(1, 5)),
    st.tuples(st.just("take"), st.integers(0, 11)),
    st.tuples(st.just("take"), st.integers(0, 11)),
    st.tuples(st.just("ahead"), st.integers(1, 4)),
    st.tuples(st.just("save"), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, SHARDS - 1)),
    st.tuples(st.just("faults"), st.lists(st.sampled_from([None, None, *FAULTS]), min_size=1, max_size=6)),
)


@settings(max_examples=effort(15, 400))
@given(
    operations=st.lists(OPERATIONS, min_size=4, max_size=25),
    save_every=st.sampled_from([None, 4, 16]),
    per_call=st.sampled_from([1, 2]),
    saves=st.sampled_from([True, True, False]),
)
def test_whatever_fails_no_acknowledged_item_is_given_twice_and_none_is_gone_that_a_checkpoint_had(
    operations, save_every, per_call, saves
):
    with tempfile.TemporaryDirectory() as path:
        walk = Walk(path if saves else None, save_every if saves else None, per_call)
        try:
            for operation, argument in operations:
                walk.carry_out(operation, argument)
            walk.end()
        finally:
            walk.transport.settle()


@pytest.mark.parametrize("fault", ["lose_call", "lose_answer", "late"])
@pytest.mark.parametrize("at", range(4))
def test_an_answer_that_is_lost_loses_no_item(fault, at):
    transport = transport_at(None, spec=QUEUE)
    (client,) = clients_of(transport, QUEUE, "a", timeout=5.0)
    for k in range(4):
        client.add(items([3 * k, 3 * k + 1, 3 * k + 2])).result()
    client._watch.ask_all(1e9)
    transport.faults.extend([None] * at + [fault])
    found = [x for batch in client.iterate(0, 2, n=6, prefetch=2) for x in numbers(batch)]
    assert sorted(found) == list(range(12))
    assert transport.log
    assert client.size() == 0


def test_a_checkpoint_gives_nothing_that_was_given_out_since(tmp_path):
    transport = transport_at(str(tmp_path), spec=QUEUE)
    (client,) = clients_of(transport, QUEUE, "a", timeout=5.0)
    for k in range(4):
        client.add(items([4 * k + j for j in range(4)])).result()
    client.save()
    first = numbers(client.sample(0, 8))
    for k in range(SHARDS):
        transport.kill(k)
    transport.heal()
    second = numbers(client.sample(0, 8))
    assert sorted(first + second) == list(range(16))
    transport.kill(0)  # once more: the restart itself has saved what is left
    transport.heal()
    assert client.size() == 0


def test_another_program_goes_on_where_the_checkpoints_and_what_was_given_have_it(tmp_path):
    client = frb.ray.start(QUEUE, 2, backend=torch_backend, checkpoint=tmp_path, local=True)
    client.add(items(range(6))).result()
    client.save()
    first = numbers(client.sample(0, 4))
    again = frb.ray.start(QUEUE, 2, backend=torch_backend, checkpoint=tmp_path, local=True)
    assert first + numbers(again.sample(0, 2)) == list(range(6))


def test_what_a_program_had_given_out_that_saved_nothing_means_nothing_to_the_next(tmp_path):
    for program in ("first", "second"):
        transport = transport_at(str(tmp_path), spec=QUEUE)
        (client,) = clients_of(transport, QUEUE, "a", timeout=5.0)
        client.add(items(range(6))).result()
        if program == "first":
            client.sample(0, 6)
    client.save()
    for k in range(SHARDS):
        transport.kill(k)
    transport.heal()
    assert sorted(numbers(client.sample(0, 6))) == list(range(6))


def test_an_add_that_was_given_out_and_not_acknowledged_before_its_shard_died_is_sent_again():
    transport = transport_at(None, spec=QUEUE)
    actor, learner = clients_of(transport, QUEUE, "a", "b", timeout=5.0)
    receipt = actor.add(items([7.0]))
    transport.faults.append("lose_answer")
    transport._step(receipt.shard)  # the write is carried out, and nobody hears of it
    assert numbers(learner.sample(0, 1)) == [7.0]
    assert not receipt.done()
    transport.kill(receipt.shard)
    receipt.result()
    assert numbers(learner.sample(0, 1)) == [7.0]


def test_items_that_could_not_be_noted_stay_and_the_learner_goes_on(tmp_path, monkeypatch):
    transport = transport_at(str(tmp_path), spec=QUEUE)
    (client,) = clients_of(transport, QUEUE, "a", timeout=5.0)
    client.add(items(range(6))).result()
    replace, fails = os.replace, [True]

    def full(*paths: str) -> None:
        if fails:
            fails.pop()
            raise OSError(errno.ENOSPC, "no space left on device")
        replace(*paths)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        client.sample(0, 4)
    assert numbers(client.sample(0, 6)) == list(range(6))


def test_what_a_life_had_given_that_was_given_up_for_an_older_checkpoint_means_nothing_to_what_came_since(tmp_path):
    transport = transport_at(str(tmp_path), spec=QUEUE)
    (client,) = clients_of(transport, QUEUE, "a", timeout=5.0)

    def restart() -> None:
        transport.kill(0)
        transport.heal()

    client._outbox.spread, client._outbox.turn = False, 0
    client.add(items(range(10))).result()
    client.save()
    restart()
    client.add(items(range(10, 20))).result()
    assert numbers(client.sample(0, 15)) == list(range(15))
    newest = sorted((tmp_path / "shard_0").glob("*.json"))[-1]
    newest.write_bytes(newest.read_bytes()[:-7])
    restart()
    while client.size():
        client.sample(0, 1)
    client.add(items(range(100, 110))).result()
    client.save()
    restart()
    assert numbers(client.sample(0, 10)) == list(range(100, 110))


def test_an_iterator_that_is_left_early_asks_for_nothing_more():
    transport = transport_at(None, spec=dataclasses.replace(QUEUE, capacity=480))
    (client,) = clients_of(transport, QUEUE, "a", timeout=5.0)
    for k in range(20):
        client.add(items(range(10 * k, 10 * k + 10)))
    client.flush()
    sizes = []
    for _ in range(3):
        for _ in client.iterate(0, 4, prefetch=8):
            break
        sizes.append(client.size())
    assert sizes[0] - sizes[1] == sizes[1] - sizes[2] == 4, sizes


def test_an_add_waits_and_is_told_where_only_one_lane_is_full():
    lanes = frb.BufferSpec(ITEM, 32, frb.Queue(length=2), lanes=2)
    transport = transport_at(None, spec=lanes)
    (client,) = clients_of(transport, lanes, "a", timeout=1.0)
    for k in range(8):
        client.add(items([[k, k]]), mask=np.array([[True, False]])).result()
    calls = len(transport.log)
    with pytest.raises(TimeoutError, match="whose queue is full"):
        client.add(items([[8, 8]]), mask=np.array([[True, False]])).result()
    assert len(transport.log) - calls < 100


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("spec", [QUEUE, frb.BufferSpec(ITEM, 48)], ids=["queue", "uniform"])
def test_the_end_of_a_life_is_counted_once_however_late_its_answers_come(spec, answered):
    transport = transport_at(None, spec=spec)
    (client,) = clients_of(transport, spec, "a", timeout=5.0)
    for _ in range(4):
        client.add(items(range(5))).result()
    client.size()
    batches = client.iterate(0, 4, n=3, prefetch=3)
    next(batches)
    assert transport.queues[0], "the shard that dies was asked for the next batches"
    if answered:
        transport.ready([*transport.queues[0]])
    transport.kill(0)
    transport.heal()
    client.size()
    client._watch.poll()
    before = client._watch.deaths
    with contextlib.suppress(TimeoutError):
        next(batches)
    assert client._watch.deaths == before == 1


@pytest.mark.parametrize("per_call", [1, 4])
def test_writes_that_a_full_queue_had_no_room_for_travel_once_more_however_many_wait(per_call):
    """Each time that there is room for one more item, all that waited used to travel again."""
    transport = transport_at(None, spec=dataclasses.replace(QUEUE, capacity=4))
    settings = {"timeout": 5.0, "in_flight": 16, "per_call": per_call}
    actor, learner = clients_of(transport, QUEUE, "actor", "learner", **settings)
    actor._outbox.spread, travelled, call = False, [], transport.call

    def noted(shard: int, method: str, *args: Any) -> Any:
        travelled.extend(args[0] if method == "write" else [])
        return call(shard, method, *args)

    transport.call = noted
    receipts = [actor.add(items([k])) for k in range(18)]
    found = []
    for receipt in receipts:
        while not receipt.done():
            with contextlib.suppress(TimeoutError):
                receipt.result(timeout=0.1)
            if not receipt.done():
                found += numbers(learner.sample(0, 1))
    found += [numbers(learner.sample(0, 1))[0] for _ in range(2)]
    assert found == list(range(18))
    assert len(travelled) <= 18 + 16 + 2 * per_call


# ---------------------------------------------------------------- what is given


@pytest.mark.parametrize("name", ["jax_backend", "torch_backend", None])
def test_each_item_is_given_once_oldest_first_of_each_shard(name):
    client = frb.ray.start(QUEUE, 3, backend=name, local=True, options=frb.ray.Options(timeout=0.1))
    for k in range(12):
        client.add(items([3 * k, 3 * k + 1, 3 * k + 2]))
    client.flush()
    places: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for batch in client.iterate(0, 4, n=9, prefetch=2, per_call=2):
        assert np.asarray(batch.mask).all()
        assert np.asarray(batch.weights).tolist() == np.asarray(batch.probabilities).tolist() == [1.0] * 4
        for (place, _), x in zip(
            np.asarray(batch.indices).tolist(), np.asarray(batch.items["x"]).tolist(), strict=True
        ):
            places[place].append(x)
    assert all(found == sorted(found) for found in places.values())
    assert sorted(x for found in places.values() for x in found) == list(range(36))
    _, live = client.get(batch.indices)
    assert not np.asarray(live).any()
    client.add(items([50.0])).result()
    with pytest.raises(TimeoutError, match=r"for 2 items of the queue, of which 1 have come, and are kept.*are actors"):
        client.sample(0, 2)
    client.add(items([51.0]))  # under way, and sent as it is asked for
    assert np.asarray(client.sample(0, 2).items["x"]).tolist() == [50.0, 51.0]
    assert client.counts().sampled == 38


def test_batches_that_did_not_come_in_time_come_with_the_next_question():
    client = frb.ray.start(QUEUE, 1, backend=torch_backend, local=True, options=frb.ray.Options(timeout=0.05))
    batches = client.iterate(0, 2, n=3, prefetch=1)
    client.add(items([0, 1, 2])).result()
    found = [numbers(next(batches))]
    for x in (3, 4):
        with pytest.raises(TimeoutError, match="are actors adding"):
            next(batches)
        client.add(items([x])).result()
        if x == 3:
            found.append(numbers(next(batches)))
    client.add(items([5])).result()
    found.append(numbers(next(batches)))
    assert found == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(StopIteration):
        next(batches)


def test_learners_that_take_at_once_share_what_there_is():
    transport = transport_at(None, spec=QUEUE)
    one, two = clients_of(transport, QUEUE, "one", "two", timeout=5.0)
    one.add(items(range(12))).result()
    one.add(items(range(12, 24))).result()
    both = one.iterate(0, 4, n=3, prefetch=2), two.iterate(0, 4, n=3, prefetch=2)
    found = [x for _ in range(3) for batches in both for x in numbers(next(batches))]
    assert sorted(found) == list(range(24))


def test_windows_of_lanes_are_whole_and_given_once():
    spec = frb.BufferSpec(ITEM, 96, frb.Queue(length=3), lanes=2)
    transport = transport_at(None, spec=spec)
    client, other = clients_of(transport, spec, "a", "b", timeout=0.5)
    other._outbox.turn = 1 - client._outbox.turn
    mask = np.array([[True, True]] * 6 + [[True, False]] * 2)
    for who, start in ((client, 0.0), (other, 100.0)):
        x = start + np.arange(8, dtype=np.float32)[:, None] + np.array([0, 50], np.float32)
        who.add({"x": x}, mask=mask).result()
    found = [client.sample(0, 2).items["x"] for _ in range(4)]
    windows = sorted(tuple(row) for batch in found for row in batch.tolist())
    assert windows == [tuple(float(s + k) for k in range(3)) for s in (0, 3, 50, 53, 100, 103, 150, 153)]
    with pytest.raises(TimeoutError):
        client.sample(0, 2)  # two steps of each first lane are left, which are no window
    client.add({"x": np.array([[8.0, 99.0]], np.float32)}, mask=np.array([[True, False]])).result()
    other.add({"x": np.array([[108.0, 99.0]], np.float32)}, mask=np.array([[True, False]])).result()
    assert sorted(client.sample(0, 2).items["x"].tolist()) == [[6, 7, 8], [106, 107, 108]]


def test_items_of_an_old_version_are_taken_out_masked():
    client = frb.ray.start(QUEUE, 2, backend=torch_backend, local=True)
    for k in range(4):
        client.add(items([k]), version=k).result()
    sample = client.sample(0, 4, oldest=2)
    assert sorted(sample.items["x"][sample.mask].tolist()) == [2, 3]
    assert sorted(sample.weights.tolist()) == sorted(sample.probabilities.tolist()) == [0, 0, 1, 1]
    assert client.counts().masked == 2
    assert client.size() == 0


def test_the_rate_limit_counts_what_a_queue_gives_and_takes_back_what_did_not_come():
    limit = frb.ray.RateLimit(samples_per_insert=1, error_buffer=8)
    client = frb.ray.start(
        QUEUE, 2, backend=torch_backend, limit=limit, local=True, options=frb.ray.Options(timeout=0.02)
    )
    client.add(items(range(4))).result()
    for _ in range(5):
        with pytest.raises(TimeoutError, match="items of the queue"):
            client.sample(0, 8)
    assert client._watch.transport.places[-1].sampled == 0
    client.add(items(range(4, 8))).result()
    assert sorted(numbers(client.sample(0, 8))) == list(range(8))


# ---------------------------------------------------------------- what does not fit


def test_adds_to_a_full_queue_wait_in_their_order_until_there_is_room():
    transport = transport_at(None, spec=QUEUE)
    actor, learner = clients_of(transport, QUEUE, "a", "b", in_flight=4, timeout=1.0)
    receipts, k = [], 0

    def fill() -> None:
        nonlocal k
        while True:
            receipts.append(actor.add(items([5 * k + j for j in range(5)])))
            k += 1

    with pytest.raises(TimeoutError, match=r"add: waited 1.0 s for shard \d, whose queue is full: .* has 5 items; are"):
        fill()
    assert sum(receipt.done() for receipt in receipts) == 8  # four adds of five fit into each part of 24
    with pytest.raises(TimeoutError, match="whose queue is full"):
        actor.flush()
    by_shard: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(len(receipts)):
        sample = learner.sample(0, 5, exact=True)
        for (place, _), x in zip(sample.indices.tolist(), numbers(sample), strict=True):
            by_shard[place].append(x)
        with contextlib.suppress(TimeoutError):
            actor.flush(0.5)
    assert all(found == sorted(found) for found in by_shard.values())
    assert sorted(by_shard[0] + by_shard[1]) == list(range(5 * k))
    assert all(receipt.done() and receipt.error is None for receipt in receipts)
    assert actor.counts().inserted == 5 * k


def test_one_thread_that_adds_and_samples_gets_what_waited_for_room():
    client = frb.ray.start(QUEUE, 1, backend=torch_backend, local=True, options=frb.ray.Options(timeout=1.0))
    for k in range(4):
        client.add(items(range(20 * k, 20 * k + 20)))
    assert numbers(client.sample(0, 80 - 20)) == list(range(60))
    assert numbers(client.sample(0, 20)) == list(range(60, 80))


def test_what_never_fits_into_a_part_of_a_queue_is_refused():
    client = frb.ray.start(QUEUE, 2, backend=torch_backend, local=True)
    with pytest.raises(ValueError, match="the buffer is full: 25 items do not fit"):
        client.add(items(range(25))).result()
    client.add(items(range(24))).result()
    assert client.size() == 24


@pytest.mark.parametrize("per_call", [1, 2])
def test_a_full_buffer_tells_what_does_not_fit_after_all_shards_are_filled(per_call):
    client = frb.ray.start(FULL, 2, backend=torch_backend, local=True, options=frb.ray.Options(per_call=per_call))
    for k, count in enumerate((6, 3, 2, 5)):  # into parts of eight, whatever their turn
        client.add(items([10 * k + j for j in range(count)]))
    client.flush()
    assert client.size() == 16
    with pytest.raises(ValueError, match="the buffer is full: 1 items do not fit into the room for 0"):
        client.add(items([99.0])).result()
    client.add(items([99.0]))
    with pytest.raises(ValueError, match="the buffer is full"):
        client.flush()
    assert client.counts().inserted == client.size() == 16
    assert 99.0 not in numbers(client.sample(0, 64))
    client.clear()
    client.add(items([99.0])).result()
    assert set(numbers(client.sample(0, 8))) == {99.0}


def test_room_that_others_have_taken_is_asked_for_anew():
    transport = transport_at(None, spec=FULL)
    one, two = clients_of(transport, FULL, "one", "two", timeout=5.0)
    one.add(items(range(6))).result()
    two.add(items(range(6, 12))).result()
    for client in (one, two):
        client.add(items([20.0, 21.0])).result()
    assert [len(stored(transport.alive[k])) for k in range(2)] == [8, 8]
