"""Wrote the golden pickles, in a version whose modules had other names. They load for ever, so do not run it again.

    python tests/checkpoint/golden_pickles/write.py DIRECTORY

This version is that of the commit 4cd8e18: run it with that commit's folder in PYTHONPATH. It has public names alone.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

import functional_rb as frb

ITEM = {"x": frb.Unbounded((2,)), "a": frb.Bounded(-1.0, 1.0, (), "float16"), "reward": frb.Unbounded(())}
STACKED = {"image": frb.Unbounded((2, 4, 4), "uint8"), "next": frb.Unbounded((2, 4, 4), "uint8")}
GOALS = {name: frb.Unbounded(()) for name in ("achieved_goal", "desired_goal")}
EPISODES = {**ITEM, "terminated": frb.Binary(()), "truncated": frb.Binary(())}

STATES = {
    "jax": ("jax", frb.BufferSpec(ITEM, 6, frb.Prioritized(alpha=0.7), batch_size=4)),
    "jax-host": ("jax", frb.BufferSpec(ITEM, 6, frb.WithoutReplacement(), storage=frb.Host())),
    "torch": ("torch", frb.BufferSpec(ITEM, 6, frb.Slices(2, end_keys=()), lanes=2)),
    "torch-objects": ("torch", frb.BufferSpec({"x": frb.Unbounded(()), "note": frb.NonTensor()}, 6, frb.Recency(2))),
}
ONE = {"x": frb.Unbounded(())}
SPECS = {
    "fifo": frb.BufferSpec(ONE, 4, frb.Fifo(), writer=frb.StopWhenFull()),
    "lifo": frb.BufferSpec(ONE, 4, frb.Lifo(), storage=frb.Device()),
    "queue": frb.BufferSpec(ONE, 4, frb.Queue(), storage=frb.Host()),
    "uniform": frb.BufferSpec(ONE, 4, frb.Uniform(max_times_sampled=3), storage=frb.Memmap("folder")),
    "priorities of slices": frb.BufferSpec(ONE, 8, frb.PrioritizedSlices(2, end_keys=()), writer=frb.RoundRobin()),
    "slices once": frb.BufferSpec(ONE, 8, frb.SlicesWithoutReplacement(2, end_keys=())),
    "best": frb.BufferSpec({**ONE, "rank": frb.Unbounded(())}, 4, writer=frb.MaxValue("rank")),
    "any": frb.BufferSpec(ONE, 4, writer=frb.Reservoir()),
    "frames": frb.BufferSpec(STACKED, 8, compact=frb.Compact({"next": "image"}, stack=2)),
    "n steps": frb.BufferSpec(EPISODES, 8, transforms=[frb.n_step(3, 0.9)]),
    "n steps added": frb.BufferSpec(EPISODES, 8, transforms=[frb.n_step(3, 0.9, at="add")]),
    "goals": frb.BufferSpec(GOALS, 8, transforms=[frb.her("random", achieved_key="achieved_goal")]),
}
"""Of all samplers, writers, kinds of storage and transforms those that no state has."""


def items(spec: frb.BufferSpec, count: int = 8) -> dict[str, Any]:
    """Items that tell their numbers, for the specs that states are made of."""
    k = np.arange(count)
    made = {
        "x": np.stack([k, -k], 1).astype(np.float32) if spec.item["x"].shape else k.astype(np.float32),
        "a": (k / 10).astype(np.float16),
        "reward": k.astype(np.float32),
        "note": [f"note {number}" for number in k],
    }
    made = {name: made[name] for name in spec.item}
    return made if spec.lanes is None else {n: x.reshape(-1, spec.lanes, *x.shape[1:]) for n, x in made.items()}


def state(name: str) -> Any:
    """A state by its name."""
    library, spec = STATES[name]
    rb = importlib.import_module(f"{library}_backend")
    return rb.add(rb.init(spec), items(spec))


def main(directory: str) -> None:
    """Write all."""
    for name in STATES:
        made = state(name)
        rb = importlib.import_module(f"{STATES[name][0]}_backend")
        _, sample = rb.sample(made, rb.key(0), 2)
        (Path(directory) / f"{name}.pickle").write_bytes(pickle.dumps((made, sample)))
    (Path(directory) / "specs.pickle").write_bytes(pickle.dumps(SPECS))


if __name__ == "__main__":
    main(sys.argv[1])
