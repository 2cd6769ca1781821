"""Saves, and is refused once the disk is read-only: PATH, `write` or `read`."""

import sys

import functional_rb as frb
from functional_rb.checkpoint.loading import read
from tests.children.kill_saves import check, state_at

path, what = sys.argv[1:]
if what == "write":
    frb.save(state_at(0), path)
else:
    try:
        frb.save(state_at(1), path)
    except frb.errors.CheckpointError as error:
        print("refused", error)
    check(read(path)[1], state_at(0))
    print(len(frb.checkpoint.checkpoints(path)))
