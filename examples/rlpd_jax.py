"""From offline data to online learning on MountainCarContinuous-v0: half of each batch is drawn from a dataset (RLPD).

Soft actor-critic with layer-normalised critics, four updates a step, and batches of a mixture of two buffers: one of
data recorded beforehand, one of the agent's own steps (P. J. Ball, L. Smith, I. Kostrikov, S. Levine, "Efficient Online
Reinforcement Learning with Offline Data", 2023). The dataset is made here, by a programmed controller
whose force is disturbed. The curve is drawn beside that of the same agent without the dataset.

    python examples/rlpd_jax.py [--quick] [--seeds 3] [--share 0.5] [--out rlpd_jax.png]
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from tqdm import tqdm

import functional_rb as frb
import jax_backend as rb

TASK = "MountainCarContinuous-v0"
LIMIT = 999  # steps of an episode
SCALE = (1.0, 0.07)  # of position and velocity
ITEM = {
    "obs": frb.Unbounded((2,)),  # position, velocity
    "action": frb.Bounded(-1.0, 1.0, (1,)),  # force
    "reward": frb.Unbounded(()),
    "next_obs": frb.Unbounded((2,)),
    "terminated": frb.Binary(()),
}


@dataclass(frozen=True)
class Config:
    """What a run is made of; static for JAX."""

    steps: int = 6_000  # of the environment
    random_steps: int = 1_000  # of these
    offline_episodes: int = 20
    disturbance: float = 1.0  # standard deviation of the noise on the controller's action
    updates: int = 4  # per step
    batch_size: int = 128
    hidden: int = 64
    gamma: float = 0.99
    tau: float = 0.01
    learning_rate: float = 1e-3
    target_entropy: float = -0.5
    reward_scale: float = 0.1
    eval_every: int = 500
    eval_episodes: int = 10


QUICK = Config(
    steps=240, random_steps=120, offline_episodes=2, updates=1, batch_size=16, hidden=8, eval_every=120, eval_episodes=2
)


class Learner(NamedTuple):
    params: dict[str, Any]  # "actor", "critics" (leaves [2, ...]), "log_temperature"
    target: Any  # of the critics
    opt_state: optax.OptState


def controller(obs: np.ndarray) -> np.ndarray:
    """A programmed controller, actions [n, 1] for observations [n, 2]: it pushes the way the car moves."""
    return np.where(obs[:, 1:] < 0, -1.0, 1.0)


def record(config: Config, seed: int) -> tuple[frb.State, float]:
    """The dataset, an immutable buffer, and the mean return of its episodes."""
    rng = np.random.default_rng(seed)
    envs = gymnasium.make_vec(TASK, config.offline_episodes, vectorization_mode="sync")
    obs, _ = envs.reset(seed=seed)
    steps, running, total = [], np.ones(config.offline_episodes, bool), 0.0
    while running.any():
        noise = rng.normal(size=(len(obs), 1)) * config.disturbance
        action = np.clip(controller(obs) + noise, -1, 1).astype(np.float32)
        following, reward, terminated, truncated, _ = envs.step(action)
        values = obs, action, reward.astype(np.float32), following, terminated
        steps.append({name: x[running] for name, x in zip(ITEM, values, strict=True)})
        total += reward[running].sum()
        running, obs = running & ~(terminated | truncated), following
    envs.close()
    items = {name: np.concatenate([step[name] for step in steps]) for name in ITEM}
    spec = frb.BufferSpec(ITEM, capacity=len(items["reward"]), writer=frb.Immutable())
    return rb.init(spec, items=items), total / config.offline_episodes


def layers(key: jax.Array, sizes: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
    """Weights [m, n] and biases [n] of each layer."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) * jnp.sqrt(1.0 / m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def network(params: list[tuple[jax.Array, jax.Array]], x: jax.Array, normalise: bool) -> jax.Array:
    """A multilayer perceptron, [..., m] to [..., n]."""
    for weight, bias in params[:-1]:
        x = x @ weight + bias
        x = jax.nn.relu(jax.nn.standardize(x) if normalise else x)
    weight, bias = params[-1]
    return x @ weight + bias


def q_values(critics: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
    """What both critics say, [2, B]. Layer normalisation keeps them from growing on actions that no data shows."""
    x = jnp.concatenate([obs / jnp.array(SCALE), action], -1)
    return jax.vmap(lambda params: network(params, x, normalise=True)[..., 0])(critics)


def act(actor: Any, obs: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions [..., 1] in (-1, 1), and the logarithm of their density [...]; without noise the greedy ones."""
    mean, log_std = jnp.split(network(actor, obs / jnp.array(SCALE), normalise=False), 2, -1)
    log_std = jnp.clip(log_std, -5, 1)
    raw = mean + jnp.exp(log_std) * noise
    # log(1 - tanh(x)^2), in a form that does not cancel
    squash = 2 * (jnp.log(2) - raw - jax.nn.softplus(-2 * raw))
    density = -(noise**2) / 2 - log_std - jnp.log(2 * jnp.pi) / 2 - squash
    return jnp.tanh(raw), density.sum(-1)


def start(config: Config, optimizer: optax.GradientTransformation, key: jax.Array) -> Learner:
    k_actor, k_critics = jax.random.split(key)
    sizes = (3, config.hidden, config.hidden, 1)
    critics = jax.vmap(lambda k: layers(k, sizes))(jax.random.split(k_critics))
    actor = layers(k_actor, (2, config.hidden, config.hidden, 2))
    params = {"actor": actor, "critics": critics, "log_temperature": jnp.float32(-1.0)}
    return Learner(params, critics, optimizer.init(params))


def losses(config: Config, params: Any, target: Any, item: Any, key: jax.Array) -> jax.Array:
    """The sum of the three losses of soft actor-critic; each stops the gradients of the others' parameters."""
    now, later = jax.random.normal(key, (2, config.batch_size, 1))
    temperature = jnp.exp(params["log_temperature"])
    fixed = jax.lax.stop_gradient(params | {"temperature": temperature})

    following, density = act(fixed["actor"], item["next_obs"], later)
    value = q_values(target, item["next_obs"], following).min(0) - fixed["temperature"] * density
    goal = config.reward_scale * item["reward"] + config.gamma * ~item["terminated"] * value
    critic = ((q_values(params["critics"], item["obs"], item["action"]) - goal) ** 2).mean()

    action, density = act(params["actor"], item["obs"], now)
    actor = (fixed["temperature"] * density - q_values(fixed["critics"], item["obs"], action).mean(0)).mean()
    entropy_error = jax.lax.stop_gradient(density + config.target_entropy)
    return critic + actor - temperature * entropy_error.mean()


def make_learn(config: Config, optimizer: optax.GradientTransformation) -> Any:
    """The compiled updates of one step."""

    @jax.jit
    def learn(learner: Learner, mixture: frb.Mixture, key: jax.Array) -> Learner:
        def update(learner: Learner, key: jax.Array) -> tuple[Learner, None]:
            k_sample, k_noise = jax.random.split(key)
            _, sample = rb.sample(mixture, k_sample, config.batch_size)
            gradient = jax.grad(lambda params: losses(config, params, learner.target, sample.items, k_noise))(
                learner.params
            )
            updates, opt_state = optimizer.update(gradient, learner.opt_state)
            params = optax.apply_updates(learner.params, updates)
            target = optax.incremental_update(params["critics"], learner.target, config.tau)
            return Learner(params, target, opt_state), None

        return jax.lax.scan(update, learner, jax.random.split(key, config.updates))[0]

    return learn


choose = jax.jit(lambda actor, obs, key: act(actor, obs, jax.random.normal(key, (*obs.shape[:-1], 1)))[0])
greedy = jax.jit(lambda actor, obs: act(actor, obs, jnp.zeros(()))[0])


def evaluate(config: Config, actor: Any, seed: int) -> float:
    """Mean return of the greedy policy."""
    envs = gymnasium.make_vec(TASK, config.eval_episodes, vectorization_mode="sync")
    obs, _ = envs.reset(seed=seed)
    total, running = np.zeros(config.eval_episodes), np.ones(config.eval_episodes, bool)
    while running.any():
        obs, reward, terminated, truncated, _ = envs.step(np.asarray(greedy(actor, obs)))
        total += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(total.mean())


def train(
    config: Config,
    learn: Any,
    optimizer: optax.GradientTransformation,
    offline: frb.State,
    share: float,
    seed: int,
) -> list[float]:
    """Learn on the environment, with this share of each batch drawn from the dataset; the returns over time."""
    k_params, k_act, k_learn = rb.split(rb.key(seed), 3)
    learner = start(config, optimizer, k_params)
    online = rb.init(frb.BufferSpec(ITEM, capacity=config.steps))
    shares = jnp.array([share, 1 - share])
    rng = np.random.default_rng(seed)
    env = gymnasium.make(TASK)
    obs, _ = env.reset(seed=seed)
    curve = []
    for step in tqdm(range(config.steps), desc=f"share {share}, seed {seed}", leave=False):
        if step < config.random_steps:
            action = rng.uniform(-1, 1, 1).astype(np.float32)
        else:
            action = np.asarray(choose(learner.params["actor"], obs, jax.random.fold_in(k_act, step)))
        following, reward, terminated, truncated, _ = env.step(action)
        values = obs, action, np.float32(reward), following, terminated
        online = rb.add_(online, dict(zip(ITEM, values, strict=True)))
        obs = env.reset()[0] if terminated or truncated else following
        if step >= config.random_steps:
            mixture = frb.Mixture((offline, online), p=shares)
            learner = learn(learner, mixture, jax.random.fold_in(k_learn, step))
        if (step + 1) % config.eval_every == 0:
            curve.append(evaluate(config, learner.params["actor"], seed=1_000_000 + seed))
    env.close()
    return curve


def plot(config: Config, curves: dict[str, np.ndarray], recorded: float, out: Path) -> None:
    """Saves the learning curves: means over seeds, and their range."""
    steps = (np.arange(config.steps // config.eval_every) + 1) * config.eval_every
    figure = Figure(figsize=(7, 4), layout="constrained")  # no pyplot: no display, no global state
    axes = figure.subplots()
    for name, returns in curves.items():
        (line,) = axes.plot(steps, returns.mean(0), label=name)
        axes.fill_between(steps, returns.min(0), returns.max(0), color=line.get_color(), alpha=0.2)
    axes.axhline(recorded, color="grey", linestyle=":", label="the dataset's episodes")
    axes.set(xlabel="environment steps", ylabel="return of the greedy policy", title=TASK)
    axes.legend(loc="center right")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)


def main(config: Config, seeds: int, share: float, out: Path) -> dict[str, np.ndarray]:
    """Trains with and without the dataset; returns [seeds, evaluations] of each."""
    begin = time.perf_counter()
    offline, recorded = record(config, seed=0)
    optimizer = optax.adam(config.learning_rate)
    learn = make_learn(config, optimizer)  # p is data, so that both are one program
    shares = {f"{share:.0%} of each batch offline": share, "online alone": 0.0}
    curves = {
        name: np.array([train(config, learn, optimizer, offline, each, seed) for seed in range(seeds)])
        for name, each in shares.items()
    }
    print(f"the dataset: {int(rb.size(offline)):,} steps, mean return {recorded:.0f}")
    print("env steps" + "".join(f"{name:>30}" for name in curves))
    for k in range(0, config.steps // config.eval_every, max(1, config.steps // config.eval_every // 10)):
        row = "".join(f"{returns[:, k].mean():30.0f}" for returns in curves.values())
        print(f"{(k + 1) * config.eval_every:9,d}{row}")
    plot(config, curves, recorded, out)
    print(f"{time.perf_counter() - begin:.0f} s; learning curves: {out}")
    return curves


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Offline to online learning with a mixture of two buffers, on JAX.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.5, help="of each batch from the dataset (default %(default)s)")
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument("--quick", action="store_true", help="a run of seconds that shows the parts, not the result")
    parser.add_argument("--out", type=Path, default=Path("rlpd_jax.png"), help="default %(default)s")
    args = parser.parse_args()
    config = QUICK if args.quick else replace(Config(), steps=args.steps)
    main(config, 1 if args.quick else args.seeds, args.share, args.out)
