"""Functions of items on the host: they read the items that a sample would have without them, however these are made."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.core.item_function import HostFunction
from tests.support.backends import Backend

N = 12
STEP: dict[str, Any] = {"x": frb.Unbounded((3,)), "reward": frb.Unbounded(())}
STEP |= {"done": frb.Binary(), "next": {"x": frb.Unbounded((3,))}}
RETURNS = frb.n_step(2, 0.9, reward_key="reward", terminated_key="done", end_keys=("done",), next_keys=(("next", "x"),))

SINGLE = (frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement())


@dataclasses.dataclass(frozen=True)
class Copied(HostFunction):
    """Gives what it is given, in one level."""

    @property
    def gives(self) -> None:
        return None

    def read(self, leaves: Mapping[str, np.ndarray], as_array: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        assert all(isinstance(leaf, np.ndarray) for leaf in leaves.values())
        return {name: as_array(leaf.copy()) for name, leaf in leaves.items()}


@dataclasses.dataclass(frozen=True)
class Sums(HostFunction):
    """Gives little of what is much."""

    @property
    def gives(self) -> None:
        return None

    def read(self, leaves: Mapping[str, np.ndarray], as_array: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        return {"sum": as_array(leaves["x"].sum(1, dtype=np.int32))}


def drawn(library: Backend, spec: frb.BufferSpec) -> Any:
    numbers = np.arange(N, dtype=np.float32)
    x = numbers[:, None] + np.zeros(3, np.float32)
    rows = {"x": x, "reward": numbers, "done": numbers % 5 == 4, "next": {"x": x + 1}}
    state = library.rb.add(library.rb.init(spec), library.tree(rows))
    return library.rb.sample(state, library.rb.key(3), 6)[1]


@pytest.mark.parametrize("compact", [None, frb.Compact()], ids=["plain", "compact"])
@pytest.mark.parametrize(
    ("sampler", "inner"),
    [
        *((sampler, inner) for sampler in SINGLE for inner in ((), (RETURNS,))),
        (frb.Slices(2, end_keys=("done",)), ()),  # n-step returns are of single steps
    ],
    ids=lambda given: type(given).__name__ if not isinstance(given, tuple) else "n_step" if given else "alone",
)
def test_they_read_what_a_sample_has(library: Backend, sampler: Any, inner: Any, compact: Any) -> None:
    spec = frb.BufferSpec(STEP, N, sampler, transforms=inner, compact=compact, storage=frb.Host())
    expected = drawn(library, spec)
    found = drawn(library, dataclasses.replace(spec, transforms=(*inner, frb.map_items(Copied()))))
    items = {**expected.items, "next/x": expected.items["next"]["x"]}
    del items["next"]
    assert found.items.keys() == items.keys()
    for name, leaf in items.items():
        np.testing.assert_array_equal(library.numpy(found.items[name]), library.numpy(leaf))
    np.testing.assert_array_equal(library.numpy(found.indices), library.numpy(expected.indices))


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.WithoutReplacement()], ids=repr)
def test_what_they_read_is_not_kept_with_the_state_or_the_indices(library: Backend, sampler: Any) -> None:
    """What a sample tells lies in memory of its own, or a state would keep the items of the batch before."""
    rb, image = library.rb, frb.Unbounded((5000,), "uint8")
    function = frb.map_items(Sums())
    spec = frb.BufferSpec({"x": image}, 64, sampler, transforms=function, storage=frb.Host())
    state = rb.add(rb.init(spec), {"x": np.ones((64, 5000), np.uint8)})
    keys, kept = rb.split(rb.key(0), 12), []
    state, _ = rb.sample(state, keys[0], 32)
    tracemalloc.start()
    try:
        for key in keys[1:]:
            state, sample = rb.sample(state, key, 32)
            kept.append((state, sample.indices, sample.weights))
        del sample
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * 32 * 5000, "of the items of 11 batches, of which libraries may hold the last"
