"""Saves mixtures to a directory, one after the other: PATH, the number of the FIRST."""

import sys

import functional_rb as frb
from tests.support.numbered_mixtures import mixture_at

for k in range(40):
    frb.save(mixture_at(int(sys.argv[2]) + k), sys.argv[1], incremental=True, keep=1)
