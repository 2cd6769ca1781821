"""Who sends which rows of a batch to whom, against messages that are put together one by one."""

from __future__ import annotations

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.sharding import deal, shares

CAPACITY, MARK = 40, -7


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("each", [0, 1, 6])
def test_each_gets_its_share(shards: int, each: int) -> None:
    dealing = deal.deal(frb.BufferSpec((frb.Unbounded(()),), CAPACITY, lanes=5), shards)
    rng = np.random.default_rng(shards)
    handles = np.where(rng.random(shards * each) < 0.2, -1, rng.integers(0, 3 * CAPACITY, shards * each)).astype(
        np.int32
    )
    exchanges = [shares.exchange(dealing, handles, shard) for shard in range(shards)]
    messages = []  # by who sends them, to each
    for shard, exchange in enumerate(exchanges):
        assert [
            int(handles[k]) % CAPACITY - shard * dealing.slots_each for k in exchange.asked
        ] == exchange.slots.tolist()
        told = np.concatenate([[MARK], handles[exchange.asked]])[exchange.outgoing]
        assert len(told) == sum(exchange.sent)
        messages.append(np.split(told, np.cumsum(exchange.sent)[:-1]))
    for shard, exchange in enumerate(exchanges):
        found = [sent[shard] for sent in messages]
        assert list(map(len, found)) == exchange.received
        received = np.concatenate([*found, [-1]])
        assert received[exchange.marks].tolist() == [MARK] * shards
        assert received[exchange.places].tolist() == handles[shard * each : (shard + 1) * each].tolist()
