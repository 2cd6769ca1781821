"""Saves while a child lives that was forked when the directory was locked: PATH."""

import os
import signal
import sys
import time

import functional_rb as frb
from functional_rb.storage import disk
from tests.children.kill_saves import state_at

signal.alarm(20)
with disk.locked(sys.argv[1] + "/lock"):
    child = os.fork()  # it has the descriptor too, and stays
    if not child:
        time.sleep(60)
        os._exit(0)
try:
    frb.save(state_at(0), sys.argv[1])
finally:
    os.kill(child, signal.SIGKILL)
