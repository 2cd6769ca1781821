"""Whatever dies or gets lost on the way: no write is applied twice, and nothing is gone but what no checkpoint had."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.scale.ray import faulty_shards
from tests.scale.ray.faulty_shards import (
    FAULTS,
    SHARDS,
    FaultyTransport,
    client_of,
    items,
    stored,
    transport_at,
    write_refused_by,
)
from tests.support.effort import effort

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")


def whole(transport: FaultyTransport) -> list[float]:
    return sorted(x for k in range(SHARDS) for x in stored(transport.alive[k]))


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 5)),
    st.tuples(st.just("add"), st.integers(1, 5)),
    st.tuples(st.just("sample"), st.integers(1, 6)),
    st.tuples(st.just("update"), st.just(0)),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.just("save"), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, SHARDS - 1)),
    st.tuples(st.just("reconnect"), st.just(0)),
    st.tuples(st.just("faults"), st.lists(st.sampled_from([None, None, *FAULTS]), min_size=1, max_size=6)),
)


class Walk:
    """Operations on shards that fail, beside what was acknowledged, in plain lists.

    Attributes:
        sent: the items of each add, and its receipt.
        kept: items that some checkpoint of their shard had when the shard died last.
    """

    def __init__(self, path: str, save_every: int | None, per_call: int = 1) -> None:
        self.transport = transport_at(path, save_every)
        self.options = {"in_flight": 4, "per_call": per_call}
        self.client = client_of(self.transport, name="actor", **self.options)
        self.next, self.lost, self.reconnected = 0, 0, False
        self.sent: list[tuple[list[float], Any]] = []
        self.promised: set[float] = set()
        self.seed, self.sample = 0, None

    def add(self, n: int) -> None:
        numbers = [float(self.next + k) for k in range(n)]
        self.next += n
        self.sent.append((numbers, self.client.add(items(numbers))))

    def draw(self, n: int) -> None:
        self.seed += 1
        try:
            self.sample = self.client.sample(self.seed, n, timeout=5.0)
        except TimeoutError:
            return
        drawn = self.sample.items["x"].tolist()
        assert len(drawn) == n
        assert set(drawn) <= {x for numbers, _ in self.sent for x in numbers}

    def update(self) -> None:
        if self.sample is not None:
            self.client.update(self.sample.indices, np.ones(len(self.sample.indices), np.float32))

    def save(self) -> None:
        """What was acknowledged before a save that succeeded is promised."""
        try:
            self.client.save()
        except faulty_shards.ShardDiedError:
            return
        self.promised |= set(whole(self.transport)) if not self.transport.down else set()

    def reconnect(self) -> None:
        """The process of the client dies: what it had not heard of is open, and what had arrived is there once."""
        self.lost += sum(channel.lost for channel in self.client._watch.channels)
        self.client = client_of(self.transport, name="actor", **self.options)
        self.reconnected = True

    def carry_out(self, operation: str, argument: Any) -> None:
        match operation:
            case "add" | "draw":
                getattr(self, operation)(argument)
            case "sample":
                self.draw(argument)
            case "kill":
                self.transport.kill(argument)
            case "faults":
                self.transport.faults.extend(argument)
            case "flush":
                self.client.flush()
            case _:
                getattr(self, operation)()

    def end(self) -> None:
        self.transport.heal()
        self.client.flush()
        while self.client.counts().dead:
            self.transport.sleep(0.1)
        found = whole(self.transport)
        assert len(set(found)) == len(found), "an item is there twice"
        assert self.promised <= set(found), "an item is gone that a checkpoint had"
        there = set(found)
        for numbers, receipt in self.sent:
            assert receipt.done() or self.reconnected
            assert len(there & set(numbers)) in (0, len(numbers)), "a part of an add is there"
        acknowledged = {x for numbers, receipt in self.sent if receipt.done() for x in numbers}
        gone = acknowledged - there
        if not self.transport.deaths:
            assert not gone, "an acknowledged item is gone, and no shard has died"
        if not self.reconnected:
            assert self.client.counts().lost == len(gone), "what is gone is not counted"
        self.seen = f"deaths {min(self.transport.deaths, 4)}, gone {bool(gone)}"


@settings(max_examples=effort(15, 400))
@given(
    operations=st.lists(OPERATIONS, min_size=4, max_size=25),
    save_every=st.sampled_from([None, 4, 16]),
    per_call=st.sampled_from([1, 2]),
)
def test_whatever_fails_no_item_is_doubled_and_none_is_lost_that_a_checkpoint_had(operations, save_every, per_call):
    with tempfile.TemporaryDirectory() as path:
        walk = Walk(path, save_every, per_call)
        try:
            for operation, argument in operations:
                walk.carry_out(operation, argument)
            walk.end()
            event(walk.seen)
        finally:
            walk.transport.settle()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(6))
def test_one_fault_at_each_step_of_adds_under_way(fault, at, tmp_path):
    transport = transport_at(str(tmp_path))
    client = client_of(transport, in_flight=3)
    client.add(items([100, 101])).result()
    client.add(items([102])).result()
    client.save()
    transport.faults.extend([None] * at + [fault])
    receipts = [client.add(items([2 * k, 2 * k + 1])) for k in range(8)]
    client.flush()
    assert all(receipt.done() for receipt in receipts)
    found = whole(transport)
    assert len(set(found)) == len(found)
    assert {100, 101, 102} <= set(found)
    missing = 19 - len(found)
    assert client.counts().lost == missing
    assert missing == 0 or transport.deaths == 1
    if fault in ("lose_call", "lose_answer", "late"):
        assert missing == 0


def test_a_write_whose_answer_was_lost_is_known_when_it_comes_again():
    transport = transport_at(None)
    client = client_of(transport)
    transport.faults.append("lose_answer")
    client.add(items([1, 2])).result()
    counts = client.counts()
    assert whole(transport) == [1, 2]
    assert counts.retries == 0
    assert counts.deaths == 1


def test_a_write_that_arrives_twice_is_applied_once():
    transport = transport_at(None)
    client = client_of(transport)
    transport.faults.append("late")
    client.add(items([1, 2])).result()
    counts = client.counts()
    assert whole(transport) == [1, 2]
    assert counts.retries == 1
    assert counts.duplicates == 1


def test_a_greeting_that_arrives_twice_begins_one_session():
    transport = transport_at(None)
    transport.faults.append("late")
    client = client_of(transport)
    for k in range(4):
        client.add(items([k])).result()
    assert whole(transport) == [0, 1, 2, 3]


def test_a_shard_that_was_restarted_unseen_is_noticed_and_what_it_lost_is_counted(tmp_path):
    transport = transport_at(str(tmp_path))
    client = client_of(transport)
    client._outbox.spread, client._outbox.turn = False, 0
    client.add(items([1])).result()
    client.save()
    client.add(items([2, 3])).result()
    transport.kill(0)
    transport.heal()  # before anybody has called it
    client.add(items([4])).result()
    counts = client.counts()
    assert stored(transport.alive[0]) == [1, 4]
    assert counts.lost == 2
    assert counts.deaths == 1


def test_a_gap_is_filled_before_what_comes_after_it():
    transport = transport_at(None)
    client = client_of(transport, in_flight=4)
    client._outbox.spread, client._outbox.turn = False, 0
    transport.faults.extend(["lose_call"])
    for k in range(4):
        client.add(items([k]))
    client.flush()
    assert stored(transport.alive[0]) == [0, 1, 2, 3]


def test_a_crash_takes_what_no_checkpoint_has_and_it_is_counted(tmp_path):
    transport = transport_at(str(tmp_path))
    client = client_of(transport)
    client._outbox.spread, client._outbox.turn = False, 1
    client.add(items([1, 2])).result()
    client.save()
    client.add(items([3, 4, 5])).result()
    transport.kill(1)
    client.add(items([6])).result()
    counts = client.counts()
    assert stored(transport.alive[1]) == [1, 2, 6]
    assert counts.lost == 3
    assert counts.deaths == 1
    assert counts.epochs == (0, 1)
    assert counts.dead == 0


def test_without_a_checkpoint_a_crash_takes_all_of_a_shard():
    transport = transport_at(None)
    client = client_of(transport)
    for k in range(4):
        client.add(items([k])).result()
    transport.kill(0)
    client.add(items([4])).result()
    client.add(items([5])).result()
    assert len(whole(transport)) == 4
    assert client.counts().lost == 2
    assert client.counts().epochs[0] > 0


def test_a_dead_shard_has_no_mass_and_others_give_its_rows():
    transport = transport_at(None, down=10**9)
    client = client_of(transport)
    for k in range(4):
        client.add(items([k, k])).result()
    of_one = set(stored(transport.alive[1]))
    transport.kill(0)
    sample = client.sample(0, 64)
    assert set(sample.items["x"].tolist()) <= of_one
    assert len(sample.indices) == 64
    np.testing.assert_allclose(sample.probabilities.numpy(), 0.25)
    counts = client.counts()
    assert client.masses()[0] == 0
    assert counts.dead == 1
    assert counts.deaths == 1
    assert counts.redraws > 0
    assert counts.sizes[0] == 0
    assert counts.masses[0] == 0
    client.add(items([9])).result()  # goes to the other
    assert 9 in stored(transport.alive[1])


def test_all_shards_dead_is_an_error_that_says_so():
    transport = transport_at(None, down=10**9)
    client = client_of(transport, timeout=3.0)
    client.add(items([1])).result()
    transport.kill(0)
    transport.kill(1)
    with pytest.raises(TimeoutError, match=r"sample: waited 3.0 s for items.*\[0, 1\] have died"):
        client.sample(0, 4)
    client.add(items([2]))
    with pytest.raises(TimeoutError, match=r"flush: waited 3.0 s for shard \d, which has died, to be restarted"):
        client.flush()


def test_a_client_that_connects_by_its_name_goes_on_where_it_was():
    transport = transport_at(None)
    first = client_of(transport, name="actor 3")
    for k in range(5):
        first.add(items([k, k + 0.5]))
    for channel in first._watch.channels:  # two of each shard's writes arrive, and then the process dies
        while channel.waiting > (1 if channel.shard == 0 else 0):
            channel.collect(None)
    second = client_of(transport, name="actor 3")
    assert second.resumed == (5, 10)  # what was under way has arrived before it
    second.add(items([7])).result()
    assert len(whole(transport)) == 11
    assert len(set(whole(transport))) == 11
    first.add(items([8]))
    with pytest.raises(RuntimeError, match="'actor 3' has connected anew since"):
        first.flush()
    assert 8 not in whole(transport)


def test_a_write_that_arrives_after_its_client_has_connected_anew_is_refused():
    transport = transport_at(None)
    first = client_of(transport, name="actor")
    first._outbox.spread, first._outbox.turn = False, 0
    transport.faults.append("late")
    first.add(items([1]))
    with pytest.raises(faulty_shards.ShardDiedError):
        first._watch.channels[0].collect(None)
    second = client_of(transport, name="actor")  # and only then does the first's arrive
    second._outbox.spread, second._outbox.turn = False, 0
    second.add(items([2])).result()
    assert stored(transport.alive[0]) == [2]


@pytest.mark.parametrize("save", [True, False])
def test_handles_of_items_that_a_crash_took_do_not_reach_those_that_come_after(save, tmp_path):
    transport = transport_at(str(tmp_path))
    client = client_of(transport)
    client._outbox.spread, client._outbox.turn = False, 0
    client.add(items([1, 2])).result()
    if save:
        client.save()
    client.add(items([3, 4])).result()
    kept, lost = np.array([[0, 0], [0, 1]], np.int32), np.array([[0, 2], [0, 3]], np.int32)
    transport.kill(0)
    client.add(items([5, 6, 7, 8])).result()  # handles of the lost ones come again
    client.update(lost, np.full(2, 9.0, np.float32))
    client.update(kept, np.full(2, 5.0, np.float32))
    client.flush()
    shard = transport.alive[0]
    handles = np.arange(4 if not save else 6, dtype=np.int32)
    expected = [5, 5, 1, 1, 1, 1] if save else [1, 1, 1, 1]
    priorities = shard._rb.priorities(shard._state, handles).tolist()
    # New items get the largest priority among those stored, which was 1 when they came.
    assert priorities == expected
    assert client.counts().stale == (2 if save else 4)
    found, live = client.get(np.concatenate([kept, lost]))
    assert live.tolist() == [save, save, False, False]
    if save:
        assert found["x"].tolist()[:2] == [1, 2]


def test_a_checkpoint_that_is_damaged_falls_back_to_the_one_before(tmp_path):
    transport = transport_at(str(tmp_path))
    client = client_of(transport)
    client._outbox.spread, client._outbox.turn = False, 0
    client.add(items([1])).result()
    client.save()
    client.add(items([2])).result()
    client.save()
    newest = sorted((tmp_path / "shard_0").glob("*.json"))[-1]
    newest.write_bytes(newest.read_bytes()[:-7])
    transport.kill(0)
    client.add(items([3])).result()
    assert stored(transport.alive[0]) == [1, 3]
    assert client.counts().lost == 0 + 1


def test_a_save_that_dies_leaves_the_one_before(tmp_path):
    transport = transport_at(str(tmp_path))
    client = client_of(transport)
    client._outbox.spread, client._outbox.turn = False, 0
    client.add(items([1])).result()
    client.save()
    client.add(items([2])).result()
    faulty_shards.with_failing_commit(functools.partial(transport._quietly, 0))
    transport.kill(0)
    client.add(items([3])).result()
    assert stored(transport.alive[0]) == [1, 3]
    assert client.counts().lost == 1


def test_saves_in_the_background_bound_what_is_lost(tmp_path):
    transport = transport_at(str(tmp_path), save_every=10)
    client = client_of(transport)
    client._outbox.spread, client._outbox.turn = False, 0
    for k in range(12):
        client.add(items([5 * k + j for j in range(5)])).result()
        if transport.alive[0]._saving is not None:
            transport.alive[0]._saving[0].wait()
    transport.kill(0)
    client.add(items([-1])).result()
    counts = client.counts()
    assert counts.lost <= 10
    assert stored(transport.alive[0])[: 60 - counts.lost] == list(range(60 - counts.lost))
    assert counts.saves >= 1


def test_a_refused_write_is_told_and_does_not_hold_up_those_after_it():
    transport = transport_at(None)
    client = client_of(transport)
    client._outbox.spread, client._outbox.turn = False, 0
    receipt = write_refused_by(client, 0)
    client.add(items([1])).result()
    with pytest.raises(RuntimeError, match="shard 0: IndexError"):
        receipt.result()
    assert stored(transport.alive[0]) == [1]
