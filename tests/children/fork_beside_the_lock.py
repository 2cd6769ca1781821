"""Saves while a child lives that was forked when the directory was locked: PATH."""

import os
import signal
import sys
import time

import functional_rb as frb
from functional_rb.storage import disk
from tests.children.kill_saves import state_at


def forked() -> int:
    """A child that has the lock's descriptor too, and stays."""
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    return child


signal.alarm(20)
child = disk.while_locked(sys.argv[1] + "/lock", forked)
try:
    frb.save(state_at(0), sys.argv[1])
finally:
    os.kill(child, signal.SIGKILL)
