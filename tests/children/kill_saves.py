"""Kills processes that save, and looks at what they leave: run as a program, which imports NumPy and the core alone.

    python -m tests.children.kill_saves DIRECTORY SEED KILLS

Each child saves states one after the other, in one of three ways, and says when a save has ended. Whatever the instant
of its death, the newest checkpoint is the last that it told of or the one it was about to tell of, and whole.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import functional_rb as frb
from functional_rb.checkpoint.loading import read
from functional_rb.core.counters import CURSOR, SIZE, length
from functional_rb.core.draft import Arrays

SPEC = frb.BufferSpec({"x": frb.Unbounded((64,))}, capacity=2048, sampler=frb.Prioritized())
STATES = 40
WAYS = ("full", "incremental", "async")


def state_at(k: int) -> frb.State:
    """The k-th state: 100 more rows than the one before, all telling who wrote them, and other priorities."""
    count = 100 * (k + 1)
    written = np.zeros(SPEC.capacity, np.int32)
    written[np.arange(count) % SPEC.capacity] = 1 + np.arange(count)
    tree = np.zeros(SPEC.plan.tree_shape or (), np.float32)
    tree.reshape(-1)[: min(count, SPEC.capacity)] = k + 1
    counters = np.zeros(length(SPEC.plan), np.int32)
    counters[CURSOR], counters[SIZE] = count, min(count, SPEC.capacity)
    return frb.State(np.repeat(written[:, None], 64, 1), (), tree, counters, {}, SPEC)


def save_all(directory: str, way: str, told: int) -> None:
    """The child: save, and tell; never come back."""
    for k in range(STATES):
        if way == "async":
            frb.save(state_at(k), directory, incremental=k % 2 == 0, background=True).result()
        else:
            frb.save(state_at(k), directory, incremental=way == "incremental")
        os.write(told, bytes([k]))
    signal.pause()


def killed(run: Callable[[int], None], chance: random.Random, told: int, seconds: float) -> int | None:
    """Fork a child that runs, and writes the number of each save to the descriptor it is given; kill it.

    Returns:
        The last number that it told of; None if it did not come so far.
    """
    reading, telling = os.pipe()
    child = os.fork()
    if not child:
        try:
            run(telling)
        finally:
            os._exit(1)
    os.close(telling)
    done = None
    for _ in range(chance.randrange(told)):
        done = os.read(reading, 1)[0]
    time.sleep(chance.random() * seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 64):
        done = more[-1]
    os.close(reading)
    return done


def kill_one(directory: str, way: str, chance: random.Random) -> int:
    """The number of the state that is there afterwards, after looking at it."""
    shutil.rmtree(directory, ignore_errors=True)
    done = killed(functools.partial(save_all, directory, way), chance, 4, 0.006)
    done = -1 if done is None else done
    try:
        found = read(directory)[1]
    except FileNotFoundError:
        assert done == -1, "a checkpoint is gone"
        return -1
    k = int(found.counters[CURSOR]) // 100 - 1
    assert k in (done, done + 1), f"expected state {done} or the next one, found {k}"
    check(found, state_at(k))
    # And the next save finds its way.
    frb.save(state_at(k + 1), directory, incremental=True)
    check(read(directory)[1], state_at(k + 1))
    left = [name for name in os.listdir(directory) if name.endswith(".part")]
    assert not left, left
    return k


def check(found: Arrays, expected: frb.State) -> None:
    """Bit for bit, but for the nodes of the tree above the leaves, which the state here has not."""
    assert expected.tree is not None
    assert found.tree is not None
    assert found.rows.tobytes() == expected.rows.tobytes()
    assert found.counters.tobytes() == expected.counters.tobytes()
    leaves = SPEC.capacity // 16
    assert found.tree[:leaves].tobytes() == expected.tree[:leaves].tobytes()


def main(directory: str, seed: int, kills: int) -> None:
    """Kill so many, and print how often which state was left by each way."""
    chance = random.Random(seed)
    for way in WAYS:
        left = [kill_one(str(Path(directory) / way), way, chance) for _ in range(kills)]
        print(way, kills, len(set(left)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
