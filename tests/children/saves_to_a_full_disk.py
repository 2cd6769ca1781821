"""Saves until the disk is full, and finds the save before that whole: PATH."""

import os
import sys

import functional_rb as frb
from functional_rb.checkpoint.loading import read
from tests.children.kill_saves import check, state_at

path = sys.argv[1]
for k in range(60):
    try:
        frb.save(state_at(k), path, keep=60)
    except frb.errors.StorageFullError as error:
        assert 0 < k < 59, k
        assert not [name for name in os.listdir(path) if name.endswith(".part")]
        check(read(path)[1], state_at(k - 1))
        print("full", error)
        break
