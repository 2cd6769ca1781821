"""The law by which shards are drawn from, by exact enumeration: what is drawn, and that weights are right for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from tests.scale.ray.faulty_shards import FaultyTransport, items, transport_at
from tests.scale.ray.faulty_shards import client_of as shards_client

pytestmark = pytest.mark.usefixtures("tensors_of_the_cpu")


def client_of(
    priorities: list[list[float]], sampler: Any = None, **settings: Any
) -> tuple[frb.ray.Client, FaultyTransport]:
    """A client of shards that hold items of given priorities; their values are numbered through."""
    shards = len(priorities)
    sampler = frb.Prioritized(alpha=1.0, beta=1.0) if sampler is None else sampler
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=shards * 64, sampler=sampler)
    transport = transport_at(None, spec=spec, shards=shards)
    client = shards_client(transport, spec, mass_age=1e9, **settings)
    start = 0
    for k, given_ones in enumerate(priorities):
        fill(client, k, given_ones, start)
        start += len(given_ones)
    return client, transport


def fill(client: frb.ray.Client, k: int, priorities: list[float], start: int) -> None:
    if priorities:
        client._outbox.turn = k
        ranks = None if not client.spec.sampler.has_priorities else np.array(priorities, np.float32)
        client.add(items(np.arange(start, start + len(priorities))), priorities=ranks).result()


def law_of(client: frb.ray.Client, transport: FaultyTransport) -> dict[tuple[int, int], float]:
    """The chance of each item by its handle: that of its shard, by what the client knows, times that in the shard."""
    masses = np.array(client.masses())
    chances = masses / masses.sum()
    found = {}
    for k, shard in transport.alive.items():
        size = int(shard._rb.size(shard._state))
        handles = np.arange(size, dtype=np.int32)
        own = shard._rb.probabilities(shard._state, handles).double().numpy() if size else np.zeros(0)
        found |= {(k, int(h)): float(chances[k] * q) for h, q in zip(handles, own, strict=True)}
    return found


SKEWED = [
    [[1e6, 1.0, 1.0], [1.0], [1e-3, 1e3]],
    [[1.0], [1e6], [], [1.0] * 30],
    [[1e-3, 1e3], [1e3, 1e-3], [1.0]],
    [[], [2.0], []],
    [[1.0] * 50, [1e6]],
]


@pytest.mark.parametrize("priorities", SKEWED)
def test_the_law_with_masses_that_are_asked_for_is_that_of_one_buffer(priorities):
    client, transport = client_of(priorities)
    sample = client.sample(0, 4, exact=True)
    found = law_of(client, transport)
    total = math.fsum(p for shard in priorities for p in shard)
    wanted = {(k, j): p / total for k, shard in enumerate(priorities) for j, p in enumerate(shard)}
    assert found.keys() == wanted.keys()
    assert 0.5 * math.fsum(abs(found[at] - wanted[at]) for at in wanted) < 1e-6  # total variation
    for at, chance in zip(sample.indices.tolist(), sample.probabilities.tolist(), strict=True):
        assert chance == pytest.approx(wanted[tuple(at)], rel=1e-6)


def stale(priorities: list[list[float]], later: list[list[float]]) -> tuple[frb.ray.Client, FaultyTransport]:
    """A client that knows the masses of before, of shards to which another client has since added."""
    client, transport = client_of(priorities)
    client._watch.ask_all(1e9)
    other = client.for_backend(torch_backend)
    start = 1000
    for k, more in enumerate(later):
        fill(other, k, more, start)
        start += len(more)
    return client, transport


STALE = [
    ([[1.0, 2.0], [3.0]], [[1e6], []]),
    ([[1e6], [1.0, 1.0]], [[], [1e6, 5.0]]),
    ([[1.0], [1.0], [1.0]], [[1.0] * 9, [100.0], []]),
]


@pytest.mark.parametrize(("before", "later"), STALE)
def test_chances_and_weights_are_right_for_masses_of_any_age(before, later):
    client, transport = stale(before, later)
    known = client.masses()
    assert known == pytest.approx([math.fsum(shard) for shard in before])
    wanted = law_of(client, transport)
    assert math.fsum(wanted.values()) == pytest.approx(1, abs=1e-6)
    true = [a + b for a, b in zip(before, later, strict=True)]
    for (k, j), chance in wanted.items():  # by its definition, from plain numbers
        by_hand = math.fsum(before[k]) / math.fsum(map(math.fsum, before)) * true[k][j] / math.fsum(true[k])
        assert chance == pytest.approx(by_hand, rel=1e-6)
    sample = client.sample(7, 512)
    chances = [wanted[tuple(at)] for at in sample.indices.tolist()]
    np.testing.assert_allclose(sample.probabilities, chances, rtol=2e-6)
    # beta is 1: all of them weigh as the inverse of their chance, by one constant.
    product = sample.weights.double().numpy() * np.array(chances)
    assert np.ptp(product) < 2e-6 * product.max()
    assert float(sample.weights.max()) <= 1


MILD = [([[1.0, 2.0], [3.0]], [[30.0], []]), ([[20.0], [1.0, 1.0]], [[], [40.0, 5.0]]), STALE[2]]


@pytest.mark.parametrize(("before", "later"), MILD)
def test_means_that_are_weighted_are_unbiased_under_stale_masses(before, later):
    """The expectation of x / (N P), by enumeration with the chances that samples tell, is the mean over all items."""
    client, transport = stale(before, later)
    told: dict[tuple[int, int], float] = {}
    values: dict[tuple[int, int], float] = {}
    wanted = law_of(client, transport)
    standings = list(client._watch.standings)
    for seed in range(60):
        client._watch.standings = list(standings)
        sample = client.sample(seed, 64)
        for at, chance, x in zip(
            sample.indices.tolist(), sample.probabilities.tolist(), sample.items["x"].tolist(), strict=True
        ):
            told[tuple(at)], values[tuple(at)] = chance, x
    count = len(wanted)
    assert told.keys() == wanted.keys()  # each was seen
    mean = math.fsum(wanted[at] * values[at] / (count * told[at]) for at in told)
    assert mean == pytest.approx(math.fsum(values.values()) / count, rel=1e-5)


@pytest.mark.parametrize(("before", "later"), STALE)
def test_exact_draws_by_the_law_of_one_buffer_though_the_masses_were_old(before, later):
    client, _ = stale(before, later)
    sample = client.sample(2, 128, exact=True)
    true = [a + b for a, b in zip(before, later, strict=True)]
    total = math.fsum(map(math.fsum, true))
    wanted = [true[k][j] / total for k, j in sample.indices.tolist()]
    np.testing.assert_allclose(sample.probabilities, wanted, rtol=2e-6)
    assert client.masses() == pytest.approx([math.fsum(shard) for shard in true])
    # beta is 1: relative to the least likely item of all shards, in the batch or not.
    least = min(p for shard in true for p in shard) / total
    np.testing.assert_allclose(sample.weights, [least / chance for chance in wanted], rtol=3e-6)


def test_draws_follow_the_law():
    """A chi-square of many rows, by one seed, against the law of stale masses."""
    client, transport = stale([[1.0, 2.0], [3.0]], [[4.0], [1.0]])
    standings = list(client._watch.standings)
    wanted = law_of(client, transport)
    seen: dict[tuple[int, int], int] = dict.fromkeys(wanted, 0)
    for seed in range(40):
        client._watch.standings = list(standings)
        for at in client.sample(seed, 256).indices.tolist():
            seen[tuple(at)] += 1
    rows = 40 * 256
    chi = sum((seen[at] - rows * p) ** 2 / (rows * p) for at, p in wanted.items())
    assert chi < 20  # of 4 degrees of freedom: one in two thousand is above


def test_rows_of_a_shard_that_turns_out_empty_come_from_the_others_by_their_law():
    client, transport = client_of([[1.0, 3.0], [5.0], [4.0]])
    client._watch.ask_all(1e9)
    transport.alive[1]._state = transport.alive[1]._rb.clear(transport.alive[1]._state)
    transport.alive[1]._standing = None
    sample = client.sample(3, 128)
    assert len(sample.indices) == 128
    assert 1 not in sample.indices[:, 0].tolist()
    chance = {0.0: 1 / 8, 1.0: 3 / 8, 3.0: 4 / 8}
    np.testing.assert_allclose(sample.probabilities, [chance[x] for x in sample.items["x"].tolist()], rtol=1e-6)
    assert client.counts().redraws > 0


def test_a_shard_that_dies_while_others_draw_leaves_the_law_of_those():
    client, transport = client_of([[1.0, 3.0], [5.0], [4.0]])
    transport.faults.extend([None, None, "die_before"])  # of the three shards, the last is asked last
    transport.refuses = 10**9
    sample = client.sample(11, 256)
    chance = {0.0: 1 / 9, 1.0: 3 / 9, 2.0: 5 / 9}
    np.testing.assert_allclose(sample.probabilities, [chance[x] for x in sample.items["x"].tolist()], rtol=1e-6)
    assert len(sample.indices) == 256


def test_what_came_from_a_shard_that_dies_at_the_second_try_is_drawn_again():
    client, transport = client_of([[1.0, 3.0], [5.0], [4.0]])
    client._watch.ask_all(1e9)
    transport.refuses = 10**9
    transport.faults.extend(["die_before", None, None, "die_before"])
    sample = client.sample(12, 256)
    assert set(sample.items["x"].tolist()) == {3.0}
    assert len(sample.indices) == 256
    np.testing.assert_allclose(sample.probabilities, 1.0)


def test_uniform_shards_are_drawn_in_proportion_to_what_they_store():
    client, _transport = client_of([[1.0] * 30, [1.0], []], frb.Uniform())
    sample = client.sample(0, 64, exact=True, beta=1.0)
    np.testing.assert_allclose(sample.probabilities, 1 / 31, rtol=1e-6)
    np.testing.assert_allclose(sample.weights, 1.0, rtol=1e-6)
    assert client.masses() == (30.0, 1.0, 0.0)
    assert client.sample(0, 8).weights.tolist() == [1.0] * 8  # a sampler without weights


@pytest.mark.parametrize("sampler", [frb.Recency(), frb.Uniform(), frb.Prioritized(alpha=0.5, beta=0.7)])
def test_a_single_shard_draws_as_a_buffer_does(sampler):
    client, transport = client_of([[1.0, 2.0, 3.0, 4.0]], sampler)
    sample = client.sample(5, 32)
    shard = transport.alive[0]
    own = shard._rb.probabilities(shard._state, sample.indices[:, 1].contiguous())
    np.testing.assert_allclose(sample.probabilities, own, rtol=1e-6)
    if isinstance(sampler, frb.Prioritized):
        least = float(shard._rb.probabilities(shard._state, np.arange(4, dtype=np.int32)).min())
        np.testing.assert_allclose(sample.weights, (own.numpy() / least) ** -0.7, rtol=1e-5)


def test_the_same_key_draws_the_same_items_from_the_same_shards():
    first, second = (client_of([[1.0, 2.0], [3.0]])[0].sample(torch_backend.key(3), 16) for _ in range(2))
    other = client_of([[1.0, 2.0], [3.0]])[0].sample(torch_backend.key(4), 16)
    assert first.indices.tolist() == second.indices.tolist() != other.indices.tolist()
