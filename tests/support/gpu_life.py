"""Short lives of buffers on a GPU, for compute-sanitizer, and on the CPU: python -m tests.support.gpu_life.

Each launches every kernel, with masks, turns of the ring, batches larger than the buffer, items that have arrays of
their own, priorities that are none, and handles that come twice or belong to nobody any more; older states are read
after later writes. With the variable PYTORCH_NO_CUDA_MEMORY_CACHING each tensor has its own piece of the GPU's memory,
so that a step beyond it is seen. The first argument is the device, "cuda" if there is none.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support.chain_programs import LEAVES, PRIORITIES, bits, random_array

SAMPLERS = frb.Uniform(), frb.Prioritized(alpha=0.7, beta=0.5), frb.Prioritized(1.0, 1.0, "ever")
SMALL = {name: LEAVES[name] for name in ("x", "done", "half", "image")}
LARGE = {name: LEAVES[name] for name in ("x", "n")}


def life(spec: frb.BufferSpec, sizes: tuple[int, ...], drawn: int, device: str) -> list[torch.Tensor]:
    """All tensors that a buffer gives out on the way, and those that its states hold in the end."""
    prioritized, rng = spec.sampler.has_priorities, np.random.default_rng(0)

    def on_device(array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    def batch(n: int) -> dict[str, torch.Tensor]:
        given = {name: random_array(rng, leaf, (n,)) for name, leaf in spec.item.items()}
        return {
            name: on_device(array.view(np.int16)).view(torch.bfloat16)
            if array.dtype.name == "bfloat16"
            else on_device(array)
            for name, array in given.items()
        }

    def priorities(n: int) -> torch.Tensor | None:
        return on_device(rng.choice(PRIORITIES, n)) if prioritized else None

    def draw(state: Any, key: int) -> tuple[Any, torch.Tensor]:
        state, sample = rb.sample(state, rb.key(key), drawn)
        told.extend([*sample.items.values(), *(x for x in sample[1:] if isinstance(x, torch.Tensor))])
        return state, sample.indices

    told: list[torch.Tensor] = []
    states = [rb.init(spec, device)]
    handles: list[torch.Tensor] = []
    for turn, n in enumerate(sizes):
        mask = on_device(rng.random(n) < 0.6) if turn % 2 else None
        states.append(rb.add(states[-1], batch(n), mask, priorities(n) if turn % 3 == 2 else None))
        state, indices = draw(states[-1], turn)
        handles.append(indices)
        if prioritized:
            both = torch.cat([handles[0], indices])  # some of them are gone, some come twice
            states.append(rb.update(state, both, priorities(len(both))))
    own = rb.add_(rb.add(states[1], batch(sizes[0])), batch(sizes[1]))
    if prioritized:
        own = rb.update_(own, handles[0], priorities(drawn))
    states.append(rb.add_(own, batch(sizes[0])))
    for state in (states[1], states[len(states) // 2], states[-1]):
        draw(state, 9)
    for state in (states[2], states[-2], states[-1]):
        told += [state.rows, *state.wide, *([] if state.tree is None else [state.tree]), state.counters]
    return told


def main(device: str) -> int:
    """Whether a device gives the bits of the CPU: 0 if it does."""
    differ = compared = 0
    for sampler in SAMPLERS:
        for item, capacity, sizes, drawn in ((SMALL, 50, (30, 40, 70, 1), 33), (LARGE, 20_000, (7000, 9000), 5000)):
            spec = frb.BufferSpec(item, capacity, sampler)
            found, expected = (life(spec, sizes, drawn, where) for where in (device, "cpu"))
            unlike = [k for k, (x, y) in enumerate(zip(found, expected, strict=True)) if bits(x) != bits(y)]
            for k in unlike:
                print(f"{sampler}, {capacity} items: tensor {k} of {len(found)} differs, {found[k].shape}")
            differ, compared = differ + len(unlike), compared + len(found)
    print(f"{compared} tensors, {differ} of them unlike those on the CPU")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if sys.argv[1:] else "cuda"))
