"""Draws from, and adds to, a shared buffer whose pickled state comes by the standard input, and dies amid an add."""

import pickle
import sys

import numpy as np

import jax_backend as rb
from tests.support.children import die
from tests.support.touched import before_writing

state = pickle.load(sys.stdin.buffer)
state = rb.add(state, {"id": np.arange(2, dtype=np.int32), "x": np.ones((2, 3), np.float32)})
state, sample = rb.sample(state, rb.key(0), 8)
rb.update(state, sample.indices, np.full(8, 2.0, np.float32))
assert int(rb.size(state)) == 5, rb.size(state)
before_writing([state.buffer.files.tree], die)
rb.add(state, {"id": np.arange(4, dtype=np.int32), "x": np.ones((4, 3), np.float32)})
