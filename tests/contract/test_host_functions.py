"""Functions of items on the host: they read the items that a sample would have without them, however these are made."""

from __future__ import annotations

import dataclasses
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
