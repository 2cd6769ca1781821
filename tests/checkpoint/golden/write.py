"""Writes the golden files of the checkpoints' format. Once it is released they must load for ever, as they are.

    python -m tests.checkpoint.golden.write DIRECTORY

Each backend writes each buffer in two saves, the second incremental; `expected.json` tells what must be read.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.base import nest
from functional_rb.structures.stored_arrays import is_items
from tests.support.checkpoints import bits

FILES = Path(__file__).with_name("checkpoint-1")
ITEM = {
    "x": frb.Bounded(-1.0, 1.0, (2,)),
    "image": frb.Unbounded((24, 24), "bfloat16"),
    "action": frb.Categorical(5),
    "done": frb.Binary(()),
}
SPECS = {
    "prioritized": frb.BufferSpec(ITEM, 6, frb.Prioritized(alpha=0.7), batch_size=4),
    "slices": frb.BufferSpec(ITEM, 8, frb.Slices(2, strict_length=False), lanes=2),
    "large": frb.BufferSpec({"x": frb.Unbounded((33_000,), "uint8")}, 3),
    "reservoir": frb.BufferSpec(ITEM, 5, frb.WithoutReplacement(), writer=frb.Reservoir()),
}
NOTES = frb.BufferSpec({"x": frb.Unbounded(()), "note": frb.specs.NonTensor()}, 4)
VALUES = [None, True, -7, 0.1, "nöte", [1, {"a": [False]}]]


def items(start: int, count: int, lanes: int | None) -> dict[str, np.ndarray]:
    """Steps that tell their number."""
    import ml_dtypes

    k = np.arange(start, start + count)
    made = {
        "x": np.stack([k / 100, -k / 50], 1).astype(np.float32),
        "image": np.repeat(k, 24 * 24).reshape(-1, 24, 24).astype(ml_dtypes.bfloat16),
        "action": (k % 5).astype(np.int64 if ITEM["action"].dtype == "int64" else np.int32),
        "done": k % 3 == 2,
    }
    return made if lanes is None else {name: x.reshape(-1, lanes, *x.shape[1:]) for name, x in made.items()}


def written(library: str, name: str, directory: Path) -> Any:
    """Save a buffer, and return the state."""
    rb = importlib.import_module(f"{library}_backend")
    spec = SPECS[name]
    if name == "large":  # an item is a block, and the second save writes one
        state = rb.add(rb.init(spec), {"x": np.full((2, 33_000), 7, np.uint8)})
        frb.save(state, directory, incremental=True)
        state = rb.add(state, {"x": np.full((1, 33_000), 8, np.uint8)})
        assert not frb.save(state, directory, incremental=True).full
        return state
    key = rb.key(3) if spec.writer.words else None
    state = rb.add(rb.init(spec), items(0, 6, spec.lanes), key=key)
    frb.save(state, directory, incremental=True)
    state = rb.add(state, items(6, 2, spec.lanes), key=key)
    if spec.sampler.has_priorities:
        state = rb.update(state, np.array([4, 7], np.int32), np.array([0.5, 3.0], np.float32))
    frb.save(state, directory, incremental=True, keep=2)
    return state


def hashes(state: Any, library: str) -> dict[str, str]:
    """Of all arrays of a state; of the items the leaves, wherever they lie."""
    import torch

    stored = {name: content for name, (_, _, content) in bits(state).items() if not is_items(name)}
    rb = importlib.import_module(f"{library}_backend")
    for name, leaf in zip(
        state.spec.plan.names, nest.flatten_as(state.spec.plan.structure, rb.items(state)), strict=True
    ):
        if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16:
            leaf = leaf.contiguous().view(torch.int16)
        stored[f"item/{name}"] = np.ascontiguousarray(np.asarray(leaf)).tobytes()
    return {name: hashlib.sha256(stored[name]).hexdigest() for name in sorted(stored)}


def main(directory: str) -> None:
    """Write all."""
    expected = {}
    for library in ("jax", "torch"):
        for name in SPECS:
            folder = f"{library}-{name}"
            expected[folder] = hashes(written(library, name, Path(directory) / folder), library)
    rb = importlib.import_module("torch_backend")
    state = rb.add(rb.init(NOTES), {"x": np.arange(3, dtype=np.float32), "note": VALUES[:3]})
    frb.save(state, Path(directory) / "torch-notes")
    frb.save(rb.add(state, {"x": np.arange(3, dtype=np.float32), "note": VALUES[3:]}), Path(directory) / "torch-notes")
    (Path(directory) / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
