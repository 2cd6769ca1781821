"""What is found in a tree on the host without a copy of it: nodes by a key, hashes of observations, steps in TED."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from functional_rb.base.arrays import Nest
from functional_rb.base.steps import ACTION, FLAGS, NEXT, REWARD
from functional_rb.hash_maps.spec import rows_of
from functional_rb.ops import numpy_ops
from functional_rb.structures import hash_map, key_rows
from functional_rb.structures.hash_map import MapPlan
from functional_rb.trees.nodes_in_order import Ints, Nodes, Path, by_name, in_nest

K = TypeVar("K")


class _Items(ItemsView[K, int]):
    """Keys and nodes side by side, without a search for each."""

    def __init__(self, mapping: Mapping[K, int], nodes: Iterable[int]) -> None:
        super().__init__(mapping)
        self._keys, self._nodes = mapping, nodes

    def __iter__(self) -> Iterator[tuple[K, int]]:
        return zip(self._keys, self._nodes, strict=True)


class Vertices(Mapping[int, int]):
    """Nodes by a key: found when they are asked for, without a copy of the tree."""

    def __init__(self, seen: Nodes, keys: Ints, nodes: Ints) -> None:
        self._view, self._keys, self._nodes = seen, keys, nodes

    def __getitem__(self, key: object) -> int:
        if isinstance(key, bool) or not isinstance(key, int | np.integer):
            raise KeyError(key)
        at = int(np.searchsorted(self._keys, key))
        if at == len(self._keys) or self._keys[at] != key:
            raise KeyError(key)
        return int(self._nodes[at])

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys.tolist())

    def __len__(self) -> int:
        return len(self._keys)

    def items(self) -> ItemsView[int, int]:
        return _Items(self, self._nodes.tolist())


class NodesByPath(Mapping[Path, int]):
    """All nodes by the slots that lead there, from left to right, a node before those below it."""

    def __init__(self, seen: Nodes) -> None:
        self._view = seen

    def __getitem__(self, path: Path) -> int:
        try:
            return self._view.node_at(path)
        except TypeError:
            raise KeyError(path) from None

    def __iter__(self) -> Iterator[Path]:
        return self._view.paths()

    def __len__(self) -> int:
        return len(self._view)

    def items(self) -> ItemsView[Path, int]:
        return _Items(self, self._view.in_preorder.tolist())


def hashes(seen: Nodes, which: Ints) -> Ints:
    """The hashes of the observations of vertices, of 60 bits, int64 [m]."""
    keys = rows_of(seen.observations)
    rows = key_rows.pack(numpy_ops.OPS, keys, seen.observe(which), np.zeros(len(which), np.int32))
    # Two hashes of 30 bits each, by two seeds: of a million observations two with one hash are then unlikely.
    plans = (MapPlan(hash_map.MOST, keys.words, seed) for seed in (0, 1))
    high, low = (np.asarray(hash_map.homes(numpy_ops.OPS, plan, rows), np.int64) for plan in plans)
    return high << 30 | low


def in_ted(seen: Nodes, which: Ints) -> dict[str, Nest]:
    """Steps by their numbers int64 [T], as TED has them, leaves [T, *shape]."""
    steps = seen.steps
    before, after = (by_name(in_nest(seen.observations, seen.observe(at[which]))) for at in (steps.start, steps.end))
    no, terminated = np.zeros(len(which), bool), steps.terminated[which]
    done = {"done": terminated, "terminated": terminated, "truncated": no}
    action = in_nest(seen.actions, seen.act(which))
    return {**before, ACTION: action, **dict.fromkeys(FLAGS, no), NEXT: {**after, REWARD: steps.reward[which], **done}}
