"""What the examples share around the training itself: evaluation, progress, table, plot, command line."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
from cartpole_spec import QUICK, Config
from command_line import parser
from matplotlib.figure import Figure
from tqdm import tqdm

SOLVED = 475.0
# Training and model selection use the small seeds, so the final episodes start where no policy was chosen.
FINAL_SEED = 1_000_000

Policy = Callable[[np.ndarray], np.ndarray]  # f32[n, 4] -> integers [n]


class Row(NamedTuple):
    """One point of the learning curve; a NamedTuple, so that JAX can carry it through a scan."""

    iteration: Any
    episode_return: Any  # mean over the training episodes that ended since the last row; NaN if none did
    greedy_return: Any  # mean over the greedy evaluation episodes
    loss: Any
    epsilon: Any
    seconds: Any  # wall time since training began


class Result(NamedTuple):
    """What a run leaves behind, for the table and for tests."""

    rows: list[Row]
    returns: np.ndarray  # f64[20] of the final evaluation on Gymnasium
    stored: int  # items in the buffer at the end


class Progress:
    """A tqdm bar and a clock: `with Progress(n) as progress: progress.report(row)`."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def __enter__(self) -> Self:
        self.bar = tqdm(total=self.iterations, unit="it")
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def report(self, row: Row) -> np.float32:
        """Moves the bar to the row and returns the seconds since the start."""
        self.bar.set_postfix_str(f"greedy return {row.greedy_return:.0f}, loss {row.loss:.3f}", refresh=False)
        self.bar.update(int(row.iteration) - self.bar.n)
        return np.float32(time.perf_counter() - self.start)


def evaluate(policy: Policy, episodes: int, seed: int) -> np.ndarray:
    """Returns of `episodes` episodes of Gymnasium's CartPole-v1, f64 [episodes]; episode i is seeded `seed + i`."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=episodes, vectorization_mode="sync")
    obs, _ = envs.reset(seed=seed)
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        obs, reward, terminated, truncated, _ = envs.step(policy(obs))
        returns += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return returns


def finish(config: Config, rows: list[Row], policy: Policy, stored: int, out: Path) -> Result:
    """Evaluates the chosen policy on Gymnasium, prints the table and saves the learning curve."""
    print(table(config, rows))
    returns = evaluate(policy, episodes=20, seed=FINAL_SEED + 1_000 * config.seed)
    verdict = "solved" if returns.mean() >= SOLVED else "not solved"
    print(f"\n{config.iterations:,} updates in {rows[-1].seconds:.1f} s")
    print(
        f"Gymnasium CartPole-v1, 20 episodes: mean return {returns.mean():.1f}, lowest {returns.min():.0f}: {verdict}"
    )
    plot(config, rows, out)
    print(f"learning curve: {out}")
    return Result(rows, returns, stored)


def table(config: Config, rows: Sequence[Row], lines: int = 8) -> str:
    """`lines` of the rows, evenly spaced and the last among them, as text."""
    text = ["  env steps   episode   greedy      loss   epsilon   updates/s"]
    picked = np.unique(np.linspace(0, len(rows) - 1, lines + 1).round().astype(int))
    previous = Row(0, 0, 0, 0, 0, 0.0)
    for row in (rows[i] for i in picked):
        rate = (row.iteration - previous.iteration) / (row.seconds - previous.seconds)
        text.append(
            f"{int(row.iteration) * config.num_envs:11,d} {row.episode_return:9.1f} {row.greedy_return:8.1f}"
            f" {row.loss:9.4f} {row.epsilon:9.2f} {rate:11,.0f}"
        )
        previous = row
    return "\n".join(text)


def plot(config: Config, rows: Sequence[Row], out: Path) -> None:
    """Saves the learning curve as an image."""
    steps = [row.iteration * config.num_envs for row in rows]
    figure = Figure(figsize=(7, 4), layout="constrained")  # no pyplot: no display, no global state
    axes = figure.subplots()
    axes.plot(steps, [row.episode_return for row in rows], label="training episodes (epsilon-greedy)")
    axes.plot(steps, [row.greedy_return for row in rows], label="greedy evaluation")
    axes.axhline(SOLVED, color="grey", linestyle=":", label=f"solved ({SOLVED:.0f})")
    axes.set(xlabel="environment steps", ylabel="return", ylim=(0, 520), title=f"DQN on CartPole-v1: {out.stem}")
    axes.legend(loc="lower right")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)


def arguments(description: str, out: str) -> tuple[Config, Path]:
    """Reads the command line."""
    asked = parser(description, out)
    asked.add_argument("--n-step", type=int, default=Config.n_step, help="steps of a return (default %(default)s)")
    args = asked.parse_args()
    return replace(QUICK if args.quick else Config(), seed=args.seed, n_step=args.n_step), args.out
