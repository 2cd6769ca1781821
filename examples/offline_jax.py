"""Learning from a dataset alone, on JAX: implicit Q-learning beside behaviour cloning, from files of Minari.

Implicit Q-learning (I. Kostrikov, A. Nair, S. Levine, "Offline Reinforcement Learning with Implicit Q-Learning", 2021)
learns what the better ones of the data's actions are worth, without asking for the worth of any other, and then clones
these. The dataset is made here, in files, and loaded into the memory of JAX's device, so that thousands of updates are
one compiled program.

    python examples/offline_jax.py [--quick] [--seed 0] [--expectile 0.8] [--out offline_jax.png]
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from offline_task import TORQUE, Config, Row, arguments, evaluate, load, run

import functional_rb as frb
import jax_backend as rb

Layers = list[tuple[jax.Array, jax.Array]]


class Learner(NamedTuple):
    params: dict[str, Any]  # "critics" (leaves [2, ...]), "value", "actor", "cloned"
    target: Any  # of the critics
    opt_state: optax.OptState


def layers(key: jax.Array, sizes: tuple[int, ...]) -> Layers:
    """Weights [m, n] and biases [n] of each layer."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) * jnp.sqrt(1.0 / m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def network(params: Layers, x: jax.Array) -> jax.Array:
    """A multilayer perceptron, [..., m] to [..., n]."""
    for weight, bias in params[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = params[-1]
    return x @ weight + bias


def act(actor: Layers, obs: jax.Array) -> jax.Array:
    """Torques [..., 1] for observations [..., 3] that are normalised."""
    return TORQUE * jnp.tanh(network(actor, obs))


def q_values(critics: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
    """What both critics say, [2, B]."""
    x = jnp.concatenate([obs, action / TORQUE], -1)
    return jax.vmap(lambda params: network(params, x)[..., 0])(critics)


@partial(jax.jit, static_argnums=(0, 1))
def start(config: Config, optimizer: optax.GradientTransformation) -> Learner:
    k_critics, k_value, k_actor = jax.random.split(jax.random.key(config.seed), 3)
    hidden = (config.hidden, config.hidden, 1)
    critics = jax.vmap(lambda key: layers(key, (4, *hidden)))(jax.random.split(k_critics))
    actor = layers(k_actor, (3, *hidden))
    params = {"critics": critics, "value": layers(k_value, (3, *hidden)), "actor": actor, "cloned": actor}
    return Learner(params, critics, optimizer.init(params))


def losses(config: Config, params: Any, target: Any, item: Any) -> dict[str, jax.Array]:
    """Of each network; each stops the gradients of the others' parameters."""
    obs, action, after = item["observation"], item["action"], item["next"]
    fixed = jax.lax.stop_gradient(params)

    # The value is an expectile of what the data's actions are worth: with 1 of the best of them.
    advantage = q_values(target, obs, action).min(0) - network(params["value"], obs)[..., 0]
    value = jnp.abs(config.expectile - (advantage < 0)) * advantage**2

    following = network(fixed["value"], after["observation"])[..., 0]
    goal = config.reward_scale * after["reward"] + config.gamma * ~after["terminated"] * following
    critics = (q_values(params["critics"], obs, action) - goal) ** 2

    weight = jnp.exp(config.temperature * jax.lax.stop_gradient(advantage)).clip(max=config.largest)
    errors = {name: ((act(params[name], obs) - action) ** 2)[..., 0] for name in ("actor", "cloned")}
    each = {"critics": critics, "value": value, "actor": weight * errors["actor"], "cloned": errors["cloned"]}
    return jax.tree.map(jnp.mean, each)


def make_learn(config: Config, optimizer: optax.GradientTransformation) -> Any:
    """The compiled updates between two rows of the table."""

    @jax.jit
    def learn(learner: Learner, state: frb.State, keys: jax.Array) -> tuple[Learner, dict[str, jax.Array]]:
        def update(learner: Learner, key: jax.Array) -> tuple[Learner, dict[str, jax.Array]]:
            _, sample = rb.sample(state, key)

            def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
                each = losses(config, params, learner.target, sample.items)
                return sum(each.values(), jnp.zeros(())), each

            gradient, each = jax.grad(loss, has_aux=True)(learner.params)
            updates, opt_state = optimizer.update(gradient, learner.opt_state)
            params = optax.apply_updates(learner.params, updates)
            target = optax.incremental_update(params["critics"], learner.target, config.tau)
            return Learner(params, target, opt_state), each

        learner, each = jax.lax.scan(update, learner, keys)
        return learner, jax.tree.map(jnp.mean, each)

    return learn


def normalised(state: frb.State, told: dict[str, Any]) -> frb.State:
    """The dataset in the device's memory, with observations of mean 0 and deviation 1 when they are drawn."""
    seen = told["leaves"]["observations/observation"]
    normalize = frb.items.normalize(seen["mean"], seen["std"], ["observation", ("next", "observation")])
    spec = dataclasses.replace(state.spec, storage=frb.Device(), transforms=(frb.map_items(normalize),))
    return rb.with_spec(state, spec)


choose = jax.jit(act)


def train(config: Config, root: Path) -> tuple[float, list[Row]]:
    """The mean return of the dataset's episodes, and the curves."""
    state, told = load(config, rb, root)
    state, seen = normalised(state, told), told["leaves"]["observations/observation"]
    optimizer = optax.adam(config.learning_rate)
    learn, learner, rows = make_learn(config, optimizer), start(config, optimizer), []
    keys = rb.split(rb.key(config.seed), config.updates)

    def returns(name: str) -> float:
        def policy(obs: np.ndarray) -> np.ndarray:
            return np.asarray(choose(learner.params[name], (obs - seen["mean"]) / seen["std"]))

        return evaluate(config, policy)

    for end in range(config.eval_every, config.updates + 1, config.eval_every):
        learner, each = learn(learner, state, keys[end - config.eval_every : end])
        rows.append(Row(end, returns("actor"), returns("cloned"), {name: float(x) for name, x in each.items()}))
    return told["returns"]["mean"], rows


def main(config: Config, out: Path) -> tuple[float, list[Row]]:
    return run(train, "JAX", config, out)


if __name__ == "__main__":
    main(*arguments("Implicit Q-learning and behaviour cloning on a dataset, on JAX.", "offline_jax.png"))
