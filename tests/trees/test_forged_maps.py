"""Maps and forests with leaves that no function of the library made: from files, and swapped in memory.

Files are refused; what lies in memory means nothing, but nothing outside of it is touched, and every search ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis.extra import numpy as hnp

import functional_rb as frb
import jax_backend
import torch_backend
from tests.support.backends import Backend
from tests.support.effort import effort

# In a table: nobody is here.
EMPTY = 2**31 - 1
NAMES = ("table", "keys", "counts", "counters")
SMALL = frb.HashMapSpec(frb.Unbounded((2,), "int32"), 5, seed=6, hash_bits=2)
BATCH = 6
# Words around each array, which nobody may write to.
GUARD = 64
LEAST, MOST = -(2**31), 2**31 - 1
WILD = st.sampled_from([LEAST, -3, -1, 0, 1, 2, 4, 5, 6, 9, 11, 12, 2**20, 2**30, MOST - 1, EMPTY])
EMPTY_MAPS = {rb: rb.init(SMALL) for rb in (torch_backend, jax_backend)}
SHAPES = {name: tuple(getattr(EMPTY_MAPS[torch_backend], name).shape) for name in NAMES}


@st.composite
def maps(draw: Any) -> dict[str, np.ndarray]:
    """Anything of the right shapes."""
    elements = {name: st.integers(0, 2) if name == "keys" else WILD for name in NAMES}
    return {name: draw(hnp.arrays(np.int32, SHAPES[name], elements=elements[name])) for name in NAMES}


def guarded(array: np.ndarray) -> tuple[torch.Tensor, Callable[[], None]]:
    """A tensor between others, and a check that these are as they were."""
    whole = torch.full((array.size + 2 * GUARD,), 7, dtype=torch.int32)
    inner = whole[GUARD : GUARD + array.size].view(array.shape)
    inner[...] = torch.from_numpy(array)

    def check() -> None:
        around = np.delete(whole.numpy(), np.s_[GUARD : GUARD + array.size])
        assert (around == 7).all()

    return inner, check


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "core"])
@hypothesis.settings(max_examples=effort(60, 2000), deadline=None)
@hypothesis.given(map=maps(), rows=hnp.arrays(np.int32, (BATCH, 2), elements=st.integers(0, 2)))
def test_no_map_makes_an_insertion_leave_its_arrays_or_go_on_for_ever(
    kernels: bool, map: dict[str, np.ndarray], rows: np.ndarray
) -> None:
    with frb.kernels(kernels):
        for add in (torch_backend.add, torch_backend.add_):
            tensors, checks = zip(*(guarded(x) for x in map.values()), strict=True)
            forged = dataclasses.replace(EMPTY_MAPS[torch_backend], **dict(zip(NAMES, tensors, strict=True)))
            within(*add(forged, torch.from_numpy(rows)))
            for check in checks:
                check()
        arrays = {name: jnp.asarray(x) for name, x in map.items()}
        within(*jax_backend.add(dataclasses.replace(EMPTY_MAPS[jax_backend], **arrays), rows))


def within(made: Any, told: Any) -> None:
    ids = np.asarray(told.ids)
    assert ((ids >= -1) & (ids < SMALL.capacity)).all()
    assert {name: tuple(getattr(made, name).shape) for name in NAMES} == SHAPES


@hypothesis.settings(max_examples=effort(60, 2000), deadline=None)
@hypothesis.given(hnp.arrays(np.int32, (12, 2), elements=st.integers(0, 2)), st.data())
def test_maps_that_were_made_are_sound_and_each_change_of_what_they_rest_on_is_seen(
    tmp_path_factory: pytest.TempPathFactory, rows: np.ndarray, data: st.DataObject
) -> None:
    place, made = tmp_path_factory.mktemp("map"), torch_backend.add(EMPTY_MAPS[torch_backend], rows)[0]
    frb.save(made, place)
    assert torch.equal(frb.load(place, torch_backend).table, made.table)
    where = data.draw(st.integers(0, len(made.table) - 1))
    other = data.draw(st.integers(-2, 6) | st.sampled_from([LEAST, MOST - 1, EMPTY]))
    hypothesis.assume(made.table[where] != other)
    table = made.table.clone()
    table[where] = other
    frb.save(dataclasses.replace(made, table=table), place)
    with pytest.raises(frb.errors.CorruptCheckpointError, match="HashMap: "):
        frb.load(place, torch_backend)


# --- files ----------------------------------------------------------------------------------------------------------

SPEC = frb.HashMapSpec(frb.Unbounded((2,), "int32"), 6, hash_bits=3)
FOREST = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(3), 6, 2)
SEEN = np.array([[1, 2], [3, 4], [1, 2]], np.int32)


def map_of(rb: Any) -> Any:
    return rb.add(rb.init(SPEC), SEEN)[0]


def forest_of(rb: Any) -> Any:
    before, action, after = (np.array(x, np.int32) for x in ([0, 1, 2], [1, 2, 0], [1, 2, 0]))
    steps = frb.ted.from_transitions(before, action, np.ones(3, np.float32), after, np.zeros(3, bool))
    return rb.add(rb.init(FOREST), steps)


def changed(library: Backend, array: Any, at: Any, value: Any) -> Any:
    copy = np.array(library.numpy(array))
    copy[at] = value
    return library.array(copy)


ONE = np.s_[:1]
FORGED = {
    "the table is full": ("table", np.s_[:], 0, "table"),
    "a number beyond": ("table", ONE, 2**30, "table"),
    "a number below": ("table", ONE, -5, "table"),
    "a ticket": ("table", ONE, 7, "table"),
    "nobody is found": ("table", np.s_[:], EMPTY, "table"),
    "more than fit": ("counters", 0, 7, "counters"),
    "fewer than none": ("counters", 0, -1, "counters"),
    "one fewer": ("counters", 0, 1, "counts"),
    "a key twice": ("keys", 1, [1, 2], "twice"),
    "another key": ("keys", 0, [500, 600], "way"),
    "never put in": ("counts", 0, 0, "counts"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_map_does_not_load(library: Backend, tmp_path: Path, kind: str) -> None:
    name, at, value, text = FORGED[kind]
    made = map_of(library.rb)
    forged = dataclasses.replace(made, **{name: changed(library, getattr(made, name), at, value)})
    frb.save({"seen": forged}, tmp_path)
    with pytest.raises(frb.errors.CorruptCheckpointError, match=f"HashMap: .*{text}") as caught:
        frb.load(tmp_path, library.rb)
    assert caught.value.file.endswith(".json")


def test_maps_of_other_sizes_than_their_spec_do_not_load(library: Backend, tmp_path: Path) -> None:
    made = map_of(library.rb)
    for name, array in (("table", made.table[:2]), ("keys", made.keys[:, :1]), ("counts", made.counts[None])):
        frb.save(dataclasses.replace(made, **{name: array}), tmp_path)
        with pytest.raises(
            frb.errors.CorruptCheckpointError, match=f"HashMap: ({name}: expected int32|its arrays are stacked)"
        ):
            frb.load(tmp_path, library.rb)


def test_a_stack_of_maps_loads(library: Backend, tmp_path: Path) -> None:
    made = map_of(library.rb)
    two = {name: library.array(np.stack([library.numpy(getattr(made, name))] * 2)) for name in NAMES}
    frb.save(dataclasses.replace(made, **two), tmp_path)
    assert library.rb.size(frb.load(tmp_path, library.rb)).tolist() == [2, 2]
    two["table"] = changed(library, two["table"], (1, ONE), 9)
    frb.save(dataclasses.replace(made, **two), tmp_path)
    with pytest.raises(frb.errors.CorruptCheckpointError, match="HashMap: its table"):
        frb.load(tmp_path, library.rb)


FORGED_FORESTS = {
    "an edge from nowhere": ("edges", 0, "node where an edge begins"),
    "a result of no edge": ("results", 0, "edge of a result"),
    "a result that leads nowhere": ("results", 1, "node where a result leads"),
}


def forged_forest(library: Backend, kind: str, value: int) -> Any:
    """A forest of sound maps whose numbers are none of the others."""
    part, column, _ = FORGED_FORESTS[kind]
    made = forest_of(library.rb)
    plan = getattr(FOREST, part)
    keys = np.array(library.numpy(getattr(made.arrays, part).keys))[:3]
    keys[1, column] = value
    key = frb.Unbounded((plan.words,), "int32")
    other, _ = library.rb.add(library.rb.init(frb.HashMapSpec(key, plan.capacity, plan.seed, plan.hash_bits)), keys)
    map = getattr(made.arrays, part)._replace(**{name: getattr(other, name) for name in NAMES})
    return dataclasses.replace(made, arrays=made.arrays._replace(**{part: map}))


@pytest.mark.parametrize("value", [-1, 3, 2**30])
@pytest.mark.parametrize("kind", FORGED_FORESTS)
def test_a_forged_forest_neither_loads_nor_is_read(library: Backend, tmp_path: Path, kind: str, value: int) -> None:
    forged = forged_forest(library, kind, value)
    frb.save(forged, tmp_path)
    with pytest.raises(frb.errors.CorruptCheckpointError, match=f"Forest: .*{FORGED_FORESTS[kind][2]}.*found {value}"):
        frb.load(tmp_path, library.rb)
    with pytest.raises(ValueError, match=rf"trees\.view: .*{FORGED_FORESTS[kind][2]}.*found {value}"):
        library.rb.trees.view(forged, np.int32(0))


def test_a_forest_with_a_forged_map_does_not_load(library: Backend, tmp_path: Path) -> None:
    made = forest_of(library.rb)
    for part in ("nodes", "edges", "results"):
        map = getattr(made.arrays, part)
        full = map._replace(table=changed(library, map.table, np.s_[:], 0))
        frb.save(dataclasses.replace(made, arrays=made.arrays._replace(**{part: full})), tmp_path)
        with pytest.raises(frb.errors.CorruptCheckpointError, match=f"Forest: its {part}: its table"):
            frb.load(tmp_path, library.rb)


# --- in memory ------------------------------------------------------------------------------------------------------


def test_swapped_leaves_of_other_sizes_are_refused(library: Backend) -> None:
    rb = library.rb
    made, forest = map_of(rb), forest_of(rb)
    floats = library.array(np.zeros(8, np.float32))
    for name, array, kind, text in (
        ("table", made.table[:4], ValueError, r"table: expected shape \[16\], got \[4\]"),
        ("keys", made.keys[:, :1], ValueError, r"keys: expected shape \[6, 2\], got \[6, 1\]"),
        ("counters", floats, TypeError, "counters: expected int32"),
        ("counts", np.zeros(6, np.int32), TypeError, "counts: expected int32 of this backend, got ndarray"),
    ):
        forged = dataclasses.replace(made, **{name: array})
        for use in (rb.add, rb.add_, rb.lookup, rb.visits):
            with pytest.raises(kind, match=text):
                use(forged, SEEN)
    arrays = forest.arrays._replace(visits=forest.arrays.visits[:3])
    forged = dataclasses.replace(forest, arrays=arrays)
    for use in (rb.lookup, rb.visits):
        with pytest.raises(ValueError, match=r"visits: expected shape \[6\], got \[3\]"):
            use(forged, np.int32(0))


def test_views_of_tensors_in_place_of_leaves(library: Backend) -> None:
    """A tensor of one number, as large as it likes: kernels would go by its address and its shape."""
    if library.library == "jax":
        pytest.skip("JAX has no views")
    made = map_of(library.rb)
    full = dataclasses.replace(made, table=torch.zeros((), dtype=torch.int32).expand(16))
    turned = dataclasses.replace(made, keys=made.keys.t().contiguous().t())
    assert library.rb.lookup(full, SEEN).tolist() == [0, -1, 0]
    assert library.rb.add(full, SEEN)[1].ids.tolist() == [0, -1, 0]
    assert library.rb.add(turned, SEEN)[1].ids.tolist() == [0, 1, 0]
    assert library.rb.add_(turned, SEEN)[1].ids.tolist() == [0, 1, 0]
