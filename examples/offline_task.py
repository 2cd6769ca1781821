"""What the two examples of offline learning share: the task, the dataset, the settings, the table and the picture.

The task is Pendulum-v1. The dataset is recorded from three operators who take turns at random within every episode: one
swings the pendulum up and holds it, one brakes it, and one does anything. So there is hardly a good episode in it, but
there are good steps from everywhere. It is written in Minari's format by minari itself, and read by `datasets.load`.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import minari
import numpy as np
from command_line import parser
from matplotlib.figure import Figure
from minari.data_collector import EpisodeBuffer

import functional_rb as frb

TASK = "Pendulum-v1"
DATASET = "pendulum/turns-v0"
LENGTH = 200  # steps of an episode, none of which ends before
TORQUE = 2.0  # at most
TOP = 5.0  # energy of the pendulum that stands on its top
HELD_OUT = 1_000_000  # seeds of the episodes that policies are judged by: no others

Policy = Callable[[np.ndarray], np.ndarray]  # f32[n, 3] -> f32[n, 1]


@dataclass(frozen=True)
class Config:
    """One training run."""

    seed: int = 0
    episodes: int = 200  # of the dataset
    turn: float = 20.0  # mean steps after which another operator takes over
    updates: int = 12_000
    batch_size: int = 256
    hidden: int = 64
    learning_rate: float = 1e-3
    gamma: float = 0.99
    tau: float = 0.005  # fraction by which the target of the critics follows
    expectile: float = 0.8  # 0.5 is the mean over the data's actions, 1 the best of them
    temperature: float = 3.0  # how much more a better action counts
    largest: float = 100.0  # weight of an action
    reward_scale: float = 0.1
    eval_every: int = 1_000
    eval_episodes: int = 20

    def __post_init__(self) -> None:
        if self.updates % self.eval_every:
            raise ValueError(f"updates={self.updates} must be a multiple of eval_every={self.eval_every}")


QUICK = Config(episodes=3, updates=40, batch_size=32, hidden=8, learning_rate=1e-2, eval_every=20, eval_episodes=2)


class Row(NamedTuple):
    """One point of the curves: mean returns of policies that do not explore, and the losses since the point before."""

    updates: int
    iql: float
    cloned: float
    losses: dict[str, float]


Train = Callable[[Config, Path], tuple[float, list[Row]]]  # the mean return of the dataset's episodes, and the curves


def operate(rng: np.random.Generator, who: np.ndarray, obs: np.ndarray) -> np.ndarray:
    """Torques [n, 1] of the operators [n] for observations [n, 3]: cosine and sine of the angle, angular velocity."""
    cosine, sine, velocity = obs.T
    missing = TOP - (velocity**2 / 6 + TOP * cosine)
    swinging = np.where(cosine > 0.9, -10 * sine - 2 * velocity, missing * np.where(velocity < 0, -1, 1))
    braking = -2 * velocity
    anything = rng.uniform(-TORQUE, TORQUE, len(obs))
    torque = np.choose(who, [swinging, braking, anything]) + 0.1 * rng.normal(size=len(obs))
    return np.clip(torque, -TORQUE, TORQUE).astype(np.float32)[:, None]


def record(config: Config) -> list[EpisodeBuffer]:
    """The episodes, recorded side by side."""
    rng, n = np.random.default_rng(config.seed), config.episodes
    envs = gymnasium.make_vec(TASK, n, vectorization_mode="sync")
    obs, _ = envs.reset(seed=config.seed)
    who = rng.integers(0, 3, n)
    observations: list[np.ndarray] = [obs]
    actions: list[np.ndarray] = []
    rewards: list[np.ndarray] = []
    for _ in range(LENGTH):
        who = np.where(rng.random(n) < 1 / config.turn, rng.integers(0, 3, n), who)
        action = operate(rng, who, obs)
        obs, reward, *_ = envs.step(action)
        for rows, values in ((observations, obs), (actions, action), (rewards, reward)):
            rows.append(values)
    envs.close()
    cut = [False] * (LENGTH - 1) + [True]
    by_episode = (np.stack(rows, 1) for rows in (observations, actions, rewards))
    return [
        EpisodeBuffer(
            id=k,
            seed=config.seed + k,
            observations=o,
            actions=a,
            rewards=list(r),
            terminations=[False] * LENGTH,
            truncations=cut,
        )
        for k, (o, a, r) in enumerate(zip(*by_episode, strict=True))
    ]


def make_dataset(config: Config, root: Path) -> str:
    """Writes the dataset below a folder, as minari does it; the name by which `frb.datasets.load` finds it."""
    os.environ["MINARI_DATASETS_PATH"] = str(root / "minari")  # where minari writes, and `load` looks
    told = dict.fromkeys(("author", "author_email", "algorithm_name", "code_permalink"), "functional_rb")
    minari.create_dataset_from_buffers(
        DATASET, record(config), env=TASK, eval_env=TASK, description="Three operators in turns", **told
    )
    return f"minari:{DATASET}"


def load(config: Config, rb: Any, root: Path) -> tuple[frb.State, dict[str, Any]]:
    """The dataset as a buffer of a backend, and numbers that describe it."""
    state = frb.datasets.load(make_dataset(config, root), rb, root=root, batch_size=config.batch_size)
    return state, frb.datasets.Dataset(state).statistics()


def evaluate(config: Config, policy: Policy) -> float:
    """Mean return of a policy over episodes that nobody has learned from."""
    envs = gymnasium.make_vec(TASK, config.eval_episodes, vectorization_mode="sync")
    obs, _ = envs.reset(seed=HELD_OUT + 1_000 * config.seed)
    total = np.zeros(config.eval_episodes)
    for _ in range(LENGTH):
        obs, reward, *_ = envs.step(policy(obs))
        total += reward
    envs.close()
    return float(total.mean())


def table(behaviour: float, rows: Sequence[Row]) -> str:
    """The curves as text."""
    text = [f"mean return of the dataset's episodes: {behaviour:.0f}", "updates      IQL   cloned   losses"]
    for row in rows:
        losses = ", ".join(f"{name} {value:.3f}" for name, value in row.losses.items())
        text.append(f"{row.updates:7,d} {row.iql:8.0f} {row.cloned:8.0f}   {losses}")
    return "\n".join(text)


def plot(behaviour: float, curves: dict[str, Sequence[Row]], out: Path) -> None:
    """Saves the returns over updates."""
    figure = Figure(figsize=(7, 4), layout="constrained")  # no pyplot: no display, no global state
    axes = figure.subplots()
    for name, rows in curves.items():
        updates = [row.updates for row in rows]
        (line,) = axes.plot(updates, [row.iql for row in rows], label=f"{name}: IQL")
        axes.plot(updates, [row.cloned for row in rows], "--", color=line.get_color(), label=f"{name}: cloned")
    axes.axhline(behaviour, color="grey", linestyle=":", label="the dataset's episodes")
    axes.set(xlabel="updates", ylabel="return of the policy that does not explore", title=TASK)
    axes.legend(fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


def run(train: Train, name: str, config: Config, out: Path) -> tuple[float, list[Row]]:
    """Trains in a folder of its own, prints the table and saves the picture."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as root:
        behaviour, rows = train(config, Path(root))
    print(table(behaviour, rows))
    print(f"{rows[-1].updates:,} updates in {time.perf_counter() - begin:.0f} s; curves: {out}")
    plot(behaviour, {name: rows}, out)
    return behaviour, rows


def arguments(description: str, out: str) -> tuple[Config, Path]:
    """Reads the command line."""
    asked = parser(description, out)
    asked.add_argument("--expectile", type=float, default=Config.expectile, help="default %(default)s")
    args = asked.parse_args()
    config = QUICK if args.quick else Config()
    return replace(config, seed=args.seed, expectile=args.expectile), args.out
