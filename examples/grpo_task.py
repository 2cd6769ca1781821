"""What the two GRPO examples share: the task, the settings, the buffer of replies, the table and the picture.

A prompt is five different digits and a colon. First the model learns, by examples, to reply with these digits in any
order; that is the reference. Then it is paid for ascending order, and held to the reference by a penalty whose
coefficient is adapted to a wanted KL divergence. Of the 120 orders one ascends: who always replies so is log 120 = 4.8
nats away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command_line import parser
from matplotlib.figure import Figure

import functional_rb as frb

DIGITS = 5  # of a prompt
END, COLON, VOCABULARY = 10, 11, 12  # the tokens before are the digits
PROMPT, REPLY = DIGITS + 1, DIGITS + 1  # how many tokens: with the colon, with the end
ROW = PROMPT + REPLY
CONTROLLER = frb.text.KLController(initial=0.05, target=4.0, horizon=1_000)


@dataclass(frozen=True)
class Config:
    """One training run. An iteration generates replies to some prompts, then takes some gradient steps."""

    seed: int = 0
    width: int = 64  # of the model
    layers: int = 2
    heads: int = 4
    lessons: int = 600  # gradient steps by examples
    examples: int = 64  # in each
    iterations: int = 240
    prompts: int = 16  # in each
    replies: int = 8  # to each prompt
    updates: int = 2  # gradient steps in each
    groups: int = 16  # of replies, in a gradient step
    capacity: int = 512  # replies that are kept: those of the last four iterations
    lesson_rate: float = 2e-3
    learning_rate: float = 5e-4
    clip: float = 0.2  # how far a token's probability may move for gain
    controller: frb.text.KLController = CONTROLLER
    report_every: int = 10


QUICK = Config(width=8, layers=1, heads=2, lessons=4, examples=8, iterations=4, prompts=4, groups=4, report_every=2)


class Row(NamedTuple):
    """One point of the curves, a mean over the replies of the last iterations."""

    iteration: Any
    score: Any
    exact: Any  # the share of replies that ascend all the way
    kl: Any  # of whole replies, in nats
    coefficient: Any


def draw_prompts(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Prompts int32 [..., PROMPT]."""
    digits = rng.random((*shape, 10)).argsort(-1)[..., :DIGITS]
    return np.concatenate([digits, np.full((*shape, 1), COLON)], -1).astype(np.int32)


def draw_lessons(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rows int32 [..., ROW]: a prompt, its digits in any order, and an end."""
    prompts = draw_prompts(rng, *shape)
    replies = rng.permuted(prompts[..., :DIGITS], axis=-1)
    return np.concatenate([prompts, replies, np.full((*shape, 1), END)], -1).astype(np.int32)


def buffer_spec(config: Config) -> frb.BufferSpec:
    """The replies of the last iterations, drawn as groups that reply to one prompt."""
    return frb.BufferSpec(
        item={
            "prompt": frb.Unbounded((), "int32"),  # its number
            "ids": frb.Bounded(0, VOCABULARY - 1, (ROW,), "int32"),
            "mask": frb.Binary((ROW,)),
            "reply": frb.Binary((ROW - 1,)),  # of each step, whether it leads to a token of the reply
            "log_prob": frb.Unbounded((ROW - 1,)),  # when it was drawn
            "reward": frb.Unbounded(()),  # the score less the penalties
        },
        capacity=config.capacity,
        sampler=frb.Groups(config.replies, group_key="prompt", reward_key="reward"),
        batch_size=config.groups,
    )


def table(rows: Sequence[Row]) -> str:
    """The curves as text."""
    text = ["iteration   score   exact   KL (nats)   coefficient"]
    text += [f"{r.iteration:9d} {r.score:7.3f} {r.exact:7.3f} {r.kl:11.2f} {r.coefficient:13.4f}" for r in rows]
    return "\n".join(text)


def plot(config: Config, curves: dict[str, Sequence[Row]], out: Path) -> None:
    """Saves scores, divergences and coefficients over the replies that were generated."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")  # no pyplot: no display, no global state
    scores, divergences, coefficients = figure.subplots(1, 3)
    for name, rows in curves.items():
        replies = [row.iteration * config.prompts * config.replies for row in rows]
        (line,) = scores.plot(replies, [row.score for row in rows], label=f"{name}: right places")
        scores.plot(replies, [row.exact for row in rows], "--", color=line.get_color(), label=f"{name}: whole replies")
        divergences.plot(replies, [row.kl for row in rows], label=name)
        coefficients.plot(replies, [row.coefficient for row in rows], label=name)
    divergences.axhline(config.controller.target, color="grey", linestyle=":", label="wanted")
    divergences.axhline(math.log(math.factorial(DIGITS)), color="grey", label=f"always ascending: log {DIGITS}!")
    scores.set(title="share that is right", ylim=(0, 1.02))
    divergences.set(title="KL divergence from the reference, nats", ylim=(0, None))
    coefficients.set(title="coefficient of the penalty", yscale="log")
    for axes in (scores, divergences, coefficients):
        axes.set(xlabel="replies")
        axes.legend(fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


def finish(config: Config, name: str, rows: Sequence[Row], seconds: float, out: Path) -> None:
    """Prints the table and saves the picture."""
    print(table(rows))
    print(f"{config.iterations:,} iterations in {seconds:.0f} s; curves: {out}")
    plot(config, {name: rows}, out)


def arguments(description: str, out: str) -> tuple[Config, Path]:
    """Reads the command line."""
    asked = parser(description, out)
    asked.add_argument("--target", type=float, default=CONTROLLER.target, help="wanted KL (default %(default)s)")
    args = asked.parse_args()
    controller = replace(CONTROLLER, target=args.target)
    return replace(QUICK if args.quick else Config(), seed=args.seed, controller=controller), args.out
