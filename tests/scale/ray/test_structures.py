"""What clients and shards keep and send, each by itself: who asked and wrote, what was given, blocks of arrays.

And the law by which shards are drawn from, whose chances `test_law` compares with what is drawn.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import functional_rb as frb
from functional_rb.scale.ray import actors, blocks, law, ledger, limits
from functional_rb.scale.ray.actors import RayTransport, ShardActor
from functional_rb.scale.ray.ledger import KeptAnswers, Ledger
from functional_rb.scale.ray.limits import Limiter
from functional_rb.scale.ray.messages import NOTHING, Drawn, Ticket, Write
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
    monkeypatch.setattr(ledger, "MOST_CONNECTIONS", 2)
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
    for expected, found in zip(arrays, blocks.unpack(block), strict=True):
        assert expected.dtype == found.dtype
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(expected, found)
        assert found.ctypes.data % found.itemsize == 0


# --- the law by which shards are drawn from ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "masses", [[1e6 + 2, 1.0, 1e3 + 1e-3], [1.0, 1e6, 0.0, 30.0], [1e3, 1e3, 1.0], [0.0, 2.0, 0.0], [50.0, 1e6]]
)
def test_the_shard_of_each_row_is_chosen_by_the_masses(masses):
    chances = law.shares(masses)
    assert 0.5 * np.abs(chances - np.array(masses) / math.fsum(masses)).sum() < 1e-15
    # `choose` is a step function of the uniform: where it steps are the edges, and the cells have these widths.
    edges = np.concatenate([[0.0], np.cumsum(chances)])
    for k, (low, high) in enumerate(itertools.pairwise(edges)):
        if high > low:
            inside = [low, np.nextafter(min(high, 1.0), 0)]
            assert law.choose(chances, np.array(inside)).tolist() == [k, k]
    drawn = law.choose(chances, np.array([0.0, np.nextafter(1.0, 0.0)]))
    assert all(chances[k] > 0 for k in drawn)


@given(
    masses=st.lists(st.one_of(st.just(0.0), st.floats(1e-30, 1e30)), min_size=1, max_size=8),
    uniforms=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_no_shard_without_a_mass_is_ever_chosen(masses, uniforms):
    chances = law.shares(masses)
    assert (chances[np.array(masses) == 0] == 0).all()
    if any(masses):
        assert chances.sum() == pytest.approx(1)
        chosen = law.choose(chances, np.array([*uniforms, 0.0, np.nextafter(1, 0)]))
        assert all(chances[k] > 0 for k in chosen)
    else:
        assert not chances.any()


def test_nothing_is_known_of_a_shard_at_first():
    assert NOTHING.mass == 0
    assert not law.shares([NOTHING.mass]).any()
    assert law.weights(np.zeros(3), 0.0, 1.0).tolist() == [0, 0, 0]


# --- calls whose blocks go in pieces, between the two ends of Ray's transport, without Ray ----------------------------

# Bytes of an argument or result that Ray sends in its messages; larger ones go through its object store.
BY_MESSAGE = 102_400
NO_ERRORS = ("RayError", "GetTimeoutError", "ActorDiedError", "ActorUnavailableError", "ObjectLostError",
             "NodeDiedError", "RayTaskError")  # fmt: skip


def block_of(size: int, seed: int = 0) -> blocks.Block:
    return blocks.pack([np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)])


def bytes_of(given: Any) -> int:
    """The bytes of all arrays in an argument."""
    if isinstance(given, np.ndarray):
        return given.nbytes
    return sum(map(bytes_of, given)) if isinstance(given, tuple | list) else 0


class Actor:
    """A stand-in for the handle of an actor: it carries calls out at once, by `ShardActor`, and keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.written: list[blocks.Block] = []
        self.drawn = blocks.pack([])

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any) -> Any:
            self.sent.append(args)
            return getattr(self, f"called_{method}")(*args)

        def options(num_returns: int) -> Any:
            def remote_of_several(*args: Any) -> list[Any]:
                found = remote(*args)
                assert len(found) == num_returns
                return list(found)

            return SimpleNamespace(remote=remote_of_several)

        return SimpleNamespace(remote=remote, options=options)

    def called_write(self, writes: Any) -> None:
        self.written.extend(one.block for one in writes)

    def called_write_pieces(self, *args: Any) -> None:
        actor: Any = SimpleNamespace(write=self.called_write)  # Ray would make it; the method needs no more of it
        ShardActor.write_pieces(actor, *args)

    def called_sample(self, *_: Any) -> Drawn:
        return Drawn(8, self.drawn, (), (), NOTHING)

    def called_sample_in_pieces(self, *args: Any) -> Any:
        actor: Any = SimpleNamespace(sample=self.called_sample)
        return ShardActor.sample_in_pieces(actor, *args)


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Actor:
    errors = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in NO_ERRORS})
    ray = SimpleNamespace(get=lambda call, timeout: call, exceptions=errors)
    monkeypatch.setattr(actors, "_ray", lambda: ray)
    return Actor()


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [
        ((50_000,), False),
        ((96_000,), False),
        ((96_001,), True),
        ((40_000, 60_001), True),  # neither of which alone, and both together
        ((10, 300_000, 100_000), True),
        ((512_000,), True),
        ((512_001,), False),
        ((60_000, 600_000), False),  # one that travels by itself
    ],
)
def test_writes_arrive_as_they_were_sent(actor: Actor, sizes: tuple[int, ...], cut: bool) -> None:
    given = [block_of(size, k) for k, size in enumerate(sizes)]
    RayTransport([actor], None).call(0, "write", [Write("a", 0, 0, 1, 0, "add", (0,), (), x, 0) for x in given])
    for found, block in zip(actor.written, given, strict=True):
        assert found.shapes == block.shapes
        assert found.small.tobytes() == block.small.tobytes()
        assert [x.tobytes() for x in found.large] == [x.tobytes() for x in block.large]
    (args,) = actor.sent
    assert (len(args) > 1) == cut
    assert not cut or max(map(bytes_of, args)) < BY_MESSAGE


@pytest.mark.parametrize("before", [10, 200_000, 900_000])
@pytest.mark.parametrize("now", [10, 96_001, 450_000])
def test_draws_arrive_as_they_were_made(actor: Actor, before: int, now: int) -> None:
    """Whatever was expected of their size, by the draw before."""
    transport = RayTransport([actor], None)
    actor.drawn = block_of(before)
    transport.result(transport.call(0, "sample", 0, 8, None))
    actor.drawn = block_of(now, 1)
    call = transport.call(0, "sample", 0, 8, None)
    found = transport.result(call)
    assert found.block.shapes == actor.drawn.shapes
    assert found.block.small.tobytes() == actor.drawn.small.tobytes()
    if before == 200_000:
        assert isinstance(call, list)
        assert now > before or max(map(bytes_of, call)) < BY_MESSAGE
    else:
        assert isinstance(call, Drawn)
