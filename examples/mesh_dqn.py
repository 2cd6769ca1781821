"""DQN on CartPole-v1 over the devices of a mesh: data-parallel learners that draw from one buffer.

Each device has environments of its own and stores what they do in lanes of its own; a batch is drawn from the lanes of
all, as on one device, and each device learns from its part of it. What acts and learns is that of dqn_jax.py, mapped
over the devices: there the batch is smaller, and the gradient is averaged.

    python examples/mesh_dqn.py [--quick] [--n-step 3] [--seed 0] [--out mesh_dqn.png]

Where there is one CPU, it stands for eight devices.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX starts

import cartpole_jax as cartpole
import jax
import jax.numpy as jnp
import numpy as np
import optax
from cartpole_spec import Config, buffer_spec, schedules
from common import Progress, Result, Row, arguments, finish
from dqn_jax import Actors, Best, Learner, Run, act, greedy_return, init_params, learn, q_values
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_backend as rb


def start(config: Config, mesh: Mesh, optimizer: optax.GradientTransformation) -> tuple[Run, Any]:
    """The run at its beginning, and how its arrays are divided among the devices."""
    key, k_params, k_envs = jax.random.split(rb.key(config.seed), 3)
    params = init_params(k_params, (4, config.hidden, config.hidden, 2))
    env = jax.vmap(cartpole.reset)(jax.random.split(k_envs, config.num_envs))
    finished = jnp.zeros(2 * mesh.size)  # two of each device
    buffer = rb.init(buffer_spec(config), sharding=NamedSharding(mesh, P("d")))
    learner = Learner(params, params, optimizer.init(params))
    run = Run(key, Actors(env, jnp.zeros(config.num_envs), finished), buffer, learner, Best(params, jnp.float32(-1.0)))
    return run, run._replace(**dict(zip(Run._fields, (P(), P("d"), rb.partition_specs(buffer), P(), P()), strict=True)))


def programs(config: Config, mesh: Mesh) -> tuple[Run, Callable[..., Run], Callable[..., tuple[Run, Row]]]:
    """The run at its beginning, the steps before the first gradient step, and those between two evaluations."""
    average = optax.stateless(lambda gradient, _: lax.pmean(gradient, "d"))
    rate = optax.linear_schedule(config.learning_rate, 0.0, config.iterations)
    optimizer = optax.chain(average, optax.adam(rate))
    each = replace(config, num_envs=config.num_envs // mesh.size)
    run, specs = start(config, mesh, optimizer)

    def act_apart(run: Run, epsilon: jax.Array) -> Run:
        """Environments of different devices meet with different chances; all else goes by the same key."""
        key, own = jax.random.split(run.key)
        after = act(each, run._replace(key=jax.random.fold_in(own, lax.axis_index("d"))), epsilon)
        return after._replace(key=key)

    def warm_up(run: Run) -> Run:
        return lax.scan(lambda run, _: (act_apart(run, jnp.float32(1.0)), None), run, length=config.warmup)[0]

    def stretch(run: Run, epsilon: jax.Array, beta: jax.Array) -> tuple[Run, Row]:
        """`eval_every` iterations and a greedy evaluation."""
        run, losses = lax.scan(
            lambda run, now: learn(each, optimizer, act_apart(run, now[0]), now[1]), run, (epsilon, beta)
        )
        key, k_eval = jax.random.split(run.key)
        score = greedy_return(config, run.learner.params, k_eval)
        best = jax.tree.map(
            lambda new, old: jnp.where(score >= run.best.score, new, old), Best(run.learner.params, score), run.best
        )
        total, count = lax.psum(run.actors.finished, "d")
        row = Row(jnp.int32(0), total / count, score, lax.pmean(losses.mean(), "d"), epsilon[-1], jnp.float32(0.0))
        actors = run.actors._replace(finished=jnp.zeros(2))
        return run._replace(key=key, actors=actors, best=best), row

    def mapped(function: Callable[..., Any], given: tuple[Any, ...], out: Any) -> Any:
        return rb.jit(jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=out, check_vma=False))

    return run, mapped(warm_up, (specs,), specs), mapped(stretch, (specs, P(), P()), (specs, P()))


def main(config: Config, out: Path) -> Result:
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    # Lanes, and rows of a batch, for all; and n-step returns, for which each environment has a lane.
    lanes = -(-config.num_envs // devices) * devices
    config = replace(config, num_envs=lanes, n_step=max(config.n_step, 2))
    config = replace(config, capacity=config.capacity // lanes * lanes)
    run, warm_up, stretch = programs(config, mesh)
    rows: list[Row] = []
    progress = Progress(config.iterations)
    with progress:
        run = warm_up(run)
        for epsilon, beta in zip(*(x.reshape(-1, config.eval_every) for x in schedules(config)), strict=True):
            run, row = stretch(run, epsilon, beta)
            row = Row(*map(float, row))._replace(iteration=(len(rows) + 1) * config.eval_every)
            rows.append(row._replace(seconds=float(progress.report(row))))
    params = jax.device_get(run.best.params)
    choose = jax.jit(lambda obs: q_values(params, obs).argmax(-1))
    return finish(config, rows, lambda obs: np.asarray(choose(obs)), int(rb.size(run.buffer)), out)


if __name__ == "__main__":
    main(*arguments("Data-parallel DQN on CartPole-v1, over the devices of a mesh.", "mesh_dqn.png"))
