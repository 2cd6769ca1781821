"""Short lives of buffers on a GPU, for compute-sanitizer, and on the CPU: python -m tests.support.gpu_life.

Together they launch every kernel, with masks, turns of the ring, batches larger than the buffer, items that have arrays
of their own, priorities that are none, and handles that come twice or belong to nobody any more; older states are read
after later writes. With the variable PYTORCH_NO_CUDA_MEMORY_CACHING each tensor has its own piece of the GPU's memory,
so that a step beyond it is seen. The first argument is the device, "cuda" if there is none.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support.chain_programs import LEAVES, PRIORITIES, as_tensor, bits, peek, random_array, told_beside


class Life(NamedTuple):
    """A buffer, and how much is added and drawn; or two that are mixed, and a hash map of what they hold."""

    spec: frb.BufferSpec
    sizes: tuple[int, ...]
    drawn: int
    mixed: bool = False


SMALL = {name: LEAVES[name] for name in ("x", "done", "half", "image")}
LARGE = {name: LEAVES[name] for name in ("x", "n")}
SAMPLERS = frb.Uniform(), frb.Prioritized(alpha=0.7, beta=0.5), frb.Prioritized(1.0, 1.0, "ever")
REWARDED = SMALL | {"gain": frb.Unbounded((2,))}
REACHING = SMALL | {name: frb.Unbounded((2,)) for name in ("desired_goal", "next_achieved_goal")}
RETURNS = frb.n_step(3, 0.9, at="add", reward_key="gain", terminated_key="done", next_keys=["image"])
WINDOWS = frb.PrioritizedSlices(2, end_keys=("done",), strict_length=False)
AHEAD = frb.n_step(3, 0.9, reward_key="gain", terminated_key="done", next_keys=["image"])
STACKS = frb.Compact(next={}, stack={"x": 3})
WIDE_STACKS = REWARDED | {"x": frb.Unbounded((3, 5))}
LIVES = (
    *(Life(frb.BufferSpec(SMALL, 50, sampler), (30, 40, 70, 1), 33) for sampler in SAMPLERS),
    *(Life(frb.BufferSpec(LARGE, 20_000, sampler), (7000, 9000), 5000) for sampler in SAMPLERS[1:]),
    Life(frb.BufferSpec(SMALL, 51, frb.Prioritized(), lanes=3), (10, 13, 25, 1), 33),
    Life(frb.BufferSpec(SMALL, 50, frb.Prioritized(0.7, max_times_sampled=2)), (30, 40, 70, 1), 33),
    Life(frb.BufferSpec(SMALL, 51, frb.Uniform(max_times_sampled=9), lanes=3), (10, 13, 25, 1), 33),
    Life(frb.BufferSpec(SMALL, 51, frb.Prioritized(max_times_sampled=3, replacement=False), lanes=3), (10, 13, 1), 33),
    Life(frb.BufferSpec(SMALL, 50, frb.Prioritized(), frb.Reservoir()), (30, 40, 70, 1), 33),
    Life(frb.BufferSpec(SMALL, 51, frb.Uniform(max_times_sampled=9), frb.MaxValue("x"), lanes=3), (10, 13, 25, 1), 33),
    Life(frb.BufferSpec(SMALL, 50, frb.WithoutReplacement()), (30, 40, 70, 1), 8),
    Life(frb.BufferSpec(SMALL, 50, frb.Slices(3, end_keys=("done",), strict_length=False)), (30, 40, 1), 11),
    Life(frb.BufferSpec(SMALL, 51, WINDOWS, lanes=3), (10, 13, 25, 1), 11),
    Life(frb.BufferSpec(REWARDED, 51, lanes=3, transforms=RETURNS), (10, 13, 25, 1), 33),
    Life(frb.BufferSpec(SMALL, 600, frb.Prioritized(), writer=frb.StopWhenFull()), (30, 40, 70, 1), 33),
    Life(frb.BufferSpec(SMALL, 51, frb.Recency(3), lanes=3), (10, 13, 25, 1), 33),
    Life(frb.BufferSpec(SMALL, 600, frb.Queue(2), lanes=3), (10, 13, 25, 1), 9),
    *(Life(frb.BufferSpec(SMALL, 50, frb.InOrder(limit, True)), (30, 40, 70, 1), 33) for limit in (None, 2)),
    Life(frb.BufferSpec(SMALL, 51, frb.WithoutReplacement(shuffle=False), lanes=3), (10, 13, 25, 1), 33),
    *(
        Life(frb.BufferSpec(REWARDED, 51, sampler, lanes=3, compact=STACKS, transforms=transforms), (10, 25, 1), 33)
        for sampler, transforms in (
            (frb.Prioritized(), ()),
            (WINDOWS, AHEAD),
            (frb.WithoutReplacement(), AHEAD),
            (frb.SlicesWithoutReplacement(2, end_keys=("done",), strict_length=False), ()),
        )
    ),
    Life(frb.BufferSpec(REWARDED, 50, frb.Prioritized(), transforms=AHEAD), (30, 40, 70, 1), 33),
    Life(frb.BufferSpec(REACHING, 51, frb.Prioritized(), lanes=3, transforms=frb.her("episode")), (10, 13, 1), 33),
    # Trees of one level, and of three, of which more leaves arrive than are drawn; frames of one lane, of many bytes.
    Life(frb.BufferSpec(LARGE, 12, frb.Prioritized()), (5, 9), 7),
    *(Life(frb.BufferSpec(LARGE, 300, frb.Prioritized(replacement=how)), (200, 150), 20) for how in (True, False)),
    Life(frb.BufferSpec(LARGE, 300, frb.Prioritized(), frb.MaxValue("x")), (200, 150), 20),
    Life(frb.BufferSpec(WIDE_STACKS, 50, WINDOWS, compact=STACKS, transforms=AHEAD), (10, 25, 20), 33),
    Life(frb.BufferSpec(SMALL, 50, frb.Prioritized(0.7)), (30, 40, 7), 33, mixed=True),
    Life(frb.BufferSpec(SMALL, 50, WINDOWS), (30, 40, 7), 11, mixed=True),
    Life(frb.BufferSpec(SMALL, 50, frb.Prioritized(max_times_sampled=9)), (30, 40, 7), 33, mixed=True),
)
# Words of a key of the hash map, of which there are then more than one block keeps.
WORDS = 600


def mixed(life: Life, device: str) -> list[bytes]:
    """What mixtures of two buffers give, and a hash map that has no room for all keys."""
    rng, told = np.random.default_rng(0), list[torch.Tensor]()
    sampler = life.spec.sampler if life.spec.sampler.leading_shape(1) != (1,) else frb.Uniform()
    states = [rb.init(life.spec, device), rb.init(frb.BufferSpec(life.spec.item, 40, sampler), device)]
    map = rb.init(frb.HashMapSpec(frb.Unbounded((WORDS,), "int32"), 6), device)
    for turn, n in enumerate(life.sizes):
        items = {name: as_tensor(random_array(rng, leaf, (n,))).to(device) for name, leaf in life.spec.item.items()}
        states[turn % 2] = rb.add(states[turn % 2], items)
        shares = torch.from_numpy(rng.random(2, np.float32))
        mixture = frb.Mixture(states, p=shares.tolist(), how=("exact", "items", "buffers")[turn % 3])
        mixture, sample = rb.sample(mixture, rb.key(turn), 2 * life.drawn, 0.5)
        handles = sample.indices.reshape(-1, 2)
        each = len(handles) // len(sample.probabilities)
        mixture = rb.update(mixture, handles, sample.probabilities.repeat_interleave(each))
        states = [*mixture.states]
        keys = torch.from_numpy(rng.integers(0, 9, (n, 1))).to(torch.int32).expand(n, WORDS).contiguous().to(device)
        map, inserted = rb.add_(map, keys + turn, torch.from_numpy(rng.random(n) < 0.7).to(device))
        told += [*sample.items.values(), sample.indices, sample.weights, sample.probabilities, *inserted]
        own = map.table, map.keys, map.counts, map.counters  # which the next turn may write to
        told += [rb.lookup(map, keys), *(x.clone() for x in own)]
    return [bits(x) for x in told] + [x for state in states for x in peek(state)]


def carried_out(life: Life, device: str) -> list[bytes]:
    """The bits of all that a buffer gives out on the way, and of what its states hold in the end."""
    if life.mixed:
        return mixed(life, device)
    spec, rng, told = life.spec, np.random.default_rng(0), list[torch.Tensor]()
    prioritized, lanes = spec.sampler.has_priorities, () if spec.lanes is None else (spec.lanes,)

    def items(lead: tuple[int, ...]) -> dict[str, torch.Tensor]:
        made = {name: random_array(rng, leaf, lead) for name, leaf in spec.item.items()}
        if "gain" in made:  # of sums of what is no number each processor has bits of its own
            made["gain"] = rng.standard_normal(made["gain"].shape, np.float32)
        return {name: as_tensor(array).to(device) for name, array in made.items()}

    def priorities(lead: tuple[int, ...]) -> torch.Tensor | None:
        return torch.from_numpy(rng.choice(PRIORITIES, lead)).to(device) if prioritized else None

    def key_of(number: int) -> torch.Tensor | None:
        return rb.key(number) if spec.writer.words else None

    def draw(state: Any, key: int) -> tuple[Any, torch.Tensor]:
        state, sample = rb.sample(state, rb.key(key), life.drawn)
        told.extend([*sample.items.values(), *told_beside(sample)])
        return state, sample.indices.reshape(-1)

    def update(state: Any, handles: torch.Tensor, in_place: bool = False) -> Any:
        lead = tuple(handles.shape)
        rewritten = (
            items(lead)
            if not lanes
            and not spec.plan.frames
            and not spec.plan.boundaries
            and isinstance(spec.sampler, frb.Uniform | frb.Prioritized)
            and spec.writer.in_order
            else None
        )
        if not prioritized and rewritten is None:
            return state
        return (rb.update_ if in_place else rb.update)(state, handles, priorities(lead), rewritten)

    states, handles = [rb.init(spec, device)], list[torch.Tensor]()
    for turn, n in enumerate(life.sizes):
        lead = (n, *lanes)
        mask = torch.from_numpy(rng.random(lead) < 0.6).to(device) if turn % 2 else None
        given = items(lead), mask, priorities(lead) if turn % 3 == 2 else None
        states.append(rb.add(states[-1], *given, key=key_of(turn)))
        state, indices = draw(states[-1], turn)
        handles.append(indices)
        states.append(update(state, torch.cat([handles[0], indices])))  # some of them are gone, some come twice
    own = rb.add(states[1], items((life.sizes[0], *lanes)), key=key_of(7))
    own = rb.add_(own, items((life.sizes[1], *lanes)), key=key_of(8))
    own = update(own, handles[0], in_place=True)
    states.append(rb.add_(own, items((life.sizes[0], *lanes)), key=key_of(9)))
    for state in (states[1], states[len(states) // 2], states[-1]):
        draw(state, 9)
    return [bits(x) for x in told] + [x for state in (states[2], states[-2], states[-1]) for x in peek(state)]


def main(device: str) -> int:
    """Whether a device gives the bits of the CPU: 0 if it does."""
    differ = compared = 0
    for life in LIVES:
        found, expected = carried_out(life, device), carried_out(life, "cpu")
        unlike = [k for k, (x, y) in enumerate(zip(found, expected, strict=True)) if x != y]
        if unlike:
            print(f"{life.spec.sampler}, lanes {life.spec.lanes}: tensors {unlike} of {len(found)} differ")
        differ, compared = differ + len(unlike), compared + len(found)
    print(f"{compared} tensors, {differ} of them unlike those on the CPU")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if sys.argv[1:] else "cuda"))
