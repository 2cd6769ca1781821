"""What happens to lanes of environments, recorded in plain lists.

Every step and every frame has a number of its own, and all their leaves are made of it, so that a wrong neighbour, a
stale row or a crossed boundary shows itself.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import functional_rb as frb
from functional_rb.base import nest
from tests.support.backends import Backend
from tests.support.histories import pick

Array = np.ndarray[Any, Any]
# The leaves of one item, by path, such as "next/reward".
Leaves = dict[str, Array]
# As many numbers as an element of a narrow dtype tells apart.
BASES = {"bool": 2, "uint8": 251, "int8": 127, "int16": 30011, "float16": 2003}


# What leaves are made of.


@functools.lru_cache(10_000)
def numbered(spec: frb.Unbounded, number: int, bits: bool = False) -> Array:
    """An array of a number: 0 gives zeros, any other its own. Of all bit patterns if asked: NaNs, negative zeros."""
    size = math.prod(spec.shape)
    if not number:
        return np.zeros(spec.shape, spec.dtype)
    if bits and spec.dtype != "bool":
        rng = np.random.default_rng(number)
        array = np.frombuffer(rng.bytes(size * np.dtype(spec.dtype).itemsize), spec.dtype).copy()
        if "float" in spec.dtype:
            array[rng.random(size) < 0.2] = -0.0
            array[rng.random(size) < 0.1] = np.nan
        return array.reshape(spec.shape)
    elements = np.arange(size)
    base = BASES.get(spec.dtype)
    if base is None:
        return (number * 4 + elements % 4).astype(spec.dtype).reshape(spec.shape)
    digits = math.ceil(31 / math.log2(base))  # then some more, of which only the look counts
    powers = base ** np.minimum(elements, digits)
    elements = np.where(elements < digits, number // powers, number * (elements + 1)) % base
    return elements.astype(spec.dtype).reshape(spec.shape)


def nested(leaves: Mapping[str, Any]) -> Any:
    """Leaves by path as nested dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *outer, name = path.split("/")
        functools.reduce(lambda part, key: part.setdefault(key, {}), outer, tree)[name] = leaf
    return tree


def by_path(backend: Backend, tree: Any) -> Leaves:
    """And back, in NumPy's arrays."""
    leaves, structure = nest.flatten(tree, lambda x: hasattr(x, "dtype"))
    return {nest.show(path): backend.numpy(leaf) for path, leaf in zip(structure.paths, leaves, strict=True)}


def assert_same(got: Any, expected: Any, what: str = "") -> None:
    """Bit for bit."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype, what
    assert got.shape == expected.shape, what
    if got.tobytes() != expected.tobytes():
        np.testing.assert_array_equal(got, expected, what)
        raise AssertionError(f"{what}: {got} and {expected} differ in the bits of zeros or NaNs")


# What happens.


class Moment(NamedTuple):
    """One step of an environment.

    Attributes:
        id: of the step.
        frames: the numbers of the last frames before it, the newest last.
        next_frames: likewise after it.
        goal: the number of the goal that is wanted.
        reward: for it.
        terminated: whether the episode ends by its own rules.
        truncated: whether it is broken off.
        episode: the number of the episode.
        noise: a bool that means nothing.
    """

    id: int
    frames: tuple[int, ...]
    next_frames: tuple[int, ...]
    goal: int
    reward: Array
    terminated: bool
    truncated: bool
    episode: int
    noise: bool


@dataclasses.dataclass(frozen=True)
class Kind:
    """A form in which transitions are stored.

    Attributes:
        item: the specs by path.
        roles: what each leaf holds, if its name does not say so: one of those in `leaf_of`.
        stacks: of leaves that are stacks of frames, how many, and along which axis.
        ends: the bool leaves that mark a trajectory's last step; any of them does.
        trajectory: the leaf that is another in every trajectory, if any.
        reward: the leaf of the reward.
        rewards: where there are several, all of them.
        nexts: leaves of what there is after the step.
        terminated: the leaf that says so; with another that says it only looks so. None where nothing ever does.
        settings: what `n_step` has to be told.
    """

    item: dict[str, frb.Unbounded]
    roles: dict[str, str] = dataclasses.field(default_factory=dict)
    stacks: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    ends: tuple[str, ...] = ("done",)
    trajectory: str | None = None
    reward: str = "reward"
    rewards: tuple[str, ...] = ()
    nexts: tuple[str, ...] = ()
    terminated: tuple[str, str | None] | None = ("done", None)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def depth(self) -> int:
        return max([1, *(count for count, _ in self.stacks.values())])

    def role(self, path: str) -> str:
        return self.roles.get(path) or path.split("/")[-1]

    def leaves(self, moment: Moment, bits: bool) -> Leaves:
        """The item of a moment."""
        return {path: self.leaf(path, spec, moment, bits) for path, spec in self.item.items()}

    def leaf(self, path: str, spec: frb.Unbounded, moment: Moment, bits: bool) -> Array:
        """By its role; what is named like nothing else is an observation."""
        role = self.role(path)
        flags = {"terminated": moment.terminated, "truncated": moment.truncated, "noise": moment.noise}
        flags |= {"done": moment.terminated or moment.truncated, "false": False}
        if role in flags:
            return np.full(spec.shape, flags[role], np.bool_)
        if role == "reward":
            return moment.reward[: math.prod(spec.shape)].reshape(spec.shape).astype(spec.dtype)
        if role == "cost":
            return moment.reward[::-1][: math.prod(spec.shape)].reshape(spec.shape).astype(spec.dtype)
        if role == "episode":
            return np.full(spec.shape, moment.episode, spec.dtype)
        if role.endswith("desired_goal"):
            return numbered(spec, moment.goal)
        if role in ("id", "x", "action"):
            return numbered(spec, moment.id)
        after = path.startswith("next") or role.startswith("next")
        frames = moment.next_frames if after else moment.frames
        if path in self.stacks:
            count, axis = self.stacks[path]
            axis %= len(spec.shape)
            single = frb.Unbounded(spec.shape[:axis] + spec.shape[axis + 1 :], spec.dtype)
            return np.stack([numbered(single, frame, bits) for frame in frames[-count:]], axis)
        return numbered(spec, frames[-1], bits)


class Environment:
    """Episodes of any length that end in any way, and sometimes without a word."""

    def __init__(self, rng: np.random.Generator, depth: int, new: Callable[[], int]) -> None:
        """Observations of so many frames, with new numbers."""
        self.rng, self.depth, self.new = rng, depth, new
        self.rate = pick(rng, [0.02, 0.1, 0.3, 0.7, 1.0])
        self.silent = pick(rng, [0.0, 0.0, 0.1])
        self.still = pick(rng, [0.0, 0.0, 0.2])
        self.after_end = pick(rng, ["reset", "reset", "same step", "go on"])
        self.episode = 0
        self.reset()

    def reset(self) -> None:
        """A first frame, behind copies of it, zeros, or others."""
        first = self.new()
        pad = pick(self.rng, [first, 0, None])
        self.frames = (*(self.new() if pad is None else pad for _ in range(self.depth - 1)), first)
        self.goal = self.new()

    def step(self) -> Moment:
        rng, frames, goal, episode = self.rng, self.frames, self.goal, self.episode
        next_frames = (*frames[1:], frames[-1] if rng.random() < self.still else self.new())
        ended = bool(rng.random() < self.rate)
        terminated, truncated = pick(rng, [(True, False), (False, True), (True, True)]) if ended else (False, False)
        self.frames = next_frames
        reset = ended and self.after_end != "go on"
        if reset or rng.random() < self.silent:
            self.reset()
        if ended and self.after_end == "same step":  # what comes after an end is the next episode's beginning
            next_frames = self.frames
        self.episode += ended
        reward = rng.integers(-8, 9, 2).astype(np.float64)
        noise = bool(rng.random() < 0.5)
        return Moment(self.new(), frames, next_frames, goal, reward, terminated, truncated, episode % 3, noise)


class World:
    """Lanes of environments."""

    def __init__(self, rng: np.random.Generator, kind: Kind, lanes: int, bits: bool = False) -> None:
        self.rng, self.kind, self.bits = rng, kind, bits
        self.count = 0
        self.environments = [Environment(rng, kind.depth, self.new) for _ in range(lanes)]

    def new(self) -> int:
        """A number that nothing has."""
        self.count += 1
        return self.count

    def batch(self, steps: int, masked: bool) -> tuple[Leaves, Array | None]:
        """Leaves [steps, lanes, *shape], and which are written, bool [steps, lanes].

        Of those that are not, some environments did step, unseen, and others did not.
        """
        lanes = len(self.environments)
        mask = np.ones((steps, lanes), np.bool_)
        rows = []
        for t in range(steps):
            for e, environment in enumerate(self.environments):
                before = environment.frames, environment.goal, environment.episode
                rows.append(self.kind.leaves(environment.step(), self.bits))
                if masked and self.rng.random() < 0.3:
                    mask[t, e] = False
                    if self.rng.random() < 0.6:
                        environment.frames, environment.goal, environment.episode = before
        leaves = {
            path: np.array([row[path] for row in rows], spec.dtype).reshape(steps, lanes, *spec.shape)
            for path, spec in self.kind.item.items()
        }
        return leaves, mask if masked else None


# What was written, and is still there.


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that was written.

    Attributes:
        leaves: what it holds.
        episode: the trajectory that it is of, as a number of its lane.
        ended: whether a flag says that its trajectory ends with it.
        extras: what comes with it, where it is made when it is added.
    """

    leaves: Leaves
    episode: int = 0
    ended: bool = False
    extras: Leaves = dataclasses.field(default_factory=dict)


class Room(NamedTuple):
    """For the frames of a lane, with which steps share what they can.

    Attributes:
        frames: how many there is room for.
        pairs: the leaves that are stored as frames, and of each the leaf of its next value, or None for all.
    """

    frames: int
    pairs: tuple[tuple[str, str | None], ...]


Lane = tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class Record:
    """All that was ever written; a value, so that older ones stay what they are.

    Attributes:
        kind: of the items.
        length: how many steps a lane holds.
        lanes: the steps, the oldest first.
        first: the number of each lane's first step.
        room: for the frames of a lane, if they are stored apart.
    """

    kind: Kind
    length: int
    lanes: tuple[Lane, ...]
    first: int = 0
    room: Room | None = None

    def written(self, leaves: Leaves, mask: Array | None) -> Record:
        """After a batch, leaves [T, lanes, *shape]."""
        lanes = [list(lane) for lane in self.lanes]
        for t in range(len(next(iter(leaves.values())))):
            for e, lane in enumerate(lanes):
                if mask is None or mask[t, e]:
                    row = {path: leaf[t, e] for path, leaf in leaves.items()}
                    lane.append(self.following(lane[-1] if lane else None, row))
        return dataclasses.replace(self, lanes=tuple(tuple(lane) for lane in lanes))

    def following(self, before: Step | None, row: Leaves) -> Step:
        ended = any(bool(row[path].all()) for path in self.kind.ends)
        if before is None:
            return Step(row, 0, ended)
        another = self.kind.trajectory is not None and bool(
            (before.leaves[self.kind.trajectory] != row[self.kind.trajectory]).all()
        )
        return Step(row, before.episode + (before.ended or another), ended)

    def live(self, lane: int) -> Lane:
        """The newest of a lane."""
        return self.live_lanes[lane]

    @functools.cached_property
    def live_lanes(self) -> tuple[Lane, ...]:
        if self.room is None:
            return tuple(lane[-self.length :] for lane in self.lanes)
        return tuple(lane[max(0, len(lane) - self.length, lost_frames(self, lane)) :] for lane in self.lanes)

    @property
    def size(self) -> int:
        return sum(len(self.live(e)) for e in range(len(self.lanes)))

    def handle(self, lane: int, k: int) -> int:
        """Of the lane's k-th step ever: the turn of the ring times the capacity, and the slot."""
        limit = (2**31 - 1) // (self.length * len(self.lanes)) * self.length
        turn, place = divmod((self.first + k) % limit, self.length)
        return (turn * len(self.lanes) + lane) * self.length + place

    @functools.cached_property
    def places(self) -> dict[int, tuple[int, int]]:
        """Of all that is stored, by handle: the lane, and the place in `live(lane)`."""
        found = {}
        for e, lane in enumerate(self.lanes):
            count = len(self.live(e))
            for place in range(count):
                found[self.handle(e, len(lane) - count + place)] = (e, place)
        return found

    def stored(self, handle: int) -> Step:
        """What lies under a handle."""
        lane, place = self.places[handle]
        return self.live(lane)[place]


def lost_frames(record: Record, lane: Lane) -> int:
    """How many of a lane's steps, the oldest, have lost some of their frames."""
    kind, room = record.kind, record.room
    assert room is not None
    paired = room.pairs[0][1] is not None

    def frames(step: Step | None, path: str) -> list[bytes]:
        """The oldest first; an empty lane has nothing but zeros."""
        count, axis = kind.stacks.get(path, (1, 0))
        leaf = np.zeros(kind.item[path].shape, kind.item[path].dtype) if step is None else step.leaves[path]
        return [part.tobytes() for part in (np.moveaxis(leaf, axis, 0) if count > 1 else leaf[None])]

    end, oldest, before = 0, [], None
    for step in lane:
        shared = all(
            frames(before, after or own)[not after :] == frames(step, own)[: None if after else -1]
            for own, after in room.pairs
        )
        end += (0 if paired else 1) if shared else kind.depth
        oldest.append(end - kind.depth)
        if paired:
            moved = all(frames(step, own)[1:] == frames(step, after or own)[:-1] for own, after in room.pairs)
            end += 1 if moved else kind.depth
        before = step
    return sum(number < end - room.frames for number in oldest)
