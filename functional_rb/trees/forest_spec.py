"""The static description of a forest, which every forest carries."""

from __future__ import annotations

import dataclasses

from functional_rb.base.arrays import Nest
from functional_rb.base.description import Description
from functional_rb.base.dtypes import checked_count
from functional_rb.hash_maps.spec import arrays_alone, expected, rows_of
from functional_rb.specs import freeze
from functional_rb.specs.values import Outline
from functional_rb.structures import hash_map
from functional_rb.structures.expected import Expected
from functional_rb.structures.hash_map import MapPlan
from functional_rb.structures.key_rows import KeyRows


@dataclasses.dataclass(frozen=True, eq=False)
class ForestSpec(Description):
    """What a forest holds: frozen and hashable, without any array.

    Attributes:
        observation: a nest of `ArraySpec`s. Of a step in TED it is the leaf "observation"; a dict is the leaves of its
            names, such as `{"position": ..., "pixels": ...}`.
        action: a nest of `ArraySpec`s.
        capacity: N, how many different observations fit.
        children: room for edges: the forest has `N * children` edges (an observation and an action), wherever they
            are.
        seed: the seed of the hash, a whole number.
        hash_bits: how many bits the hash has, up to 31; fewer let different observations begin to look in the same
            place, which costs time.
        outcomes: room for results: the forest has `N * outcomes` results (an edge and where it led); as many as edges
            if None, which is enough unless the environment is random.
        observations: derived: the observation, taken apart.
        actions: derived: the action, taken apart.
        node_rows: derived: how observations are packed.
        action_rows: derived: how actions are packed.
        nodes: derived: the geometry of the map of nodes.
        edges: derived: that of the map of edges, by node and action.
        results: derived: that of the map of results, by edge and node.
        arrays: derived: shapes and dtypes of a forest's arrays, one after another.

    Raises:
        TypeError: if a leaf is no spec of an array, or a number is no int.
        ValueError: if a number is out of range, or the observation has no element.

    Example:
        >>> from functional_rb import Categorical, Unbounded
        >>> spec = ForestSpec(Unbounded((2,), "int32"), Categorical(4), capacity=1000, children=4)
        >>> spec.edges.capacity
        4000
    """

    observation: Nest
    action: Nest
    capacity: int
    children: int
    seed: int = 0
    hash_bits: int = hash_map.HASH_BITS
    outcomes: int | None = None

    observations: Outline = dataclasses.field(init=False, repr=False)
    actions: Outline = dataclasses.field(init=False, repr=False)
    node_rows: KeyRows = dataclasses.field(init=False, repr=False)
    action_rows: KeyRows = dataclasses.field(init=False, repr=False)
    nodes: MapPlan = dataclasses.field(init=False, repr=False)
    edges: MapPlan = dataclasses.field(init=False, repr=False)
    results: MapPlan = dataclasses.field(init=False, repr=False)
    arrays: tuple[Expected, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The capacity first, as the bounds of the others depend on it.
        self._put(capacity=checked_count("ForestSpec.capacity", self.capacity, 1, hash_map.MOST))
        self._put(
            children=checked_count("ForestSpec.children", self.children, 1, hash_map.MOST // self.capacity),
            hash_bits=checked_count("ForestSpec.hash_bits", self.hash_bits, 0, hash_map.HASH_BITS),
            seed=checked_count("ForestSpec.seed", self.seed, -(2**63), 2**64 - 1),
            observations=arrays_alone(self.observation, "ForestSpec.observation"),
            actions=arrays_alone(self.action, "ForestSpec.action"),
            observation=freeze(self.observation),
            action=freeze(self.action),
        )
        self._put(node_rows=rows_of(self.observations), action_rows=rows_of(self.actions))
        if not self.node_rows.words or not self.action_rows.words:
            raise ValueError("ForestSpec: expected at least one element in an observation, and in an action, got none")
        if self.outcomes is not None:
            self._put(outcomes=checked_count("ForestSpec.outcomes", self.outcomes, 1, hash_map.MOST // self.capacity))
        most = self.capacity * self.children
        results = self.capacity * (self.outcomes or self.children)
        self._put(
            nodes=MapPlan(self.capacity, self.node_rows.words, self.seed, self.hash_bits),
            edges=MapPlan(most, 1 + self.action_rows.words, self.seed, self.hash_bits),
            results=MapPlan(results, 2, self.seed, self.hash_bits),
        )
        maps = (("nodes", self.nodes), ("edges", self.edges), ("results", self.results))
        vectors = (
            Expected("visits", (self.capacity,), "int32"),
            Expected("terminations", (self.capacity,), "int32"),
            Expected("edge_rewards", (most,), "float32"),
            Expected("result_rewards", (results,), "float32"),
            Expected("refused", (), "int32"),
        )
        self._put(arrays=(*(array for name, plan in maps for array in expected(plan, f"{name}.")), *vectors))
        self._seal()

    @property
    def _key(self) -> tuple[object, ...]:
        rooms = self.capacity, self.children, self.results.capacity
        return self.observations, self.actions, *rooms, self.seed, self.hash_bits

    @property
    def node_bytes(self) -> int:
        """Bytes that a node takes, with its `children` edges and its share of the results."""
        # Words of 4 bytes: of an entry of each map its key, its count, and its share of the table by hash. Beside these
        # a node has two numbers (visits, terminations), and an edge and a result one each, the sum of rewards.
        words = [plan.words + 1 + plan.table_size / plan.capacity for plan in (self.nodes, self.edges, self.results)]
        outcomes = self.outcomes or self.children
        return round(4 * (words[0] + 2 + self.children * (words[1] + 1) + outcomes * (words[2] + 1)))
