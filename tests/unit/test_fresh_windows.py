"""Windows that come once, against lists of steps: lanes that are not in step, and rings that go round many times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from functional_rb.ops import numpy_ops
from functional_rb.structures import fresh_windows
from functional_rb.structures.episode_windows import Lanes
from functional_rb.structures.fresh_windows import MOST, Windows
from functional_rb.structures.ring import Ring, RingState

OPS = numpy_ops.OPS


class Lists:
    """Lanes of steps, each its number in its episode and a serial number, and the windows that were given."""

    def __init__(self, lanes: int, length: int, window: int) -> None:
        self.ring, self.window = Ring(lanes * length, lanes), window
        self.lanes: list[list[tuple[int, int]]] = [[] for _ in range(lanes)]
        self.counts, self.given = [0] * lanes, set[tuple[int, int]]()

    def add(self, e: int, step: int) -> None:
        self.lanes[e] = [*self.lanes[e], (step, self.counts[e])][-self.ring.length :]
        self.counts[e] += 1

    def waiting(self) -> list[tuple[int, int]]:
        """Lanes, and serial numbers of the first steps, of what is to be given, in its order."""
        found = []
        for e, lane in enumerate(self.lanes):
            for k in range(len(lane) - self.window + 1):
                steps = [step for step, _ in lane[k : k + self.window]]
                if steps[0] % self.window == 0 and steps == [steps[0] + i for i in range(self.window)]:
                    found.append((len(lane) - k, e, lane[k][1]))
        found = [(e, serial) for _, e, serial in sorted(found, key=lambda one: (-one[0], one[1]))]
        return [one for one in found if one not in self.given]

    @property
    def rings(self) -> Lanes:
        numbers = np.array(self.counts, np.int32), np.array([len(lane) for lane in self.lanes], np.int32)
        return Lanes(self.ring, RingState(*numbers))

    def slot(self, e: int, serial: int) -> int:
        return e * self.ring.length + serial % self.ring.length


def written(model: Lists, windows: Windows, in_episode: Any, steps: list[list[int]]) -> Windows:
    """Steps added to each lane, by their numbers in their episodes."""
    for e, lane in enumerate(steps):
        for step in lane:
            in_episode[model.slot(e, model.counts[e])] = step
            model.add(e, step)
    counts = np.array([len(lane) for lane in steps], np.int32)
    n = min(max(counts.max(), 1), model.ring.length)
    return fresh_windows.note(OPS, model.window, model.rings, in_episode, windows, counts, int(n))


@pytest.mark.parametrize(("lanes", "length", "window"), [(1, 7, 1), (1, 40, 3), (3, 9, 2), (4, 300, 5), (2, 3, 4)])
def test_windows_come_as_lists_have_them(lanes: int, length: int, window: int) -> None:
    random = np.random.default_rng(lanes * length)
    model, in_episode = Lists(lanes, length, window), np.zeros(lanes * length, np.int32)
    # Counted from far on, so that numbers begin again.
    begin = np.full(lanes, MOST - 5, np.int32)
    windows = Windows(np.full(lanes * length, MOST - 5, np.int32), begin, begin.copy())
    following = [0] * lanes
    for _ in range(80):
        steps: list[list[int]] = []
        for e in range(lanes):
            steps.append([])
            for _ in range(int(random.integers(0, 2 * length if random.random() < 0.1 else 8))):
                steps[e].append(following[e])
                following[e] = 0 if random.random() < 0.1 else following[e] + 1
        windows = written(model, windows, in_episode, steps)
        expected, rings = model.waiting(), model.rings
        waiting = fresh_windows.waiting(OPS, window, rings, in_episode, windows)
        assert waiting.tolist() == [sum(e == of for of, _ in expected) for e in range(lanes)]
        batch = int(random.integers(1, 9))
        wanted = batch if random.random() < 0.7 else int(random.integers(0, batch + 1))
        told = None if wanted == batch else np.int32(wanted)
        slots, live, windows = fresh_windows.take_oldest(OPS, window, rings, in_episode, windows, batch, told)
        expected = expected[:wanted]
        assert live.tolist() == [k < len(expected) for k in range(batch)]
        assert slots[live].tolist() == [model.slot(*one) for one in expected]
        assert ((slots >= 0) & (slots < lanes * length)).all()
        model.given |= {*expected}
