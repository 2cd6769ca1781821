"""The examples that learn from a dataset alone: what is recorded and read, their losses, and runs of seconds."""

from __future__ import annotations

import importlib
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # as for a program started from there

import offline_task
from offline_task import LENGTH, QUICK, TORQUE, Config

import torch_backend
from tests.support.backends import Backend

LIBRARIES = ("jax", "torch")
Weights = dict[str, Any]
LOC, SCALE = np.array([0.1, -0.2, 0.5], np.float32), np.array([0.5, 0.7, 3.0], np.float32)


@pytest.fixture(autouse=True)
def _no_other_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", "")  # the examples set it; so it is as it was afterwards


def program_of(library: str) -> Any:
    return importlib.import_module(f"offline_{library}")


def test_the_dataset_is_what_was_recorded(tmp_path: Path) -> None:
    recorded = offline_task.record(QUICK)
    state, told = offline_task.load(QUICK, torch_backend, tmp_path)
    items = torch_backend.items(state)
    assert told["steps"] == QUICK.episodes * LENGTH == len(items["action"])
    returns = [sum(episode.rewards) for episode in recorded]
    assert told["returns"]["mean"] == pytest.approx(np.mean(returns), rel=1e-5)
    for k, episode in enumerate(recorded):
        steps = slice(k * LENGTH, (k + 1) * LENGTH)
        np.testing.assert_array_equal(items["observation"][steps].numpy(), episode.observations[:-1])
        np.testing.assert_array_equal(items["next"]["observation"][steps].numpy(), episode.observations[1:])
        np.testing.assert_array_equal(items["action"][steps].numpy(), episode.actions)
        assert not items["next"]["terminated"][steps].any()  # so that what comes after the last step has its worth too
        assert episode.truncations.index(True) == LENGTH - 1
        assert items["next"]["truncated"][steps].nonzero().tolist() == [[LENGTH - 1]]


def test_operators_differ() -> None:
    """Swinging up alone is good; who brakes never gets up."""
    rng = np.random.default_rng(0)
    config = replace(QUICK, eval_episodes=4)
    swinging, braking, anything = (
        offline_task.evaluate(config, lambda obs, who=who: offline_task.operate(rng, np.full(len(obs), who), obs))
        for who in range(3)
    )
    assert swinging > -400 > -900 > anything > braking


def some_weights(hidden: int = 5) -> Weights:
    """Of each network, critics twice: weights [m, n] and biases [n] of each layer."""
    rng = np.random.default_rng(0)

    def network(inputs: int) -> list[tuple[Any, Any]]:
        sizes = (inputs, hidden, hidden, 1)
        return [
            (rng.normal(size=(m, n)).astype(np.float32), rng.normal(size=n).astype(np.float32))
            for m, n in itertools.pairwise(sizes)
        ]

    names = {"value": 3, "actor": 3, "cloned": 3, "critic 0": 4, "critic 1": 4, "target 0": 4, "target 1": 4}
    return {name: network(inputs) for name, inputs in names.items()}


def some_items(n: int = 64) -> Any:
    rng = np.random.default_rng(1)
    obs, later = rng.normal(size=(2, n, 3)).astype(np.float32)
    after = {"observation": later, "reward": rng.normal(size=n).astype(np.float32), "terminated": rng.random(n) < 0.5}
    return {"observation": obs, "action": rng.uniform(-TORQUE, TORQUE, (n, 1)).astype(np.float32), "next": after}


def plain_losses(config: Config, weights: Weights, item: Any) -> dict[str, float]:
    """Step by step, of observations that are normalised."""

    def value_of(name: str, x: Any) -> float:
        *hidden, (weight, bias) = weights[name]
        for w, b in hidden:
            x = np.maximum(x @ w + b, 0)
        return float((x @ weight + bias)[0])

    total = {"actor": 0.0, "cloned": 0.0, "critics": 0.0, "value": 0.0}
    after, n = item["next"], len(item["action"])
    for t in range(n):
        obs, action = (item["observation"][t] - LOC) / SCALE, item["action"][t]
        x = np.concatenate([obs, action / TORQUE])
        advantage = min(value_of(f"target {k}", x) for k in range(2)) - value_of("value", obs)
        total["value"] += (config.expectile if advantage > 0 else 1 - config.expectile) * advantage**2
        following = 0.0
        if not after["terminated"][t]:
            following = value_of("value", (after["observation"][t] - LOC) / SCALE)
        goal = config.reward_scale * after["reward"][t] + config.gamma * following
        total["critics"] += sum((value_of(f"critic {k}", x) - goal) ** 2 for k in range(2)) / 2
        weight = min(np.exp(config.temperature * advantage), config.largest)
        for name, by in (("actor", weight), ("cloned", 1.0)):
            total[name] += by * (TORQUE * np.tanh(value_of(name, obs)) - action[0]) ** 2
    return {name: value / n for name, value in total.items()}


def torch_learner(config: Config, weights: Weights) -> Any:
    import torch
    from torch import nn

    learner = program_of("torch").Learner(config, torch.from_numpy(LOC), torch.from_numpy(SCALE))
    named = {name: getattr(learner, name) for name in ("value", "actor", "cloned")}
    named |= {f"critic {k}": critic for k, critic in enumerate(learner.critics)}
    named |= {f"target {k}": critic for k, critic in enumerate(learner.target)}
    with torch.no_grad():
        for name, network in named.items():
            linear = [layer for layer in network if isinstance(layer, nn.Linear)]
            for layer, (weight, bias) in zip(linear, weights[name], strict=True):
                layer.weight.copy_(torch.from_numpy(weight.T))
                layer.bias.copy_(torch.from_numpy(bias))
    return learner


def jax_weights(weights: Weights) -> tuple[Any, Any]:
    """Parameters, and the critics' target."""
    import jax

    def both(name: str) -> Any:
        return jax.tree.map(lambda *each: np.stack(each), weights[f"{name} 0"], weights[f"{name} 1"])

    params = {name: weights[name] for name in ("value", "actor", "cloned")}
    return jax.tree.map(jax.numpy.asarray, (params | {"critics": both("critic")}, both("target")))


CONFIG = replace(QUICK, hidden=5, expectile=0.7, largest=5.0)


def test_losses_are_those_of_the_paper_and_each_moves_its_own_parameters(library: Backend) -> None:
    weights, item = some_weights(), some_items()
    if library.library == "jax":
        import jax

        params, target = jax_weights(weights)
        seen = item | {"observation": (item["observation"] - LOC) / SCALE}
        seen["next"] = item["next"] | {"observation": (item["next"]["observation"] - LOC) / SCALE}

        def losses(params: Any) -> Any:
            return program_of("jax").losses(CONFIG, params, target, library.tree(seen))

        found, gradients = jax.jit(lambda params: (losses(params), jax.jacrev(losses)(params)))(params)
        moved = {
            loss: {name for name, part in by.items() if any(np.asarray(x).any() for x in jax.tree.leaves(part))}
            for loss, by in gradients.items()
        }
    else:
        import torch

        learner, moved = torch_learner(CONFIG, weights), {}
        found, names = learner.losses(library.tree(item)), ("critics", "value", "actor", "cloned")
        for loss, value in found.items():
            gradients = [
                torch.autograd.grad(value, [*getattr(learner, name).parameters()], retain_graph=True, allow_unused=True)
                for name in names
            ]
            moved[loss] = {name for name, by in zip(names, gradients, strict=True) if any(x is not None for x in by)}
    expected = plain_losses(CONFIG, weights, item)
    assert {name: float(library.numpy(x)) for name, x in found.items()} == pytest.approx(expected, rel=1e-4)
    assert moved == {name: {name} for name in expected}


def test_targets_follow_slowly_on_torch() -> None:
    weights = some_weights()
    learner = torch_learner(replace(CONFIG, tau=0.25), weights)
    import torch

    item = {name: torch.from_numpy(x) for name, x in some_items().items() if name != "next"}
    item["next"] = {name: torch.from_numpy(x) for name, x in some_items()["next"].items()}
    learner.update(item)
    for k, critic in enumerate(learner.critics):
        expected = 0.75 * weights[f"target {k}"][0][0] + 0.25 * critic[0].weight.detach().numpy().T
        np.testing.assert_allclose(learner.target[k][0].weight.numpy().T, expected, rtol=1e-5)


def check_rows(config: Config, behaviour: float, rows: list[offline_task.Row], out: Path, printed: str) -> None:
    assert [row.updates for row in rows] == [20, 40]
    assert np.isfinite([(row.iql, row.cloned, *row.losses.values()) for row in rows]).all()
    first, last = (row.losses for row in rows)
    assert last["critics"] < 0.5 * first["critics"]
    assert last["cloned"] < first["cloned"]
    assert behaviour == pytest.approx(np.mean([sum(episode.rewards) for episode in offline_task.record(config)]))
    assert printed.startswith(offline_task.table(behaviour, rows))
    assert out.read_bytes().startswith(b"\x89PNG")


def test_quick_run_on_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "curves.png"
    behaviour, rows = program_of("torch").main(QUICK, out)
    check_rows(QUICK, behaviour, rows, out, capsys.readouterr().out)


def test_quick_run_on_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations are normalised when they are drawn, and the target follows the critics slowly."""
    import jax

    program, met = program_of("jax"), []
    make_learn = program.make_learn

    def watched(config: Config, optimizer: Any) -> Any:
        learn = make_learn(config, optimizer)

        def learned(learner: Any, state: Any, keys: Any) -> Any:
            drawn = program.rb.sample(state, keys[0], 600)[1].items
            after, losses = learn(learner, state, keys)
            moved = jax.tree.map(np.subtract, (after.target, after.params["critics"]), (learner.target, learner.target))
            norms = [np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(part))) for part in moved]
            met.append((norms[0] / norms[1], drawn["observation"], drawn["next"]["observation"]))
            return after, losses

        return learned

    monkeypatch.setattr(program, "make_learn", watched)
    out = tmp_path / "new" / "curves.png"
    behaviour, rows = program.main(QUICK, out)
    check_rows(QUICK, behaviour, rows, out, capsys.readouterr().out)
    for followed, *drawn in met:
        assert 0.001 < followed < 0.2
        for observations in drawn:
            np.testing.assert_allclose(observations.mean(0), 0, atol=0.2)
            np.testing.assert_allclose(observations.std(0), 1, atol=0.2)
    assert len(met) == len(rows)


@pytest.mark.long
@pytest.mark.parametrize("library", LIBRARIES)
def test_it_learns(library: str, tmp_path: Path) -> None:
    behaviour, rows = program_of(library).main(replace(Config(), updates=8000), tmp_path / "curves.png")
    assert behaviour < -1000
    assert max(row.cloned for row in rows) < -800
    assert rows[-1].iql > -300
