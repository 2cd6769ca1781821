"""Gymnasium environments whose every observation has a number of its own: recorded by `frb.ted`, and by hand.

A lane goes through its episodes in turn, again and again. Observation t of its episode number i is a function of
`lane * 10**6 + i * 1000 + t`, so that a wrong row is seen wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import functional_rb as frb
from tests.support.backends import Backend

ACTIONS = 5
LARGE = 2**24  # whole numbers up to here are exact in float32
MODES = tuple(AutoresetMode)
FLAGS = ("done", "terminated", "truncated")
NO, YES = np.zeros(4, bool), np.ones(4, bool)


class Episode(NamedTuple):
    """How many steps, and "terminated", "truncated" or "both" at the last one."""

    length: int
    end: str


# One lane after the other: every kind of end, episodes of one step, two of them in a row.
EPISODES: tuple[tuple[Episode, ...], ...] = (
    (Episode(3, "terminated"), Episode(1, "truncated"), Episode(2, "both"), Episode(1, "terminated")),
    (Episode(4, "truncated"), Episode(2, "terminated")),
    (Episode(1, "both"),),
)


def _position(number: int) -> np.ndarray:
    return np.float32([number, -number])


def _frame(number: int) -> np.ndarray:
    return np.tile(np.frombuffer(np.int32(number).tobytes(), np.uint8), (3, 2))


# Kinds of observations, by their number.
OBSERVE: dict[str, Any] = {
    "box": _position,
    "discrete": np.int64,
    "dict": lambda n: {"position": _position(n), "inner": {"count": np.int64(n)}},
    "tuple": lambda n: (_position(n), np.int64(n)),
    "goal": lambda n: {
        "observation": _position(n),
        "achieved_goal": np.float32([n % 1000]),
        "desired_goal": np.float32([n // 1000 % 7]),
    },
    "frame": _frame,
}

_BOX = spaces.Box(-LARGE, LARGE, (2,), np.float32)
_GOAL = spaces.Box(-LARGE, LARGE, (1,), np.float32)
SPACES: dict[str, spaces.Space] = {
    "box": _BOX,
    "discrete": spaces.Discrete(LARGE),
    "dict": spaces.Dict({"position": _BOX, "inner": spaces.Dict({"count": spaces.Discrete(LARGE)})}),
    "tuple": spaces.Tuple((_BOX, spaces.Discrete(LARGE))),
    "goal": spaces.Dict({"observation": _BOX, "achieved_goal": _GOAL, "desired_goal": _GOAL}),
    "frame": spaces.Box(0, 255, (3, 8), np.uint8),
}


def number_of(item: Any) -> int:
    """The number of the observation at the root of a step."""
    if "position" in item:
        return int(item["position"][0])
    observation = item["observation"]
    if isinstance(observation, tuple):
        return int(observation[1])
    if observation.dtype == np.uint8:
        return int(np.ascontiguousarray(observation[0, :4]).view(np.int32)[0])
    return int(observation if observation.ndim == 0 else observation[0])


def action_of(lane: int, k: int) -> int:
    """What is done at step k that a lane really takes."""
    return (7 * lane + 3 * k) % ACTIONS


def reward_of(number: int, action: int) -> float:
    return number % 997 + action / 4


class Numbered(gym.Env[Any, Any]):
    """A lane's environment."""

    def __init__(self, lane: int, episodes: Sequence[Episode], kind: str = "box") -> None:
        self.metadata = dict(self.metadata)  # which vector environments write their mode to
        self.lane, self.episodes, self.kind = lane, episodes, kind
        self.observation_space, self.action_space = SPACES[kind], spaces.Discrete(ACTIONS)
        self.episode, self.t = -1, 0

    @property
    def number(self) -> int:
        return self.lane * 10**6 + self.episode * 1000 + self.t

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.t = self.episode + 1, 0
        return OBSERVE[self.kind](self.number), {"resets": self.episode}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        length, end = self.episodes[self.episode % len(self.episodes)]
        assert self.t < length, "stepped after its end"
        reward = reward_of(self.number, int(action))
        self.t += 1
        last = self.t == length
        observation = OBSERVE[self.kind](self.number)
        return observation, reward, last and end != "truncated", last and end != "terminated", {"t": self.t}


class NumberedVector(VectorEnv[Any, Any, Any]):
    """The same with arrays for all lanes, as Gymnasium's vectorised CartPole is written: rewards are float32."""

    def __init__(self, episodes: Sequence[Sequence[Episode]], kind: str = "box") -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.envs = [Numbered(lane, its, kind) for lane, its in enumerate(episodes)]
        self.num_envs = len(self.envs)
        self.single_observation_space, self.single_action_space = SPACES[kind], spaces.Discrete(ACTIONS)
        self.lane = np.arange(self.num_envs)
        self.kind = kind

    def _observation(self) -> Any:
        return stacked([OBSERVE[self.kind](int(n)) for n in self.lane * 10**6 + self.episode * 1000 + self.t])

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.t = np.zeros(self.num_envs, int), np.zeros(self.num_envs, int)
        self.ended = np.zeros(self.num_envs, bool)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        number = self.lane * 10**6 + self.episode * 1000 + self.t
        reward = np.float32(number % 997 + action / 4)
        now = [env.episodes[i % len(env.episodes)] for env, i in zip(self.envs, self.episode, strict=True)]
        self.t += 1
        last = self.t == [length for length, _ in now]
        terminated = last & [end != "truncated" for _, end in now]
        truncated = last & [end != "terminated" for _, end in now]
        self.episode[self.ended] += 1
        self.t[self.ended] = 0
        for array in (reward, terminated, truncated):
            array[self.ended] = 0
        self.ended = terminated | truncated
        return self._observation(), reward, terminated, truncated, {}


def make(
    episodes: Sequence[Sequence[Episode]],
    mode: AutoresetMode,
    kind: str = "box",
    vectorised: str = "sync",
    copy: bool = True,
) -> VectorEnv[Any, Any, Any]:
    """A vector environment with a lane for each sequence of episodes."""
    if vectorised == "own":
        assert mode == AutoresetMode.NEXT_STEP
        return NumberedVector(episodes, kind)
    makers = [lambda lane=lane, its=its: Numbered(lane, its, kind) for lane, its in enumerate(episodes)]
    return SyncVectorEnv(makers, copy=copy, autoreset_mode=mode)


def stream(env: VectorEnv[Any, Any, Any], mode: AutoresetMode, calls: int, item: Any = None) -> Iterator[Any]:
    """What `frb.ted` makes of so many calls of `env.step`: (items, leaves [E, *shape], and mask bool [E])."""
    observation, _ = env.reset()
    carry = frb.ted.begin(observation)
    taken = np.zeros(env.num_envs, int)
    for _ in range(calls):
        action = np.array([action_of(lane, int(k)) for lane, k in enumerate(taken)])
        carry, items, mask = frb.ted.from_gymnasium(carry, action, env.step(action), mode, item=item)
        done = items["next"]["done"]
        if mode == AutoresetMode.DISABLED and done.any():
            observation, _ = env.reset(options={"reset_mask": done.copy()})
            carry = carry.reset(observation, done)
        taken += mask
        yield items, mask


def by_hand(
    lane: int, episodes: Sequence[Episode], calls: int, mode: AutoresetMode, kind: str = "box", narrow: bool = True
) -> list[dict[str, Any]]:
    """The steps of one lane's single environment in so many calls: a reset is one of them with NEXT_STEP."""
    env, rows = Numbered(lane, episodes, kind), []
    before, _ = env.reset()
    while calls > 0:
        action = action_of(lane, len(rows))
        after, reward, terminated, truncated, _ = env.step(action)
        calls -= 1
        rows.append(row(before, action, reward, after, terminated, truncated, narrow))
        before = after
        if terminated or truncated:
            before, _ = env.reset()
            calls -= mode == AutoresetMode.NEXT_STEP
    return rows


def row(
    before: Any, action: int, reward: float, after: Any, terminated: bool, truncated: bool, narrow: bool
) -> dict[str, Any]:
    """A step in TED, written down."""
    before, after = (x if isinstance(x, dict) else {"observation": x} for x in (before, after))
    no = {"done": np.bool_(False), "terminated": np.bool_(False), "truncated": np.bool_(False)}
    ends = {
        "done": np.bool_(terminated or truncated),
        "terminated": np.bool_(terminated),
        "truncated": np.bool_(truncated),
    }
    item = {**before, "action": np.int64(action), **no, "next": {**after, "reward": np.float64(reward), **ends}}
    return narrowed(item) if narrow else item


def narrowed(nest: Any) -> Any:
    """64-bit numbers in 32 bits."""
    if isinstance(nest, dict):
        return {name: narrowed(part) for name, part in nest.items()}
    if isinstance(nest, tuple):
        return tuple(narrowed(part) for part in nest)
    return nest.astype({"int64": np.int32, "float64": np.float32}.get(nest.dtype.name, nest.dtype))


def stacked(rows: Sequence[Any]) -> Any:
    """Nests of one structure as one, with a leading axis."""
    if isinstance(rows[0], dict):
        return {name: stacked([row[name] for row in rows]) for name in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(stacked(parts) for parts in zip(*rows, strict=True))
    return np.stack(rows)


def at(nest: Any, index: Any) -> Any:
    """A nest of arrays, at some place in each."""
    if isinstance(nest, dict):
        return {name: at(part, index) for name, part in nest.items()}
    if isinstance(nest, tuple):
        return tuple(at(part, index) for part in nest)
    return nest[index]


def as_numpy(backend: Backend, nest: Any) -> Any:
    if isinstance(nest, dict):
        return {name: as_numpy(backend, part) for name, part in nest.items()}
    if isinstance(nest, tuple):
        return tuple(as_numpy(backend, part) for part in nest)
    return backend.numpy(nest)


def same(a: Any, b: Any) -> bool:
    """Whether two nests are equal: names, dtypes, shapes and bits."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()


class Recording(NamedTuple):
    """A buffer with a lane for each environment, and what it should hold.

    Attributes:
        state: everything was added, call by call.
        expected: by lane, the steps by hand in the order in which they were taken; the buffer has the newest of them.
        by_number: the same steps by the number of their observation.
    """

    state: Any
    expected: list[list[dict[str, Any]]]
    by_number: dict[int, dict[str, Any]]


def record(
    backend: Backend,
    mode: AutoresetMode,
    calls: int,
    *,
    episodes: Sequence[Sequence[Episode]] = EPISODES,
    kind: str = "box",
    vectorised: str = "sync",
    length: int = 64,
    **settings: Any,
) -> Recording:
    """Record into a buffer of `length` steps a lane; settings are those of its `BufferSpec` (sampler, ...)."""
    env = make(episodes, mode, kind, vectorised)
    item = frb.ted.item_from_env(env, narrow=True)
    spec = frb.BufferSpec(item, length * len(episodes), lanes=len(episodes), **settings)
    state = backend.init(spec)
    for items, mask in stream(env, mode, calls, item):
        state = backend.add(state, backend.tree(items), backend.array(mask))
    expected = [by_hand(lane, its, calls, mode, kind) for lane, its in enumerate(episodes)]
    return Recording(state, expected, {number_of(step): step for steps in expected for step in steps})
