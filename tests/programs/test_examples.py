"""The examples in runs of seconds, and what their results rest on: dynamics, resets and time limits."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # as for a program started from there

import cartpole_jax as cartpole
import common
import dqn_jax
import dqn_torch
from cartpole_spec import QUICK, Config, buffer_spec, schedules

import jax_backend
import torch_backend

step = jax.jit(cartpole.step)


def balance(obs: np.ndarray) -> np.ndarray:
    """Pushes towards where the pole falls: CartPole is solved by it."""
    return (obs[..., 2] + 0.3 * obs[..., 3] > 0).astype(int)


def topple(obs: np.ndarray) -> np.ndarray:
    return np.ones(obs.shape[:-1], int)


def runaway(obs: np.ndarray) -> np.ndarray:
    """Balances a pole that leans to the right, until the cart leaves the track."""
    return (obs[..., 2] - 0.1 + 0.3 * obs[..., 3] > 0).astype(int)


@pytest.mark.parametrize("policy", [balance, topple, runaway])
@pytest.mark.parametrize("seed", range(3))
def test_dynamics_are_gymnasiums(policy: Callable[[np.ndarray], np.ndarray], seed: int) -> None:
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=seed)
    state = cartpole.EnvState(jnp.asarray(obs), jnp.int32(0))
    ended = False
    while not ended:
        # The task is unstable: rounding grows e-fold each quarter of a second. So each step starts from the
        # same state, and it is single steps that are compared, over whole episodes.
        after = step(cartpole.EnvState(jnp.asarray(env.unwrapped.state, jnp.float32), state.time), policy(obs))
        obs, reward, terminated, truncated, _ = env.step(int(policy(obs)))
        state = after.state
        np.testing.assert_allclose(state.obs, obs, rtol=1e-6, atol=1e-6)
        assert (after.reward, after.terminated, after.truncated) == (reward, terminated, truncated)
        ended = terminated or truncated
    assert truncated == (policy is balance)
    assert (abs(obs[0]) > cartpole.X_LIMIT) == (policy is runaway)


def test_reset_is_gymnasiums() -> None:
    states = jax.vmap(cartpole.reset)(jax.random.split(jax.random.key(0), 1000))
    obs = np.asarray(states.obs)
    assert obs.dtype == np.float32
    assert not states.time.any()
    # Uniform on [-0.05, 0.05]: the ends nearly reached, the standard deviation 0.1 / sqrt(12).
    assert np.abs(obs).max(0) == pytest.approx(0.05, abs=1e-3)
    assert obs.std(0) == pytest.approx(0.1 / 12**0.5, rel=0.05)


def assert_transitions(items: dict[str, np.ndarray]) -> None:
    """Each stored item is one step of the task: none leads from one episode into another."""
    start = cartpole.EnvState(jnp.asarray(items["obs"]), jnp.zeros(len(items["obs"]), jnp.int32))
    after = jax.vmap(step)(start, jnp.asarray(items["action"]))
    np.testing.assert_allclose(after.state.obs, items["next_obs"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(after.terminated, items["terminated"])
    assert (items["reward"] == 1.0).all()


def start_jax(config: Config, time: int = 0) -> dqn_jax.Run:
    """A run whose environments are `time` steps into their episodes."""
    key = jax_backend.key(0)
    params = dqn_jax.init_params(key, (4, 8, 2))
    env = jax.vmap(cartpole.reset)(jax.random.split(key, config.num_envs))
    env = env._replace(time=jnp.full(config.num_envs, time, jnp.int32))
    actors = dqn_jax.Actors(env, jnp.zeros(config.num_envs), jnp.zeros(2))
    learner = dqn_jax.Learner(params, params, ())
    best = dqn_jax.Best(params, jnp.float32(0.0))
    return dqn_jax.Run(key, actors, jax_backend.init(buffer_spec(config)), learner, best)


act = jax.jit(functools.partial(dqn_jax.act, QUICK))


def test_jax_stores_true_transitions() -> None:
    run, steps = start_jax(QUICK), 100
    for _ in range(steps):
        run = act(run, jnp.float32(0.5))
    stored = steps * QUICK.num_envs
    assert jax_backend.size(run.buffer) == stored
    items = {name: np.asarray(leaf[:stored]) for name, leaf in jax_backend.items(run.buffer).items()}
    assert items["terminated"].sum() == run.actors.finished[1] > 0
    assert_transitions(items)


def test_jax_keeps_the_value_beyond_the_time_limit() -> None:
    run = act(start_jax(QUICK, time=cartpole.MAX_STEPS - 1), jnp.float32(0.0))
    items = {name: np.asarray(leaf[: QUICK.num_envs]) for name, leaf in jax_backend.items(run.buffer).items()}
    assert not items["terminated"].any()
    assert_transitions(items)
    assert not run.actors.env.time.any()  # and the environments started anew
    assert run.actors.finished.tolist() == [QUICK.num_envs, QUICK.num_envs]


@pytest.mark.parametrize("policy", [balance, topple])
def test_torch_stores_true_transitions(policy: Callable[[np.ndarray], np.ndarray]) -> None:
    config = replace(QUICK, num_envs=2, capacity=2_000)
    actors, buffer, steps = dqn_torch.Actors(config), torch_backend.init(buffer_spec(config)), 520
    for _ in range(steps):
        buffer = actors.act(policy, buffer, epsilon=0.0)
    stored = int(torch_backend.size(buffer))
    # The step after the end of an episode resets and is left out; the last step of the run has none after it.
    assert stored == steps * config.num_envs - len(actors.returns) + actors.ended.sum()
    items = {name: leaf[:stored].numpy() for name, leaf in torch_backend.items(buffer).items()}
    assert items["terminated"].sum() == (0 if policy is balance else len(actors.returns))
    assert_transitions(items)
    assert stored == sum(actors.returns) + actors.running.sum()  # a reward of 1 for each
    if policy is balance:
        assert actors.returns == [cartpole.MAX_STEPS] * config.num_envs


@pytest.mark.few_on_jax(1, by="main")
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("main", [dqn_jax.main, dqn_torch.main], ids=["jax", "torch"])
def test_quick_run(
    main: Callable[[Config, Path], common.Result], n_step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = replace(QUICK, capacity=100, n_step=n_step), tmp_path / "new" / "curve.png"
    result = main(config, out)
    assert [row.iteration for row in result.rows] == [10, 20, 30, 40]
    assert np.isfinite([(row.loss, row.greedy_return) for row in result.rows]).all()
    seconds = [row.seconds for row in result.rows]
    assert 0.0 < seconds[0] <= seconds[-1]
    assert result.stored == config.capacity  # it has wrapped around
    assert result.returns.shape == (20,)
    assert (result.returns >= 1).all()
    printed, progress = capsys.readouterr()
    assert printed.startswith(common.table(config, result.rows))
    assert f"mean return {result.returns.mean():.1f}" in printed
    assert "40/40" in progress
    assert out.read_bytes().startswith(b"\x89PNG")


def test_evaluation_counts_first_episodes_only() -> None:
    toppled = common.evaluate(topple, episodes=3, seed=0)
    assert (toppled < 15).all()
    np.testing.assert_array_equal(toppled[1:], common.evaluate(topple, episodes=2, seed=1))  # seeds are seed + i
    np.testing.assert_array_equal(common.evaluate(balance, episodes=2, seed=0), cartpole.MAX_STEPS)


def test_greedy_return_is_that_of_the_policy() -> None:
    weight = jnp.array([[0.0, 0.0], [0.0, 0.0], [-1.0, 1.0], [-0.3, 0.3]]) / jnp.array(dqn_jax.OBS_SCALE)[:, None]
    bias = jnp.zeros(2)
    assert dqn_jax.greedy_return(QUICK, [(weight, bias)], jax.random.key(0)) == cartpole.MAX_STEPS
    always_right = jnp.array([0.0, 1.0])
    mean = dqn_jax.greedy_return(replace(QUICK, eval_episodes=100), [(0 * weight, always_right)], jax.random.key(0))
    assert mean == pytest.approx(common.evaluate(topple, episodes=100, seed=0).mean(), rel=0.03)


def test_schedules() -> None:
    config = Config()
    epsilon, beta = schedules(config)
    assert epsilon.dtype == beta.dtype == np.float32
    assert (epsilon[0], epsilon[-1]) == (1.0, np.float32(config.final_epsilon))
    assert (beta[0], beta[-1]) == (np.float32(0.4), 1.0)
    assert config.capacity == 100_000
    with pytest.raises(ValueError, match="multiple of eval_every"):
        replace(config, iterations=config.eval_every + 1)


def test_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dqn", "--quick", "--seed", "3", "--n-step", "5"])
    assert common.arguments("", "curve.png") == (replace(QUICK, seed=3, n_step=5), Path("curve.png"))
    monkeypatch.setattr(sys, "argv", ["dqn", "--out", "other.png"])
    assert common.arguments("", "curve.png") == (Config(), Path("other.png"))
