"""Forests of another size, and two forests as one; the public functions, which backends bind."""

from __future__ import annotations

import functools

from functional_rb.hash_maps.functions import known_size
from functional_rb.lib import A, Lib
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import hash_map
from functional_rb.structures.ring import saturating_add
from functional_rb.trees.forest import MAPS, Forest, ForestArrays, check_forest_sizes
from functional_rb.trees.forest_spec import ForestSpec


def with_spec(lib: Lib[A], forest: Forest, spec: ForestSpec) -> Forest:
    """A forest in arrays of another size: with more room for nodes, edges or results, or with less.

    Nodes, edges and results keep their numbers and all that was counted.

    Args:
        forest: stays as it is.
        spec: one with the same observations and actions; capacity, children, outcomes, seed and hash_bits may differ.

    Returns:
        The new forest.

    Raises:
        TypeError: for what is no forest, or no `ForestSpec`.
        ValueError: for other observations or actions, or too little room; while that is traced, for less of it.

    Example:
        >>> spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=2, children=2)
        >>> before, action, after = (np.array(x, np.int32) for x in ([0, 1], [0, 0], [1, 2]))
        >>> steps = frb.ted.from_transitions(before, action, np.ones(2, np.float32), after, done=np.zeros(2, bool))
        >>> forest = rb.add(rb.init(spec), steps)
        >>> larger = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=10, children=2)
        >>> larger = rb.with_spec(forest, larger)
        >>> int(rb.size(forest)), int(rb.size(rb.add(larger, steps)))
        (2, 3)
    """
    who = "with_spec"
    check_forest_sizes(lib, forest, who)
    if not isinstance(spec, ForestSpec):
        raise TypeError(f"{who}: expected a ForestSpec, got {type(spec).__name__}")
    _check_alike(forest.spec, spec, who)
    for name in MAPS:
        room, map = getattr(spec, name).capacity, getattr(forest.arrays, name)
        size = known_size(lib, map.counters, getattr(forest.spec, name).capacity)
        if size > room:
            raise ValueError(f"{who}: expected room for {size} {name}, got a spec for {room}; give more, or begin anew")
    return Forest(lib.carry_out(_moved, spec, (), forest.arrays), spec)


def merge(lib: Lib[A], forest: Forest, other: Forest) -> Forest:
    who = "merge"
    for one in (forest, other):
        check_forest_sizes(lib, one, who)
    _check_alike(forest.spec, other.spec, who)
    arrays = lib.carry_out(_merged, forest.spec, forest.arrays, other.arrays)
    return Forest(arrays, forest.spec)


def _check_alike(spec: ForestSpec, other: ForestSpec, who: str) -> None:
    for name, ours, theirs in (
        ("observations", spec.observations, other.observations),
        ("actions", spec.actions, other.actions),
    ):
        if ours != theirs:
            raise ValueError(f"{who}: expected the same {name}, {ours!r:.200}, got {theirs!r:.200}")


def _moved(ops: Ops, spec: ForestSpec, owned: object, arrays: ForestArrays) -> ForestArrays:
    return ForestArrays(
        hash_map.moved(ops, spec.nodes, arrays.nodes),
        hash_map.moved(ops, spec.edges, arrays.edges),
        hash_map.moved(ops, spec.results, arrays.results),
        _resized(ops, arrays.visits, spec.capacity),
        _resized(ops, arrays.terminations, spec.capacity),
        _resized(ops, arrays.edge_rewards, spec.edges.capacity),
        _resized(ops, arrays.result_rewards, spec.results.capacity),
        arrays.refused + 0,
    )


def _resized(ops: Ops, x: Array, room: int) -> Array:
    # In memory of its own: the older forest keeps its array.
    more = ops.take(x[:1] * 0, ops.arange(max(room - x.shape[0], 0), like=x) * 0)
    return ops.concat([x[:room], more], 0)


def _merged(ops: Ops, spec: ForestSpec, arrays: ForestArrays, other: ForestArrays) -> ForestArrays:
    def at(numbers: Array, where: Array) -> Array:
        """The new numbers of the entries whose old numbers are `where`."""
        nothing = ops.full_like(where, 0)
        return ops.take(numbers, ops.minimum(ops.maximum(where, nothing), nothing + (numbers.shape[0] - 1)))

    def add(array: Array, places: Array, amounts: Array) -> Array:
        """An array with amounts added at places; a place of -1 takes nothing."""
        nothing = ops.full_like(places, 0)
        return ops.add_at(array, ops.maximum(places, nothing), ops.where(places < 0, amounts * 0, amounts))

    # Nodes first: the keys of edges and results name them by their numbers, which are others in the merged forest.
    is_node = hash_map.live(ops, other.nodes)
    nodes, node = hash_map.taken_in(ops, spec.nodes, arrays.nodes, other.nodes.keys, other.nodes.counts, is_node)
    keys = other.edges.keys
    start = at(node, keys[:, 0])
    rows = ops.concat([start[:, None], keys[:, 1:]], 1)
    is_edge = hash_map.live(ops, other.edges) & (start >= 0)
    edges, edge = hash_map.taken_in(ops, spec.edges, arrays.edges, rows, other.edges.counts, is_edge)
    keys = other.results.keys
    on, end = at(edge, keys[:, 0]), at(node, keys[:, 1])
    rows, was = ops.concat([on[:, None], end[:, None]], 1), hash_map.live(ops, other.results)
    is_result = was & (on >= 0) & (end >= 0)
    counts = other.results.counts
    results, result = hash_map.taken_in(ops, spec.results, arrays.results, rows, counts, is_result)
    # What is summed over the steps of a node or an edge follows from the results that found room.
    nowhere = ops.full_like(result, -1)
    from_node = ops.where(result < 0, nowhere, at(start, keys[:, 0]))
    of_edge = ops.where(result < 0, nowhere, on)
    left_out = ops.cumsum(ops.where(was & (result < 0), counts, ops.full_like(counts, 0)))[-1]
    refused = functools.reduce(functools.partial(saturating_add, ops), [arrays.refused, other.refused, left_out])
    return ForestArrays(
        nodes,
        edges,
        results,
        add(arrays.visits, from_node, counts),
        add(arrays.terminations, node, other.terminations),
        add(arrays.edge_rewards, of_edge, other.result_rewards),
        add(arrays.result_rewards, result, other.result_rewards),
        refused,
    )
