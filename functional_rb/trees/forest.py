"""Forests as values, and the public functions on them, which backends bind. Each takes a `Lib` first.

A forest is what was seen of an environment: equal observations are one node, equal pairs of an observation and an
action one edge, and where an edge led is a result of it, of which there are several where the environment is random.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from functional_rb.base import dtypes, nest
from functional_rb.base.arrays import ArrayLike, BackendArray, DeviceLike, Nest, NumpyArray
from functional_rb.base.containers import add_rule, register_record
from functional_rb.base.description import Described, refuse
from functional_rb.base.steps import ACTION, NEXT, OBSERVATION, REWARD
from functional_rb.core import soundness
from functional_rb.hash_maps.functions import check_arrays, check_sizes, checked_mask, packed
from functional_rb.lib import A, Lib, library_of
from functional_rb.ops.protocol import Array, Ops
from functional_rb.public.structures import called_on
from functional_rb.specs.array import Binary, Unbounded
from functional_rb.specs.functions import as_batch, outline_of
from functional_rb.specs.values import Outline
from functional_rb.structures import hash_map, key_rows
from functional_rb.structures.expected import problem_of_stack
from functional_rb.structures.hash_map import SIZE, HashTable
from functional_rb.ted.check import named_parts
from functional_rb.trees.forest_spec import ForestSpec


class ForestArrays(NamedTuple):
    """The arrays of a forest; N nodes, and room for E edges and R results."""

    nodes: HashTable  # the map of observations; a node's number is that of its observation
    # The map of edges: the number of the node, then the packed action. How often it was taken is its count.
    edges: HashTable
    results: HashTable  # the map of results: the number of the edge, then that of the node where it led, with its count
    visits: BackendArray  # int32 [N], how many steps began in each node
    terminations: Array  # int32 [N], how many steps that ended an episode by its rules led to each node
    edge_rewards: Array  # float32 [E], the sum of the rewards of each edge
    result_rewards: Array  # float32 [R], the sum of the rewards of each result
    refused: BackendArray  # int32 scalar, how many steps were not taken in, for want of room


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Forest(Described):
    """A forest as a value: an immutable pytree of arrays that carries its spec.

    Attributes:
        arrays: what was seen.
        spec: the description of the forest, static.
    """

    arrays: ForestArrays
    spec: ForestSpec

    def merge(self, other: Forest) -> Forest:
        """The forest of the steps of both, such as those of two processes.

        The result is that of taking the steps of the other into this one, after its own, with its spec: what this one
        has keeps its numbers. For which steps there is no room, they are refused and counted.

        Args:
            other: of the same observations and actions. Both stay as they are.

        Raises:
            TypeError: for what is no forest, or that of another backend.
            ValueError: for a forest of other observations or actions.

        Example:
            >>> spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=10, children=2)
            >>> def walk(start):
            ...     steps = frb.ted.from_transitions(
            ...         np.int32(start), np.int32(0), np.float32(1), np.int32(start + 1), np.bool_(False))
            ...     return rb.add(rb.init(spec), steps)
            >>> rb.lookup(walk(0).merge(walk(1)), np.array([0, 1, 2], np.int32)).tolist()
            [0, 1, 2]
        """
        lib = library_of(self.arrays.refused)
        if lib is None:
            raise TypeError("merge: expected a forest of a backend; bring it over by rb.from_dlpack(forest)")
        forest: Forest = lib.around(called_on(self, "merge"))(lib, self, other)
        return forest

    def __repr__(self) -> str:
        return f"Forest({self.spec!r})"


FOREST_FIELDS: Final = ("arrays",)
MAPS: Final = ("nodes", "edges", "results")
PER_MAP: Final = len(HashTable._fields)


def arrays_of(forest: Forest) -> list[Array]:
    nodes, edges, results, *vectors = forest.arrays
    return [*nodes, *edges, *results, *vectors]


def problem(forest: Any) -> str | None:
    """Why a forest, or a stack of them, of NumPy's arrays cannot be one; or None.

    Edges begin at nodes that are there, and results at edges, and lead to nodes.
    """
    if not isinstance(forest.spec, ForestSpec):
        return f"its spec is that of no forest but {forest.spec!r:.60}"
    try:
        arrays = arrays_of(forest)
    except (TypeError, ValueError):
        return "its arrays are none of a forest"
    spec = forest.spec
    if len(arrays) != len(spec.arrays):
        return f"it has {len(arrays)} arrays, and its spec {len(spec.arrays)}"

    def of_one(arrays: Sequence[BackendArray]) -> str | None:
        maps = [HashTable(*arrays[PER_MAP * k : PER_MAP * (k + 1)]) for k in range(len(MAPS))]
        for name, map in zip(MAPS, maps, strict=True):
            if problem := hash_map.problem(getattr(spec, name), map):
                return f"its {name}: {problem}"
        sizes = [int(map.counters[SIZE]) for map in maps]
        return problem_of_links(sizes, np.asarray(maps[1].keys), np.asarray(maps[2].keys))

    return problem_of_stack(spec.arrays, arrays, of_one)


def problem_of_links(sizes: Sequence[int], edges_keys: NumpyArray, results_keys: NumpyArray) -> str | None:
    """Why edges int32 [E, W] and results int32 [R, 2] do not lie between nodes that are there; or None.

    `sizes` are the numbers of nodes, edges and results, as many as fit or fewer.
    """
    nodes, edges, results = sizes
    starts, ends = edges_keys[:edges, 0], results_keys[:results]
    return (
        soundness.problem_of_range("the node where an edge begins", starts, 0, nodes - 1)
        or soundness.problem_of_range("the edge of a result", ends[:, 0], 0, edges - 1)
        or soundness.problem_of_range("the node where a result leads", ends[:, 1], 0, nodes - 1)
    )


register_record(Forest, FOREST_FIELDS)
add_rule(Forest, problem)
# What NumPy rounds to float32; a tuple, because torch.compile does not trace unions of types.
HOST: Final = (np.ndarray, np.generic, float, int)


def init(lib: Lib[A], spec: ForestSpec, device: DeviceLike = None, items: None = None) -> Forest:
    """An empty forest.

    Args:
        spec: what the forest holds.
        device: where its arrays live; the backend's default if None.
        items: refused; `add` takes steps in.

    Raises:
        TypeError: for what is no `ForestSpec`, or a dtype that the backend lacks.

    Example:
        >>> spec = frb.trees.ForestSpec(frb.Unbounded((2,), "int32"), frb.Categorical(4), capacity=100, children=4)
        >>> int(rb.size(rb.init(spec)))
        0
    """
    refuse("init", spec, items=items)
    outline_of(lib, spec.observation, "init")
    outline_of(lib, spec.action, "init")
    ops = lib.ops

    def zeros(dtype: str, *shape: int) -> Array:
        return ops.zeros(shape, dtype, device)

    nodes, edges, results = (hash_map.init(ops, plan, device) for plan in (spec.nodes, spec.edges, spec.results))
    visits, terminations = zeros("int32", spec.capacity), zeros("int32", spec.capacity)
    rewards = zeros("float32", spec.edges.capacity), zeros("float32", spec.results.capacity)
    return Forest(ForestArrays(nodes, edges, results, visits, terminations, *rewards, zeros("int32")), spec)


def add(lib: Lib[A], forest: Forest, steps: object, mask: ArrayLike = None) -> Forest:
    """Take steps into a forest; the result is that of taking them in one by one, in their order.

    A step is refused, and counted, if its observations, its edge or its result find no room. What of them had found
    room stays.

    Args:
        forest: stays as it is.
        steps: in TED, leaves with any axes in front: one step, a batch, the items of a buffer, trajectories [B, T],
            lanes [T, E]. Of "next" the observation, the reward (rounded to float32) and "terminated" are read.
        mask: bool in the shape of the axes in front, which steps are real; all if None.

    Returns:
        The new forest.

    Raises:
        TypeError: for what is no forest, or a dtype that does not fit, naming the leaf.
        ValueError: for a structure or shape that does not fit.

    Example:
        >>> spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=100, children=2)
        >>> before, action, after = (np.array(x, np.int32) for x in ([0, 1, 0, 0], [1, 0, 1, 1], [1, 2, 1, 3]))
        >>> done, reward = np.array([False, True, False, True]), np.ones(4, np.float32)
        >>> forest = rb.init(spec)
        >>> forest = rb.add(forest, frb.ted.from_transitions(before, action, reward, after, done))
        >>> int(rb.size(forest)), rb.visits(forest, np.int32(0), np.int32(1)).item()
        (4, 3)
    """
    return _add(lib, "add", forest, steps, mask, None)


def add_(lib: Lib[A], forest: Forest, steps: object, mask: ArrayLike = None) -> Forest:
    """Take steps into a forest as `add` does, but in the forest's own memory, so that the forest is consumed.

    Args:
        forest: consumed.
        steps: as for `add`.
        mask: as for `add`.

    Returns:
        The new forest.

    Raises:
        RuntimeError: for a forest that was consumed before.
    """
    return _add(lib, "add_", forest, steps, mask, (forest, "arrays"))


def _add(
    lib: Lib[A], who: str, forest: Forest, steps: object, mask: ArrayLike, consume: tuple[Forest, str] | None
) -> Forest:
    check_forest_sizes(lib, forest, who)
    spec = forest.spec
    root = named_parts(steps, who)
    for name in (ACTION, NEXT):
        if name not in root:
            raise ValueError(f"{who}: expected steps in TED, with {name!r}, got {list(root)}; see frb.ted")
    following = named_parts(root[NEXT], who, "the part 'next'")
    before, lead = _leaves(lib, spec.observations, _observation(spec, root, who))
    after, led_to = _leaves(lib, spec.observations, _observation(spec, following, who))
    actions, taken = _leaves(lib, spec.actions, root[ACTION])
    reward = _number(lib, following, REWARD, lead, who)
    terminated = _number(lib, following, "terminated", lead, who)
    if not lead == led_to == taken:
        raise ValueError(
            f"{who}: expected observation, next observation and action with the same axes in front, got {lead}, "
            f"{led_to} and {taken}"
        )
    marked = checked_mask(lib, mask, lead, who)
    arguments = before, after, actions, reward, terminated, marked
    return Forest(lib.carry_out(_extended, spec, forest.arrays, *arguments, consume=consume), spec)


def _observation(spec: ForestSpec, parts: Mapping[str, object], who: str) -> object:
    structure = spec.observations.structure
    names = structure.keys if structure.kind == "mapping" else (OBSERVATION,)
    missing = [name for name in names if name not in parts]
    if missing:
        raise ValueError(f"{who}: expected the observation's leaves {list(names)} in the steps, got {list(parts)}")
    return {name: parts[str(name)] for name in names} if structure.kind == "mapping" else parts[OBSERVATION]


def _leaves(lib: Lib[A], outline: Outline, value: Nest) -> tuple[list[Array], tuple[int, ...]]:
    return as_batch(lib, outline, nest.flatten_as(outline.structure, value))


def _number(lib: Lib[A], parts: Mapping[str, Nest], name: str, lead: tuple[int, ...], who: str) -> Array:
    if name not in parts:
        raise ValueError(f"{who}: expected {name!r} in 'next' of the steps, got {list(parts)}; see frb.ted")
    value = parts[name]
    if name == REWARD:
        if isinstance(value, HOST):
            value = np.asarray(value, np.float32)
        # What is no array has no dtype, and is refused below as any leaf is.
        spec: object = Unbounded((), dtypes.name_of(value.dtype) if hasattr(value, "dtype") else "float32")
    else:
        spec = Binary(())
    number = lib.convert(value, spec, f"next/{name}")
    if tuple(number.shape) not in (lead, (*lead, 1)):
        raise ValueError(f"{who}: leaf 'next/{name}': expected shape {lead} or {(*lead, 1)}, got {tuple(number.shape)}")
    return number.reshape(math.prod(lead))


def _extended(
    ops: Ops,
    spec: ForestSpec,
    arrays: ForestArrays,
    before: list[Array],
    after: list[Array],
    actions: list[Array],
    reward: Array,
    terminated: Array,
    mask: Array | None,
) -> ForestArrays:
    # A result needs its edge, and an edge its two nodes: each map is only asked to hold what the one before has.
    steps = ops.cast(terminated, "int32")
    count, words = steps.shape[0], spec.node_rows.words
    pairs = [key_rows.pack(ops, spec.node_rows, leaves, steps) for leaves in (before, after)]
    rows = ops.concat(pairs, 1).reshape(2 * count, words)  # each step's own two, one after the other
    marked = None if mask is None else ops.concat([mask[:, None], mask[:, None]], 1).reshape(2 * count)
    # Both observations of each step in one call, so that nodes are numbered in the order in which they came.
    nodes, ids, _ = hash_map.insert(ops, spec.nodes, arrays.nodes, rows, marked)
    ids = ids.reshape(count, 2)
    start, end = ids[:, 0], ids[:, 1]
    rows = ops.concat([start[:, None], key_rows.pack(ops, spec.action_rows, actions, steps)], 1)
    edges, edge, _ = hash_map.insert(ops, spec.edges, arrays.edges, rows, (start >= 0) & (end >= 0))
    rows = ops.concat([edge[:, None], end[:, None]], 1)
    results, result, _ = hash_map.insert(ops, spec.results, arrays.results, rows, edge >= 0)
    whole = result >= 0
    refused = ~whole if mask is None else mask & ~whole

    def add(array: Array, places: Array, amounts: Array) -> Array:
        nothing = ops.full_like(places, 0)
        return ops.add_at(array, ops.maximum(places, nothing), ops.where(whole, amounts, ops.full_like(amounts, 0)))

    # What is summed counts whole steps alone, whose result has found room.
    one, rewards = ops.full_like(steps, 1), ops.cast(reward, "float32")
    return ForestArrays(
        nodes,
        edges,
        results,
        add(arrays.visits, start, one),
        add(arrays.terminations, end, steps),
        add(arrays.edge_rewards, edge, rewards),
        add(arrays.result_rewards, result, rewards),
        arrays.refused + ops.count(refused),
    )


def lookup(lib: Lib[A], forest: Forest, observation: object) -> A:
    check_forest_sizes(lib, forest, "lookup")
    spec = forest.spec
    rows, lead = packed(lib, spec.observations, spec.node_rows, observation)
    ids: BackendArray = lib.carry_out(_found, spec, (), forest.arrays.nodes, rows)
    return ids.reshape(lead)


def _found(ops: Ops, spec: ForestSpec, owned: object, nodes: HashTable, rows: Array) -> Array:
    return hash_map.lookup(ops, spec.nodes, nodes, rows)


def visits(lib: Lib[A], forest: Forest, observation: object, action: object = None) -> A:
    check_forest_sizes(lib, forest, "visits")
    spec, arrays = forest.spec, forest.arrays
    rows, lead = packed(lib, spec.observations, spec.node_rows, observation)
    actions = None
    if action is not None:
        actions, taken = packed(lib, spec.actions, spec.action_rows, action)
        if taken != lead:
            raise ValueError(f"visits: expected actions with the axes {lead} in front, got {taken}")
    counts: BackendArray = lib.carry_out(_counted, spec, (), arrays.nodes, arrays.edges, arrays.visits, rows, actions)
    return counts.reshape(lead)


def _counted(
    ops: Ops,
    spec: ForestSpec,
    owned: object,
    nodes: HashTable,
    edges: HashTable,
    visits: Array,
    rows: Array,
    actions: Array | None,
) -> Array:
    number, counts = hash_map.lookup(ops, spec.nodes, nodes, rows), visits
    if actions is not None:
        number = hash_map.lookup(ops, spec.edges, edges, ops.concat([number[:, None], actions], 1))
        counts = edges.counts
    nothing = ops.full_like(number, 0)
    return ops.where(number < 0, nothing, ops.take(counts, ops.maximum(number, nothing)))


def size(lib: Lib[A], forest: Forest) -> A:
    """How many nodes, that is, different observations, a forest has, an int32 scalar."""
    check_forest(lib, forest, "size")
    counters: BackendArray = forest.arrays.nodes.counters
    return counters[..., SIZE]


def refused(lib: Lib[A], forest: Forest) -> A:
    """How many steps a forest has not taken in for want of room, an int32 scalar."""
    check_forest(lib, forest, "counts")
    return forest.arrays.refused


def check_forest(lib: Lib[A], forest: object, who: str) -> None:
    """Refuse what is no forest of the backend, or was consumed."""
    if not isinstance(forest, Forest):
        raise TypeError(f"{who}: expected a Forest made by rb.init, got {type(forest).__name__}")
    check_arrays(lib, getattr(forest.arrays, "refused", None), who, "forest")


def check_forest_sizes(lib: Lib[A], forest: Forest, who: str) -> None:
    """Refuse, as `check_forest` does, and a forest with an array that is none of its spec, by which kernels go."""
    check_forest(lib, forest, who)
    check_sizes(lib, forest.spec.arrays, arrays_of(forest), who)
