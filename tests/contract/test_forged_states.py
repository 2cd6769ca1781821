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
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend
from tests.support import gpu
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.members import BATCH, MEMBERS

# Members that keep, among them, every array from which kernels read where to go on.
KEPT = (
    *("uniform", "prioritized, of the best", "queue of windows", "without replacement", "slices, by windows", "groups"),
    *("without replacement, of a reservoir", "slices without replacement", "slices without replacement, by windows"),
)
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
# What arrays are filled with: far away, and just beyond.
WILD = effort((-(2**31), 2**30, 12), (2**31 - 1, -(2**31), 2**30, -1, 12, 40))
# What array libraries, and the library where it sees it, raise.
REFUSED = (IndexError, ValueError, RuntimeError)


def swapped(library: Backend, state: Any, name: str, array: np.ndarray) -> Any:
    """The state with another array in place of a leaf: the counters, or one that a strategy keeps."""
    old = state.counters if name == "counters" else state.auxiliary[name]
    leaves, rebuilt = library.flatten(state)
    return rebuilt([library.array(array) if leaf is old else leaf for leaf in leaves])


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


# On JAX, which compiles each function of each.
COMPILED = effort(("slices without replacement", "waiting steps"), SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_no_number_in_a_swapped_leaf_leads_out_of_an_array(library: Backend, name: str) -> None:
    if gpu.ASKED and library.library == "torch":
        pytest.skip("not on a GPU: an index out of an array ends all that torch does there, as it should")
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


def of_leaves(library: Backend, state: Any, change: Any) -> list[Any]:
    """States with one leaf changed each, all leaves in turn."""
    leaves, rebuilt = library.flatten(state)
    return [rebuilt([*leaves[:k], change(x), *leaves[k + 1 :]]) for k, x in enumerate(leaves)]


WIDE = frb.BufferSpec({"x": frb.Unbounded((100,)), "image": frb.Unbounded((64, 64), "uint8")}, 500, frb.Prioritized())


@pytest.mark.parametrize("sampler", [frb.Prioritized(), frb.WithoutReplacement()], ids=["tree", "deck"])
def test_leaves_of_other_shapes_and_dtypes_are_not_read_as_what_they_should_be(library: Backend, sampler: Any) -> None:
    rb, spec = library.rb, dataclasses.replace(WIDE, sampler=sampler)
    given = rb.rand(spec.item, rb.key(1), (100,))
    state = rb.add(rb.init(spec), given)
    handles = library.array(np.arange(BATCH, dtype=np.int32))
    uses = (
        *(lambda s: rb.sample(s, rb.key(0), 64), lambda s: rb.add(s, given), lambda s: rb.get(s, handles)),
        *(rb.items, rb.clear, lambda s: rb.probabilities(s, handles)),
        lambda s: rb.with_spec(s, dataclasses.replace(spec, capacity=1000)),
    )
    for change in (lambda x: x[:2], lambda x: library.array(np.zeros(x.shape, np.int8))):
        for forged in of_leaves(library, state, change):
            for use in uses:
                with pytest.raises(ValueError, match=r"has the (shape|dtype) .* and by the spec it is|one buffer"):
                    use(forged)


def test_views_of_one_number_are_read_as_what_they_show() -> None:
    """A tensor with one number in memory, as large as it likes: kernels would read, and write, behind it."""
    rb = torch_backend
    given = rb.rand(WIDE.item, rb.key(1), (100,))
    # Sums that are none depend on who adds them up; where a slot comes many times, threads of a GPU write in any order.
    for sampler in (frb.Uniform(), *([] if gpu.ASKED else [frb.WithoutReplacement()])):
        leaves, context = pytree.tree_flatten(rb.add(rb.init(dataclasses.replace(WIDE, sampler=sampler)), given))
        for k, leaf in enumerate(leaves):
            one = leaf.reshape(-1)[0]
            view, whole = (
                pytree.tree_unflatten([*leaves[:k], x, *leaves[k + 1 :]], context)
                for x in (one.expand(leaf.shape), one.expand(leaf.shape).clone(memory_format=torch.contiguous_format))
            )
            for use in (lambda s: rb.sample(s, rb.key(0), 64), lambda s: rb.items(rb.add_(s, given))):
                ours, theirs = (pytree.tree_leaves(use(x)) for x in (view, whole))
                assert all(map(torch.equal, ours, theirs))
