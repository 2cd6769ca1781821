"""`add(validate=True)`: items outside of their specs are errors, and left out and counted while tracing."""

from __future__ import annotations

import functools
import math
import pickle
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.versions import torch_traces
from tests.support.xla_options import AS_USERS

ROWS = 5
ITEM = {
    "id": frb.Unbounded((), "int32"),
    "obs": frb.Bounded([0.0, -1.0], [1.0, math.inf], (2,)),
    "more": {"choice": frb.Bounded(2, 4, (), "uint8"), "reward": frb.Unbounded()},
    "flag": frb.Binary((), "float32"),
}
NAN, INF = math.nan, math.inf
GOOD = {
    "obs": [[0.0, -1.0], [1.0, INF], [0.5, 7.0]],
    "choice": [2, 3, 4],
    "reward": [0.0, -INF, 1e30],
    "flag": [0.0, 1.0],
}
BAD = {
    "obs": [[-0.1, 0.0], [1.1, 0.0], [0.5, -1.5], [NAN, 0.0], [0.0, NAN]],
    "choice": [1, 5, 255],
    "reward": [NAN],
    "flag": [0.5, -1.0, NAN],
}
# What both of its kinds of programs are compiled for.
PRIORITIZED = frb.BufferSpec(ITEM, 7, frb.Prioritized())
PATHS = {"obs": "obs", "choice": "more/choice", "reward": "more/reward", "flag": "flag"}
cells = {name: st.sampled_from([*GOOD[name] * 3, *BAD[name]]) for name in GOOD}
rows = st.fixed_dictionaries(cells)
batches = st.lists(rows, min_size=ROWS, max_size=ROWS)


def items_of(batch: list[dict[str, Any]], first: int) -> Any:
    """A batch as NumPy arrays, numbered from `first`."""
    column = {name: np.array([row[name] for row in batch]) for name in GOOD}
    return {
        "id": np.arange(first, first + len(batch), dtype=np.int32),
        "obs": column["obs"].astype(np.float32),
        "more": {"choice": column["choice"].astype(np.uint8), "reward": column["reward"].astype(np.float32)},
        "flag": column["flag"].astype(np.float32),
    }


def wrong_in(row: dict[str, Any]) -> list[str]:
    """The leaves that are not as they should be, in the order of the item."""
    return [name for name in GOOD if any(row[name] is bad for bad in BAD[name])]


@functools.cache
def jitted(validate: bool) -> Any:
    import jax

    import jax_backend

    return jax.jit(lambda s, x, m: jax_backend.add(s, x, m, validate=validate))


@functools.cache
def compiled(validate: bool) -> Any:
    import torch

    import torch_backend

    if not torch_traces():  # Hypothesis would ask again and again, until torch says something else
        pytest.skip("it traces them from torch 2.12 on")
    function = lambda s, x, m: torch_backend.add_(s, x, m, validate=validate)  # noqa: E731  # as users compile it
    return torch.compile(function, fullgraph=True, backend="eager")


def traced(library: Backend, validate: bool = True) -> Any:
    """`add` as part of a compiled function."""
    if library.library == "jax":
        return jitted(validate)
    return lambda s, x, m: compiled(validate)(library.rb.own_(s), x, m)


def held(library: Backend, state: Any) -> list[int]:
    """The ids that are stored, in the order of the slots, and how many."""
    return [int(library.rb.size(state)), *library.numpy(library.rb.items(state)["id"]).tolist()]


@hypothesis.given(first=batches, second=batches, mask=st.none() | st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
@hypothesis.settings(max_examples=effort(20, 80))
def test_an_eager_add_refuses_the_first_bad_row(library: Backend, first: Any, second: Any, mask: Any) -> None:
    state = library.rb.init(frb.BufferSpec(ITEM, 7))
    for number, batch in enumerate((first, second)):
        marked = [i for i in range(ROWS) if mask is None or mask[i]]
        bad = [(i, wrong_in(batch[i])) for i in marked if wrong_in(batch[i])]
        before = held(library, state)
        given = (state, items_of(batch, number * ROWS), None if mask is None else np.array(mask))
        if not bad:
            state = library.rb.add(*given, validate=True)
            assert int(library.rb.size(state)) == min(before[0] + len(marked), 7)
        else:
            row, leaves = bad[0]
            first_leaf = min(PATHS[leaf] for leaf in leaves)
            with pytest.raises(ValueError, match=rf"^leaf '{first_leaf}': row {row} lies outside of \w+\("):
                library.rb.add(*given, validate=True)
            assert held(library, state) == before
        assert int(library.rb.counts(state).invalid) == 0


@hypothesis.given(first=batches, second=batches, mask=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
@hypothesis.settings(max_examples=20)
def test_while_tracing_bad_rows_are_left_out_and_counted(library: Backend, first: Any, second: Any, mask: Any) -> None:
    state, expected = library.rb.init(PRIORITIZED), library.rb.init(PRIORITIZED)
    count = 0
    for number, batch in enumerate((first, second)):
        items = library.tree(items_of(batch, number * ROWS))
        fine = [m and not wrong_in(row) for m, row in zip(mask, batch, strict=True)]
        count += sum(mask) - sum(fine)
        state = traced(library)(state, items, library.array(np.array(mask)))
        expected = library.rb.add(expected, items, np.array(fine))
        assert held(library, state) == held(library, expected)
        assert int(library.rb.counts(state).invalid) == count


def test_without_validation_every_value_goes_in(library: Backend) -> None:
    batch = [{name: BAD[name][0] for name in GOOD}] * ROWS
    state = library.rb.add(library.rb.init(frb.BufferSpec(ITEM, 7)), items_of(batch, 0))
    assert int(library.rb.size(state)) == ROWS
    state = traced(library, False)(state, library.tree(items_of(batch, 0)), library.array(np.ones(ROWS, bool)))
    assert (int(library.rb.size(state)), int(library.rb.counts(state).invalid)) == (7, 0)


def test_the_count_stays_with_the_state(library: Backend) -> None:
    """Through all functions, the kernels' included, pickling and the other backend."""
    good = {name: GOOD[name][0] for name in GOOD}
    items = library.tree(items_of([good, good | {"reward": NAN}, good, good, good | {"choice": 9}], 0))
    every = library.array(np.ones(ROWS, bool))
    state = traced(library)(library.rb.init(PRIORITIZED), items, every)
    state = library.rb.add(state, items_of([good] * 2, 5), validate=True)
    state, sample = library.rb.sample(state, library.rb.key(0), 4)
    state = library.rb.update(state, sample.indices, np.ones(4, np.float32))
    state = pickle.loads(pickle.dumps(state)) if library.library == "torch" else state
    assert (
        int(library.rb.size(state)),
        int(library.rb.counts(state).invalid),
        int(library.rb.counts(state).stale),
    ) == (5, 2, 0)
    # The last counter is how many were left out: it stays at the largest number rather than to wrap.
    (*leaves, counters), rebuilt = library.flatten(state)
    nearly_full = np.array([*library.numpy(counters)[:-1], 2**31 - 2], np.int32)
    counted = traced(library)(rebuilt([*leaves, library.array(nearly_full)]), items, every)
    assert int(library.rb.counts(counted).invalid) == 2**31 - 1
    other = __import__("torch_backend" if library.library == "jax" else "jax_backend")
    assert int(other.counts(other.from_dlpack(state)).invalid) == 2


def test_with_lanes_each_lane_leaves_its_own_out(library: Backend) -> None:
    spec = frb.BufferSpec({"id": frb.Bounded(0, 9, (), "int32")}, 6, lanes=2)
    ids = np.array([[0, 1], [10, 3], [4, -1]], np.int32)
    with pytest.raises(ValueError, match="leaf 'id': row 2 lies outside"):
        library.rb.add(library.rb.init(spec), {"id": ids}, validate=True)
    mask = library.array(np.ones((3, 2), bool))
    state = traced(library)(library.rb.init(spec), {"id": library.array(ids)}, mask)
    assert library.numpy(library.rb.items(state)["id"]).tolist() == [0, 4, 0, 1, 3, 0]
    assert int(library.rb.counts(state).invalid) == 2


def test_a_dataset_is_validated_as_it_is_made(library: Backend) -> None:
    spec = frb.BufferSpec((frb.Bounded(0, 1),), 4, writer=frb.Immutable())
    good, bad = np.array([0.0, 0.5, 1.0], np.float32), np.array([0.0, 0.5, 1.5], np.float32)
    assert int(library.rb.size(library.rb.init(spec, items=(good,), validate=True))) == 3
    with pytest.raises(ValueError, match="leaf '0': row 2 lies outside of Bounded"):
        library.rb.init(spec, items=(bad,), validate=True)
    assert int(library.rb.size(library.rb.init(spec, items=(bad,)))) == 3


def test_one_item_without_a_batch_axis_is_row_0(library: Backend) -> None:
    state = library.rb.init(frb.BufferSpec((frb.Bounded(0, 1),), 4))
    with pytest.raises(ValueError, match="row 0 lies outside"):
        library.rb.add(state, (2.0,), validate=True)
    assert int(library.rb.size(library.rb.add(state, (1.0,), validate=True))) == 1


def test_on_jax_a_validated_add_is_in_place_too() -> None:
    """Donated, and inside a loop: what is allocated beside the state depends on the batch, not on the capacity."""
    import jax

    import jax_backend as rb

    def steps(state: Any, batches: Any) -> Any:
        return jax.lax.scan(lambda s, x: (rb.add(s, x, validate=True), rb.counts(s).invalid), state, batches)

    spec = frb.BufferSpec({"obs": frb.Bounded(-1, 1, (100,)), "action": frb.specs.OneHot(4)}, 100_000)
    state = jax.eval_shape(lambda: rb.init(spec))
    batches = jax.eval_shape(lambda: rb.zeros(spec.item, (3, 8)))
    memory = jax.jit(steps, donate_argnums=0).lower(state, batches).compile(AS_USERS).memory_analysis()
    assert memory.alias_size_in_bytes >= spec.item_bytes * spec.capacity
    assert memory.temp_size_in_bytes < 100_000
