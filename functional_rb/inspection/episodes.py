"""The episodes that a buffer holds, found by the leaves that say where they end."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from functional_rb.base import nest
from functional_rb.base.steps import FLAGS, NEXT
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.inspection.contents import Array, Contents, readable

REWARDS = (f"{NEXT}/reward", "reward")


@dataclasses.dataclass(frozen=True)
class EpisodeLeaves:
    """The positions of the leaves that describe episodes."""

    last_step: tuple[int, ...]  # the leaves that mark a last step
    identity: int | None  # the leaf whose value differs from episode to episode, or None
    reward: int | None  # the leaf of rewards, or None
    flags: Mapping[str, int]  # the leaves terminated and truncated after the step, by name, as far as there are any

    @property
    def all(self) -> set[int]:
        more = [k for k in (self.identity, self.reward) if k is not None]
        return {*self.last_step, *self.flags.values(), *more}


@dataclasses.dataclass(frozen=True)
class Episodes:
    """The episodes of a buffer, whole or in part."""

    lengths: Array  # the number of steps of each whole episode, int64 [n]
    returns: Array | None  # the sum of rewards of each whole episode, float64 [n]; None if there is no reward
    ended: dict[str, int]  # how many whole episodes ended in each way that a flag describes ("both" if in both ways)
    going_on: int  # how many episodes are not over yet
    cut: int  # how many episodes may have lost their first steps: the oldest of each lane that has had older steps


def find(spec: BufferSpec) -> EpisodeLeaves | str:
    """The leaves of a buffer that describe episodes; a text if there are none, which says why."""
    if not spec.writer.in_order:
        return f"the writer {spec.writer} chooses slots, so that items are in no order"
    try:
        boundaries = spec.plan.boundaries or EpisodeBoundaries.find(None, None, spec.plan.names, "inspect")
    except ValueError:
        return "no leaf tells where they end"
    keys = [nest.position(spec.plan.names, key, "inspect") for key in boundaries.end_keys]
    identity = None
    if boundaries.trajectory_key is not None:
        identity = nest.position(spec.plan.names, boundaries.trajectory_key, "inspect")
    if not all(readable(spec, k) for k in (*keys, *([] if identity is None else [identity]))):
        return "the leaves that tell where they end are stored apart from the others"
    inside = [name for name in spec.plan.names if name.startswith(f"{NEXT}/")]
    prefix = f"{NEXT}/" if any(name.removeprefix(f"{NEXT}/") in FLAGS for name in inside) else ""
    named = {flag: prefix + flag for flag in ("terminated", "truncated")}
    where = {flag: spec.plan.names.index(name) for flag, name in named.items() if name in spec.plan.names}
    flags = {flag: k for flag, k in where.items() if spec.plan.leaves[k].dtype == "bool" and readable(spec, k)}
    return EpisodeLeaves(tuple(keys), identity, _reward(spec), flags)


def count(contents: Contents, leaves: EpisodeLeaves) -> Episodes:
    spec, ends = contents.spec, contents.counters.ends
    lengths, returns, first, last = [], [], [], []
    for lane in range(spec.plan.ring.lanes):
        cursor, size = int(ends.cursors[lane]), int(ends.sizes[lane])
        slots = lane * spec.plan.ring.length + (cursor - size + np.arange(size)) % spec.plan.ring.length
        starts, stops, over = _pieces(contents.rows, leaves, slots)
        lost = (cursor - size) % spec.plan.ring.limit != 0  # there were older steps
        lengths.append(stops - starts)
        first.append((starts == 0) & lost)
        last.append(np.where(over, slots[stops - 1], -1))
        if leaves.reward is not None:
            rewards = contents.rows[leaves.reward][slots].reshape(-1).astype(np.float64)
            returns.append(np.add.reduceat(rewards, starts) if size else rewards)  # `reduceat` takes no empty array
    # Whole are episodes that are over and have lost no first steps; `newest` has the slots of their last steps.
    partial, newest = np.concatenate(first), np.concatenate(last)
    whole = ~partial & (newest >= 0)
    # A flag of several agents counts if it is set for any of them.
    columns = {name: contents.rows[k] for name, k in leaves.flags.items()}
    flags_by_name = {name: np.any(column.reshape(len(column), -1), axis=1) for name, column in columns.items()}
    return Episodes(
        np.concatenate(lengths)[whole],
        np.concatenate(returns)[whole] if returns else None,
        _ways(flags_by_name, newest[whole]),
        int((newest < 0).sum()),
        int(partial.sum()),
    )


def _pieces(rows: dict[int, Array], leaves: EpisodeLeaves, slots: Array) -> tuple[Array, Array, Array]:
    over = np.zeros(len(slots), bool)
    last_step = [rows[k][slots].reshape(len(slots), math.prod(rows[k].shape[1:])) for k in leaves.last_step]
    for of_agents in (False, True):  # an episode of several agents is over when all are done
        group = [flags for flags in last_step if (flags.shape[1] > 1) == of_agents]
        over |= functools.reduce(np.logical_or, group).all(1) if group else False
    if leaves.identity is not None:
        identity = rows[leaves.identity][slots].reshape(len(slots))
        over[:-1] |= identity[1:] != identity[:-1]
    stops = np.flatnonzero(over) + 1
    if len(slots) and not over[-1]:
        stops = np.append(stops, len(slots))
    return np.concatenate([[0], stops])[:-1].astype(np.int64), stops, over[stops - 1]


def _ways(flags_by_name: dict[str, Array], slots: Array) -> dict[str, int]:
    at_slots = {name: flags[slots] for name, flags in flags_by_name.items()}
    if len(at_slots) < 2:
        return {name: int(flags.sum()) for name, flags in at_slots.items()}
    terminated, truncated = at_slots["terminated"], at_slots["truncated"]
    return {
        "terminated": int((terminated & ~truncated).sum()),
        "truncated": int((truncated & ~terminated).sum()),
        "both": int((terminated & truncated).sum()),
    }


def _reward(spec: BufferSpec) -> int | None:
    for name in REWARDS:
        if name in spec.plan.names:
            k = spec.plan.names.index(name)
            leaf = spec.plan.leaves[k]
            fits = leaf.shape in ((), (1,)) and leaf.dtype in ("float16", "float32", "float64")
            return k if fits and readable(spec, k) else None
    return None
