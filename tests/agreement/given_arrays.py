"""Buffers of images whose rows are drawn to arrays that the caller gives."""

from __future__ import annotations

from typing import Any

import torch

import functional_rb as frb
import torch_backend as rb

# So large that 61 of them are worth several threads.
BYTES = 300_000
ITEM = {"image": frb.Bounded(0, 255, (BYTES,), "uint8"), "x": frb.Unbounded((3,)), "done": frb.Binary(())}
SAMPLERS: dict[str, Any] = {
    "uniform": frb.Uniform(),
    "prioritized": frb.Prioritized(alpha=0.7),
    "slices": frb.PrioritizedSlices(3, strict_length=False),
    "epochs": frb.WithoutReplacement(),
    "epochs of slices": frb.SlicesWithoutReplacement(3, strict_length=False, flat=True),
}


def filled(sampler: str) -> Any:
    rng = torch.Generator().manual_seed(0)
    state = rb.init(frb.BufferSpec(ITEM, 40, SAMPLERS[sampler]))
    items = {
        "image": torch.randint(0, 256, (60, BYTES), dtype=torch.uint8, generator=rng),
        "x": torch.rand(60, 3, generator=rng),
        "done": torch.rand(60, generator=rng) < 0.2,
    }
    return rb.add(state, items)


def room(spec: frb.BufferSpec, count: int) -> list[torch.Tensor]:
    lead = spec.sampler.leading_shape(count)
    dtypes = {"uint8": torch.uint8, "float32": torch.float32, "bool": torch.bool}
    return [torch.full((*lead, *leaf.shape), 7, dtype=dtypes[leaf.dtype]) for leaf in spec.plan.layout.leaves]
