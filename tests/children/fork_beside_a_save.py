"""A child that is forked while its parent saves in the background does not wait for that: PATH."""

import os
import signal
import sys
import threading
from typing import Any

import functional_rb as frb
from functional_rb.checkpoint import saving
from functional_rb.checkpoint.loading import read
from tests.children.kill_saves import check, state_at

path, go, write = sys.argv[1], threading.Event(), saving.write


def held(*args: Any) -> saving.Checkpoint:
    go.wait()
    return write(*args)


saving.write = held
first, second = (frb.save(state_at(k), path, background=True) for k in (0, 1))
child = os.fork()
if not child:
    signal.alarm(20)
    saving.write = write
    for one in (first, second):
        try:
            one.result()
        except frb.errors.CheckpointError as error:
            assert "in the process that began it" in str(error)
    frb.save(state_at(2), path)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
check(read(path)[1], state_at(2))
go.set()
assert second.result().generation == 3
check(read(path)[1], state_at(1))
