"""Scores: which slot of a node a simulation takes, each as a frozen dataclass.

A score is given what is known of the edges of a node (`Edges`), and chooses one of the valid slots; what is invalid is
never chosen. Where slots are equally good, random bits decide, each of them being equally likely.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from functional_rb.ops.fixed_point import MASK
from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.ops.random_bits import mix
from functional_rb.trees.spec import LOG_WEIGHTS, SQUARES

# How Q values are brought to [0, 1] before they are scored.
#
# "siblings": by the least and the largest among the Q values of a node's visited edges and the node's own value.
# "tree": by the least and the largest Q value that was backed up in the tree (MuZero, appendix B). Where these are
#     alike up to rounding, all edges are alike.
# (low, high): by two numbers known beforehand; (0.0, 1.0) leaves the values as they are.
# An edge that was never taken counts as the least.
Scale = Literal["siblings", "tree"] | tuple[float, float]

_FACTORS: Final = (0x2C1B3C6D, 0x297A2D39)
_LEAST_PRIOR: Final = 1e-30
# The smallest range of values by which is divided.
_SMALLEST: Final = 1e-8
# Values whose difference is less than this share of them count as alike: a Q value that is computed again may differ
# in its last bits from the least that was stored, as compilers fuse products and sums in some places only.
_ROUNDING: Final = 2.0**-18


class Edges(NamedTuple):
    """What is known of the edges of a batch of nodes."""

    visits: Array  # int32 [B, A], how many simulations took an edge
    value: Array  # float32 [B, A], the mean value behind an edge
    q: Array  # float32 [B, A], reward + discount * value
    prior: Array  # float32 [B, A], log-probabilities; minus infinity where invalid
    valid: Array  # bool [B, A], which slots may be taken
    node_visits: Array  # int32 [B], visits of the nodes themselves
    node_value: Array  # float32 [B], their mean values
    prediction: Array  # float32 [B], what the model predicted of them
    low: Array  # float32 [B], the least Q value of the tree; infinity if none is known
    high: Array  # float32 [B], the largest; minus infinity if none is known
    statistics: Mapping[str, Array]  # float32 [B, A] by name, those of the spec


@dataclasses.dataclass(frozen=True)
class Score(abc.ABC):
    """What all scores have in common: the valid slot of the largest number is chosen, ties by random bits."""

    @property
    def statistics(self) -> tuple[str, ...]:
        """The names of what the score needs in `TreeSpec.statistics`."""
        return ()

    @abc.abstractmethod
    def numbers(self, ops: TreeOps, edges: Edges) -> Array:
        """The score of each edge, float32 [B, A]."""

    def choose(self, ops: TreeOps, edges: Edges, bits: Array) -> Array:
        """The slot that each node goes on to, int32 [B], by random bits int32 [B]."""
        return best(ops, self.numbers(ops, edges), edges.valid, bits)

    def learned(self, ops: TreeOps, edges: Edges, slot: Array, returns: Array) -> dict[str, Array]:
        """What the statistics of the edges taken become, float32 [B] by name.

        Args:
            ops: the backend.
            edges: the edges of the nodes; the visit is counted already.
            slot: int32 [B], which edge of each was taken.
            returns: float32 [B], what came back along it: reward + discount * value.
        """
        return {}


def best(ops: TreeOps, numbers: Array, valid: Array, bits: Array) -> Array:
    """The valid slot with the largest number, int32 [B] of [B, A]; of equal ones each is equally likely.

    Random bits int32 [B], uniform in [0, 2^31), say which. Numbers that are NaN count as minus infinity.
    """
    order = slot_bits(ops, bits, valid)
    numbers = ops.where(valid & (numbers == numbers), numbers, ops.full_like(numbers, -math.inf))
    return ops.argmax_by(numbers, ops.where(valid, order, ops.full_like(order, -1)))


def slot_bits(ops: TreeOps, bits: Array, like: Array) -> Array:
    """Random bits int32 [B, A] for each slot of random bits int32 [B]; the shape is that of an array."""
    # Each slot mixes its own constant into the bits, so that slots are drawn independently from one word a node.
    of_slots = [mix(slot + 1) & MASK for slot in range(like.shape[-1])]
    x = bits[:, None] ^ ops.table(np.array([of_slots]), "int32", bits)
    for factor in _FACTORS:
        x = (x ^ (x >> 15)) * factor  # modulo 2^32, on each backend
    return (x ^ (x >> 15)) & MASK


def next_bits(ops: TreeOps, bits: Array) -> Array:
    """Random bits int32 [B] for the next depth."""
    return slot_bits(ops, bits ^ 0x5BD1E995, bits[:, None])[:, 0]


def fractions(ops: TreeOps, bits: Array) -> Array:
    """Random bits as float32 in (0, 1)."""
    # float32 has 24 bits: 23 of the word, and half a step that keeps 0 out.
    return ops.cast(bits >> 8, "float32") * 2.0**-23 + 2.0**-24


def scaled(ops: TreeOps, edges: Edges, scale: Scale) -> Array:
    """The Q values of edges, brought to [0, 1]; 0 for those never taken."""
    low, width = _range(ops, edges, scale)
    taken = (edges.visits > 0) & edges.valid
    return ops.where(taken, (edges.q - low) / width, ops.full_like(edges.q, 0))


def _range(ops: TreeOps, edges: Edges, scale: Scale) -> tuple[Array | float, Array | float]:
    # The least value and the width by which Q values are scaled, [B, 1] or numbers.
    if not isinstance(scale, str):
        return scale[0], scale[1] - scale[0]
    if scale == "tree":
        known = edges.low <= edges.high
        zero = ops.full_like(edges.low, 0)
        low, high = (ops.where(known, x, zero)[:, None] for x in (edges.low, edges.high))
        alike = high - low <= _ROUNDING * ops.maximum(high, -low)
        return low, ops.where(alike, ops.full_like(low, math.inf), high - low)
    # The node's own value stands in for edges never taken, so that it lies in the range too.
    node_value = edges.node_value[:, None]
    q = ops.where((edges.visits > 0) & edges.valid, edges.q, node_value)
    low = ops.minimum(node_value, -ops.largest(-q)[:, None])
    high = ops.maximum(node_value, ops.largest(q)[:, None])
    return low, ops.maximum(high - low, ops.full_like(low, _SMALLEST))


def _check_scale(who: str, scale: Any) -> None:
    if scale in ("siblings", "tree"):
        return
    numbers = isinstance(scale, tuple) and len(scale) == 2 and all(isinstance(x, (int, float)) for x in scale)
    if not numbers or not scale[0] < scale[1]:
        raise ValueError(f"{who}.scale: expected 'siblings', 'tree' or (low, high) with low < high, got {scale!r}")


def check_number(who: str, name: str, value: object, low: float, high: float = math.inf) -> None:
    """Refuse a setting that is no number between two others."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{who}.{name}: expected a number from {low:g} to {high:g}, got {value!r}")


@dataclasses.dataclass(frozen=True)
class PUCT(Score):
    """Predictor and upper confidence bounds, as in AlphaZero and MuZero.

    `Q + P sqrt(N) / (1 + n) (c_init + log((N + c_base + 1) / c_base))`, where n counts the visits of the edge, N those
    of its node, and P is the prior probability; Q is scaled.

    Silver et al.: A general reinforcement learning algorithm that masters chess, shogi, and Go (2018). Schrittwieser et
    al.: Mastering Atari, Go, chess and shogi by planning with a learned model (2020), appendix B.

    Attributes:
        c_init: the factor of the prior while a node has few visits.
        c_base: the number of visits beyond which it grows.
        scale: how Q values are brought to [0, 1], see `Scale`.

    Raises:
        ValueError: if a setting is out of range.

    Example:
        >>> PUCT(c_init=2.0)
        PUCT(c_init=2.0, c_base=19652.0, scale='siblings')
    """

    c_init: float = 1.25
    c_base: float = 19652.0
    scale: Scale = "siblings"

    def __post_init__(self) -> None:
        check_number("PUCT", "c_init", self.c_init, 0)
        check_number("PUCT", "c_base", self.c_base, 1)
        _check_scale("PUCT", self.scale)

    def numbers(self, ops: TreeOps, edges: Edges) -> Array:
        visits = ops.cast(edges.node_visits, "float32")
        factor = visits**0.5 * (self.c_init + ops.log((visits + (self.c_base + 1.0)) / self.c_base))
        explored = factor[:, None] * ops.exp(edges.prior) / (ops.cast(edges.visits, "float32") + 1.0)
        return scaled(ops, edges, self.scale) + explored


@dataclasses.dataclass(frozen=True)
class UCB1(Score):
    """Upper confidence bounds: `Q + c sqrt(ln N / n)`, each edge being taken once before any is taken twice.

    n counts the visits of the edge, N those of all edges of its node; Q is scaled. Auer, Cesa-Bianchi, Fischer:
    Finite-time analysis of the multiarmed bandit problem (2002). Kocsis, Szepesvari: Bandit based Monte-Carlo planning
    (2006).

    With `tuned`, UCB1-Tuned of the first paper (section 4): `Q + c sqrt(ln N / n min(1/4, V + sqrt(2 ln N / n)))`. V is
    the variance of what came back along the edge, scaled as Q is. It needs `TreeSpec(..., statistics="squares")`.

    Attributes:
        c: the factor of the bound; by default that of the paper, the square root of 2, and 1 if tuned.
        scale: how Q values are brought to [0, 1], see `Scale`.
        tuned: whether the variance counts.

    Raises:
        TypeError: if `tuned` is no bool.
        ValueError: if a setting is out of range.

    Example:
        >>> UCB1(c=1.0)
        UCB1(c=1.0, scale='tree', tuned=False)
        >>> UCB1(scale=(-1.0, 1.0), tuned=True).statistics
        ('squares',)
    """

    c: float | None = None
    scale: Scale = "tree"
    tuned: bool = False

    def __post_init__(self) -> None:
        if self.c is not None:
            check_number("UCB1", "c", self.c, 0)
        _check_scale("UCB1", self.scale)
        if not isinstance(self.tuned, bool):
            raise TypeError(f"UCB1.tuned: expected a bool, got {self.tuned!r}")

    @property
    def statistics(self) -> tuple[str, ...]:
        """The mean square of what came back along an edge, if tuned."""
        return (SQUARES,) if self.tuned else ()

    def numbers(self, ops: TreeOps, edges: Edges) -> Array:
        """The score of each edge; infinity for those never taken."""
        visits = ops.cast(edges.visits, "float32")
        # Counts are at least 1 each, so that their logarithm and their quotient exist.
        one = ops.full_like(visits, 1)
        log_total = ops.log(ops.maximum(ops.total(visits)[:, None], one[:, :1]))
        ratio = log_total / ops.maximum(visits, one)
        c = self.c
        if c is None:
            c = 1.0 if self.tuned else math.sqrt(2.0)
        if self.tuned:
            _, width = _range(ops, edges, self.scale)
            zero = ops.full_like(edges.q, 0)
            variance = ops.maximum(edges.statistics[SQUARES] - edges.q**2, zero) / width**2
            # A quarter is the largest variance that numbers in [0, 1] can have.
            ratio = ratio * ops.minimum(variance + (2.0 * ratio) ** 0.5, zero + 0.25)
        bound = scaled(ops, edges, self.scale) + c * ratio**0.5
        return ops.where(edges.visits > 0, bound, ops.full_like(bound, math.inf))

    def learned(self, ops: TreeOps, edges: Edges, slot: Array, returns: Array) -> dict[str, Array]:
        """The mean square of what came back along the edges taken, if tuned."""
        if not self.tuned:
            return {}
        visits = ops.cast(ops.take_each(edges.visits, slot), "float32")
        mean = ops.take_each(edges.statistics[SQUARES], slot)
        return {SQUARES: (mean * (visits - 1.0) + returns * returns) / ops.maximum(visits, ops.full_like(visits, 1))}


@dataclasses.dataclass(frozen=True)
class EXP3(Score):
    """Exponential weights: slots are drawn, not compared, so that an adversary gains nothing by knowing the rule.

    A slot is drawn with probability `p = (1 - gamma) w / sum(w) + gamma / K` over the K valid slots; then its weight
    w is multiplied by `exp(gamma x / (p K))`, where x is what came back, scaled and brought to [0, 1]. Auer,
    Cesa-Bianchi, Freund, Schapire: The nonstochastic multiarmed bandit problem (2002). It needs
    `TreeSpec(..., statistics="log_weights")`.

    Attributes:
        gamma: the share of uniform draws, in (0, 1].
        scale: how what came back is brought to [0, 1], see `Scale`.

    Raises:
        ValueError: if a setting is out of range.

    Example:
        >>> EXP3(gamma=0.2).statistics
        ('log_weights',)
    """

    gamma: float = 0.1
    scale: Scale = "tree"

    def __post_init__(self) -> None:
        check_number("EXP3", "gamma", self.gamma, 1e-6, 1)
        _check_scale("EXP3", self.scale)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The logarithm of each edge's weight."""
        return (LOG_WEIGHTS,)

    def numbers(self, ops: TreeOps, edges: Edges) -> Array:
        """The probability of each slot; 0 where it is invalid."""
        count = ops.cast(ops.total(edges.valid), "float32")[:, None]
        weights = softmax(ops, edges.statistics[LOG_WEIGHTS], edges.valid)
        share = self.gamma / ops.maximum(count, ops.full_like(count, 1))
        return ops.where(edges.valid, (1.0 - self.gamma) * weights + share, ops.full_like(weights, 0))

    def choose(self, ops: TreeOps, edges: Edges, bits: Array) -> Array:
        """A slot drawn with the probabilities, as the largest of `log(p) + Gumbel noise`."""
        noise = gumbel(ops, slot_bits(ops, bits, edges.valid))
        return best(ops, ops.log(self.numbers(ops, edges)) + noise, edges.valid, bits)

    def learned(self, ops: TreeOps, edges: Edges, slot: Array, returns: Array) -> dict[str, Array]:
        """The logarithms of the weights of the edges taken."""
        low, width = _range(ops, edges, self.scale)
        x = (returns[:, None] - low) / width
        x = ops.minimum(ops.maximum(x, ops.full_like(x, 0)), ops.full_like(x, 1))[:, 0]
        share = ops.take_each(self.numbers(ops, edges), slot)
        # A slot that was drawn has a probability above 0; one that a caller took by itself may not.
        count = ops.cast(ops.total(edges.valid), "float32")
        gain = self.gamma * x / ops.maximum(share * count, ops.full_like(x, _SMALLEST))
        return {LOG_WEIGHTS: ops.take_each(edges.statistics[LOG_WEIGHTS], slot) + gain}


@dataclasses.dataclass(frozen=True)
class CompletedQ(Score):
    """The rule of Gumbel MuZero below the root: visits follow an improved policy, without any noise.

    The slot with the largest `p - n / (1 + sum(n))` is taken, where n counts an edge's visits and p is the softmax of
    prior logits + `completed`. Danihelka, Guez, Schrittwieser, Silver: Policy improvement by planning with Gumbel
    (2022), section 5 and appendix D.

    Attributes:
        c_visit: added to the largest number of visits in the factor of the Q values.
        c_scale: multiplies that factor.
        rescale: whether a node's completed Q values are first brought to [0, 1] by the least and the largest of them.
        mix: whether an edge never taken gets the mean of the prediction and the Q values known, weighted by visits
            and prior; else the prediction alone.

    Raises:
        ValueError: if a setting is out of range.

    Example:
        >>> CompletedQ(c_scale=1.0, rescale=False)
        CompletedQ(c_visit=50.0, c_scale=1.0, rescale=False, mix=True)
    """

    c_visit: float = 50.0
    c_scale: float = 0.1
    rescale: bool = True
    mix: bool = True

    def __post_init__(self) -> None:
        check_number("CompletedQ", "c_visit", self.c_visit, 0)
        check_number("CompletedQ", "c_scale", self.c_scale, 0)

    def completed(self, ops: TreeOps, edges: Edges) -> Array:
        """`(c_visit + max(n)) c_scale q`, float32 [B, A], where q is the Q value or what stands in for it."""
        taken = (edges.visits > 0) & edges.valid
        instead = self._mixed(ops, edges, taken) if self.mix else edges.prediction
        q = ops.where(taken, edges.q, instead[:, None])
        if self.rescale:  # over the valid slots: how many invalid ones there are beside them changes nothing
            infinite = ops.full_like(q, math.inf)
            low = -ops.largest(ops.where(edges.valid, -q, -infinite))[:, None]
            high = ops.largest(ops.where(edges.valid, q, -infinite))[:, None]
            q = (q - low) / ops.maximum(high - low, ops.full_like(low, _SMALLEST))
        most = ops.cast(ops.largest(edges.visits), "float32")[:, None]
        return ops.where(edges.valid, (self.c_visit + most) * self.c_scale * q, ops.full_like(q, 0))

    def _mixed(self, ops: TreeOps, edges: Edges, taken: Array) -> Array:
        # The value of a node by its prediction and by the Q values of the edges taken, float32 [B]; appendix D.
        prior = ops.exp(edges.prior)
        # Even if the prior of all edges taken is 0.
        prior = ops.where(taken, ops.maximum(prior, ops.full_like(prior, _LEAST_PRIOR)), ops.full_like(prior, 0))
        weighted = ops.total(prior * edges.q) / ops.maximum(
            ops.total(prior), ops.full_like(edges.prediction, _LEAST_PRIOR)
        )
        visits = ops.cast(ops.total(edges.visits), "float32")
        return (edges.prediction + visits * weighted) / (visits + 1.0)

    def numbers(self, ops: TreeOps, edges: Edges) -> Array:
        visits = ops.cast(edges.visits, "float32")
        policy = softmax(ops, edges.prior + self.completed(ops, edges), edges.valid)
        return policy - visits / (1.0 + ops.total(visits)[:, None])


def log_softmax(ops: TreeOps, logits: Array, valid: Array) -> Array:
    """Log-probabilities over the valid slots, float32 [B, A]; minus infinity for the others."""
    shifted = _shifted(ops, logits, valid)
    total = ops.total(ops.exp(shifted))[:, None]
    return ops.where(valid, shifted - ops.log(total), ops.full_like(logits, -math.inf))


def softmax(ops: TreeOps, logits: Array, valid: Array) -> Array:
    """Probabilities over the valid slots, float32 [B, A]; 0 for the others."""
    weights = ops.exp(_shifted(ops, logits, valid))
    total = ops.total(weights)[:, None]
    return weights / ops.maximum(total, ops.full_like(total, _LEAST_PRIOR))


def _shifted(ops: TreeOps, logits: Array, valid: Array) -> Array:
    # Logits of which the largest is 0; minus infinity where invalid.
    logits = ops.where(valid, logits, ops.full_like(logits, -math.inf))
    # Where nothing is valid the largest is minus infinity, and its difference to itself would be NaN.
    top = ops.largest(logits)[:, None]
    return logits - ops.where(top > -math.inf, top, ops.full_like(top, 0))


def gumbel(ops: TreeOps, bits: Array) -> Array:
    """Gumbel noise of random bits, float32 in their shape."""
    return -ops.log(-ops.log(fractions(ops, bits)))
