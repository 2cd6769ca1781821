"""`check_env`: what an environment gives against what its spaces say, every leaf, first step and count."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import functional_rb as frb
from tests.formats.environments import ACTIONS, ALL, LIMITS, Made

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
BOX = spaces.Box(-1, 1, (2,), np.float32)
SPACE = spaces.Dict(
    box=BOX,
    choice=spaces.Discrete(3),
    text=spaces.Text(3),
    sequence=spaces.Sequence(spaces.Discrete(2)),
    stacked=spaces.Sequence(BOX, stack=True),
    graph=spaces.Graph(spaces.Discrete(2), BOX),
    bare=spaces.Graph(spaces.Discrete(2), None),
    one_of=spaces.OneOf((spaces.Discrete(2), BOX)),
    pair=spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
)
NODES, LINKS = np.array([0, 1]), np.array([[0, 1]], np.int32)
GRAPH = spaces.GraphInstance(NODES, np.zeros((1, 2), np.float32), LINKS)
GOOD: dict[str, Any] = {
    "box": np.zeros(2, np.float32),
    "choice": np.int64(1),
    "text": "ab",
    "sequence": (np.int64(0), np.int64(1)),
    "stacked": np.zeros((3, 2), np.float32),
    "graph": GRAPH,
    "bare": spaces.GraphInstance(NODES, None, None),
    "one_of": (1, np.zeros(2, np.float32)),
    "pair": (np.zeros(2, np.int8), np.zeros(2, np.int64)),
}
# Where, what comes instead, and what is told of it.
FAULTS: list[tuple[str, str, Any, str]] = [
    ("observation/box", "box", np.zeros(2), "expected dtype float32, got float64"),
    ("observation/box", "box", np.zeros(3, np.float32), "expected shape (2,), got (3,)"),
    ("observation/box", "box", np.float32([0, 2]), "got [0., 2.]"),
    ("observation/box", "box", np.float32([0, np.nan]), "got [ 0., nan]"),
    ("observation/box", "box", [0.0, 0.0], "expected an array, got list"),
    ("observation/box", "box", None, "missing"),
    ("observation/more", "more", 3, "not expected, got int 3"),
    ("observation/choice", "choice", 3, "expected values of Categorical(3, dtype='int64'), got 3"),
    ("observation/choice", "choice", np.int32(1), "expected dtype int64, got int32"),
    ("observation/choice", "choice", 1.5, "expected numbers that dtype int64 has, got float64"),
    ("observation/text", "text", "abcd", "expected 1 to 3 characters, got 4"),
    ("observation/text", "text", "a$", "expected characters of the charset, got '$'"),
    ("observation/text", "text", 3, "expected a str, got int"),
    ("observation/sequence/elements", "sequence", (np.int64(0), np.int64(5)), "got 5"),
    ("observation/sequence", "sequence", 3, "expected a tuple of elements, got int 3"),
    ("observation/stacked", "stacked", np.float32(3), "expected arrays of elements"),
    ("observation/stacked/elements", "stacked", np.zeros((3, 1), np.float32), "expected shape (3, 2), got (3, 1)"),
    ("observation/graph/nodes", "graph", GRAPH._replace(nodes=np.array([0, 7])), "got 7 (row 1)"),
    ("observation/graph/edges", "graph", GRAPH._replace(edges=np.full((1, 2), 9, np.float32)), "got [9., 9.]"),
    ("observation/graph/edge_links", "graph", GRAPH._replace(edge_links=LINKS + 1), "below the number of nodes, 2"),
    ("observation/graph/edge_links", "graph", GRAPH._replace(edge_links=LINKS - 1), "below the number of nodes, 2"),
    ("observation/graph/edge_links", "graph", GRAPH._replace(edge_links=None), "whole numbers [1, 2]"),
    ("observation/graph", "graph", {}, "expected nodes, edges and edge_links, got dict {}"),
    ("observation/bare/edges", "bare", GRAPH, "expected None, as the graph has no edges"),
    ("observation/one_of", "one_of", (2, 0), "expected a pair (option, value) with an option below 2"),
    ("observation/one_of", "one_of", 1, "expected a pair (option, value) with an option below 2"),
    ("observation/one_of/options/0", "one_of", (0, np.int64(2)), "got 2"),
    ("observation/pair", "pair", np.zeros(2), "expected a tuple of [0, 1], got an array float64 (2,)"),
    ("observation/pair/1", "pair", (np.zeros(2, np.int8),), "missing"),
    ("observation/pair/0", "pair", (np.full(2, 2, np.int8), np.zeros(2, np.int64)), "got [2, 2]"),
    ("observation/pair/1", "pair", (np.zeros(2, np.int8), np.array([1, 3])), "got [1, 3]"),
    ("reward", "reward", float("nan"), "got nan"),
    ("reward", "reward", np.zeros(1), "expected shape (), got (1,)"),
    ("reward", "reward", "1", "expected an array, got str '1'"),
    ("terminated", "terminated", 0, "expected numbers that dtype bool has, got int64"),
    ("truncated", "truncated", None, "expected an array, got NoneType None"),
]


def at(value: Any, fault: Any) -> Any:
    _, name, wrong, _ = fault
    if wrong is None and name == "box":
        return {key: part for key, part in value.items() if key != name}
    return value | {name: wrong}


class Faulty(gym.Env[Any, Any]):
    """Gives what is right, but for faults at some of its steps (0 is the first reset)."""

    def __init__(self, faults: dict[int, Any], length: int = 3, space: Any = SPACE) -> None:
        self.metadata = dict(self.metadata)
        self.observation_space, self.action_space = space, spaces.Discrete(5)
        self.faults, self.length = faults, length
        self.count, self.seeds, self.actions, self.resets = 0, [], [], []

    def _given(self, count: int) -> dict[str, Any]:
        given = {**GOOD, "reward": 1.0, "terminated": False, "truncated": False}
        for fault in self.faults.get(count, ()):
            given = at(given, fault)
        return given

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.resets.append(self.count)
        self.t = 0
        given = self._given(0) if self.count == 0 else dict(GOOD)
        return {name: part for name, part in given.items() if name in SPACE.spaces or name == "more"}, {}

    def step(self, action: Any) -> tuple[Any, ...]:
        assert self.t < self.length, "stepped after its end"
        self.actions.append(int(action))
        self.count, self.t = self.count + 1, self.t + 1
        given = self._given(self.count)
        reward, terminated, truncated = (given.pop(name) for name in ("reward", "terminated", "truncated"))
        return given, reward, self.t == self.length if terminated is False else terminated, truncated, {}


def test_what_is_right_is_accepted() -> None:
    env = Faulty({})
    assert frb.ted.check_env(env, steps=10) is None
    assert env.count == 10
    assert env.resets == [0, 3, 6, 9]  # whenever it had ended
    assert set(GOOD) == set(SPACE.spaces)
    assert SPACE.contains(GOOD)
    no_edges = GRAPH._replace(edges=np.zeros((0, 2), np.float32), edge_links=np.zeros((0, 2), np.int32))
    frb.ted.check_env(Faulty({1: [("", "graph", no_edges, ""), ("", "sequence", (), "")]}), steps=2)


def test_seeds_make_the_actions() -> None:
    actions = []
    for seed in (0, 0, 1):
        env = Faulty({})
        frb.ted.check_env(env, steps=20, seed=seed)
        assert env.seeds == [seed, *[None] * (len(env.seeds) - 1)]
        actions.append(env.actions)
    assert actions[0] == actions[1] != actions[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[3][:30]}")
def test_each_fault_is_named(fault: Any) -> None:
    path, _, _, told = fault
    steps = 5 if path not in ("terminated", "truncated") else 2  # then nobody knows when to reset
    with pytest.raises(ValueError, match=re.escape(told)) as error:
        frb.ted.check_env(Faulty({2: [fault], 4: [fault]}), steps=5)
    (line,) = str(error.value).splitlines()[1:]
    assert line.startswith(f"  {path}: ")
    assert line.endswith("; first at step 2, 2 times" if steps == 5 else "; first at step 2, 1 time")


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.dictionaries(st.integers(0, 8), st.lists(st.sampled_from(FAULTS[:31]), max_size=4), max_size=5))
def test_every_fault_is_told_with_first_step_and_count(faults: dict[int, list[Any]]) -> None:
    """One fault of each part of the observation at each step."""
    faults = {step: list({fault[1]: fault for fault in some}.values()) for step, some in faults.items()}
    happened: dict[str, list[int]] = {}
    for step in sorted(faults):
        for path, *_ in faults[step]:
            happened.setdefault(path, []).append(step)
    if not happened:
        frb.ted.check_env(Faulty(faults), steps=8)
        return
    with pytest.raises(ValueError, match=r"^check_env: what the environment gives is not what its spaces say") as error:
        frb.ted.check_env(Faulty(faults), steps=8)
    told: dict[str, list[tuple[int, int]]] = {}
    for line in str(error.value).splitlines()[1:]:
        found = re.fullmatch(r"  (\S+): .*; first at step (\d+)( \(the reset\))?, (\d+) times?", line)
        assert found, line
        assert bool(found[3]) == (found[2] == "0")
        told.setdefault(found[1], []).append((int(found[2]), int(found[4])))
    assert {path: (min(s for s, _ in some), sum(n for _, n in some)) for path, some in told.items()} == {
        path: (steps[0], len(steps)) for path, steps in happened.items()
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_item", [False, True])
def test_vector_environments_are_accepted(mode: AutoresetMode, with_item: bool) -> None:
    env = SyncVectorEnv(
        [lambda seed=seed: Made(ALL, ACTIONS, seed) for seed in (0, 1)],
        autoreset_mode=mode,
        observation_mode="different",
    )
    item = frb.ted.item_from_env(env, narrow=True, **LIMITS) if with_item else None
    frb.ted.check_env(env, steps=12, item=item)
    assert all(len(one.log) > 6 for one in env.envs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["choice", "text", "one_of"])
def test_faults_of_vector_environments(mode: AutoresetMode, name: str) -> None:
    """The second environment gives something else at its steps 2 and 3, of which the latter is the last one."""
    wrong = {"choice": np.int64(3), "text": "abcd", "one_of": (0, np.int64(2))}[name]
    path = {"one_of": "observation/one_of/options/0"}.get(name, f"observation/{name}")
    fault = (path, name, wrong, "")
    makers: list[Callable[[], Any]] = [lambda: Faulty({}), lambda: Faulty({2: [fault], 3: [fault]})]
    env = SyncVectorEnv(makers, autoreset_mode=mode, observation_mode="different")
    with pytest.raises(ValueError, match=r"^check_env: ") as error:
        frb.ted.check_env(env, steps=6)
    lines = str(error.value).splitlines()[1:]
    if mode == AutoresetMode.SAME_STEP:
        assert [line.split(": ")[0].strip() for line in lines] == [path, path.replace("observation", "final_obs")]
        assert lines[0].endswith("; first at step 2, 1 time")
        assert lines[1].endswith("; first at step 3, 1 time")
    else:
        assert [line.split(": ")[0].strip() for line in lines] == [path]
        assert lines[0].endswith("; first at step 2, 2 times")


class Direct(VectorEnv[Any, Any, Any]):
    """A vector environment that gives what it is told to."""

    def __init__(self, observation: Any, reward: Any = None, done: Any = None, infos: Any = None) -> None:
        self.num_envs, self.metadata = 2, {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = spaces.Dict(a=BOX), spaces.Discrete(2)
        self.action_space = spaces.MultiDiscrete([2, 2])
        no = np.zeros(2, bool)
        reward, done = (default if x is None else x for x, default in ((reward, np.zeros(2)), (done, no)))
        self.given = ({"a": observation}, reward, done, no, infos or {})

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"a": np.zeros((2, 2), np.float32)}, {}

    def step(self, actions: Any) -> Any:
        return self.given


ROWS = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (Direct(ROWS[0]), "observation/a: expected shape (2, 2), got (2,); first at step 1, 3 times"),
        (Direct(ROWS.astype(float)), "observation/a: expected dtype float32, got float64; first"),
        (Direct(ROWS + np.float32([[0], [2]])), "got [2., 2.] (row 1); first at step 1, 3 times"),
        (Direct(ROWS, reward=np.zeros(3)), "reward: expected shape (2,), got (3,); first"),
        (Direct(ROWS, reward=np.array([0, np.nan])), "got nan (row 1); first at step 1, 3 times"),
        (Direct(ROWS, done=np.zeros(2, int)), "terminated: expected dtype bool, got int64; first at step 1, 1 time"),
        (Direct(ROWS, infos={"final_obs": {"a": ROWS[0]}}), "final_obs/a: expected shape (2, 2), got (2,)"),
    ],
    ids=range(7),
)
def test_vector_environments_have_an_axis_of_environments(env: Any, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        frb.ted.check_env(env, steps=3)
    frb.ted.check_env(Direct(ROWS), steps=3)


def test_what_is_no_step_is_told() -> None:
    env = Faulty({})
    env.step = lambda action: (GOOD, 1.0, False, {})  # type: ignore[assignment]  # as environments once did
    with pytest.raises(ValueError, match=r"step: expected \(observation, reward, terminated, truncated, infos\), got"):
        frb.ted.check_env(env)
    env.reset = lambda **options: GOOD  # type: ignore[assignment]  # likewise
    with pytest.raises(ValueError, match=r"reset: expected \(observation, infos\), got .*\(the reset\), 1 time$"):
        frb.ted.check_env(env)


def test_items_are_compared_with_after_conversion() -> None:
    env = Faulty({1: [("", "choice", np.int32(1), "")], 2: [("", "reward", np.float32(1), "")]})
    item = frb.ted.item_from_env(env, narrow=True, max_length=3, max_edges=2)
    frb.ted.check_env(env, steps=4, item=item)  # other dtypes are converted
    frb.ted.check_env(env, steps=4, item=frb.BufferSpec(item, 8))
    less = frb.ted.item_from_env(env, narrow=True, max_length=1, max_edges=1)
    with pytest.raises(ValueError, match=r"^check_env: ") as error:
        frb.ted.check_env(env, steps=2, item=less)
    told = [line.split(";")[0].strip() for line in str(error.value).splitlines()[1:]]
    assert "observation/sequence: expected 0 to 1 elements, got 2" in told
    assert "observation/graph/nodes: expected 1 to 1 nodes, got 2" in told
    other = item.with_parts({**item, "action": frb.Categorical(2)})
    with pytest.raises(ValueError, match=r"action: expected values of Categorical\(2\), got [234]; first at step \d+"):
        frb.ted.check_env(env, steps=20, item=other)


def test_gymnasiums_own_environments() -> None:
    frb.ted.check_env(gym.make("CartPole-v1"), steps=50)
    for mode in ("sync", "vector_entry_point"):
        frb.ted.check_env(gym.make_vec("CartPole-v1", 2, vectorization_mode=mode), steps=50)
    env = gym.make("CartPole-v1")
    frb.ted.check_env(env, item=frb.ted.item_from_env(env, narrow=True))


def test_arguments_that_make_no_roll_are_refused() -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises(ValueError, match="check_env: expected steps >= 1, got 0"):
        frb.ted.check_env(env, steps=0)
    with pytest.raises(TypeError, match=r"check_env: steps: expected a whole number, got 2\.5"):
        frb.ted.check_env(env, steps=2.5)  # type: ignore[arg-type]  # refused
    with pytest.raises(TypeError, match="expected an environment of Gymnasium, got str without observation_space, act"):
        frb.ted.check_env("CartPole-v1")
