"""Steps that tests add to rings: their leaves, the transforms that let them wait, and the frames that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.ops import numpy_ops
from functional_rb.structures.frame_ring import Chain

ITEM = {"cut": frb.Binary((1,)), "done": frb.Binary(), "gain": frb.Unbounded((2,), "float64")}
ITEM |= {"id": frb.Unbounded((), "int32")}
ITEM |= {"image": frb.Unbounded((1030,), "uint8"), "run": frb.Unbounded((), "int64"), "x": frb.Unbounded((3,))}
KEYS: dict[str, Any] = {"reward_key": "x", "terminated_key": "done"}
WAITING = (
    frb.n_step(1, 0.9, at="add", **KEYS, end_keys=("done",)),
    frb.n_step(3, 0.9, at="add", reward_key=["x", "gain"], terminated_key="done", next_keys=["image", "run"]),
    frb.n_step(2, 1.0, at="add", **KEYS, end_keys=()),
    frb.n_step(5, 0.5, at="add", **KEYS, trajectory_key="run"),
    frb.n_step(4, 0.9, at="add", **KEYS, trajectory_key="id", end_keys=["done", "cut"], next_keys=["id"]),
)
OF_AGENTS = {"done": frb.Binary((2,)), "next_each": frb.Unbounded((2, 3)), "truncated": frb.Binary((2,))}
AGENTS: dict[str, Any] = {"at": "add", "terminated_key": "done"}
WAITING_OF_AGENTS = (
    frb.n_step(3, 0.9, **AGENTS, reward_key=["gain", "x"], next_keys=["next_each", "image", "truncated"]),
    frb.n_step(1, 0.9, **AGENTS, reward_key=["x", "gain"]),
    frb.n_step(4, 1.0, **AGENTS, reward_key="gain", trajectory_key="run", end_keys=["cut"], next_keys=["done"]),
    frb.n_step(2, 0.5, **AGENTS, reward_key="gain", end_keys=["truncated", "cut"]),
)
STACK = {"obs": frb.Unbounded((3, 2), "uint8")}
TURNED = {"obs": frb.Unbounded((2, 3), "float16"), "other": frb.Unbounded((2,), "int64")}
COMPACT: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (STACK | {"next_obs": STACK["obs"]}, {"stack": 3}),
    ({"obs": frb.Unbounded((3, 5, 4), "uint8")}, {"next": {}, "stack": {"obs": 4}, "axis": -1}),
    ({"obs": frb.Unbounded((2, 700, 2), "uint8")}, {"next": {}, "stack": {"obs": 2}, "axis": -1}),
    ({"obs": frb.Unbounded((2,), "float64"), "next_obs": frb.Unbounded((2,), "float64")}, {}),
    (
        TURNED | {f"next_{name}": leaf for name, leaf in TURNED.items()},
        {"stack": {"obs": 3, "other": 2}, "axis": {"obs": -1}},
    ),
)
REWARDS = [0.0, -0.0, 1 / 3, 1e-40, 6e-8, -4e-6, 65519.0, -7e4, 1e38, np.inf]


def items(rng: np.random.Generator, first: int, n: int, spec: frb.BufferSpec) -> dict[str, Any]:
    """Steps [n] or [n // lanes, lanes], a trajectory ending or beginning at three of ten; some lanes never end."""
    lead = (n,) if spec.lanes is None else (n // spec.lanes, spec.lanes)
    ids = np.arange(first, first + n, dtype=np.int32)
    wide = 2**32 * rng.integers(2, size=n) + rng.integers(2, size=n)  # which differ in either half
    leaves = dict(zip(spec.plan.names, spec.plan.leaves, strict=True))
    flags = (n, math.prod(leaves["done"].shape))
    made = {"cut": rng.random((n, 1)) < 0.2, "done": rng.random(flags) < 0.3, "id": ids // 5 % 7}
    made |= {"image": np.repeat(ids[:, None] % 251, 1030, 1).astype(np.uint8), "run": wide}
    made["x"] = np.stack([ids, -ids / 3, rng.choice(REWARDS, n)], 1)
    made |= {"gain": rng.choice([0.0, -0.0, 1 / 3, 1e300], (n, 2)), "truncated": rng.random(flags) < 0.4}
    made |= {"next_each": rng.random((n, 2, 3)).astype(np.float32)}
    made |= {} if spec.plan.frames is None else observations(rng, n, spec.plan.frames, spec.plan.names)
    dtypes = {name: numpy_ops.dtype_of(leaf.dtype) for name, leaf in leaves.items()}
    return {
        name: made[name].astype(dtypes[name], order="C").reshape(*lead, *leaf.shape) for name, leaf in leaves.items()
    }


def observations(rng: np.random.Generator, n: int, chain: Chain, names: Sequence[str]) -> dict[str, Any]:
    """Of few different frames: stacks go on with each other by chance, or because the step before said so."""
    lanes, made = chain.items.lanes, dict[str, Any]()
    own, following = ([rng.integers(2, size=(n, stack.depth)) for stack in chain.stacks] for _ in range(2))
    for row in range(n):
        goes_on, moves = rng.random() < 0.7, rng.random() < 0.7
        for mine, after in zip(own, following, strict=True):
            if goes_on and row >= lanes and chain.paired:
                mine[row] = after[row - lanes]
            elif goes_on and row >= lanes:
                mine[row, :-1] = mine[row - lanes, 1:]
            if moves:
                after[row, :-1] = mine[row, 1:]
    for k, stack in enumerate(chain.stacks):
        for leaf, numbers in ((stack.leaf, own[k]), (stack.following, following[k])):
            if leaf is not None:
                filled = np.broadcast_to(
                    numbers.reshape(n, stack.depth, *[1] * len(stack.shape)), (n, stack.depth, *stack.shape)
                )
                stacked = filled[:, 0] if stack.depth == 1 else np.moveaxis(filled, 1, stack.axis + 1)
                made[names[leaf]] = stacked.astype(stack.dtype)
    return made
