"""What clients do beside what they are asked for: they look after dead shards and old masses, and count losses."""

from __future__ import annotations

from typing import Any

import pytest

import functional_rb as frb
from tests.scale.ray.faulty_shards import (
    SPEC,
    FaultyTransport,
    items,
    limiter_of,
    stored,
    transport_at,
    write_refused_by,
)
from tests.scale.ray.faulty_shards import client_of as shards_client

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")


def client_of(transport: FaultyTransport, spec: Any = SPEC, limited: bool = False, **options: Any) -> frb.ray.Client:
    """Whose next add goes to the first of two shards."""
    return shards_client(transport, spec, limited=limited, turn=0, **options)


@pytest.mark.parametrize("per_call", [1, 2])
def test_what_was_added_arrives_while_its_client_waits_for_the_rate_limit(per_call):
    """Of another who waits for it, this client cannot know."""
    transport = transport_at(None, limiter=limiter_of(frb.ray.RateLimit(min_size=8)))
    client = client_of(transport, limited=True, timeout=1.0, per_call=per_call)
    client.add(items([1.0]))
    if per_call == 1:  # on its way when its shard dies
        transport.kill(0)
        client._watch.died(0)
    with pytest.raises(TimeoutError, match="nothing is drawn before 8"):
        client.sample(0, 1)
    transport.ready([*transport.queues[0]])
    assert stored(transport.alive[0]) == [1.0]


def test_a_shard_that_was_empty_is_drawn_from_when_its_mass_is_old_enough_to_be_asked_for():
    transport = transport_at(None)
    client, other = client_of(transport, mass_age=1.0), client_of(transport)
    client.add(items([0.0])).result()
    client._watch.ask_all(1e9)
    other._outbox.turn = 1
    other.add(items([1.0] * 100)).result()
    for _ in range(2):
        assert set(client.sample(0, 64).items["x"].tolist()) == {0.0}
    transport.sleep(1.0)
    assert 1.0 in client.sample(0, 64).items["x"].tolist()


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Queue()])
def test_an_add_that_got_lost_is_sent_again_by_its_client_that_waits_to_draw_it(sampler):
    spec = frb.BufferSpec(SPEC.item, 2048, sampler)
    transport = transport_at(None, spec=spec)
    client = client_of(transport, spec, mass_age=1e9, timeout=5.0)
    transport.faults.append("lose_call")
    client.add(items([3.0]))
    assert client.sample(0, 1).items["x"].tolist() == [3.0]


def test_a_shard_that_was_restarted_unseen_is_greeted_at_once_and_one_that_died_after_a_while():
    transport = transport_at(None, down=10**6)
    client = client_of(transport, mass_age=1e9)
    transport.kill(0)
    transport.heal()
    client.size()  # hears of another life
    assert not client._watch.channels[0].alive
    client._watch.poll()
    assert client._watch.channels[0].alive
    transport.kill(0)
    client.size()
    tried = transport.down[0]
    client._watch.poll()
    assert transport.down[0] == tried
    transport.sleep(60)
    client._watch.poll()
    assert transport.down[0] == tried - 1


def test_what_is_lost_and_sent_again_is_counted_over_several_deaths(tmp_path):
    transport = transport_at(str(tmp_path))
    client = client_of(transport, in_flight=8, per_call=2, timeout=30.0)
    client._outbox.spread = False
    channel = client._watch.channels[0]

    def add(*counts: int) -> None:
        for count in counts:
            client.add(items(range(count)))

    add(5)
    client.save()
    for k, expected in enumerate((3, 9)):
        add(1 + k, 2 + 2 * k)
        client.flush()
        transport.kill(0)
        transport.heal()
        client.size()
        client._watch.poll()
        assert channel.lost == expected
        client.save()
    receipt = write_refused_by(client, 0, items=4)
    with pytest.raises(RuntimeError):
        receipt.result()
    client.save()
    add(3)
    client.flush()
    transport.kill(0)
    transport.heal()
    client.size()
    client._watch.poll()
    assert channel.lost == 12, "the refused items were none"
    assert channel.retries == 0
    add(1, 1, 1)  # the third is gathered, and was not sent before
    transport.kill(0)
    transport.heal()
    client.flush()
    assert channel.retries == 3


def test_so_many_batches_are_asked_for_as_are_wanted():
    client = client_of(transport_at(None))
    client.add(items(range(8))).result()
    assert len(list(client.iterate(0, 4, n=5, prefetch=6, per_call=2))) == 5
    assert client.counts().sampled == 20
    endless = client.iterate(0, 4, prefetch=2, per_call=3)
    next(endless)
    assert client.counts().sampled == 20 + 4 * 3
