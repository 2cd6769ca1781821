"""Maps beside a dict, forests and the reading of their trees beside torchrl's, and searches beside mctx's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np

import functional_rb as frb
from benchmarks import ours, tree_search
from benchmarks.compare import Effort, Section, measure
from benchmarks.contender import AnySampler, Backend, Calls, Entry, Growing, Searching
from benchmarks.goals import DICT, tree_comparisons
from benchmarks.group_report import ratios_text

Group = Growing | Searching
GROUPS: tuple[tuple[Backend, Group], ...] = (
    *((backend, "maps") for backend in get_args(Backend)),
    *(("torch", "forests"), ("torch", "reading")),
    *(("jax", group) for group in get_args(Searching)),
)
# Without the searches of which mctx's take minutes a round.
QUICK = tuple(group for group in GROUPS if group != ("jax", "search 800"))
ACTIONS = 8


@dataclass(frozen=True)
class TreeWorkload:
    """How much is met, seen and read.

    Attributes:
        keys: of one insertion into an empty map, nearly all of them different.
        steps: of one extension of an empty forest, of a walk on a grid.
        nodes: of the tree that is read.
        seed: of all random numbers.
    """

    keys: int = 1_000_000
    steps: int = 300
    nodes: int = 1000
    seed: int = 0


WORK = TreeWorkload()


def keys_of(work: TreeWorkload) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Random keys int32 [keys]."""
    return np.random.default_rng(work.seed).integers(-(2**31), 2**31, work.keys).astype(np.int32)


def walk(work: TreeWorkload) -> dict[str, Any]:
    """The steps of a walk on a grid, in TED."""
    rng = np.random.default_rng(work.seed)
    moves = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])
    action = rng.integers(4, size=work.steps)
    cells = np.zeros((work.steps + 1, 2), np.int64)
    for t in range(work.steps):
        cells[t + 1] = np.clip(cells[t] + moves[action[t]], 0, 30)
    return _steps(cells[:-1], action, cells[1:])


def branches(work: TreeWorkload) -> dict[str, Any]:
    """The steps of a tree whose nodes have up to `ACTIONS` children, in TED."""
    rng = np.random.default_rng(work.seed)
    number = np.arange(1, work.nodes)
    parent = np.array([rng.integers(max(0, k - 40), k) for k in number])
    taken: dict[int, int] = {}
    action = []
    for up in parent.tolist():
        action.append(taken.get(up, 0))
        taken[up] = action[-1] + 1
    both = (np.stack([x, 7 * x % 13], 1) for x in (parent, number))
    before, after = both
    return _steps(before, np.array(action), after)


def _steps(before: Any, action: Any, after: Any) -> dict[str, Any]:
    done = np.zeros(len(before), bool)
    return frb.ted.from_transitions(before, action, np.ones(len(before), np.float32), after, done=done)


def roster(work: TreeWorkload, backend: Backend, group: Group) -> list[Entry]:
    """Everyone who takes part in one group."""
    if group in tree_search.SIMULATIONS:
        searches = {ours.NAME: tree_search.of_ours, "mctx": tree_search.of_mctx}
        return [Entry(name, backend, group, partial(build, name, group, backend)) for name, build in searches.items()]
    builders: dict[str, Callable[..., Calls]]
    if group == "maps":
        builders = {ours.NAME: of_maps, DICT: of_dict}
    elif group == "forests":
        builders = {ours.NAME: of_forest, "torchrl": of_torchrl_forest}
    else:
        builders = {ours.NAME: of_reading, "torchrl": of_torchrl_reading}
    return [Entry(name, backend, group, partial(build, name, work, backend)) for name, build in builders.items()]


def trees(
    work: TreeWorkload,
    effort: Effort,
    *,
    groups: Iterable[tuple[Backend, Group]] = GROUPS,
    entries: Callable[[TreeWorkload, Backend, Group], list[Entry]] = roster,
    say: Callable[[str], None] = print,
) -> Section:
    """Measure one group after the other; who cannot run is named with the reason."""
    built: dict[tuple[Backend, AnySampler], Callable[[], list[Entry]]] = {
        (backend, group): partial(entries, work, backend, group) for backend, group in groups
    }
    return measure(built, tree_comparisons(), effort, say=say)


def text(section: Section, work: TreeWorkload) -> str:
    """The section in Markdown: what was measured, ratios and medians, and who did not run."""
    about = (
        f"{work.keys:,} random int32 keys are put into an empty map of that capacity; a dict gets them as Python ints, "
        f"by `setdefault`, without counts. {work.steps} steps of a walk on a grid of 31 by 31 cells extend an empty "
        f"forest. A tree of {work.nodes:,} nodes is made of a forest, compact, and read. {tree_search.BATCH} trees of "
        f"{tree_search.SLOTS} actions are searched from a new root each time, with the group's number of simulations."
    )
    who = [
        f"- {ours.NAME}: `rb.add` and `rb.trees.view`, eagerly, all of them pure",
        "- torchrl: `MCTSForest().extend`, `get_tree`, and the methods `valid_paths`, `vertices` and `edges` of `Tree`",
        "- searches, compiled: `rb.trees.search` with the policies `MuZero()` and `GumbelMuZero()`, and mctx's two",
    ]
    return ratios_text(about, "\n".join(who), section)


def of_maps(name: str, work: TreeWorkload, backend: Backend) -> Calls:
    """A map of either backend."""
    import importlib

    rb = importlib.import_module(f"{backend}_backend")
    empty = rb.init(frb.HashMapSpec(frb.Unbounded((), "int32"), work.keys))
    keys = rb.lib.LIB.convert(keys_of(work), frb.Unbounded((work.keys,), "int32"), "keys")

    def insert() -> None:
        made, inserted = rb.add(empty, keys)
        if backend == "jax":
            made.counters.block_until_ready()
            inserted.ids.block_until_ready()

    return Calls(name, backend, "maps", {"insert": insert})


def of_dict(name: str, work: TreeWorkload, backend: Backend) -> Calls:
    """Python's dict, from key to number."""
    keys = keys_of(work).tolist()

    def insert() -> None:
        ids: dict[int, int] = {}
        for key in keys:
            ids.setdefault(key, len(ids))

    return Calls(name, backend, "maps", {"insert": insert})


def _spec(capacity: int) -> frb.trees.ForestSpec:
    return frb.trees.ForestSpec(frb.Unbounded((2,), "int64"), frb.Unbounded((), "int64"), capacity, ACTIONS)


def _tensors(steps: Any) -> Any:
    import torch

    return {k: _tensors(v) if isinstance(v, dict) else torch.from_numpy(np.array(v)) for k, v in steps.items()}


def of_forest(name: str, work: TreeWorkload, backend: Backend) -> Calls:
    """A forest on torch."""
    import torch_backend as rb

    empty, steps = rb.init(_spec(1000)), _tensors(walk(work))
    return Calls(name, backend, "forests", {"extend": lambda: rb.add(empty, steps)})


def of_reading(name: str, work: TreeWorkload, backend: Backend) -> Calls:
    """A tree of a forest on torch."""
    import torch_backend as rb

    forest = rb.add(rb.init(_spec(work.nodes)), _tensors(branches(work)))
    root = np.zeros(2, np.int64)
    tree = rb.trees.view(forest, root, compact=True)
    calls = {
        "tree": lambda: rb.trees.view(forest, root, compact=True),
        "paths": lambda: list(tree.valid_paths()),
        "vertices": lambda: dict(tree.vertices(key_type="id").items()),
        "edges": lambda: tree.edges().tolist(),
    }
    return Calls(name, backend, "reading", calls)


def _rollout(steps: Any) -> Any:
    from tensordict import TensorDict

    rows = _tensors(steps)
    count = len(rows["action"])

    def with_flags(part: Any) -> Any:
        return {k: x[:, None] if k in ("reward", "done", "terminated", "truncated") else x for k, x in part.items()}

    return TensorDict({**with_flags(rows), "next": TensorDict(with_flags(rows["next"]), [count])}, [count])


def of_torchrl_forest(name: str, work: TreeWorkload, backend: Backend) -> Calls:
    """torchrl's forest."""
    from torchrl.data import MCTSForest

    rollout = _rollout(walk(work))
    return Calls(name, backend, "forests", {"extend": lambda: MCTSForest().extend(rollout)})


def of_torchrl_reading(name: str, work: TreeWorkload, backend: Backend) -> Calls:
    """A tree of torchrl's forest."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import MCTSForest

    forest = MCTSForest()
    forest.extend(_rollout(branches(work)))
    root = TensorDict({"observation": torch.zeros(2, dtype=torch.int64)}, [])
    tree = forest.get_tree(root)
    calls = {
        "tree": lambda: forest.get_tree(root),
        "paths": lambda: list(tree.valid_paths()),
        "vertices": tree.vertices,
        "edges": tree.edges,
    }
    return Calls(name, backend, "reading", calls)
