"""Bytes that a state of ours holds, against the bytes of its items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from benchmarks import ours
from benchmarks.compare import placed
from benchmarks.contender import Backend, Sampler
from benchmarks.workload import ITEM_BYTES, Workload


@dataclass(frozen=True)
class Footprint:
    """What a full buffer holds, in bytes."""

    backend: Backend
    sampler: Sampler
    capacity: int
    items: int
    state: int

    @property
    def limit(self) -> float:
        """1.15 times the items, and 8 bytes an item for the tree."""
        return 1.15 * self.items + 8 * self.capacity

    @property
    def verdict(self) -> str:
        """Whether the state keeps within the limit."""
        return "pass" if self.state <= self.limit else "MISSED"

    def as_json(self) -> dict[str, Any]:
        """The figures as the JSON report holds them."""
        return {
            "backend": self.backend,
            "sampler": self.sampler,
            "capacity": self.capacity,
            "items_bytes": self.items,
            "state_bytes": self.state,
            "limit_bytes": self.limit,
            "verdict": self.verdict,
        }


def memory(work: Workload, backends: tuple[Backend, ...] = get_args(Backend)) -> list[Footprint]:
    """Footprints of ours after it was filled and written to further: what older states left behind counts."""
    footprints = []
    for backend in backends:
        for sampler in get_args(Sampler):
            with placed(backend, "cpu"):
                contender = ours.OursJax(work, sampler) if backend == "jax" else ours.OursTorch(work, sampler)
                for _ in range(4):
                    contender.step()
            held = held_bytes(backend, contender.state)
            footprints.append(Footprint(backend, sampler, work.capacity, work.capacity * ITEM_BYTES, held))
    return footprints


def held_bytes(backend: Backend, state: Any) -> int:
    """Bytes of the memory behind a state's arrays, each counted once."""
    if backend == "jax":
        import jax

        return _distinct((leaf.unsafe_buffer_pointer(), leaf.nbytes) for leaf in jax.tree.leaves(state))
    from torch.utils import _pytree

    storages = [leaf.untyped_storage() for leaf in _pytree.tree_leaves(state)]
    return _distinct((storage.data_ptr(), storage.nbytes()) for storage in storages)


def _distinct(arrays: Iterable[tuple[int, int]]) -> int:
    return sum(dict(arrays).values())
