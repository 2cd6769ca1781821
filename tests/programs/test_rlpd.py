"""The example that learns from a dataset and online at once: its data, its losses, and a run of seconds."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # as for a program started from there

import rlpd_jax as rlpd

import jax_backend as rb


def test_the_dataset_reaches_the_goal_and_ends_there() -> None:
    offline, mean = rlpd.record(rlpd.Config(offline_episodes=3), seed=0)
    items = rb.items(offline)
    ends = np.flatnonzero(items["terminated"])
    assert mean > 80
    assert len(ends) == 3
    np.testing.assert_array_less(0.44, items["next_obs"][ends, 0])  # the goal is at 0.45
    # Within an episode each step begins where the one before led; the episodes' steps are recorded in turn.
    np.testing.assert_array_equal(items["obs"][3:30], items["next_obs"][:27])


def test_density_of_actions_is_that_of_a_squashed_normal() -> None:
    actor = rlpd.layers(jax.random.key(0), (2, 8, 2))
    obs, noise = jnp.array([0.3, 0.01]), jnp.linspace(-4, 4, 4001)[:, None]
    action, density = jax.jit(jax.vmap(lambda e: rlpd.act(actor, obs, e)))(noise)
    # Over all actions the density adds up to one (trapezoids).
    assert np.trapezoid(np.exp(density), action[:, 0]) == pytest.approx(1.0, abs=1e-3)


def test_each_loss_moves_its_own_parameters() -> None:
    config = rlpd.QUICK
    learner = jax.jit(lambda key: rlpd.start(config, optax.sgd(0.1), key))(jax.random.key(0))  # which is one program
    ones = np.ones((config.batch_size, 2), np.float32)
    item = {
        "obs": ones,
        "action": ones[:, :1] / 2,
        "reward": ones[:, 0],
        "next_obs": ones,
        "terminated": ones[:, 0] > 0,
    }

    def loss(params: object, target: object) -> jax.Array:
        return rlpd.losses(config, params, target, item, jax.random.key(1))

    gradient = jax.jit(jax.grad(loss))
    ended = gradient(learner.params, learner.target)
    other = jax.tree.map(lambda x: np.asarray(x) + 1, learner.target)
    for name in ("critics", "actor", "log_temperature"):  # after a termination nothing bootstraps
        for x, y in zip(
            jax.tree.leaves(ended[name]), jax.tree.leaves(gradient(learner.params, other)[name]), strict=True
        ):
            np.testing.assert_array_equal(x, y)
    q = jax.jit(rlpd.q_values)(learner.params["critics"], item["obs"], item["action"])
    error = np.asarray(q) - config.reward_scale
    (_, bias) = ended["critics"][-1]
    np.testing.assert_allclose(bias[:, 0], error.mean(1), rtol=1e-4)  # of the mean of squares over two critics


def test_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = rlpd.main(rlpd.QUICK, seeds=1, share=0.5, out=tmp_path / "new" / "curve.png")
    assert list(curves) == ["50% of each batch offline", "online alone"]
    assert all(curve.shape == (1, 2) and np.isfinite(curve).all() for curve in curves.values())
    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "the dataset:" in capsys.readouterr().out
