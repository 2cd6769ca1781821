"""What a client asks the rate limit for, before it adds and draws."""

from __future__ import annotations

from functional_rb.scale.ray.limits import Answer
from functional_rb.scale.ray.transport import LIMITER, ShardDiedError
from functional_rb.scale.ray.watch import Watch

# Seconds between two questions: each time twice as many.
SHORTEST, LONGEST = 0.001, 0.05


class Permits:
    """Questions to what keeps the rate limit; without a limit all is permitted."""

    def __init__(self, watch: Watch, limited: bool) -> None:
        """Of the client that has the watch."""
        self._watch, self._limited, self._tickets = watch, limited, 0

    def ask(self, kind: str, items: int, deadline: float, who: str, wait: bool = True) -> bool:
        """Wait until the rate limit lets items through; without waiting, whether it does.

        Raises:
            TimeoutError: if it lets nothing through for so long.
            ValueError: if it never will.
        """
        if not self._limited or not items:
            return True
        transport = self._watch.transport
        self._tickets += 1
        pause, why = SHORTEST, "what keeps the rate limit has died"
        while True:
            try:
                call = transport.call(LIMITER, "ask", self._watch.connection, self._tickets, kind, items)
                answer: Answer = transport.result(call, max(self._watch.left(deadline), 1.0))
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

    def give_back(self, items: int) -> None:
        """Undo a permit to draw, of which no use was made."""
        if self._limited:
            self._watch.transport.call(LIMITER, "give_back", items)
