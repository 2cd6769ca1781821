"""Calls whose blocks go in pieces, between the two ends of Ray's transport, without Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from functional_rb.scale.ray import actors, blocks
from functional_rb.scale.ray.actors import RayTransport, ShardActor
from functional_rb.scale.ray.messages import NOTHING, Drawn, Write

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
