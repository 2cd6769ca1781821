"""Holds the lock of a file until its input ends, or for 20 seconds: PATH."""

import fcntl
import select
import sys

with open(sys.argv[1], "r+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    select.select([sys.stdin], [], [], 20)
