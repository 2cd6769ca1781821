"""Batch after batch, asked for ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from functional_rb.base.arrays import Nest
from functional_rb.core.sample import AnySample
from functional_rb.scale.ray.draw import Draw


class Batches(Iterator[AnySample[Nest]]):
    """Samples in their order, asked for ahead; made by `Client.iterate`."""

    def __init__(
        self,
        begin: Callable[[int, int, bool], Draw | None],
        finish: Callable[[Draw, range], list[AnySample[Nest]]],
        n: int | None,
        prefetch: int,
        per_call: int,
    ) -> None:
        # `begin` asks for so many batches from a number on, and may wait or not: then it gives None if it would have
        # to. `finish` gives the batches that were asked for, by their numbers. Nothing is asked for yet.
        self._begin, self._finish = begin, finish
        self._n, self._prefetch, self._per_call = n, prefetch, per_call
        self._asked = self._yielded = 0
        # What was asked for: how many batches, and where they will be.
        self._ahead: deque[tuple[int, Draw]] = deque()
        # Batches that have come with others.
        self._here: deque[AnySample[Nest]] = deque()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> AnySample[Nest]:
        """The next sample.

        Raises:
            StopIteration: after `n`.
            TimeoutError: as `Client.sample`.
        """
        if self._n is not None and self._yielded >= self._n:
            raise StopIteration
        if not self._here:
            if not self._ahead:
                self._ask(True)
            count, draw = self._ahead[0]
            while self._coming() < self._prefetch + 1 and self._left() and self._ask(False):
                pass
            try:
                self._here.extend(self._finish(draw, range(self._yielded, self._yielded + count)))
            finally:  # what did not come is asked for anew
                self._ahead.popleft()
        self._yielded += 1
        return self._here.popleft()

    def _coming(self) -> int:
        return sum(count for count, _ in self._ahead)

    # How many are asked for in the next call, where none is here.
    def _left(self) -> int:
        return self._per_call if self._n is None else min(self._per_call, self._n - self._yielded - self._coming())

    # Ask for the next ones; whether that was possible without waiting.
    def _ask(self, wait: bool) -> bool:
        count = self._left()
        begun = self._begin(self._asked, count, wait)
        if begun is None:
            return False
        self._ahead.append((count, begun))
        self._asked += count
        return True
