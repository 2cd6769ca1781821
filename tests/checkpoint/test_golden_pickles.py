"""Pickles of a version whose modules had other names load for ever."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.golden_pickles import write
from tests.support.checkpoints import bits

FILES = Path(write.__file__).parent


@pytest.mark.usefixtures("tensors_of_the_cpu")  # as these are
@pytest.mark.parametrize("name", write.STATES)
def test_states_and_samples(name: str) -> None:
    content = (FILES / f"{name}.pickle").read_bytes()
    if b"numpy._core" in content:
        pytest.importorskip("numpy._core", reason="NumPy reads the arrays that NumPy 2 has pickled from 1.26.1 on")
    state, sample = pickle.loads(content)
    assert state.spec == write.STATES[name][1]
    expected = write.state(name)
    assert type(state) is type(expected)
    rb = importlib.import_module(f"{write.STATES[name][0]}_backend")
    assert repr(rb.items(state)) == repr(rb.items(expected))
    if not state.spec.plan.objects:  # whose rows have tokens, which no two states have in common
        assert bits(state) == bits(expected)
    _, drawn = rb.sample(expected, rb.key(0), 2)
    assert type(sample) is type(drawn)
    assert np.asarray(sample.indices).tolist() == np.asarray(drawn.indices).tolist()
    assert int(rb.size(rb.add(state, write.items(state.spec)))) == int(rb.size(state))  # the buffer lives on


def test_specs() -> None:
    assert pickle.loads((FILES / "specs.pickle").read_bytes()) == write.SPECS


def test_pickles_import_what_they_need() -> None:
    """Of a process that has imported nothing, `pickle` asks for the modules by their earlier names."""
    program = f"import pickle; pickle.load(open({str(FILES / 'specs.pickle')!r}, 'rb'))"
    subprocess.run([sys.executable, "-c", program], check=True)
