"""What one call asks of a GPU, for every kind of buffer, mixture and map: launches, copies and waits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch

import functional_rb as frb
import torch_backend as rb
from benchmarks.gpu_counts import Counted, counted

ITEM: Final = {"obs": frb.Unbounded((17,)), "action": frb.Unbounded((6,)), "reward": frb.Unbounded(())}
ITEM |= {"done": frb.Binary(())}
FRAMES: Final = {name: frb.Bounded(0, 255, (84, 84, 4), "uint8") for name in ("obs", "next_obs")}
FRAMES |= {name: ITEM[name] for name in ("reward", "done")}
STACKS: Final = frb.Compact(next={"obs": "next_obs"}, stack=4, axis=-1)
ENDS: Final[dict[str, Any]] = {"end_keys": ("done",), "strict_length": False}
RETURNS: Final[dict[str, Any]] = {"reward_key": "reward", "terminated_key": "done"}
CAPACITY, FRAMED, ADDED, DRAWN, LENGTH = 100_000, 20_000, 64, 256, 8
KINDS: Final = {
    "uniform": frb.BufferSpec(ITEM, CAPACITY),
    "prioritized": frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized()),
    "prioritized, 16 lanes": frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized(), lanes=16),
    "epochs": frb.BufferSpec(ITEM, CAPACITY, frb.WithoutReplacement()),
    "slices of 8": frb.BufferSpec(ITEM, CAPACITY, frb.Slices(LENGTH, **ENDS)),
    "slices of 8, prioritized": frb.BufferSpec(ITEM, CAPACITY, frb.PrioritizedSlices(LENGTH, **ENDS)),
    "slices of 8, epochs": frb.BufferSpec(ITEM, CAPACITY, frb.SlicesWithoutReplacement(LENGTH, **ENDS)),
    "n-step at add": frb.BufferSpec(
        ITEM, CAPACITY, frb.Prioritized(), transforms=frb.n_step(3, 0.9, **RETURNS, at="add")
    ),
    "n-step at sample": frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized(), transforms=frb.n_step(3, 0.9, **RETURNS)),
    "stacked frames": frb.BufferSpec(FRAMES, FRAMED, frb.Prioritized(), compact=STACKS),
    "stops when full": frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized(), writer=frb.StopWhenFull()),
    "queue": frb.BufferSpec(ITEM, CAPACITY, frb.Queue()),
    "uniform, with a limit": frb.BufferSpec(ITEM, CAPACITY, frb.Uniform(max_times_sampled=4)),
    "prioritized, with a limit": frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized(max_times_sampled=4)),
    "recency": frb.BufferSpec(ITEM, CAPACITY, frb.Recency()),
    "reservoir": frb.BufferSpec(ITEM, CAPACITY, writer=frb.Reservoir()),
    "largest values": frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized(), frb.MaxValue("reward")),
}
# Calls of one measurement, of a queue as many as it has items for.
CALLS, OF_A_QUEUE = 20, 5
FILLS = 60


class Row(NamedTuple):
    """What a call of a function comes to.

    Attributes:
        kind: of the buffer.
        function: with how much is added, drawn or updated.
        found: the numbers.
    """

    kind: str
    function: str
    found: Counted


class Life:
    """A buffer, a mixture of some, or whatever `rb.sample` draws from, with all that its functions are given."""

    def __init__(self, state: Any, device: str) -> None:
        """Nothing is called yet."""
        self.state, self._drawn = state, torch.empty(0)
        self._keys = iter(rb.split(rb.key(0).to(device), 10 * CALLS))
        self._ones = torch.ones(LENGTH * DRAWN, device=device)

    def add(self, batch: Any) -> None:
        self.state = rb.add(self.state, batch, key=next(self._keys) if self.state.spec.writer.words else None)

    def sample(self) -> None:
        self.state, drawn = rb.sample(self.state, next(self._keys), DRAWN)
        self._drawn = drawn.indices if isinstance(self.state, frb.Mixture) else drawn.indices.reshape(-1)

    def update(self) -> None:
        self.state = rb.update(self.state, self._drawn, self._ones[: len(self._drawn)])


def batch_of(spec: frb.BufferSpec, device: str) -> dict[str, torch.Tensor]:
    """Random items, some of which end an episode."""
    lead = (ADDED,) if spec.lanes is None else (ADDED // spec.lanes, spec.lanes)
    made = {name: torch.randint(9, (*lead, *leaf.shape), device=device) for name, leaf in spec.item.items()}
    made = {name: array.to(getattr(torch, spec.item[name].dtype)) for name, array in made.items()}
    return made | {"done": torch.rand(lead, device=device) < 0.05}


def filled(spec: frb.BufferSpec, device: str) -> Any:
    """A buffer of some thousand items."""
    state, batch = rb.init(spec, device), batch_of(spec, device)
    for seed in range(FILLS):
        state = rb.add(state, batch, key=rb.key(seed) if spec.writer.words else None)
    return state


def rows(device: str) -> Iterator[Row]:
    """Of every kind, one after the other."""
    for kind, spec in KINDS.items():
        life, batch = Life(filled(spec, device), device), batch_of(spec, device)
        yield Row(kind, f"add {ADDED}", counted(lambda life=life, batch=batch: life.add(batch), device, CALLS))
        yield from _drawn(life, kind, device, spec.sampler.has_priorities)
    for name in ("prioritized", "slices of 8"):
        states = [filled(KINDS[name], device) for _ in range(2)]
        for how in ("exact", "items", "buffers"):
            parts = {"parts": 4} if how == "buffers" else {}
            mixture = frb.Mixture(states, how=how, **parts)
            yield from _drawn(Life(mixture, device), f"two, {name}, {how}", device, name == "prioritized")
    yield from _of_a_map(device)


def _drawn(life: Life, kind: str, device: str, updated: bool) -> Iterator[Row]:
    calls = OF_A_QUEUE if kind == "queue" else CALLS
    life.sample()  # what is updated was drawn
    yield Row(kind, f"sample {DRAWN}", counted(life.sample, device, calls))
    if updated:
        yield Row(kind, f"update {DRAWN}", counted(life.update, device, calls))


def _of_a_map(device: str) -> Iterator[Row]:
    map = rb.init(frb.HashMapSpec(frb.Unbounded((4,), "int32"), CAPACITY), device)
    words = torch.arange(DRAWN * 4, dtype=torch.int32, device=device).reshape(DRAWN, 4)
    unseen = (words + words.numel() * k for k in itertools.count(1))

    def put(keys: torch.Tensor) -> None:
        nonlocal map
        map, _ = rb.add_(map, keys)

    put(words)
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("add_", lambda: put(words)),
        ("add_ unseen", lambda: put(next(unseen))),
        ("lookup", lambda: rb.lookup(map, words)),
    )
    for name, call in calls:
        yield Row("hash map", f"{name} {DRAWN}", counted(call, device, CALLS))
