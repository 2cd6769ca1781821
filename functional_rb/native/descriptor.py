"""What kernels know of plans: records of int32, whose fields the native code declares (`src/records.h`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.buffer.known import Chooses, how_slots_are_chosen
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters, episodes
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.plan import Plan
from functional_rb.mixture.value import MixtureSpec
from functional_rb.ops import fixed_point
from functional_rb.samplers import (
    Queue,
    SlicesWithoutReplacement,
    Staleness,
    WithoutReplacement,
    epochs,
    fresh,
    slices_without_replacement,
    staleness,
    without_replacement,
)
from functional_rb.samplers.draw_limits import TIMES
from functional_rb.samplers.importance import Priorities
from functional_rb.samplers.prioritized_slices import VALUE
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.structures import episode_windows, frame_ring, ring, sum_tree
from functional_rb.structures.episode_windows import Rule
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.hash_map import MapPlan
from functional_rb.structures.ring import Ring
from functional_rb.structures.row_layout import Layout
from functional_rb.transforms import n_step_added
from functional_rb.transforms.her import Strategy, chance_in_words
from functional_rb.transforms.n_step_added import NStepOfAdded
from functional_rb.transforms.n_step_stored import NStepOfStored
from functional_rb.transforms.returns import STEPS, NStep, Positions
from functional_rb.writers import MaxValue, max_value, reservoir

Vector = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
# Arrays beside the rows that samplers keep and kernels work on, in the order in which these are told of them.
KEPT: Final = epochs.ORDER, epochs.PLACE, STEP_IN_EPISODE, VALUE

# How leaves become numbers to rank items by, as `src/records.h` numbers it.
REDUCTIONS: Final = "sum", "mean", "max", "min", "median", "whole number"
# The dtypes of rewards that native code adds up, as `src/waiting.h` numbers them.
REWARDS: Final = "float64", "float32", "float16", "bfloat16"


def numbers_of_items(names: Collection[str]) -> str:
    """Of the names of a buffer's arrays that which kernels know as `times`: there is one at most."""
    return next((name for name in (fresh.WINDOWS, staleness.MADE_BY) if name in names), TIMES)


@functools.cache
def fields_of(name: str) -> tuple[str, ...]:
    """The names of a record's fields, in their order."""
    from functional_rb import _native  # of which there may be none, and then nobody asks

    return tuple(_native.RECORDS[name].split(", "))


def record(name: str, **values: int) -> list[int]:
    """A record's numbers in the order of its fields; those that are not given are 0."""
    unknown = values.keys() - set(fields_of(name))
    if unknown:
        raise TypeError(f"{name} has no fields {sorted(unknown)}; rebuild the extension: python tools/native_build.py")
    return [int(values.get(field, 0)) for field in fields_of(name)]


def _read_only(values: Iterable[int]) -> Vector:
    encoded = np.asarray(list(values), np.int32)
    encoded.flags.writeable = False
    return encoded


# --- buffers --------------------------------------------------------------------------------------------------------


@functools.cache
def encode(spec: BufferSpec) -> Vector:
    sampler = spec.sampler
    settings = _alpha(sampler.alpha if isinstance(sampler, Priorities) else 0.0) | {
        "capacity": spec.capacity,
        "modulus": ring.modulus(spec.capacity),
        "ever": isinstance(sampler, Priorities) and sampler.new_priority == "ever",
        "draws": spec.known.draws,
        "prioritized": sampler.has_priorities or sampler.compares_versions,
        "limit": getattr(sampler, "max_times_sampled", None) or 0,
        "newest_first": getattr(sampler, "newest_first", False),
        "length": (sampler.length or 1) if isinstance(sampler, Queue) else 1,
    }
    levels = () if spec.plan.tree_shape is None else sum_tree.geometry(spec.capacity).levels
    return _buffer(settings, levels, spec.plan.layout)


@functools.cache
def encode_tree(capacity: int) -> Vector:
    return _buffer({}, sum_tree.geometry(capacity).levels)


@functools.cache
def encode_layout(layout: Layout, capacity: int = 0) -> Vector:
    return _buffer({"capacity": capacity}, (), layout)


@functools.cache
def encode_alpha(alpha: float) -> Vector:
    return _buffer(_alpha(alpha))


def _alpha(alpha: float) -> dict[str, int]:
    whole, fraction = fixed_point.fixed_constant(alpha)
    bias_whole, bias_fraction = fixed_point.fixed_constant(alpha, fixed_point.BIAS)
    constants = {"alpha_whole": whole, "alpha_fraction": fraction, "alpha_is_one": alpha == 1.0}
    return constants | {"bias_whole": bias_whole, "bias_fraction": bias_fraction}


def _buffer(settings: dict[str, int], levels: tuple[sum_tree.Level, ...] = (), layout: Layout | None = None) -> Vector:
    """The record of a buffer, and behind it the bytes of stored arrays, the levels and the leaves."""
    layout = layout or Layout((), 0)
    sizes = {"leaves": len(layout.leaves), "wide": len(layout.wide), "levels": len(levels)}
    values = record("BufferRecord", **sizes, **settings)
    values += [4 * layout.row_words, *(leaf.nbytes for leaf in layout.wide)]
    for level in levels:
        rows = {"sums": level.sums, "smallest": level.smallest, "largest": level.largest}
        values += record("LevelRecord", nodes=level.nodes, groups=level.groups, **rows)
    for leaf in layout.leaves:
        storage = 0 if leaf.wide is None else 1 + leaf.wide
        values += record("LeafRecord", storage=storage, offset=leaf.offset or 0, bytes=leaf.nbytes)
    return _read_only(values)


def encode_known(**settings: int) -> Vector:
    """What the version chain knows of a buffer beside its plan."""
    return _read_only(record("KnownRecord", **settings))


@functools.cache
def encode_epoch(spec: BufferSpec) -> Vector:
    plan, sampler = spec.plan, spec.sampler
    assert isinstance(sampler, WithoutReplacement | SlicesWithoutReplacement)
    named = {
        "count": slices_without_replacement.COUNT,
        "remaining": epochs.REMAINING,
        "epochs_done": epochs.EPOCHS_DONE,
        "next": without_replacement.NEXT,
        "end": without_replacement.END,
    }
    places = {field: counters.place(plan, name) or counters.SIZE for field, name in named.items()}  # all items count
    return _read_only(record("EpochRecord", **places, drop_last=sampler.drop_last))


# --- rings and windows ----------------------------------------------------------------------------------------------


@functools.cache
def encode_ring(ring: Ring) -> Vector:
    return _read_only(record("RingRecord", **_ring(ring)))


@functools.cache
def encode_windows(ring: Ring, rule: Rule, by_trajectory: bool) -> Vector:
    return _read_only(record("RingRecord", **_ring(ring), **_windows(rule, by_trajectory)))


@functools.cache
def encode_rings(spec: BufferSpec) -> Vector:
    """The rings of a buffer, and its windows if slices are drawn from it: else their length is 0."""
    plan, sampler, windows, ends = spec.plan, spec.sampler, dict[str, int](), list[int]()
    if isinstance(sampler, Trajectories):
        windows = _windows(sampler.rule, sampler.by_trajectory)
    if plan.boundaries is not None:
        marks, trajectory = (_places(plan, leaves) for leaves in episodes.leaves_of(plan))
        ends, windows["ends"], windows["id"] = marks, len(marks), next(iter(trajectory), 0)
        places = ("next", episodes.NEXT_STEP_IN_EPISODE), ("newest", episodes.NEWEST_ID), ("completed", fresh.COMPLETED)
        for field, name in places:
            windows[field] = counters.place(plan, name) or 0
    if isinstance(sampler, Staleness):
        windows |= _versions(plan, sampler)
    return _read_only(record("RingRecord", **_ring(plan.ring), **windows, **_counters_of_rings(spec)) + ends)


def _versions(plan: Plan, sampler: Staleness) -> dict[str, int]:
    """Where the version of the policy that learns lies, and how items are drawn by that which made them."""
    place = counters.place(plan, staleness.VERSION)
    assert place is not None
    (made_by,) = _places(plan, [sampler.position(plan)])
    return {"version": place, "made_by": made_by, **_freshness(sampler.max_staleness, sampler.power)}


def _freshness(max_staleness: int | None, power: int) -> dict[str, int]:
    return {"stalest": 2**31 - 1 if max_staleness is None else max_staleness, "power": power}


@functools.lru_cache(maxsize=1024)
def encode_freshness(max_staleness: int | None, power: int) -> Vector:
    """How fresh items are; no ring."""
    return _read_only(record("RingRecord", **_freshness(max_staleness, power)))


def _places(plan: Plan, leaves: Iterable[int]) -> list[int]:
    """Where in the layout leaves lie; 0 for those that are stored as frames, of which kernels are told nothing."""
    return [plan.stored.index(k) if k in plan.stored else 0 for k in leaves]


def _ring(ring: Ring) -> dict[str, int]:
    turns = ring.limit // ring.length
    return {"capacity": ring.capacity, "length": ring.length, "lanes": ring.lanes, "turns": turns}


def _windows(rule: Rule, by_trajectory: bool) -> dict[str, int]:
    sizes = {"window_length": rule.length, "period": rule.period, "left": rule.left, "right": rule.right}
    return sizes | {"strict": rule.strict, "by_trajectory": by_trajectory}


def _counters_of_rings(spec: BufferSpec) -> dict[str, int]:
    """How many counters there are, and where among them the cursors and the sizes of the lanes begin."""
    plan = spec.plan
    places = {"cursors": counters.CURSOR, "sizes": counters.SIZE}
    if plan.ring.lanes > 1:
        places = {"cursors": counters.BASE, "sizes": counters.BASE + plan.ring.lanes}
    counted = {"refused": counters.REFUSED, "seen": reservoir.SEEN}
    of_writer = {field: counters.place(plan, name) or 0 for field, name in counted.items()}
    return {"counters": counters.length(plan)} | places | of_writer | _choice(spec)


def _choice(spec: BufferSpec) -> dict[str, int]:
    """How a writer chooses slots, if it is one that kernels know."""
    writer, chooses = spec.writer, how_slots_are_chosen(spec.plan, spec.writer)
    if chooses is not Chooses.BEST:
        return {"chooses": chooses}
    assert isinstance(writer, MaxValue)
    k = writer.position(spec.plan)
    reduction = "whole number" if spec.plan.leaves[k].dtype == "int32" else writer.reduction
    return {"chooses": chooses, "rank": spec.plan.stored.index(k), "reduction": REDUCTIONS.index(reduction)}


@functools.lru_cache(maxsize=1024)
def encode_distances(ring: Ring, rule: Rule, n: int, by_trajectory: bool) -> Vector:
    return _read_only(end for pair in episode_windows.distances(rule, ring.length, n, by_trajectory) for end in pair)


def entries(ring: Ring, distances: Vector) -> int:
    """How many entries of the index there are at such distances, and where each lane's oldest step is."""
    return ring.lanes * (int((distances[1::2] - distances[::2]).sum()) + 1)


@functools.lru_cache(maxsize=1024)
def encode_number(value: int) -> Vector:
    """A vector of one number, which is no record."""
    return _read_only([value])


@functools.lru_cache(maxsize=1024)
def encode_discounts(gamma: float, n: int, dtype: str) -> Vector:
    """gamma^k for k < n as floats of a dtype; no record."""
    return _read_only(np.asarray([gamma**k for k in range(n)], dtype).view(np.int32))


@functools.cache
def encode_form(fields: tuple[str, ...]) -> Vector:
    """Which fields of a call the records, operands and results are that a frame has, by their names; "" for none."""
    from functional_rb import _native

    return _read_only(_native.CALL_FIELDS.index(field) if field else -1 for field in fields)


# --- frames and maps ------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def encode_stacks(chain: Chain, depth: int, following: bool) -> Vector:
    """A chain of frames, and the stacks of so many frames that are asked for."""
    step, jump = (1, chain.depth) if following else (0, 0)
    return _read_only(record("ChainRecord", **_chain(chain), stack=depth, step=step, jump=jump))


@functools.lru_cache(maxsize=1024)
def encode_chain(chain: Chain) -> Vector:
    """A chain of frames that is written."""
    return _read_only(record("ChainRecord", **_chain(chain)))


def _chain(chain: Chain) -> dict[str, int]:
    sizes = {"length": chain.items.length, "room": chain.room, "limit": chain.limit, "depth": chain.depth}
    return sizes | {"paired": chain.paired, "item_limit": chain.items.limit}


class Beside(NamedTuple):
    """What additions write beside the rows of items.

    Attributes:
        layout: of its rows.
        names: its arrays among `State.auxiliary`, the rows first.
        queue: the steps that wait for others, if any do.
        frames: the frames that items share, if they do.
    """

    layout: Vector
    names: tuple[str, ...]
    queue: Vector
    frames: Vector


NOTHING = _read_only([])
NOTHING_BESIDE = Beside(NOTHING, (), NOTHING, NOTHING)


def beside(spec: BufferSpec) -> Beside:
    """What additions to a buffer write beside the rows of its items."""
    plan = spec.plan
    if plan.frames is not None:
        names = frame_ring.ROWS, *(frame_ring.WIDE.format(k) for k in range(len(plan.frames.layout.wide)))
        return Beside(encode_layout(plan.frames.layout), names, NOTHING, _frames(plan, plan.frames))
    if type(spec.writer) is MaxValue:
        return Beside(encode_layout(Layout((), sum_tree.FANOUT)), (max_value.RANK,), NOTHING, NOTHING)
    for transform in spec.inner:
        if isinstance(transform, NStepOfAdded):
            names = tuple(transform.auxiliary(plan))
            return Beside(encode_layout(transform.packed), names, _queue(plan, transform), NOTHING)
    return NOTHING_BESIDE


def _frames(plan: Plan, chain: Chain) -> Vector:
    values = record("ChainRecord", **_chain(chain))
    values += record("FramesRecord", cursor=counters.place(plan, frame_ring.CURSOR) or 0, stacks=len(chain.stacks))
    for stack in chain.stacks:
        outer = math.prod(stack.shape[: stack.axis]) if stack.depth > 1 else 1
        following = -1 if stack.following is None else stack.following
        shape = {"depth": stack.depth, "outer": outer, "bytes": math.prod(stack.shape) * ITEMSIZE[stack.dtype] // outer}
        values += record("StackRecord", leaf=stack.leaf, following=following, **shape)
    return _read_only([*values, *plan.stored])


def _queue(plan: Plan, transform: NStepOfAdded) -> Vector:
    trajectory = transform.trajectory(plan)
    lines = {"lanes": plan.ring.lanes, "pending": counters.place(plan, n_step_added.PENDING) or 0}
    lines["id"] = -1 if trajectory is None else trajectory
    return _returns(plan, transform, [*range(len(plan.leaves))], transform.ends(plan), transform.n, **lines)


def encode_returns(spec: BufferSpec) -> Vector | None:
    """The returns that a buffer's transform makes, or tells of, as items are read; of nothing else it is empty.

    None for what no launch reads: other transforms, and rewards or flags that are stored as frames.
    """
    plan, transforms = spec.plan, spec.inner
    if not transforms:
        return NOTHING
    transform = transforms[0]
    if len(transforms) > 1 or not isinstance(transform, NStep):
        return None
    if type(transform) is NStepOfAdded:
        first = len(plan.leaves) + [*plan.columns].index(STEPS)
        return _returns(plan, transform, None, (), transform.n + 1, pending=first)
    positions = transform.positions
    alike = all(plan.leaves[k].shape == positions.agents for k in positions.truncations) or not positions.agents
    needed = {
        *positions.rewards,
        *positions.terminated,
        *positions.truncations,
        *positions.ends,
        *_leaves_of_agents(plan, positions),
    }
    if type(transform) is not NStepOfStored or not alike or not needed <= {*plan.stored}:
        return None
    where = [plan.stored.index(k) if k in plan.stored else -1 - k for k in range(len(plan.leaves))]
    return _returns(plan, transform, where, (), transform.n + 1, pending=-1)


def _leaves_of_agents(plan: Plan, positions: Positions) -> list[int]:
    """The leaves of which each agent's values are taken from the last step of its own return."""
    agents = positions.agents
    return [k for k in positions.following if agents and plan.leaves[k].shape[: len(agents)] == agents]


def _returns(
    plan: Plan, transform: NStep, where: Sequence[int] | None, ends: Sequence[int], powers: int, **lines: int
) -> Vector:
    """Returns, by where leaves lie; without that they have been made, and there is but the discount."""
    positions, count = transform.positions, math.prod(transform.positions.agents)
    sizes, named, rewards = {"agents": count, "n": transform.n, "powers": powers}, list[int](), list[int]()
    if where is not None:
        of_agents = _leaves_of_agents(plan, positions)
        following = [k for k in positions.following if k not in of_agents]
        done = positions.ends if positions.agents else ()
        named = [*ends, *(where[k] for k in (*following, *of_agents, *done))]
        sizes |= {"ends": len(ends), "following": len(following), "own": len(of_agents), "done": len(done)}
        flags = {"terminated": positions.terminated, "truncated": positions.truncations}
        sizes |= {name: next((where[k] for k in leaves), -1) for name, leaves in flags.items()}
        for leaf, k in ((plan.leaves[k], k) for k in positions.rewards):
            rewards += [where[k], count if leaf.shape == positions.agents else 1, REWARDS.index(leaf.dtype)]
        sizes["rewards"] = len(positions.rewards)
    discounts = encode_discounts(transform.gamma, powers, "float64")
    return _read_only([*record("QueueRecord", **sizes, **lines), *named, *rewards, *discounts])


@functools.lru_cache(maxsize=1024)
def encode_map(plan: MapPlan) -> Vector:
    """A hash map, and behind it the numbers that its words are mixed with."""
    masks, factors, signs, (mask, factor) = plan.numbers
    sizes = {"capacity": plan.capacity, "words": plan.words, "table_size": plan.table_size, "hash_bits": plan.hash_bits}
    low, high, above = plan.seed & 0xFFFFFFFF, plan.seed >> 32 & 0xFFFFFFFF, plan.seed >> 64
    seed = {"seed_low": low, "seed_high": high, "seed_above": above}
    values = [*record("MapRecord", **sizes, mask=mask, factor=factor, **seed), *masks, *factors, *signs]
    return _read_only(np.array(values).astype(np.int32).tolist())


# --- goals in hindsight -----------------------------------------------------------------------------------------------

# The strategies of `her`, as `src/records.h` numbers them.
_STRATEGIES: Final = "future", "final", "episode", "random"


@functools.cache
def encode_goals(strategy: Strategy, k: int | float) -> Vector:
    """Whose goals items get, and how often: by an int k, or, if it is no whole number, by a float."""
    whole, high, low = -1, 0, 0
    if isinstance(k, int):
        whole = k + 1
    elif not math.isinf(k):
        whole, (high, low) = 0, chance_in_words(k)
    return _read_only(record("GoalsRecord", strategy=_STRATEGIES.index(strategy), whole=whole, high=high, low=low))


# --- mixtures ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)  # shares may be others in each call
def encode_mixture(spec: MixtureSpec, count: int, batch: int, listed: tuple[float, ...] | None, weighs: bool) -> Vector:
    """A draw from a mixture of so many buffers, and behind it their shares, 0 where they are not told here.

    Args:
        spec: of the mixture.
        count: of its buffers.
        batch: how many rows are drawn.
        listed: the shares; None where an array has them; empty where they are in proportion to what is stored.
        weighs: whether there are weights.
    """
    rows = batch // spec.parts if spec.how == "buffers" else 1
    parts = spec.parts if spec.how == "buffers" else 0
    settings = {
        "buffers": count,
        "exact": spec.how == "exact",
        "rows_of_a_part": rows,
        "parts": parts,
        "weighs": weighs,
    }
    shares = np.array(listed or (0,) * count, np.float32).view(np.int32)
    return _read_only([*record("MixtureRecord", **settings, by_size=listed == ()), *shares.tolist()])


def encode_places(settings: Mapping[str, int], bytes_of_rows: Sequence[int]) -> Vector:
    """Where rows go that a buffer of a mixture has drawn, and behind it the bytes of a row of each array."""
    return _read_only([*record("PlacesRecord", **settings, arrays=len(bytes_of_rows)), *bytes_of_rows])


@functools.cache
def encode_paths(paths: tuple[tuple[int, ...], ...], columns: int) -> Vector:
    """The numbers that name each buffer of a mixture whose handles have so many columns."""
    padded = [(*path, *(0,) * (columns - 1 - len(path))) for path in paths]
    numbers = [number for path in padded for number in path]
    return _read_only([*record("PathsRecord", buffers=len(paths), columns=columns), *numbers])
