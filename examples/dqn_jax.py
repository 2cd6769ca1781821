"""DQN on CartPole-v1 with the environments, the network and the replay buffer inside one compiled `lax.scan`.

Double Q-learning (van Hasselt et al., 2016), one-step or n-step targets, prioritized replay (Schaul et al., 2016).

    python examples/dqn_jax.py [--quick] [--n-step 3] [--seed 0] [--out dqn_jax.png]
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cartpole_jax as cartpole
import jax
import jax.numpy as jnp
import numpy as np
import optax
from cartpole_spec import OBS_SCALE, Config, buffer_spec, schedules
from common import Progress, Result, Row, arguments, finish
from jax import lax
from jax.experimental import io_callback

import functional_rb as frb
import jax_backend as rb

Params = list[tuple[jax.Array, jax.Array]]  # weights [m, n] and biases [n] of each layer


class Actors(NamedTuple):
    """The environments, B of them."""

    env: cartpole.EnvState  # leaves [B, ...]
    running: jax.Array  # f32[B], reward so far in the current episode
    finished: jax.Array  # f32[2], since the last row: sum of the returns of ended episodes, and how many ended


class Learner(NamedTuple):
    params: Params
    target: Params
    opt_state: optax.OptState


class Best(NamedTuple):
    """The policy with the highest greedy return so far."""

    params: Params
    score: jax.Array  # f32[]


class Run(NamedTuple):
    """Everything the scan carries; the buffer is one value among others."""

    key: jax.Array
    actors: Actors
    buffer: frb.State
    learner: Learner
    best: Best


class Trained(NamedTuple):
    """What leaves the compiled program."""

    best: Best
    stored: jax.Array  # i32[], items in the buffer
    rows: Row  # leaves [iterations // eval_every]


def init_params(key: jax.Array, sizes: tuple[int, ...]) -> Params:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) * jnp.sqrt(2.0 / m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def q_values(params: Params, obs: jax.Array) -> jax.Array:
    """Action values [..., 2] of observations [..., 4]."""
    hidden = obs * jnp.asarray(OBS_SCALE, jnp.float32)
    for weight, bias in params[:-1]:
        hidden = jax.nn.relu(hidden @ weight + bias)
    weight, bias = params[-1]
    return hidden @ weight + bias


def greedy_return(config: Config, params: Params, key: jax.Array) -> jax.Array:
    """Mean return of the greedy policy over `eval_episodes` episodes."""

    def step(carry: tuple[cartpole.EnvState, jax.Array], _: None) -> Any:
        env, alive = carry
        after = jax.vmap(cartpole.step)(env, q_values(params, env.obs).argmax(-1))
        return (after.state, alive & ~after.terminated), alive

    env = jax.vmap(cartpole.reset)(jax.random.split(key, config.eval_episodes))
    _, alive = lax.scan(step, (env, jnp.ones(config.eval_episodes, bool)), None, cartpole.MAX_STEPS)
    return alive.sum(0).mean()  # the reward is 1 for each step begun


def act(config: Config, run: Run, epsilon: jax.Array) -> Run:
    """Steps every environment once and stores the transitions."""
    key, k_explore, k_action, k_reset = jax.random.split(run.key, 4)
    env, batch = run.actors.env, (config.num_envs,)
    greedy = q_values(run.learner.params, env.obs).argmax(-1)
    explore = jax.random.uniform(k_explore, batch) < epsilon
    action = jnp.where(explore, jax.random.randint(k_action, batch, 0, 2), greedy).astype(jnp.int32)
    after = jax.vmap(cartpole.step)(env, action)
    # Stored before the reset: next_obs is where the step led, not where the next episode starts.
    item = {
        "obs": env.obs,
        "action": action,
        "reward": after.reward,
        "next_obs": after.state.obs,
        "terminated": after.terminated,
        "truncated": after.truncated,
    }
    buffer = rb.add(run.buffer, item)

    done = after.terminated | after.truncated
    fresh = jax.vmap(cartpole.reset)(jax.random.split(k_reset, config.num_envs))
    env = cartpole.EnvState(
        jnp.where(done[:, None], fresh.obs, after.state.obs), jnp.where(done, fresh.time, after.state.time)
    )
    running = run.actors.running + after.reward
    finished = run.actors.finished + jnp.stack([(running * done).sum(), done.sum()])
    return run._replace(key=key, actors=Actors(env, running * ~done, finished), buffer=buffer)


def learn(config: Config, optimizer: optax.GradientTransformation, run: Run, beta: jax.Array) -> tuple[Run, jax.Array]:
    """One gradient step on a prioritized batch; its TD errors are the items' new priorities."""
    key, k_sample = jax.random.split(run.key)
    params, target, opt_state = run.learner
    buffer, sample = rb.sample(run.buffer, k_sample, beta=beta)
    item = sample.items
    if config.n_step == 1:
        discount = config.gamma * ~item["terminated"]
    else:
        discount = sample.extras["discount"] * sample.extras["nonterminal"]

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        # Double Q: the online network chooses the next action, the target network values it.
        choice = q_values(params, item["next_obs"]).argmax(-1)
        value = jnp.take_along_axis(q_values(target, item["next_obs"]), choice[:, None], -1)[:, 0]
        goal = item["reward"] + discount * value
        q = jnp.take_along_axis(q_values(params, item["obs"]), item["action"][:, None], -1)[:, 0]
        error = q - lax.stop_gradient(goal)
        return (sample.weights * error**2).mean() / 2, error

    (value, error), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    updates, opt_state = optimizer.update(gradient, opt_state)
    params = optax.apply_updates(params, updates)
    target = optax.incremental_update(params, target, config.tau)
    buffer = rb.update(buffer, sample.indices, jnp.abs(error) + config.priority_floor)
    return run._replace(key=key, buffer=buffer, learner=Learner(params, target, opt_state)), value


def make_train(config: Config, report: Callable[[Row], np.float32]) -> Callable[[jax.Array], Trained]:
    """The whole training as one function of a key, to be jitted."""
    spec = buffer_spec(config)
    optimizer = optax.adam(optax.linear_schedule(config.learning_rate, 0.0, config.iterations))
    epsilon, beta = (jnp.asarray(s).reshape(-1, config.eval_every) for s in schedules(config))
    last = (jnp.arange(len(epsilon)) + 1) * config.eval_every

    def start(key: jax.Array) -> Run:
        key, k_params, k_envs = jax.random.split(key, 3)
        params = init_params(k_params, (4, config.hidden, config.hidden, 2))
        env = jax.vmap(cartpole.reset)(jax.random.split(k_envs, config.num_envs))
        actors = Actors(env, jnp.zeros(config.num_envs), jnp.zeros(2))
        learner = Learner(params, params, optimizer.init(params))
        return Run(key, actors, rb.init(spec), learner, Best(params, jnp.float32(-1.0)))

    def iteration(run: Run, schedule: tuple[jax.Array, jax.Array]) -> tuple[Run, jax.Array]:
        epsilon, beta = schedule
        return learn(config, optimizer, act(config, run, epsilon), beta)

    def stretch(run: Run, xs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Run, Row]:
        """`eval_every` iterations, a greedy evaluation and a report."""
        epsilon, beta, iterations = xs
        run, losses = lax.scan(iteration, run, (epsilon, beta))
        key, k_eval = jax.random.split(run.key)
        score = greedy_return(config, run.learner.params, k_eval)
        # Of equal policies the later one: it has seen more.
        best = jax.tree.map(
            lambda new, old: jnp.where(score >= run.best.score, new, old), Best(run.learner.params, score), run.best
        )
        total, count = run.actors.finished
        row = Row(iterations, total / count, score, losses.mean(), epsilon[-1], jnp.float32(0.0))
        # The clock is read on the host, in program order; the program does not leave the device otherwise.
        seconds = io_callback(report, jax.ShapeDtypeStruct((), jnp.float32), row, ordered=True)
        actors = run.actors._replace(finished=jnp.zeros(2))
        return run._replace(key=key, actors=actors, best=best), row._replace(seconds=seconds)

    def train(key: jax.Array) -> Trained:
        run = start(key)
        run, _ = lax.scan(lambda run, _: (act(config, run, jnp.float32(1.0)), None), run, length=config.warmup)
        run, rows = lax.scan(stretch, run, (epsilon, beta, last))
        return Trained(run.best, rb.size(run.buffer), rows)

    return train


def main(config: Config, out: Path) -> Result:
    progress = Progress(config.iterations)
    key = rb.key(config.seed)
    # Compiled ahead, so that the clock shows training alone.
    train = jax.jit(make_train(config, progress.report)).lower(key).compile()
    with progress:
        best, stored, columns = jax.block_until_ready(train(key))
    rows = [Row(*map(float, values)) for values in zip(*columns, strict=True)]
    choose = jax.jit(lambda obs: q_values(best.params, obs).argmax(-1))
    return finish(config, rows, lambda obs: np.asarray(choose(obs)), int(stored), out)


if __name__ == "__main__":
    main(*arguments("DQN on CartPole-v1, compiled into one JAX program.", "dqn_jax.png"))
