"""Finds the spec that comes pickled by the standard input in a set with an equal one."""

import pickle
import sys

import functional_rb as frb

spec = pickle.load(sys.stdin.buffer)
assert spec in {frb.BufferSpec({"x": frb.Unbounded((2,)), "y": {"z": frb.Binary()}}, 5)}
