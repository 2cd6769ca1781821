"""The examples that learn from a programmed reward: what is paid, what is learned from, and runs of seconds."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # as for a program started from there

import grpo_task
import jax
from grpo_task import COLON, DIGITS, END, PROMPT, QUICK, ROW, Config

from tests.support.backends import Backend
from tests.support.language_models import table


def program_of(library: str) -> Any:
    """Imported where it is used: transformers, which the one on torch needs, takes seconds."""
    return importlib.import_module(f"grpo_{library}")


def test_lessons_hold_their_prompts_digits_in_every_order() -> None:
    rows = grpo_task.draw_lessons(np.random.default_rng(0), 40, 50).reshape(-1, ROW)
    assert (rows[:, DIGITS] == COLON).all()
    assert (rows[:, -1] == END).all()
    assert all(len({*row[:DIGITS]}) == DIGITS and max(row[:DIGITS]) < 10 for row in rows)
    np.testing.assert_array_equal(np.sort(rows[:, :DIGITS]), np.sort(rows[:, PROMPT:-1]))
    ranks = rows[:, PROMPT:-1].argsort(-1).argsort(-1)
    counts = np.unique(ranks @ 10 ** np.arange(DIGITS), return_counts=True)[1]
    assert len(counts) == 120
    assert counts.max() < 2000 / 120 + 5 * (2000 / 120) ** 0.5


def test_places_of_replies_are_paid(library: Backend) -> None:
    prompts = [[3, 1, 9, 0, 4, COLON]] * 5
    replies = [[0, 1, 3, 4, 9, END], [0, 1, 3, 9, 4, END], [END], [0, 1, 3, 4, END], [0, 1, 3, 4, 9, 9]]
    expected = [6, 4, 0, 4, 5]  # what is behind an end is no reply, though it is an end too
    ids = np.array([p + r + [END] * (6 - len(r)) for p, r in zip(prompts, replies, strict=True)], np.int32)
    reply = np.arange(ROW) >= PROMPT
    reply = reply & (np.arange(ROW) < PROMPT + np.array([[len(r)] for r in replies]))
    found = program_of(library.library).score(library.array(ids), None, library.array(reply))
    np.testing.assert_allclose(library.numpy(found), np.array(expected) / 6, rtol=1e-6)


def test_the_surrogate_is_clipped_and_of_replies_alone(library: Backend) -> None:
    """Against plain loops, by the log-probabilities of a table of which token follows which."""
    rng, (groups, size) = np.random.default_rng(0), (3, 4)
    logits = rng.normal(size=(grpo_task.VOCABULARY,) * 2).astype(np.float32)
    ids = rng.integers(0, grpo_task.VOCABULARY, (groups, size, ROW)).astype(np.int32)
    mask = np.arange(ROW) < rng.integers(PROMPT + 1, ROW + 1, (groups, size, 1))
    known = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    told = known[ids[..., :-1], ids[..., 1:]]
    item = {"ids": ids, "mask": mask, "reply": mask[..., 1:] & (np.arange(ROW - 1) >= PROMPT - 1)}
    item |= {"log_prob": (told + rng.normal(size=told.shape) * 0.4).astype(np.float32)}
    item |= {"reward": rng.normal(size=(groups, size)).astype(np.float32)}
    total, count, clipped = 0.0, 0, 0
    for g, i, t in zip(*item["reply"].nonzero(), strict=True):
        rewards = np.float64(item["reward"][g])
        advantage = (rewards[i] - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        ratio = np.exp(float(told[g, i, t]) - float(item["log_prob"][g, i, t]))
        within = min(max(ratio, 0.8), 1.2)
        total, count = total + min(ratio * advantage, within * advantage), count + 1
        clipped += within != ratio
    assert 10 < clipped < count
    sample = library.tree(item), library.array(np.ones((groups, size), bool))
    params = library.array(logits)
    if library.library == "jax":
        found = jax.jit(lambda p: program_of("jax").surrogate(QUICK, table, p, *sample))(params)
    else:
        learner = SimpleNamespace(config=QUICK, lm=SimpleNamespace(step=table), model=params)
        found = program_of("torch").Learner.surrogate(learner, *sample)
    assert float(found) == pytest.approx(-total / count, rel=1e-4)


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_quick_run(library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = program_of(library).main(QUICK, tmp_path / "new" / "curves.png")
    assert [row.iteration for row in rows] == [2, 4]
    assert np.isfinite(np.array(rows)).all()
    assert all(0 <= row.exact <= row.score <= 1 for row in rows)
    first = QUICK.controller.initial * (1 - 0.2 * QUICK.prompts * QUICK.replies / QUICK.controller.horizon)
    assert rows[0].coefficient == pytest.approx((QUICK.controller.initial + first) / 2)  # nearer than was wanted
    assert capsys.readouterr().out.startswith(grpo_task.table(rows))
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.parametrize("library", ["jax", "torch"])
def test_it_learns(library: str, tmp_path: Path) -> None:
    rows = program_of(library).main(replace(Config(), lessons=400, iterations=60), tmp_path / "curves.png")
    assert rows[0].score < 0.5  # the reference: one place of five by chance, and the end
    assert rows[-1].score > 0.8
    assert rows[-1].kl > 3
    assert rows[-1].kl < 7
    coefficients = [row.coefficient for row in rows]
    assert coefficients[3] < coefficients[0]  # while replies were nearer than was wanted
    assert coefficients[-1] > min(coefficients)
