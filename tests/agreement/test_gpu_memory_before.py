"""What new memory on a GPU holds before a launch writes there changes no bit: an allocator promises nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

import functional_rb as frb
import torch_backend as rb
from functional_rb.native.chain import Chains
from tests.support import chain_programs as programs
from tests.support import emulated_gpu
from tests.support.backends import needs_native
from torch_backend.arrays.convert import build_mapping
from torch_backend.kernels import chain
from torch_backend.memory import gpus
from torch_backend.memory.library import TORCH

pytestmark = needs_native

ITEM = {
    "x": frb.Unbounded((3,)),
    "n": frb.Unbounded((), "int32"),
    "done": frb.Binary(()),
    "image": frb.Unbounded((4, 260), "uint8"),
}
ENDS: Any = {"end_keys": ("done",), "strict_length": False}
RETURNS = frb.n_step(3, 0.9, at="add", reward_key="x", terminated_key="done", next_keys=["n"])
BLOCKS = 3
KINDS: dict[str, dict[str, Any]] = {
    "priorities": {"sampler": frb.Prioritized()},
    "priorities of lanes": {"sampler": frb.Prioritized(), "lanes": 4},
    "limits": {"sampler": frb.Prioritized(max_times_sampled=2)},
    "arrivals": {"sampler": frb.Prioritized(replacement=False)},
    "limits in order": {"sampler": frb.InOrder(3)},
    "newer items": {"sampler": frb.Recency(3), "lanes": 4},
    "reservoir": {"writer": frb.Reservoir()},
    "best": {"writer": frb.MaxValue("x", reduction="max"), "sampler": frb.Prioritized()},
    "stops": {"writer": frb.StopWhenFull(), "lanes": 4},
    "epochs": {"sampler": frb.WithoutReplacement()},
    "epochs in order": {"sampler": frb.WithoutReplacement(shuffle=False), "lanes": 4},
    "slices": {"sampler": frb.Slices(3, **ENDS), "lanes": 4},
    "priorities of slices": {"sampler": frb.PrioritizedSlices(3, **ENDS)},
    "epochs of slices": {"sampler": frb.SlicesWithoutReplacement(3, **ENDS), "lanes": 4},
    "a queue of windows": {"sampler": frb.Queue(3), "lanes": 4},
    "waiting": {"sampler": frb.Prioritized(), "lanes": 4, "transforms": RETURNS},
    "frames": {"sampler": frb.Prioritized(), "compact": frb.Compact(next={}, stack={"image": 4}, axis=0)},
    "frames of slices": {"sampler": frb.Slices(3, **ENDS), "lanes": 4, "compact": frb.Compact(next={}, stack={"x": 3})},
}


@pytest.fixture(params=[0, 0xFF], ids=hex)
def filled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let new arrays on the emulated GPU hold the same byte everywhere."""

    def like(array: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(array)
        made.view(torch.uint8).fill_(request.param) if made.numel() else None
        return made

    arrays = torch.Tensor, np.ndarray, chain.look, from_dlpack, torch.Tensor.is_neg, torch.Tensor.is_conj, chain.ready
    on_gpu = gpus.prototype, like, like, *gpus.ON_GPU[3:]
    with programs.using(Chains(TORCH, build_mapping).make(chain.State, arrays, on_gpu=on_gpu)):
        yield


def life(spec: frb.BufferSpec) -> list[bytes]:
    """What is in a buffer, in those that it was, and in what is drawn of all of them."""
    rng, states, told = np.random.default_rng(0), [rb.init(spec)], list[Any]()
    stops, takes_out = isinstance(spec.writer, frb.StopWhenFull), isinstance(spec.sampler, frb.Queue)
    for turn in range(4):
        lead = ((3 if stops else 5), spec.lanes) if spec.lanes else (20 if turn else 90,)
        items: dict[str, Any] = {
            name: programs.as_tensor(programs.random_array(rng, leaf, lead)) for name, leaf in spec.item.items()
        }
        items |= {
            "x": torch.from_numpy(rng.random((*lead, 3), np.float32)),
            "done": torch.from_numpy(rng.random(lead) < 0.2),
        }
        mask = torch.from_numpy(rng.random(lead) < 0.7) if turn % 2 else None
        states.append(rb.add(states[-1], items, mask, key=rb.key(turn) if spec.writer.words else None))
        state, sample = rb.sample(states[-1], rb.key(turn), 4 if takes_out else 12)
        states.append(state)
        told += [*sample.items.values(), *programs.told_beside(sample)]
        if spec.sampler.has_priorities:
            handles = sample.indices.reshape(-1)
            states.append(rb.update(state, handles, torch.from_numpy(rng.random(len(handles), np.float32))))
    return [programs.bits(x) for x in told] + [bits for state in reversed(states) for bits in programs.peek(state)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_follows_from_what_was_there(kind: str, filled: None) -> None:
    spec = frb.BufferSpec(ITEM, 64, **KINDS[kind])
    with emulated_gpu.using("scattered", blocks=BLOCKS, share=8) as emulated:
        found = life(spec)
    assert 0 < max(columns for _, (columns, _) in emulated.launched) <= 2 * BLOCKS  # to rank, and to write
    with programs.using(programs.NotHere()):
        assert found == life(spec)
