"""The processes that share a buffer, as checkpoints know them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


class Members:
    """The processes of a process group, each of which has one shard."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.number, self.count = dist.get_rank(group), dist.get_world_size(group)

    @property
    def shards(self) -> int:
        """To how many shards the buffer is dealt."""
        return self.count

    @property
    def own(self) -> tuple[int, ...]:
        """The shard that this process has."""
        return (self.number,)

    def tell(self, text: str) -> list[str]:
        """What each process tells, in their order."""
        told: list[Any] = [None] * self.count
        dist.all_gather_object(told, text, self._group)
        return told
