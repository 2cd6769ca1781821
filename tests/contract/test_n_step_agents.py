"""N-step returns of several agents, each of which may be done before the others, beside a plain walk over the steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.__main__ import main
from tests.support import backends
from tests.support.backends import Backend
from tests.support.histories import Rng, histories, pick

N, GAMMA = 3, 0.5
FLAGS = {"done": ("done",), "two": ("terminated", "truncated"), "all": ("done", "terminated", "truncated")}
ON_TORCH = ("torch", "torch-core", "jax-host", "jax-host-core")


def spec_of(agents: tuple[int, ...], flags: tuple[str, ...], at: str, lanes: int | None, shared: bool) -> Any:
    ends = {name: frb.Binary(agents) for name in flags}
    item = {
        "id": frb.Unbounded((), "int32"),
        "agents": {"reward": frb.Unbounded(agents), **ends},
        "next": {"obs": frb.Unbounded((*agents, 2)), "state": frb.Unbounded((5,), "int32")},
        "over": frb.Binary(),
    }
    end_keys = (
        "over"
        if shared
        else [("agents", name) for name in ("done",) if name in flags] or [("agents", name) for name in flags]
    )
    terminated = "terminated" if "terminated" in flags else "done"
    keys: dict[str, Any] = {"reward_key": ("agents", "reward"), "terminated_key": ("agents", terminated)}
    keys["next_keys"] = [("next", "obs"), ("next", "state"), *(("agents", name) for name in flags)]
    step = frb.n_step(N, GAMMA, at=at, end_keys=end_keys, **keys)  # type: ignore[arg-type]  # one of two words
    return frb.BufferSpec(item, 9 * (lanes or 1), frb.Uniform(), lanes=lanes, transforms=step)


def steps(rng: Rng, first: int, lead: tuple[int, ...], agents: tuple[int, ...], flags: tuple[str, ...]) -> Any:
    ids = np.arange(first, first + np.prod(lead), dtype=np.int32).reshape(lead)
    some = {name: rng.random((*lead, *agents)) < 0.4 for name in flags}
    if "done" in flags and len(flags) > 1:
        some["done"] = some["terminated"] | some["truncated"]
    axes = (1,) * len(agents)
    return {
        "id": ids,
        "agents": {"reward": rng.integers(-4, 5, (*lead, *agents)).astype(np.float32), **some},
        "next": {
            "obs": np.broadcast_to(ids.reshape(*lead, *axes, 1), (*lead, *agents, 2)).astype(np.float32),
            "state": np.broadcast_to(ids[..., None], (*lead, 5)).astype(np.int32),
        },
        "over": rng.random(lead) < 0.2,
    }


def flat(items: Any, lane: int, lanes: int | None) -> list[Any]:
    """The steps of one lane as nests of single values."""
    some = len(items["id"])
    cut = (lambda x, t: x[t]) if lanes is None else (lambda x, t: x[t, lane])
    return [
        {name: {k: cut(v, t) for k, v in x.items()} if isinstance(x, dict) else cut(x, t) for name, x in items.items()}
        for t in range(some)
    ]


def expected(lane: list[Any], start: int, agents: tuple[int, ...], flags: tuple[str, ...], shared: bool) -> Any:
    """The item over n steps from one of a lane's on, and what is told of it."""

    def ended(step: Any) -> bool:
        done = np.any([step["agents"][name] for name in flags], 0)
        return bool(step["over"] if shared else done.all())

    window = lane[start : start + N]
    for k, step in enumerate(window):
        if ended(step):
            window = window[: k + 1]
            break
    total, count, alive = np.zeros(agents), np.zeros(agents, np.int32), np.ones(agents, bool)
    for k, step in enumerate(window):
        total += np.where(alive, GAMMA**k * step["agents"]["reward"], 0)
        count += alive
        alive &= ~np.any([step["agents"][name] for name in flags], 0)
    own: dict[str, Any] = {name: np.zeros(agents, bool) for name in flags}
    obs, nonterminal = np.zeros((*agents, 2), np.float32), np.zeros(agents, bool)
    for agent in np.ndindex(agents):
        last = window[count[agent] - 1]
        obs[agent] = last["next"]["obs"][agent]
        for name in flags:
            own[name][agent] = last["agents"][name][agent]
        nonterminal[agent] = not own["terminated" if "terminated" in flags else "done"][agent]
    item = {"reward": total, "obs": obs, "state": window[-1]["next"]["state"], **own}
    told = {"steps": count, "discount": GAMMA**count, "nonterminal": nonterminal}
    return item, told | {"original_reward": window[0]["agents"]["reward"]}


def check(backend: Backend, sample: Any, lanes: list[list[Any]], *how: Any) -> int:
    """All that was drawn is as expected; how many agents were done before another."""
    places = {int(step["id"]): (lane, t) for lane in lanes for t, step in enumerate(lane)}
    early = 0
    for row, number in enumerate(backend.numpy(sample.items["id"]).tolist()):
        item, told = expected(*places[number], *how)
        got = {**sample.items["agents"], **sample.items["next"]}
        for name, value in item.items():
            assert np.array_equal(backend.numpy(got[name])[row], value), (name, number)
        for name, value in told.items():
            assert np.array_equal(backend.numpy(sample.extras[name])[row], value), (name, number)
        early += int((told["steps"] < told["steps"].max()).sum())
    return early


def tell(
    backend: Backend, rng: Rng, agents: Any, flags: Any, at: str, lanes: int | None, shared: bool, add: int
) -> int:
    state = backend.init(spec_of(agents, flags, at, lanes, shared))
    told: list[list[Any]] = [[] for _ in range(lanes or 1)]
    early = 0
    for k in range(5):
        batch = steps(rng, 1000 * k, (add,) if lanes is None else (add, lanes), agents, flags)
        state = backend.add(state, batch)
        for lane, record in enumerate(told):
            record += flat(batch, lane, lanes)
        if int(backend.rb.size(state)):
            state, sample = backend.sample(state, backend.rb.key(k), 16)
            early += check(backend, sample, told, agents, flags, shared)
    return early


@histories(12)
def test_any_history(rng: Rng) -> None:
    agents, lanes = pick(rng, [(2,), (3,), (2, 1), (2, 2)]), pick(rng, [None, 1, 2])
    with backends.make(pick(rng, ON_TORCH)) as backend:
        flags = FLAGS[pick(rng, list(FLAGS))]
        tell(backend, rng, agents, flags, pick(rng, ["sample", "add"]), lanes, pick(rng, [False, True]), 4)


@pytest.mark.parametrize(
    ("backend", "at"),
    [("jax", "add"), ("jax-jit", "sample"), ("jax-core", "sample"), ("torch-inplace", "add")],
    indirect=["backend"],
)
def test_on_each_backend(backend: Backend, at: str) -> None:
    assert tell(backend, np.random.default_rng(5), (2,), FLAGS["two"], at, None, False, 4) > 5


def test_found_by_their_names(library: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair, flag = frb.Unbounded((2,)), frb.Binary((2,))
    spec = frb.BufferSpec({"reward": pair, "done": flag}, 8, frb.InOrder(), transforms=frb.n_step(3, 0.5))
    state = library.add(
        library.init(spec),
        {"reward": np.ones((3, 2), np.float32), "done": np.array([[False, True], [True, False], [True, True]])},
    )
    _, sample = library.sample(state, library.rb.key(0), 3)
    assert library.numpy(sample.extras["steps"]).tolist() == [[2, 1], [1, 2], [1, 1]]
    assert library.numpy(sample.items["reward"]).tolist() == [[1.5, 1], [1, 1.5], [1, 1]]
    frb.save(state, tmp_path)
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["episodes"]["lengths"]["mean"] == 3, found["episodes"]


@pytest.mark.parametrize("name", ON_TORCH)
def test_the_first_lane_may_have_no_step(name: str) -> None:
    spec = spec_of((2,), FLAGS["done"], "add", 2, True)
    batch = steps(np.random.default_rng(0), 0, (1, 2), (2,), FLAGS["done"]) | {"over": np.array([[False, True]])}
    with backends.make(name) as backend:
        state = backend.add(backend.init(spec), batch, mask=np.array([[False, True]]))
        _, sample = backend.sample(state, backend.rb.key(0), 1)
        assert backend.numpy(sample.items["id"]).tolist() == [1]


BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"done": frb.Binary((3,))}, {}, r"end key 'done': expected one bool an item, got bool of shape \(3,\)"),
    (
        {"done": frb.Binary(), "dead": frb.Binary((3,))},
        {"terminated_key": "dead"},
        r"leaf 'dead': expected one bool an item, or one for each reward, \(2,\), got bool of shape \(3,\)",
    ),
]


@pytest.mark.parametrize(("leaves", "settings", "words"), BAD)
def test_flags_of_another_shape(leaves: Any, settings: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        frb.BufferSpec({"reward": frb.Unbounded((2,)), **leaves}, 8, transforms=frb.n_step(3, 0.9, **settings))


def test_slices_need_one_end() -> None:
    item = {"reward": frb.Unbounded((2,)), "done": frb.Binary((2,))}
    with pytest.raises(ValueError, match="end key 'done': expected one bool an item"):
        frb.BufferSpec(item, 8, frb.Slices(2), transforms=frb.n_step(3, 0.9))
