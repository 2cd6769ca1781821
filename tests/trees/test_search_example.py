"""The example of self-play in a short run, and its rules of the game."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # as for a program started from there

import tic_tac_toe_jax as example

from tests.trees.tic_tac_toe import tic_tac_toe


def test_the_rules_are_those_of_the_table() -> None:
    game, boards, _ = tic_tac_toe()
    states, moves = np.nonzero(game.valid & ~game.terminal[:, None])
    before = np.array([boards[k] for k in range(len(boards))], np.int32)
    after, reward, done = jax.jit(example.play)(before[states], moves)
    np.testing.assert_array_equal(after, before[game.following[states, moves]])
    np.testing.assert_array_equal(reward, game.reward[states, moves])
    np.testing.assert_array_equal(done, game.terminal[game.following[states, moves]])


def test_it_learns() -> None:
    said: list[str] = []
    config = example.Config(rounds=3, games=16, simulations=6, batch=32, updates=4, hidden=16, tests=64)
    params, shares = example.train(config, say=said.append)
    assert len(said) == 1
    assert all(np.isfinite(np.asarray(x)).all() for layer in params for x in layer)
    won, drawn, lost = np.asarray(shares)
    np.testing.assert_allclose(won + drawn + lost, 1, rtol=1e-5)
    assert won > 0.5  # a random player wins fewer than half of its games against another
