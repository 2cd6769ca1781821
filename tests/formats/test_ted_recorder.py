"""Steps in TED that are recorded from Gymnasium's environments, and read back."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import functional_rb as frb
from functional_rb import ted
from tests.formats import recorded
from tests.formats.recorded import EPISODES, FLAGS, MODES, NO, YES, Episode
from tests.support.backends import Backend

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def told(env: Any, mode: AutoresetMode, calls: int, item: Any = None) -> list[list[Any]]:
    """By lane, the steps that were marked."""
    rows: list[list[Any]] = [[] for _ in range(env.num_envs)]
    for items, mask in recorded.stream(env, mode, calls, item):
        for lane in np.flatnonzero(mask):
            rows[lane].append(recorded.at(items, lane))
    return rows


def equals_by_hand(rows: Any, episodes: Any, calls: int, mode: AutoresetMode, kind: str, narrow: bool) -> None:
    for lane, its in enumerate(episodes):
        expected = recorded.by_hand(lane, its, calls, mode, kind, narrow)
        assert len(rows[lane]) == len(expected)
        for got, want in zip(rows[lane], expected, strict=True):
            assert recorded.same(got, want), (lane, got, want)


@pytest.mark.parametrize("kind", recorded.OBSERVE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("narrow", [False, True])
def test_recorded_as_by_hand(mode: AutoresetMode, kind: str, narrow: bool) -> None:
    env = recorded.make(EPISODES, mode, kind, copy=narrow)  # without a copy, the environment writes to its memory again
    item = frb.ted.item_from_env(env, narrow=True) if narrow else None
    equals_by_hand(told(env, mode, 16, item), EPISODES, 16, mode, kind, narrow)


episodes = st.lists(
    st.lists(
        st.builds(Episode, st.integers(1, 4), st.sampled_from(["terminated", "truncated", "both"])),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)


@hypothesis.given(
    its=episodes, mode=st.sampled_from(MODES), kind=st.sampled_from(["discrete", "tuple"]), calls=st.integers(1, 14)
)
@hypothesis.settings(max_examples=40)
def test_any_episodes_are_recorded_as_by_hand(its: Any, mode: AutoresetMode, kind: str, calls: int) -> None:
    equals_by_hand(told(recorded.make(its, mode, kind), mode, calls), its, calls, mode, kind, narrow=False)
    if mode == NEXT_STEP:
        env = recorded.make(its, mode, kind, "own")
        equals_by_hand(
            told(env, mode, calls, frb.ted.item_from_env(env, narrow=True)), its, calls, mode, kind, narrow=True
        )


def test_unmarked_rows_are_in_ted_too() -> None:
    steps = recorded.stacked([items for items, _ in recorded.stream(recorded.make(EPISODES, NEXT_STEP), NEXT_STEP, 20)])
    ted.check(steps, time_axis=0)


def test_transitions_are_what_was_recorded() -> None:
    for items, _ in recorded.stream(recorded.make(EPISODES, SAME_STEP, "dict"), SAME_STEP, 6):
        rows = ted.to_transitions(items)
        step = (rows.next_observation, rows.reward, rows.terminated, rows.truncated, {})
        following, again, mask = ted.from_gymnasium(ted.begin(rows.observation), rows.action, step, DISABLED)
        assert recorded.same(again, items)
        assert mask.all()
        assert recorded.same(following.observation, {name: items["next"][name] for name in ("position", "inner")})


def read_back(backend: Backend, mode: AutoresetMode, vectorised: str) -> None:
    length, calls = 8, 14  # wraps in some lanes
    made = recorded.record(
        backend, mode, calls, vectorised=vectorised, length=length, sampler=frb.Slices(3, strict_length=False)
    )
    items = recorded.as_numpy(backend, backend.rb.items(made.state))
    live = set()
    for lane, expected in enumerate(made.expected):
        for k, step in list(enumerate(expected))[-length:]:
            assert recorded.same(recorded.at(items, lane * length + k % length), step)
            live.add(recorded.number_of(step))
    assert int(backend.rb.size(made.state)) == len(live)
    _, sample = backend.sample(made.state, backend.rb.key(1), 40)
    assert bool(backend.numpy(backend.rb.is_live(made.state, sample.indices[:, 0])).all())
    slices = recorded.as_numpy(backend, sample.items)
    mask, first, last = (backend.numpy(getattr(sample, name)) for name in ("mask", "is_first", "is_last"))
    ted.check(sample.items, time_axis=1, mask=sample.mask)
    handles = sample.indices.reshape(-1)
    rows = recorded.as_numpy(backend, backend.rb.get(made.state, handles))
    drawn = set()
    for b, t in np.argwhere(mask):
        step = recorded.at(slices, (b, t))
        number = recorded.number_of(step)
        drawn.add(number)
        assert number in live
        assert recorded.same(step, made.by_number[number])
        assert recorded.same(recorded.at(rows, b * 3 + t), step)
        assert first[b, t] == (number % 1000 == 0)
        assert last[b, t] == made.by_number[number]["next"]["done"]
        if t:
            assert number == recorded.number_of(recorded.at(slices, (b, t - 1))) + 1
    assert len(drawn) > len(live) / 2


@pytest.mark.parametrize("mode", MODES)
def test_recorded_into_lanes_and_read_back(library: Backend, mode: AutoresetMode) -> None:
    read_back(library, mode, "sync")


def test_vectorised_environment_into_lanes_and_read_back(library: Backend) -> None:
    read_back(library, NEXT_STEP, "own")


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_plain_environment(library: Backend, kind: str) -> None:
    env = recorded.Numbered(2, EPISODES[0], kind)
    item = frb.ted.item_from_env(env, narrow=True)
    state = library.init(frb.BufferSpec(item, 16))
    expected = recorded.by_hand(2, EPISODES[0], 9, DISABLED, kind)
    carry = ted.begin(env.reset()[0])
    for k in range(9):
        action = recorded.action_of(2, k)
        carry, step, mask = ted.from_gymnasium(carry, action, env.step(action), "Disabled", item=item)
        state = library.add(state, step, mask=mask)
        if step["next"]["done"]:
            carry = ted.begin(env.reset()[0])
    items = recorded.as_numpy(library, library.rb.items(state))
    assert all(recorded.same(recorded.at(items, k), expected[k]) for k in range(9))


def test_gymnasiums_own_vectorised_cartpole() -> None:
    env = gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point", max_episode_steps=12)
    item = frb.ted.item_from_env(env, narrow=True)
    observation, _ = env.reset(seed=1)
    carry, recording = ted.begin(observation), []
    for k in range(60):
        action = np.array([k // 3 % 2, 1, 0])
        carry, items, mask = ted.from_gymnasium(
            carry, action, env.step(action), env.metadata["autoreset_mode"], item=item
        )
        recording.append((items, mask))
    steps, masks = recorded.stacked([items for items, _ in recording]), np.stack([mask for _, mask in recording])
    ted.check(steps, time_axis=0)
    done = steps["next"]["done"]
    assert steps["next"]["truncated"].any()
    assert steps["next"]["terminated"].any()
    assert np.array_equal(masks[1:], ~done[:-1])
    assert (steps["next"]["reward"] == masks).all()
    begins = np.concatenate([np.ones((1, 3), bool), ~masks[:-1]])
    assert (np.abs(steps["observation"])[begins] <= 0.05).all()


def test_dtypes_stay_unless_an_item_says_otherwise() -> None:
    x = np.zeros((2, 1))
    ends = dict.fromkeys(FLAGS, frb.Binary())

    def record(observation: Any, reward: Any, action: Any, item: Any) -> Any:
        step = (observation, reward, NO[:2], NO[:2], {})
        return ted.from_gymnasium(ted.begin(x), action, step, DISABLED, item=item)[1]

    seen = {"observation": frb.Unbounded((1,))}
    spec = {**seen, "action": frb.Unbounded((), "int32"), **ends, "next": {**seen, "reward": frb.Unbounded(()), **ends}}
    plain = record(x, np.ones(2), np.array([1, 2]), None)
    assert [plain[name].dtype for name in ("observation", "action")] == [np.float64, np.int64]
    assert plain["next"]["reward"].dtype == np.float64
    for item in (spec, frb.BufferSpec(spec, 4, lanes=2)):
        made = record(x + 0.1, np.array([1e-3, 2.0]), np.array([1, 2]), item)
        after = made["next"]
        assert made["observation"].dtype == after["observation"].dtype == after["reward"].dtype == np.float32
        assert made["action"].dtype == np.int32
        assert made["next"]["reward"].tolist() == np.float32([1e-3, 2.0]).tolist()
    with pytest.raises(ValueError, match=r"leaf 'action': 4294967296 does not fit into int32"):
        record(x, x[:, 0], np.array([1, 2**32]), spec)
    with pytest.raises(ValueError, match=r"leaf 'next/reward': 1e\+300 does not fit into float32"):
        record(x, np.array([1e300, np.inf]), np.array([1, 2]), spec)
    single = record(np.float32(x), x[:, 0], np.array([1, 2]), spec)  # an environment that is not of one mind
    assert single["next"]["observation"].dtype == single["observation"].dtype == np.float32
    assert record(x, np.array([np.nan, np.inf]), np.array([1, 2]), spec)["next"]["reward"][1] == np.inf
    with pytest.raises(TypeError, match="leaf 'action': expected dtype int32 or what it can hold, got float64"):
        record(x, x[:, 0], np.array([1.0, 2.0]), spec)
    with pytest.raises(TypeError, match=r"leaf 'action': expected dtype int32, got int64; convert it yourself"):
        record(x, x[:, 0], torch.tensor([1, 2]), spec)


def test_items_of_environments() -> None:
    env = recorded.make(EPISODES, NEXT_STEP, "dict")
    item = frb.ted.item_from_env(env, narrow=False)
    ted.check(item)
    assert item["position"] == frb.Bounded(-(2**24), 2**24, (2,))
    assert item["inner", "count"].dtype == item["action"].dtype == "int64"
    assert item["action"] == frb.Categorical(recorded.ACTIONS, dtype="int64")
    assert item["next", "reward"].dtype == "float64"
    assert frb.ted.item_from_env(env.envs[0], narrow=False) == item
    assert frb.ted.item_from_env(env) == frb.ted.item_from_env(env, narrow=True)
    assert (frb.ted.item_from_env(env)["next", "reward"].dtype, frb.ted.item_from_env(env)["action"].dtype) == (
        "float32",
        "int32",
    )
    seen = frb.ted.item_from_env(env, observation_key="seen")
    assert set(seen["seen"]) == {"position", "inner"}
    both = gym.spaces.Tuple((gym.spaces.MultiBinary(3), gym.spaces.Box(0, 1, (2,), bool)))
    env.single_observation_space = both
    assert frb.ted.item_from_env(env)["observation"] == (frb.Binary((3,), "int8"), frb.Binary((2,)))


def test_two_lines_make_a_buffer_of_any_environment(library: Backend) -> None:
    env = recorded.make(EPISODES, NEXT_STEP, "dict")
    item = frb.ted.item_from_env(env)
    state = library.rb.init(frb.BufferSpec(item, 15, lanes=len(EPISODES)))
    carry = ted.begin(env.reset()[0])
    action = np.zeros(len(EPISODES), np.int64)
    carry, steps, mask = ted.from_gymnasium(carry, action, env.step(action), NEXT_STEP, item=item)
    assert int(library.rb.size(library.rb.add(state, steps, mask=mask))) == len(EPISODES)


def test_flat_items_of_environments(library: Backend) -> None:
    env = recorded.make(EPISODES, NEXT_STEP, "dict")
    nested, item = frb.ted.item_from_env(env), frb.ted.item_from_env(env, layout="flat")
    assert list(item) == ["obs", "action", "reward", "next_obs", "terminated", "truncated"]
    assert item["obs"] == item["next_obs"] == frb.Composite({name: nested[name] for name in ("position", "inner")})
    assert (item["action"], item["reward"]) == (nested["action"], nested["next", "reward"])
    sampler = frb.BufferSpec(item, 8, frb.Slices(2)).sampler
    assert sampler.end_keys == ("terminated", "truncated")
    spec = frb.BufferSpec(item, 8, transforms=frb.n_step(2, 0.9))
    assert library.rb.init(spec).spec == spec
    assert {"seen", "next_seen"} <= set(frb.ted.item_from_env(env, observation_key="seen", layout="flat"))
    with pytest.raises(ValueError, match="the name 'reward' has another meaning in the item; give another"):
        frb.ted.item_from_env(env, observation_key="reward", layout="flat")
    with pytest.raises(ValueError, match="expected layout as 'ted' or 'flat', got 'rows'"):
        frb.ted.item_from_env(env, layout="rows")  # type: ignore[arg-type]  # refused


@pytest.mark.parametrize("given", ["CartPole-v1", None, 3])
def test_what_has_no_spaces_is_no_environment(given: Any) -> None:
    with pytest.raises(TypeError, match="item_from_env: expected a Gymnasium environment, which has spaces, got"):
        frb.ted.item_from_env(given)


def test_final_observations_may_come_as_one_batch(library: Backend) -> None:
    def record(observation: Any, final: Any, terminated: Any) -> Any:
        step = (observation, terminated * 1.0, terminated, terminated ^ terminated, {"final_obs": final})
        carry, items, mask = ted.from_gymnasium(ted.begin(observation), terminated * 2, step, SAME_STEP)
        return carry.observation, items["next"], mask

    observation = {"x": np.float32([[1, 1], [2, 2]]), "n": np.int32([3, 4])}
    final = {"x": -observation["x"], "n": -observation["n"]}
    given = library.tree([observation, final, np.array([False, True])])
    compiled = jax.jit if library.library == "jax" else partial(torch.compile, fullgraph=True, backend="eager")
    for function in (record, compiled(record)):
        carried, after, mask = function(*given)
        assert recorded.same(as_dict(library, carried), observation)
        assert library.numpy(after["x"]).tolist() == [[1, 1], [-2, -2]]
        assert library.numpy(after["n"]).tolist() == [3, -4]
        assert library.numpy(mask).tolist() == [True, True]


def as_dict(library: Backend, nest: Any) -> Any:
    return {name: library.numpy(part) for name, part in nest.items()}


def test_recorder_works_on_either_library(library: Backend) -> None:
    zero, no, end = library.tree([np.zeros(3, np.float32), np.zeros(3, bool), np.array([True, False, False])])
    carry = ted.begin(zero)
    carry, _, mask = ted.from_gymnasium(carry, zero, (zero + 1, zero, end, no, {}), NEXT_STEP)
    assert library.numpy(mask).tolist() == [True] * 3
    carry, items, mask = ted.from_gymnasium(carry, zero, (zero + 2, zero, no, no, {}), NEXT_STEP)
    assert library.numpy(mask).tolist() == [False, True, True]
    carry, items, _ = ted.from_gymnasium(ted.begin(zero), zero, (zero + 1, zero, end, no, {}), DISABLED)
    with pytest.raises(ValueError, match=r"environments \[0\] have ended"):
        ted.from_gymnasium(carry, zero, (zero + 1, zero, no, no, {}), DISABLED)
    carry = carry.reset(zero + 7, end)
    assert library.numpy(carry.observation).tolist() == [7, 1, 1]
    _, items, mask = ted.from_gymnasium(carry, zero, (zero + 2, zero, no, no, {}), DISABLED)
    assert library.numpy(mask).all()
    assert library.numpy(items["observation"]).tolist() == [7, 1, 1]


def test_what_is_stepped_after_its_end_while_tracing_is_not_marked() -> None:
    @jax.jit
    def record(zero: Any, end: Any) -> Any:
        carry, masks = ted.begin(zero), []
        for ends in (end, end ^ end, end ^ end):
            carry, _, mask = ted.from_gymnasium(carry, zero, (zero + 1, zero, ends, end ^ end, {}), DISABLED)
            masks.append(mask)
        carry = carry.reset(zero, end)
        return [*masks, ted.from_gymnasium(carry, zero, (zero + 1, zero, end, end, {}), DISABLED)[2]]

    masks = record(np.zeros(2, np.float32), np.array([True, False]))
    assert np.stack(masks).tolist() == [[True, True], [False, True], [False, True], [True, True]]


def test_manual_resets_are_checked() -> None:
    x, zero, end = np.zeros((2, 1)), np.zeros(2), np.array([True, False])
    carry, _, _ = ted.from_gymnasium(ted.begin(x), zero, (x, zero, end, ~YES[:2], {}), DISABLED)
    with pytest.raises(
        ValueError, match=r"ted: Carry\.reset: environments \[1\] had not ended; record their last step as truncated"
    ):
        carry.reset(x, YES[:2])
    with pytest.raises(TypeError, match=r"ted: Carry\.reset: mask: expected an array of dtype bool, got int64"):
        carry.reset(x, np.array([1, 0]))
    with pytest.raises(
        ValueError, match=r"ted: Carry\.reset: the observation: expected the structure of the observations before"
    ):
        carry.reset({"x": x}, end)
    # An episode that is cut off says so in what is recorded.
    carry, items, _ = ted.from_gymnasium(ted.begin(x), zero, (x, zero, end, ~end, {}), DISABLED)
    assert items["next"]["truncated"].tolist() == [False, True]
    assert not carry.reset(x, YES[:2]).ended.any()


X, ZERO, END = np.zeros((2, 1), np.float32), np.zeros(2), np.array([True, False])


def finals(*rows: Any) -> dict[str, Any]:
    array = np.full(2, None, object)
    for i, each in enumerate(rows):
        array[i] = each
    return {"final_obs": array, "_final_obs": END}


@pytest.mark.parametrize(
    ("step", "mode", "error", "message"),
    [
        ((X, ZERO, END, END), DISABLED, ValueError, r"expected step as \(observation, reward, terminated"),
        ((X, ZERO, END, END, {}), "Both", ValueError, "expected autoreset_mode as one of 'NextStep'.*got 'Both'"),
        ((X, ZERO, ZERO, END, {}), DISABLED, TypeError, "terminated: expected an array bool"),
        ((X, ZERO, END, NO, {}), DISABLED, TypeError, "truncated: expected an array bool of one shape"),
        (
            (X, ZERO, END, END, {}),
            SAME_STEP,
            ValueError,
            r"environments \[0\] are done, but infos has no \"final_obs\"",
        ),
        ((X, ZERO, END, END, finals()), SAME_STEP, ValueError, r"environment 0 is done.*\[0\] is None"),
        ((X, ZERO, END, END, finals(X[0])), NEXT_STEP, ValueError, 'give autoreset_mode="SameStep"'),
        (
            (X, ZERO, END, END, finals(X)),
            SAME_STEP,
            ValueError,
            r"expected shape \(1,\) and dtype float32.*got \(2, 1\)",
        ),
        ((X, ZERO, END, END, finals(1j * X[0])), SAME_STEP, ValueError, "and dtype float32.*and complex64"),
        (
            (X, ZERO, END, END, finals({"x": X[0]})),
            SAME_STEP,
            ValueError,
            r"infos\[\"final_obs\"\]\[0\]: expected the structure",
        ),
        ((X[0], ZERO, END, END, {}), DISABLED, ValueError, "leaf 'next/observation': expected shape"),
        ((X, np.zeros(3), END, END, {}), DISABLED, ValueError, r"leaf 'next/reward': expected shape \(2, '...'\)"),
    ],
)
def test_recorder_names_what_is_wrong(step: Any, mode: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ted.from_gymnasium(ted.begin(X), ZERO, step, mode)


def test_flags_as_python_values_need_no_lanes() -> None:
    carry, item, mask = ted.from_gymnasium(ted.begin(X[0]), 0, (X[1], 1.0, True, False, {}), DISABLED)
    assert (item["next"]["done"].shape, bool(mask), bool(carry.ended)) == ((), True, True)
    with pytest.raises(ValueError, match=r"plain ones: ted.begin"):
        ted.from_gymnasium(carry, 0, (X[1], 1.0, True, False, {}), DISABLED)


@pytest.mark.parametrize("new", [torch.tensor, np.array])
def test_an_environment_may_write_to_its_arrays_again(new: Any) -> None:
    """As simulators on torch do: each step has what was observed, done and told at its own time."""
    observed, action, reward = (new([[0.0], [0.0]]), new([0.0, 0.0]), new([0.0, 0.0]))
    terminated, truncated = new([False, False]), new([False, False])
    carry, found = ted.begin(observed), []
    for k in range(3):
        observed += 1
        action += 1
        reward += 1
        terminated[:] = k == 1
        step = (observed, reward, terminated, truncated, {})
        carry, items, _ = ted.from_gymnasium(carry, action, step, AutoresetMode.NEXT_STEP)
        found.append(items)
    assert [float(x["observation"][0, 0]) for x in found] == [0, 1, 2]
    assert [float(x["next"]["observation"][0, 0]) for x in found] == [1, 2, 3]
    assert [float(x["action"][0]) for x in found] == [float(x["next"]["reward"][0]) for x in found] == [1, 2, 3]
    assert [bool(x["next"]["terminated"][0]) for x in found] == [False, True, False]


def test_what_never_changes_is_not_copied() -> None:
    observed = jnp.zeros((2, 3))
    assert ted.begin(observed).observation is observed


def test_a_masked_observation_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected arrays without masks .*give array\.filled"):
        ted.begin({"x": np.ma.array(np.zeros(2), mask=[0, 1])})
