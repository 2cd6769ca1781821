"""What a client asks the rate limit for, before it adds and draws."""

from __future__ import annotations

import weakref

from functional_rb.scale.ray.draw import Draw
from functional_rb.scale.ray.limits import Answer
from functional_rb.scale.ray.transport import LIMITER, ShardDiedError
from functional_rb.scale.ray.watch import Watch

# Seconds between two questions: each time twice as many.
SHORTEST, LONGEST = 0.001, 0.05


class Permits:
    """Questions to what keeps the rate limit; without a limit all is permitted.

    Attributes:
        begun: draws that were begun and neither finished nor given up. Those of an iterator that was left early vanish
            with it.
    """

    def __init__(self, watch: Watch, limited: bool) -> None:
        self._watch, self._limited, self._tickets = watch, limited, 0
        self.begun: weakref.WeakSet[Draw] = weakref.WeakSet()
        # Items of permits to draw of which no use has been made yet, those of vanished draws among them.
        self._reserved = 0

    def to_add(self, items: int, deadline: float) -> None:
        """Wait until the rate limit lets items be added; errors as of `to_draw`."""
        self._ask("insert", items, deadline, "add", True)

    def to_draw(self, draw: Draw, deadline: float, wait: bool) -> bool:
        """Wait until the rate limit lets a draw begin; without waiting, whether it does.

        Raises:
            TimeoutError: if it lets nothing through for so long.
            ValueError: if it never will.
        """
        granted = self._ask("sample", draw.size, deadline, "sample", wait)
        if granted:
            self.begun.add(draw)
            self._reserved += draw.size
        return granted

    def used(self, draw: Draw) -> None:
        self.begun.discard(draw)
        self._reserved -= draw.size

    def give_back(self, draw: Draw) -> None:
        self.begun.discard(draw)
        self._give_back_unused()

    def _give_back_unused(self) -> None:
        # Not by a finalizer of the draw: one may run amid a call of Ray, which must not be called again from there.
        unused = self._reserved - sum(draw.size for draw in self.begun)
        if unused and self._limited:
            self._watch.transport.call(LIMITER, "give_back", unused)
        self._reserved -= unused

    def _ask(self, kind: str, items: int, deadline: float, who: str, wait: bool) -> bool:
        if not self._limited or not items:
            return True
        transport = self._watch.transport
        self._tickets += 1
        pause, why = SHORTEST, "what keeps the rate limit has died"
        while True:
            self._give_back_unused()
            try:
                call = transport.call(LIMITER, "ask", self._watch.connection, self._tickets, kind, items)
                answer = transport.result(call, max(self._watch.left(deadline), 1.0))
                assert isinstance(answer, Answer)
                if answer.granted:
                    return True
                if answer.never:
                    raise ValueError(answer.why)
                why = answer.why
            except ShardDiedError:
                pass
            if not wait:
                return False
            if self._watch.is_late(deadline):
                raise TimeoutError(f"{who}: waited for the rate limit: {why}")
            self._watch.poll()  # so that what was added goes on, as others may wait for it
            self._watch.post()
            transport.sleep(pause)
            pause = min(2 * pause, LONGEST)
