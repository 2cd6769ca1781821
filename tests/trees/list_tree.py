"""A plain model of a search tree: lists and dicts, one node and one number after the other."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

import functional_rb as frb

# How much worse than the best the slot may be that the library chooses: its numbers are of 32 bits.
TOLERANCE = 1e-4


@dataclasses.dataclass
class Game:
    """A small world of numbered states: what a model tells of each, and where each action leads."""

    following: np.ndarray
    reward: np.ndarray
    value: np.ndarray
    prior: np.ndarray
    valid: np.ndarray
    terminal: np.ndarray
    discount: float
    chance: np.ndarray | None = None

    @classmethod
    def random(
        cls, seed: int, states: int, slots: int, discount: float, ties: bool, bad: bool = False, chance: bool = False
    ) -> Game:
        """Where it is bad, a quarter of the numbers are NaN or infinite; with chance, half of the states are its."""
        numbers = np.random.default_rng(seed)

        def floats(*shape: int) -> np.ndarray:
            drawn = numbers.normal(size=shape) if not ties else numbers.integers(-1, 2, shape)
            if bad:
                drawn = np.where(numbers.random(shape) < 0.25, numbers.choice([np.nan, np.inf, -np.inf], shape), drawn)
            return drawn.astype(np.float32)

        return cls(
            following=numbers.integers(0, states, (states, slots)).astype(np.int32),
            reward=floats(states, slots),
            value=floats(states),
            prior=floats(states, slots),
            valid=numbers.random((states, slots)) < 0.7,
            terminal=numbers.random(states) < 0.15,
            discount=discount,
            chance=numbers.random(states) < 0.5 if chance else None,
        )

    def tables(self) -> dict[str, np.ndarray]:
        return {name: x for name, x in vars(self).items() if isinstance(x, np.ndarray)}


def expansion(tables: Any, state: Any, before: Any, action: Any, discount: float) -> frb.trees.Expansion:
    """What a model tells of states, reached from others by actions, on any library of arrays."""
    return frb.trees.Expansion(
        node={"state": state},
        prior=tables["prior"][state],
        value=tables["value"][state],
        reward=0.0 if before is None else tables["reward"][before, action],
        discount=discount,
        valid=tables["valid"][state],
        terminal=tables["terminal"][state],
        chance=tables["chance"][state] if "chance" in tables else None,
    )


@dataclasses.dataclass
class Edge:
    reward: float = 0.0
    discount: float = 0.0
    values: list[float] = dataclasses.field(default_factory=list)
    log_weight: float = 0.0

    @property
    def visits(self) -> int:
        return len(self.values)

    @property
    def value(self) -> float:
        return float(np.mean(self.values)) if self.values else 0.0

    @property
    def q(self) -> float:
        return self.reward + self.discount * self.value

    @property
    def squares(self) -> float:
        return float(np.mean([(self.reward + self.discount * x) ** 2 for x in self.values])) if self.values else 0.0


@dataclasses.dataclass
class Node:
    state: int
    parent: int
    slot: int
    depth: int
    prediction: float
    terminal: bool
    prior: list[float]
    valid: list[bool]
    edges: list[Edge]
    chance: bool
    values: list[float] = dataclasses.field(default_factory=list)
    children: dict[int, int] = dataclasses.field(default_factory=dict)


class ListTree:
    """One tree of a `Game`.

    Attributes:
        nodes: in the order in which they were stored.
        capacity: how many fit.
        refused: how many did not.
        rejected: how many numbers of the game were NaN or infinite.
        seen: the Q values that were backed up.
    """

    def __init__(self, game: Game, state: int, capacity: int) -> None:
        self.game, self.capacity = game, capacity
        self.nodes: list[Node] = []
        self.refused, self.rejected, self.seen = 0, 0, list[float]()
        self.rejected += sum(
            ok and not x < math.inf for x, ok in zip(game.prior[state], game.valid[state], strict=True)
        )
        self._append(state, -1, -1, 0, self._or(float(game.value[state]), 0.0))
        self.nodes[0].values.append(self.nodes[0].prediction)

    def _or(self, number: float, instead: float) -> float:
        """A number of the game, or what stands for it."""
        if math.isfinite(number):
            return number
        self.rejected += 1
        return instead

    def _append(self, state: int, parent: int, slot: int, depth: int, value: float) -> int:
        game, valid = self.game, [bool(x) for x in self.game.valid[state]]
        logits = [
            float(x) if ok and x < math.inf else -math.inf for x, ok in zip(game.prior[state], valid, strict=True)
        ]
        if max(logits) == -math.inf:
            logits = [0.0 if ok else -math.inf for ok in valid]
        top = max(logits)
        weights = [math.exp(x - top) if math.isfinite(top) else 0.0 for x in logits]
        prior = [w / sum(weights) if sum(weights) else 0.0 for w in weights]
        terminal = bool(game.terminal[state]) or not any(valid)
        edges = [Edge() for _ in valid]
        chance = game.chance is not None and bool(game.chance[state])
        made = Node(state, parent, slot, depth, value, terminal, prior, valid, edges, chance)
        self.nodes.append(made)
        return len(self.nodes) - 1

    @property
    def searchable(self) -> bool:
        return bool(self.nodes) and not self.nodes[0].terminal

    def check_path(self, node: int, slot: int, child: int, score: Any, max_depth: int) -> None:
        """Whether a simulation may have ended at this edge."""
        end = self.nodes[node]
        assert self.nodes[node].children.get(slot, -1) == child
        stops = child < 0 or self.nodes[child].terminal or end.depth + 1 == max_depth
        assert stops, "went no further though it could"
        while node >= 0:
            here = self.nodes[node]
            assert not here.terminal
            assert here.valid[slot]
            numbers = numbers_of(self, here, score)
            assert numbers[slot] >= max(numbers) - TOLERANCE * max(1.0, abs(max(numbers))), (numbers, slot)
            node, slot = here.parent, here.slot
        assert end.depth < max_depth

    def simulated(self, node: int, slot: int, score: Any) -> None:
        """One simulation that ends at an edge: what lies behind is stored if it fits, and its value goes back."""
        here = self.nodes[node]
        edge = here.edges[slot]
        if slot in here.children:
            value = self.nodes[here.children[slot]].prediction
        else:
            state = int(self.game.following[here.state, slot])
            edge.reward, edge.discount = self._or(float(self.game.reward[here.state, slot]), 0.0), self.game.discount
            unchanged = (float(np.mean(here.values)) - edge.reward) / edge.discount
            value = self._or(float(self.game.value[state]), unchanged)
            logits = zip(self.game.prior[state], self.game.valid[state], strict=True)
            self.rejected += sum(bool(ok) and not x < math.inf for x, ok in logits)
            if len(self.nodes) < self.capacity:
                here.children[slot] = self._append(state, node, slot, here.depth + 1, value)
            else:
                self.refused += 1
        if slot in here.children:
            self.nodes[here.children[slot]].values.append(value)
        while node >= 0:
            here = self.nodes[node]
            edge = here.edges[slot]
            returned = edge.reward + edge.discount * value
            edge.values.append(value)
            self.seen.append(edge.q)
            here.values.append(returned)
            if isinstance(score, frb.trees.EXP3):
                share = numbers_of(self, here, score, drawn=True)[slot]
                low, width = scale_of(self, here, score.scale)
                x = min(max((returned - low) / width, 0.0), 1.0)
                edge.log_weight += score.gamma * x / (share * sum(here.valid))
            node, slot, value = here.parent, here.slot, returned

    def subtree(self, slot: int) -> None:
        """Go on from a child, or from nothing."""
        top = self.nodes[0].children.get(slot, -1) if self.nodes else -1
        kept = [k for k in range(len(self.nodes)) if self._is_below(k, top)]
        number = {old: new for new, old in enumerate(kept)}
        self.nodes = [self.nodes[k] for k in kept]
        for here in self.nodes:
            here.parent = number.get(here.parent, -1)
            here.children = {slot: number[child] for slot, child in here.children.items()}
            here.depth -= 1
        if self.nodes:
            self.nodes[0].slot = -1
        self.refused = self.rejected = 0
        self.seen = [edge.q for here in self.nodes for edge in here.edges if edge.visits]

    def _is_below(self, node: int, top: int) -> bool:
        while node > top:
            node = self.nodes[node].parent
        return node == top >= 0


def scale_of(tree: ListTree, here: Node, scale: Any) -> tuple[float, float]:
    if not isinstance(scale, str):
        return scale[0], scale[1] - scale[0]
    if scale == "tree":
        low, high = (min(tree.seen), max(tree.seen)) if tree.seen else (0.0, 0.0)
        return low, high - low if high - low > 2**-18 * max(high, -low) else math.inf
    own = float(np.mean(here.values))
    found = [own, *(e.q for e, ok in zip(here.edges, here.valid, strict=True) if ok and e.visits)]
    return min(found), max(max(found) - min(found), 1e-8)


def numbers_of(tree: ListTree, here: Node, score: Any, drawn: bool = False) -> list[float]:
    """The score of each slot by its formula; minus infinity where it is invalid."""
    if here.chance:
        shares = zip(here.prior, here.edges, here.valid, strict=True)
        return [p / (1 + edge.visits) if ok else -math.inf for p, edge, ok in shares]
    counts = [edge.visits for edge in here.edges]
    total = sum(counts)
    if isinstance(score, frb.trees.CompletedQ):
        return _improved(here, score)
    low, width = scale_of(tree, here, score.scale)
    found = []
    for slot, edge in enumerate(here.edges):
        q = (edge.q - low) / width if edge.visits else 0.0
        n = edge.visits
        if not here.valid[slot]:
            found.append(-math.inf)
        elif isinstance(score, frb.trees.PUCT):
            visits = len(here.values)
            factor = score.c_init + math.log((visits + score.c_base + 1) / score.c_base)
            found.append(q + here.prior[slot] * math.sqrt(visits) / (1 + n) * factor)
        elif isinstance(score, frb.trees.EXP3):
            top = max(e.log_weight for e, ok in zip(here.edges, here.valid, strict=True) if ok)
            weights = [
                math.exp(e.log_weight - top) if ok else 0.0 for e, ok in zip(here.edges, here.valid, strict=True)
            ]
            share = (1 - score.gamma) * weights[slot] / sum(weights) + score.gamma / sum(here.valid)
            found.append(share if drawn else 0.0)  # any valid slot may be drawn
        elif n == 0:
            found.append(math.inf)
        elif not score.tuned:
            found.append(q + math.sqrt(2 * math.log(total) / n))
        else:
            variance = max(edge.squares - edge.q**2, 0.0) / width**2
            limit = min(0.25, variance + math.sqrt(2 * math.log(total) / n))
            found.append(q + math.sqrt(math.log(total) / n * limit))
    if math.inf in found:
        return [0.0 if x == math.inf else -math.inf for x in found]
    return found


def _improved(here: Node, score: Any) -> list[float]:
    completed = completed_of(here, score)
    logits = [math.log(max(p, 1e-300)) + q for p, q in zip(here.prior, completed, strict=True)]
    top = max(x for x, ok in zip(logits, here.valid, strict=True) if ok)
    weights = [math.exp(x - top) if ok else 0.0 for x, ok in zip(logits, here.valid, strict=True)]
    visits = sum(edge.visits for edge in here.edges)
    return [
        w / sum(weights) - edge.visits / (1 + visits) if ok else -math.inf
        for w, edge, ok in zip(weights, here.edges, here.valid, strict=True)
    ]


def completed_of(here: Node, score: Any) -> list[float]:
    """The completed Q values of a node, times their factor; 0 where a slot is invalid."""
    visits = sum(edge.visits for edge in here.edges)
    instead = here.prediction
    if score.mix:
        taken = [k for k, edge in enumerate(here.edges) if edge.visits]
        share = sum(here.prior[k] for k in taken)
        weighted = sum(here.prior[k] * here.edges[k].q for k in taken) / share if taken else 0.0
        instead = (here.prediction + visits * weighted) / (visits + 1)
    q = [edge.q if edge.visits else instead for edge in here.edges]
    if score.rescale:
        known = [x for x, ok in zip(q, here.valid, strict=True) if ok]
        low, high = min(known), max(known)
        q = [(x - low) / max(high - low, 1e-8) for x in q]
    factor = (score.c_visit + max(edge.visits for edge in here.edges)) * score.c_scale
    return [factor * x if ok else 0.0 for x, ok in zip(q, here.valid, strict=True)]


def check_equal(tree: Any, numpy: Any, b: int, model: ListTree) -> None:
    """Whether one tree of a batch is what the model is."""

    def rows(array: Any) -> list[Any]:
        return numpy(array)[b].tolist()

    count = len(model.nodes)
    assert (rows(tree.size), rows(tree.refused), rows(tree.rejected)) == (count, model.refused, model.rejected)
    edge_arrays = [rows(x) for x in (tree.children, tree.edge_visits, tree.valid)]
    floats = {name: numpy(getattr(tree, name))[b] for name in ("edge_value", "reward", "discount", "prior", "value")}
    for k, here in enumerate(model.nodes):
        numbers = (tree.parent, tree.slot, tree.depth, tree.visits, tree.terminal, tree.chance)
        assert [rows(x)[k] for x in numbers] == [
            here.parent,
            here.slot,
            here.depth,
            len(here.values),
            here.terminal,
            here.chance,
        ]
        slots = range(len(here.edges))
        assert [x[k] for x in edge_arrays] == [
            [here.children.get(slot, -1) for slot in slots],
            [edge.visits for edge in here.edges],
            here.valid,
        ]
        np.testing.assert_allclose(floats["value"][k], np.mean(here.values), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.exp(floats["prior"][k]), here.prior, rtol=1e-4, atol=1e-6)
        for name, expected in (
            ("edge_value", [edge.value for edge in here.edges]),
            ("reward", [edge.reward for edge in here.edges]),
            ("discount", [edge.discount for edge in here.edges]),
        ):
            np.testing.assert_allclose(floats[name][k], expected, rtol=1e-4, atol=1e-4, err_msg=name)
        for name, array in tree.statistics.items():
            expected = [edge.squares if name == "squares" else edge.log_weight for edge in here.edges]
            np.testing.assert_allclose(numpy(array)[b, k], expected, rtol=1e-3, atol=1e-3, err_msg=name)
    # Behind the nodes that are stored all is as in an empty tree.
    for name, blank in (("parent", -1), ("children", -1), ("visits", 0), ("edge_visits", 0), ("valid", False)):
        assert (numpy(getattr(tree, name))[b, count:] == blank).all(), name
    low, high = (min(model.seen), max(model.seen)) if model.seen else (math.inf, -math.inf)
    np.testing.assert_allclose([rows(tree.low), rows(tree.high)], [low, high], rtol=1e-4, atol=1e-4)


def check_sums(tree: Any, numpy: Any) -> None:
    """Whether the visits add up in trees that were never full nor cut."""
    parent, slot, visits, terminal = (numpy(x) for x in (tree.parent, tree.slot, tree.visits, tree.terminal))
    below = numpy(tree.edge_visits)
    for b, size in enumerate(numpy(tree.size)):
        for k in range(size):
            # A node is evaluated once when it is stored, and a terminal one at each visit.
            assert below[b, k].sum() == (0 if terminal[b, k] else visits[b, k] - 1)
            assert k == 0 or below[b, parent[b, k], slot[b, k]] == visits[b, k]
