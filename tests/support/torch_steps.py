"""Steps of a training loop on torch, all that can be read of a state, and their bits.

A process that is spawned imports no more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb
from torch_backend.memory.memory import Memory

ITEM = {
    "id": frb.Unbounded((), "int32"),
    "image": frb.Unbounded((1100,), "uint8"),
    "x": frb.Unbounded((3,)),
    "count": frb.Unbounded((), "uint16"),
    "done": frb.Binary(()),
}
UNIFORM, PRIORITIZED = frb.Uniform(), frb.Prioritized(alpha=0.7, beta=0.5)


def batch(start: int, n: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Items whose every leaf tells their number."""
    number = torch.arange(start, start + n, dtype=torch.int32, device=device)
    return {
        "id": number,
        "image": (number % 251).to(torch.uint8)[:, None].repeat(1, 1100),
        "x": torch.stack([number, -number, number + 0.5], 1).to(torch.float32),
        "count": (number + 60000).to(torch.int32).to(torch.uint16),
        "done": number % 3 == 0,
    }


def full(sampler: Any = PRIORITIZED, capacity: int = 21, device: str = "cpu", added: int = 30) -> Any:
    return rb.add(rb.init(frb.BufferSpec(ITEM, capacity, sampler), device), batch(0, added, device))


def tensors(nest: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(nest) if leaf is not None]  # which torch counts as a leaf


def as_bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def assert_equal(got: Any, wanted: Any) -> None:
    """Bit for bit, on whatever device."""
    for a, b in zip(tensors(got), tensors(wanted), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert as_bytes(a) == as_bytes(b)


READERS: dict[str, Callable[[Any], Any]] = {
    "size": lambda s: (rb.size(s), rb.counts(s).rejected, rb.counts(s).stale, rb.can_sample(s, 3), s.counters),
    "sample": lambda s: rb.sample(s, rb.key(7), 20)[1] if rb.can_sample(s) else None,
    "get": lambda s: rb.get(s, torch.arange(-1, 90, 2, dtype=torch.int32)),
    "is_live": lambda s: rb.is_live(s, torch.arange(-1, 90, dtype=torch.int32)),
    "items": rb.items,
    "arrays": lambda s: (s.rows, s.wide, s.tree),
    "pytree": pytree.tree_leaves,
    "deepcopy": lambda s: pytree.tree_leaves(copy.deepcopy(s)),
}


def assert_reads_as(state: Any, frozen: Any, names: Any = tuple(READERS)) -> None:
    """A state reads in every way as a copy of it that was made when it was new."""
    for name in names:
        assert_equal(READERS[name](state), READERS[name](frozen))


def step(
    state: Any, items: Any, mask: Any, priorities: Any, key: Any, beta: Any, add: Any, sample: Any, update: Any
) -> Any:
    """One step of training: add, sample, and update what was drawn."""
    prioritized = isinstance(state.spec.sampler, frb.Prioritized)
    state = add(state, items, mask, priorities if prioritized else None)
    state, drawn = sample(state, key, 8, beta if prioritized else None)
    new = drawn.items["x"].abs().sum(1) if prioritized else None
    return update(state, drawn.indices, new, {"id": drawn.items["id"] + 1000}), drawn


def inputs(number: int, device: str = "cpu") -> tuple[Any, ...]:
    mask = torch.arange(5, device=device) % 4 != number % 4
    priorities = torch.tensor([1.0, float("nan"), 2.0, 0.0, 4.0], device=device)
    return (
        batch(100 + 5 * number, 5, device),
        mask,
        priorities,
        rb.key(number),
        torch.tensor(0.1 * number, device=device),
    )


def draw_when_told(inbox: Any, outbox: Any) -> None:
    """Draws from the state that it was sent, at once and again when told to."""
    state = inbox.get()
    for seed in iter(inbox.get, None):
        sample = rb.sample(state, rb.key(seed), 64)[1]
        outbox.put((as_bytes(sample.indices), as_bytes(sample.items["x"]), as_bytes(state.counters)))
    state = rb.add(state, batch(700, 5))
    outbox.put((as_bytes(state.rows), as_bytes(state.tree), as_bytes(state.counters)))


def memory_of(state: Any) -> Memory:
    memory = state._version.memory
    assert memory is not None
    return memory
