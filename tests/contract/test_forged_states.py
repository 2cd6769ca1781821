"""States with leaves that no function of the library made, swapped in memory: no number in them leads out of an array.

What comes of them means nothing, and may be an error of the array library; the process goes on, and every call ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from torch.utils import _pytree as pytree

import functional_rb as frb
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.members import BATCH, MEMBERS

KEPT = (
    *("uniform", "prioritized, of the best", "queue of windows", "without replacement", "slices, by windows", "groups"),
    *("without replacement, of a reservoir", "slices without replacement", "slices without replacement, by windows"),
)
"""Members that keep, among them, every array from which kernels read where to go on."""
PAIRED = {
    "observation": frb.Unbounded((2, 3)),
    "reward": frb.Unbounded(()),
    "terminated": frb.Binary(()),
    "done": frb.Binary(()),
    "next": {"observation": frb.Unbounded((2, 3))},
}
SPECS = {name: MEMBERS[name].spec for name in KEPT} | {
    "frames": frb.BufferSpec(PAIRED, 12, batch_size=BATCH, lanes=3, compact=frb.Compact(stack={"observation": 2})),
    "waiting steps": frb.BufferSpec(PAIRED, 12, batch_size=BATCH, lanes=3, transforms=frb.n_step(3, 0.9, at="add")),
    "steps ahead": frb.BufferSpec(PAIRED, 12, batch_size=BATCH, lanes=3, transforms=frb.n_step(3, 0.9)),
}
WILD = effort((-(2**31), 2**30, 12), (2**31 - 1, -(2**31), 2**30, -1, 12, 40))
"""What arrays are filled with: far away, and just beyond."""
REFUSED = (IndexError, ValueError, RuntimeError)
"""What array libraries, and the library where it sees it, raise."""


def swapped(library: Backend, state: Any, name: str, array: np.ndarray) -> Any:
    """The state with another array in place of a leaf: the counters, or one that a strategy keeps."""
    if library.library == "jax":
        leaf = library.array(array)
        if name == "counters":
            return dataclasses.replace(state, counters=leaf)
        return dataclasses.replace(state, auxiliary=state.auxiliary | {name: leaf})
    leaves, outline = pytree.tree_flatten(state)
    names = [*state.spec.plan.auxiliary, "counters"]
    leaves[len(leaves) - len(names) + names.index(name)] = library.array(array)
    return pytree.tree_unflatten(leaves, outline)


def filled(library: Backend, state: Any, mask: Any = None) -> Any:
    """The state with a batch more than it has room for."""
    rb, spec = library.rb, state.spec
    given = rb.rand(spec.item, rb.key(1), (4, 3) if spec.lanes else (12,))
    return rb.add(state, given, mask=mask, key=rb.key(2) if spec.writer.words else None)


def all_functions(library: Backend, state: Any) -> None:
    """Call what reads and writes, each on its own."""
    rb, spec = library.rb, state.spec
    handles, ones = library.array(np.arange(BATCH, dtype=np.int32)), library.array(np.ones(BATCH, np.float32))
    mask = library.array(np.arange(12).reshape((4, 3) if spec.lanes else (12,)) % 2 == 0)
    calls = [
        lambda: rb.sample(state, rb.key(0))[1].indices,
        lambda: filled(library, state).counters,
        lambda: filled(library, state, mask).counters,
        lambda: rb.get(state, handles),
        lambda: rb.update(state, handles, ones).counters,
        lambda: rb.clear(state).counters,
    ]
    for call in calls:
        with contextlib.suppress(*REFUSED):
            jax.block_until_ready(call())


COMPILED = effort(("without replacement", "slices without replacement", "waiting steps"), SPECS)
"""On JAX, which compiles each function of each."""


@pytest.mark.parametrize("name", SPECS)
def test_no_number_in_a_swapped_leaf_leads_out_of_an_array(library: Backend, name: str) -> None:
    if library.library == "jax" and name not in COMPILED:
        pytest.skip("its kernels are those of torch; make test-all")
    spec, rng = SPECS[name], np.random.default_rng(0)
    state = filled(library, library.rb.init(spec))
    arrays = {"counters": library.numpy(state.counters)}
    arrays |= {name: library.numpy(array) for name, array in state.auxiliary.items()}
    for name, array in arrays.items():
        if array.dtype != np.int32:
            continue
        for wild in WILD:
            some = np.where(rng.random(array.shape) < 0.5, np.int32(wild), array)
            for forged in (np.full_like(array, wild), some):
                all_functions(library, swapped(library, state, name, forged))
