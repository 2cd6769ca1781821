"""Saves states to a directory, one after the other: PATH."""

import sys

import functional_rb as frb
from tests.children.kill_saves import state_at

for k in range(12):
    frb.save(state_at(k), sys.argv[1], incremental=True)
