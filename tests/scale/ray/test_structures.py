"""What clients and shards keep and send, each by itself: who asked and wrote, what was given, blocks of arrays."""

from __future__ import annotations

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.scale.ray import blocks, ledger, limits
from functional_rb.scale.ray.kept_answers import KeptAnswers
from functional_rb.scale.ray.ledger import Ledger
from functional_rb.scale.ray.limits import Limiter
from functional_rb.scale.ray.messages import Ticket
from functional_rb.scale.ray.taken import Taken


def test_the_limit_forgets_who_has_not_asked_for_the_longest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CLIENTS", 2)
    limiter = Limiter(frb.ray.RateLimit())
    for client, ticket in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        limiter.ask(client, ticket, "insert", 1)
    limiter.ask("a", 2, "insert", 1)
    assert limiter.inserted == 4, "it is known, and counts once"
    limiter.ask("b", 1, "insert", 1)
    assert limiter.inserted == 5


def test_a_shard_forgets_who_has_not_written_for_the_longest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_CLIENTS", 2)
    known = Ledger()
    for client, sequence in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        known.apply(client, 1, sequence, adds=1, items=3)
    assert [known.of(client).applied for client in "abc"] == [2, 0, 1]
    assert known.inserted == 12
    again = Ledger.decode(known.encode())
    assert [again.of(client) for client in "abc"] == [known.of(client) for client in "abc"]


def test_a_connection_that_is_told_of_again_begins_no_other_session() -> None:
    known = Ledger()
    sessions = [known.connect("a", connection).session for connection in ("one", "one", "two", "two", "one")]
    assert sessions == [1, 1, 2, 2, 3]


def test_questions_that_come_again_are_given_the_same_and_those_that_nobody_asks_any_more_nothing(monkeypatch):
    monkeypatch.setattr("functional_rb.scale.ray.kept_answers.MOST_CLIENTS", 2)
    given, taken = KeptAnswers(), iter(range(100))

    def ask(client: str, number: int, heard: int, epoch: int = 3) -> int:
        return given.once(Ticket(client, epoch, number, heard), 3, lambda: next(taken), lambda: -1)

    assert [ask("a", 1, 1), ask("a", 2, 1), ask("a", 1, 1), ask("a", 2, 2)] == [0, 1, 0, 1]
    assert ask("a", 1, 1) == -1  # it was on its way for longer than its repetition
    assert ask("a", 3, 2, epoch=2) == -1  # it was asked before a restart
    assert [ask("b", 3, 1), ask("a", 3, 2)] == [2, 3]
    ask("c", 1, 1)  # the third: what the first of these had is forgotten
    assert [ask("a", 3, 2), ask("b", 3, 1)] == [3, 5]


def test_notes_of_what_was_given(tmp_path):
    path = tmp_path / "shards" / "shard_0.taken"
    taken = Taken(str(path))
    assert taken.since(0, [0, 0], [5, 5], 100).tolist() == [0, 0]  # there is none yet
    taken.note(2, [3, 98])
    for epoch, begins, sizes, expected in (
        (2, [1, 98], [5, 5], [2, 0]),
        (1, [1, 96], [1, 5], [1, 2]),  # no more than there are
        (3, [1, 96], [5, 5], [0, 0]),  # of an earlier life than the checkpoint
        (2, [4, 1], [5, 5], [0, 0]),  # cleared since
        (2, [97, 95], [9, 9], [6, 3]),  # over the end of the numbers
    ):
        assert taken.since(epoch, begins, sizes, 100).tolist() == expected
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + b"\1", b"X" + whole[1:], whole + b"0", b""):
        path.write_bytes(damaged)
        assert taken.since(2, [1, 98], [5, 5], 100).tolist() == [0, 0]
    assert Taken(None).since(0, [0], [5], 100).tolist() == [0]


def test_blocks_hold_arrays_of_all_kinds_and_large_ones_by_themselves():
    arrays = [
        np.arange(5, dtype=np.int64),
        np.zeros((0, 3), np.float32),
        np.array([True, False]),
        np.ones((3, 2), np.float16),
        np.zeros((800, 800), np.uint8),
        np.array(3.5, np.float64),
        np.arange(12, dtype=np.int32).reshape(3, 4).T,
    ]
    block = blocks.pack(arrays)
    assert len(block.large) == 1
    assert block.nbytes >= 360_000
    for given, found in zip(arrays, blocks.unpack(block), strict=True):
        assert given.dtype == found.dtype
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(given, found)
        assert found.ctypes.data % found.itemsize == 0
