"""A writer dies at each step of a whole call on a shared buffer: PATH. Its parent looks at what is left."""

import os
import signal
import sys
from typing import Any

import torch

import functional_rb as frb
import torch_backend as rb
from functional_rb.shared.buffer import SharedBuffer
from tests.support.children import die
from tests.support.touched import before_writing

torch.set_num_threads(1)
STORAGE = frb.Memmap(sys.argv[1], shared=True)
SPEC = frb.BufferSpec({"n": frb.Unbounded((), "int32")}, 8, frb.Prioritized(alpha=1.0), storage=STORAGE)
state = rb.init(SPEC)
for name in ("add", "update", "sample"):
    setattr(SharedBuffer, name, None)  # the plain way is closed


def add(turn: int) -> None:
    rb.add(state, {"n": torch.arange(turn, turn + 3, dtype=torch.int32)})


def update(turn: int) -> None:
    rb.update(state, rb.newest(state, 2), torch.full((2,), 5.0), {"n": torch.full((2,), -turn).int()})


def look() -> tuple[list[int], list[float], int]:
    return rb.items(state)["n"].tolist(), state.tree.reshape(-1)[:8].tolist(), int(rb.counts(state).lost)


files, turn = state.buffer.files, 1
control, rows, tree, journal = [files.control], [files.rows], [files.tree], files.journal
moments: list[tuple[Any, list[Any]]] = [
    (add, [control, rows, tree, None]),
    (update, [journal, control, rows, tree, None]),
]
for work, several in moments:
    for moment in several:
        rb.clear(state)
        add(turn)
        turn += 3
        written, before = files.rows.tolist(), look()
        child = os.fork()
        if not child:
            if moment:
                before_writing(moment, die)
            work(turn)
            die()
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, len(moment)
        begun, done = moment is rows or moment is tree, moment is None
        # In this order: what is noted, that it begins, the rows, the tree, and last that it has ended.
        assert files.control[0] % 2 == begun
        assert (files.rows.tolist() != written) == (done or moment is tree)
        lost, size = int(rb.counts(state).lost) - before[2], int(rb.size(state))
        if work is add:
            assert (size, lost) == (6 if done else 3, 3 if begun else 0), (size, lost)
        else:
            assert (size, lost) == (3, 0)
            now = look()[:2]
            assert (now == before[:2]) == (not done)
            assert not done or (now[0].count(-turn), now[1].count(5)) == (2, 2)
print("done")
