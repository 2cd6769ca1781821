"""Policies: how a search chooses at the root, and what it proposes to do, each as a frozen dataclass."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.trees.noise import WORDS, dirichlet
from functional_rb.trees.scores import (
    PUCT,
    CompletedQ,
    Edges,
    Score,
    best,
    check_number,
    gumbel,
    slot_bits,
    softmax,
)

# Stands for a score that is made with the policy: torch.compile traces no default that is an object, nor a factory.
_MADE: Final[Any] = None


class Root(NamedTuple):
    """What a policy knows of a search at its root, the same for all simulations."""

    before: Array  # int32 [B, A], the visits of the root's edges when the search began
    noise: Array  # float32 [B, A], the policy's own random numbers; zeros without any


class Policy(Protocol):
    """How a search goes on from the root, and what it proposes."""

    @property
    def score(self) -> Score:
        """The score by which simulations choose below the root."""

    @property
    def words(self) -> int:
        """How many words of random bits the noise of one slot takes."""

    def begin(self, ops: TreeOps, edges: Edges, bits: Array) -> Root:
        """What is known at the root, by random bits int32 [B, A, words]."""

    def choose(self, ops: TreeOps, edges: Edges, root: Root, i: object, simulations: int, bits: Array) -> Array:
        """The slot int32 [B] that simulation i takes at the root, by random bits int32 [B]."""

    def propose(self, ops: TreeOps, edges: Edges, root: Root, bits: Array) -> tuple[Array, Array]:
        """The slot int32 [B] to act by, and the improved policy float32 [B, A], by random bits int32 [B]."""


@dataclasses.dataclass(frozen=True)
class MuZero:
    """MuZero's policy: noise in the root's prior, and an action drawn by visits.

    At the root the prior is `(1 - fraction) P + fraction D`, where D is drawn from a symmetric Dirichlet distribution
    over the valid slots. The improved policy has the shares of the visits, and the action is drawn from these to the
    power `1 / temperature`. Schrittwieser et al.: Mastering Atari, Go, chess and shogi by planning with a learned model
    (2020).

    Attributes:
        score: the rule by which slots are taken, at the root too; `PUCT()` by default.
        dirichlet_fraction: the share of noise in the root's prior, 0 for none.
        dirichlet_alpha: its concentration, about 10 divided by the usual number of valid slots.
        temperature: 0 for the most visited slot, ties by the key.

    Raises:
        TypeError: if `score` is no score.
        ValueError: if a number is out of range.

    Example:
        >>> MuZero(dirichlet_fraction=0.0, temperature=0.0).score
        PUCT(c_init=1.25, c_base=19652.0, scale='siblings')
    """

    score: Score = _MADE
    dirichlet_fraction: float = 0.25
    dirichlet_alpha: float = 0.3
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _settle_score(self, Score, PUCT)
        check_number("MuZero", "dirichlet_fraction", self.dirichlet_fraction, 0, 1)
        check_number("MuZero", "dirichlet_alpha", self.dirichlet_alpha, 1e-3)
        check_number("MuZero", "temperature", self.temperature, 0)

    @property
    def words(self) -> int:
        """How many words of random bits the noise of one slot takes."""
        return WORDS if self.dirichlet_fraction else 0

    def begin(self, ops: TreeOps, edges: Edges, bits: Array) -> Root:
        """The root with the logarithms of its noisy prior."""
        if not self.dirichlet_fraction:
            return Root(edges.visits, edges.prior)
        drawn = dirichlet(ops, bits, self.dirichlet_alpha, edges.valid)
        return Root(edges.visits, self.noisy(ops, edges, drawn))

    def noisy(self, ops: TreeOps, edges: Edges, drawn: Array) -> Array:
        """The logarithms of the prior with noise float32 [B, A] in it."""
        share = self.dirichlet_fraction
        return ops.log((1.0 - share) * ops.exp(edges.prior) + share * drawn)

    def choose(self, ops: TreeOps, edges: Edges, root: Root, i: object, simulations: int, bits: Array) -> Array:
        """The slot that the score chooses by the noisy prior."""
        return self.score.choose(ops, edges._replace(prior=root.noise), bits)

    def propose(self, ops: TreeOps, edges: Edges, root: Root, bits: Array) -> tuple[Array, Array]:
        """A slot drawn by visits, and the shares of the visits."""
        shares = visit_shares(ops, edges.visits, edges.valid)
        if not self.temperature:
            return best(ops, shares, edges.valid, bits), shares
        logits = ops.log(shares) / self.temperature
        # The largest of logits with Gumbel noise is a draw from their softmax.
        drawn = logits + gumbel(ops, slot_bits(ops, bits, edges.valid))
        return best(ops, drawn, edges.valid, bits), shares


@dataclasses.dataclass(frozen=True)
class GumbelMuZero:
    """Gumbel MuZero's policy: sequential halving at the root, and a policy that improves even with few simulations.

    Of the root's valid slots the `considered` ones with the largest `Gumbel noise + log prior` are considered; they are
    visited equally often, and after each phase the better half by `Gumbel noise + log prior + completed Q` goes on.
    Visits are counted from the beginning of this search on, also in a tree that is used again. The action is the best
    of the most visited slots, and the improved policy is the softmax of log prior + completed Q. Danihelka, Guez,
    Schrittwieser, Silver: Policy improvement by planning with Gumbel (2022). Karnin, Koren, Somekh: Almost optimal
    exploration in multi-armed bandits (2013).

    Attributes:
        score: the rule below the root, which also completes the Q values at it; `CompletedQ()` by default.
        considered: how many slots are considered at most, from 1 on.
        scale: the factor of the noise; 0.0 to play without it.

    Raises:
        TypeError: if `score` is no `CompletedQ`, or `considered` no int.
        ValueError: if a number is out of range.

    Example:
        >>> GumbelMuZero(considered=4, scale=0.0)
        GumbelMuZero(score=CompletedQ(c_visit=50.0, c_scale=0.1, rescale=True, mix=True), considered=4, scale=0.0)
    """

    score: CompletedQ = _MADE
    considered: int = 16
    scale: float = 1.0

    def __post_init__(self) -> None:
        _settle_score(self, CompletedQ, CompletedQ)
        if isinstance(self.considered, bool) or not isinstance(self.considered, int):
            raise TypeError(f"GumbelMuZero.considered: expected an int, got {self.considered!r}")
        check_number("GumbelMuZero", "considered", self.considered, 1)
        check_number("GumbelMuZero", "scale", self.scale, 0)

    @property
    def words(self) -> int:
        """How many words of random bits the noise of one slot takes."""
        return 1 if self.scale else 0

    def begin(self, ops: TreeOps, edges: Edges, bits: Array) -> Root:
        """The root with Gumbel noise for each of its slots."""
        if not self.scale:
            return Root(edges.visits, ops.full_like(edges.prior, 0))
        return Root(edges.visits, self.scale * gumbel(ops, bits[..., 0]))

    def choose(self, ops: TreeOps, edges: Edges, root: Root, i: object, simulations: int, bits: Array) -> Array:
        """The best of the slots that have been visited as often as sequential halving wants it of simulation i."""
        # The whole plan of the halving is known before: a table of it is indexed by the simulation, which may be
        # traced.
        table = ops.table(visits_wanted(self.considered, simulations), "int32", edges.visits)
        valid = ops.total(edges.valid)
        among = ops.minimum(valid, ops.full_like(valid, self.considered))
        return self._best(ops, edges, root, ops.take(table[:, i], among), bits)

    def propose(self, ops: TreeOps, edges: Edges, root: Root, bits: Array) -> tuple[Array, Array]:
        """The best of the most visited slots, and the improved policy."""
        completed = self.score.completed(ops, edges)
        most = ops.largest(edges.visits - root.before)
        weights = softmax(ops, edges.prior + completed, edges.valid)
        return self._best(ops, edges, root, most, bits), weights

    def _best(self, ops: TreeOps, edges: Edges, root: Root, visits: Array, bits: Array) -> Array:
        # The best slot of those that have been visited so often int32 [B] in this search.
        numbers = root.noise + edges.prior + self.score.completed(ops, edges)
        # A slot of prior 0 is taken if it is the only one that has been visited so often.
        numbers = ops.maximum(numbers, ops.full_like(numbers, -1e9))
        wanted = edges.visits - root.before == visits[:, None]
        return best(ops, ops.where(wanted, numbers, ops.full_like(numbers, -math.inf)), edges.valid, bits)


def visit_shares(ops: TreeOps, visits: Array, valid: Array) -> Array:
    """The share of each edge in its node's visits of edges, float32 [B, A]; without any, 1 / K for K valid slots."""
    visits = ops.cast(visits, "float32")
    total = ops.total(visits)[:, None]
    valid = ops.cast(valid, "float32")
    one = ops.full_like(total, 1)
    equal = valid / ops.maximum(ops.total(valid)[:, None], one)
    return ops.where(total > 0, visits / ops.maximum(total, one), equal)


_WANTED: dict[tuple[int, int], NumpyArray] = {}


def visits_wanted(considered: int, simulations: int) -> NumpyArray:
    """How many visits the slot must have that a simulation takes, int32 [considered + 1, simulations].

    Row m is for m slots to be considered. Sequential halving has `ceil(log2(m))` phases of about equally many
    simulations; in each one all slots that are left get equally many visits, then the better half is left, and two at
    least. (In a dict, since torch.compile does not trace functools.cache; on torch the table is a constant to it, so
    that it does not rely on what the dict holds.)

    Example:
        >>> visits_wanted(4, 8)[[2, 4]].tolist()
        [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 2, 2]]
    """
    if (considered, simulations) not in _WANTED:
        rows = [_wanted_of(m, simulations) for m in range(considered + 1)]
        _WANTED[considered, simulations] = np.array(rows, np.int32).reshape(considered + 1, simulations)
    return _WANTED[considered, simulations]


def _wanted_of(slots: int, simulations: int) -> list[int]:
    if slots <= 1:
        return list(range(simulations))
    # In each phase all slots that are left get equally many visits, one after the other.
    wanted: list[int] = []  # torch.compile does not trace list[int]()
    phases, visits, left = math.ceil(math.log2(slots)), 0, slots
    while len(wanted) < simulations:
        for _ in range(max(1, simulations // (phases * left))):
            wanted += [visits] * left
            visits += 1
        left = max(2, left // 2)
    return wanted[:simulations]


def _settle_score(policy: Any, kind: type, usual: type[Score]) -> None:
    if policy.score is None:
        object.__setattr__(policy, "score", usual())
    if not isinstance(policy.score, kind):
        raise TypeError(
            f"{type(policy).__name__}.score: expected a score such as frb.{usual.__name__}(), got {policy.score!r}"
        )
