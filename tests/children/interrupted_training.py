"""Iterates over batches until an interrupt comes, and ends: STEP (seconds), and how it goes on (END)."""

import signal
import sys
import threading
import time
import types
from typing import Any

import functional_rb as frb

# What is started in the background by a shell ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A backend that takes no seconds to import.
rb = types.SimpleNamespace(split=lambda key: (key + 1, key), sample=lambda state, key, n, beta: (state, key))
state = frb.State(None, (), None, None, {}, frb.BufferSpec(frb.Unbounded(()), capacity=8, batch_size=2))


def training(seconds: float) -> None:
    mine = frb.iterate(rb, state, 0, prefetch=frb.Prefetch(3, threads=2))
    for number, _ in enumerate(mine):
        if number == 3:
            print("going", flush=True)
        if number >= 3:
            time.sleep(seconds)


def in_a_step() -> None:
    training(60)


def between_steps() -> None:
    training(0)


def caught() -> None:
    """The traceback keeps the iterator; the program goes on and ends with it."""
    global kept
    try:
        training(60)
    except KeyboardInterrupt as error:
        kept = error
    assert [thread for thread in threading.enumerate() if thread.name.startswith("frb")]


def while_it_waits() -> None:
    def slow(*_: Any) -> None:
        print("going", flush=True)
        time.sleep(0.5)

    rb.sample = slow
    batches = frb.iterate(rb, state, 0)
    try:
        next(batches)
    except KeyboardInterrupt:
        sys.exit(0 if next(batches, None) is None else 4)
    sys.exit(3)


kept: BaseException | None = None
globals()[sys.argv[1]]()
