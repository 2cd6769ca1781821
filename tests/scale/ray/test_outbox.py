"""Where a client's writes go, which errors it is told, and of how many clients a shard and a limit keep account."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.scale.ray.faulty_shards import client_of as shards_client
from tests.scale.ray.faulty_shards import items, stored, transport_at, write_refused_by

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")


def client_of(transport: Any, **settings: Any) -> frb.ray.Client:
    """Whose next add goes to the first of two shards."""
    return shards_client(transport, backend=None, turn=0, mass_age=1e9, **settings)


def test_an_add_goes_to_a_shard_that_has_room_before_its_turn() -> None:
    client = client_of(transport_at(None), in_flight=1)
    client.update(np.array([[0, 0]], np.int32), np.ones(1, np.float32))
    assert client.add(items([1.0])).shard == 1
    assert [channel.waiting for channel in client._watch.channels] == [1, 1], "nothing was waited for"


def test_an_add_waits_for_a_busy_shard_rather_than_for_a_dead_one() -> None:
    transport = transport_at(None, down=10**9)
    client = client_of(transport, in_flight=1)
    transport.kill(0)
    assert client.size() == 0
    assert [client.add(items([k])).shard for k in range(3)] == [1, 1, 1]


def test_a_client_that_only_adds_finds_a_shard_that_is_back() -> None:
    transport = transport_at(None)
    client = client_of(transport)
    transport.kill(0)
    client.size()
    assert not client._watch.channels[0].alive
    for k in range(10):
        transport.sleep(1.0)
        client.add(items([k])).result()
    assert client._watch.channels[0].alive


@pytest.mark.parametrize("numbers", [4, 2**17], ids=["small", "large"])
def test_what_was_added_may_be_written_to_while_it_waits_to_be_sent(numbers: int) -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded((numbers,))}, capacity=2)
    client = shards_client(transport_at(None, spec=spec, shards=1), spec, backend=None, per_call=2)
    memory = np.empty((1, numbers), np.float32)
    for k in range(2):
        memory[:] = k
        client.add({"x": memory})
    memory[:] = -1
    client.flush()
    sample = client.sample(0, 16)
    assert {(float(x.min()), float(x.max())) for x in sample.items["x"]} == {(0.0, 0.0), (1.0, 1.0)}


def refused(client: frb.ray.Client) -> Any:
    """A write that the first shard has refused, which the client has heard."""
    receipt = write_refused_by(client, 0)
    while not receipt.done():
        client._watch.advance(client._watch.channels[0], 1e9, "test")
    return receipt


def test_an_error_that_nobody_asked_for_is_raised_once_however_many_writes_follow() -> None:
    client = client_of(transport_at(None))
    refused(client)
    for k in range(4):
        client.add(items([k])).result()
    with pytest.raises(RuntimeError, match="shard 0: IndexError"):
        client.flush()
    client.flush()


def test_an_error_that_a_receipt_has_told_is_not_raised_again() -> None:
    client = client_of(transport_at(None))
    receipt = refused(client)
    with pytest.raises(RuntimeError, match="shard 0: IndexError"):
        receipt.result()
    client.flush()


def test_receipts_of_acknowledged_writes_are_not_kept() -> None:
    client = client_of(transport_at(None))
    for k in range(20):
        client.add(items([k])).result()
    assert len(client._outbox._unasked) <= 1


def test_writes_that_are_sent_again_go_together_too() -> None:
    transport = transport_at(None)
    client = client_of(transport, in_flight=8, per_call=4)
    client._outbox.spread = False
    for k in range(6):
        client.add(items([k]))
    transport.kill(0)
    sent, call = [], transport.call

    def noted(shard: int, method: str, *args: Any) -> Any:
        if method == "write":
            sent.append(len(args[0]))
        return call(shard, method, *args)

    transport.call = noted  # type: ignore[method-assign]  # it notes, and calls the real one
    client.flush()
    assert sent[-2:] == [4, 2]
    assert stored(transport.alive[0]) == list(range(6))


def test_each_death_of_a_shard_counts() -> None:
    transport = transport_at(None)
    client = client_of(transport)
    for deaths in (1, 2):
        transport.kill(0)
        client.size()
        for k in range(10):
            transport.sleep(1.0)
            client.add(items([k])).result()
        assert client.counts().deaths == deaths
