"""A buffer that is dealt to the processes of a group, as a value; see `functional_rb.sharding.deal`."""

from __future__ import annotations

import os
from typing import ClassVar, NoReturn

import torch
import torch.distributed as dist

from functional_rb.base.arrays import DeviceLike
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State as CoreState
from functional_rb.checkpoint.agreement import Group
from functional_rb.checkpoint.shards import Dealt
from functional_rb.ops.protocol import Array
from functional_rb.sharding.deal import Dealing, deal
from torch_backend.memory.state import State


class ShardedState(CoreState):
    """What one process has of a replay buffer that is dealt to several.

    The arrays of `State` are those of the index, which has all lanes and of the items only what sampler and writer
    read: each process has the same.

    Attributes:
        index: the buffer that all processes have.
        part: the process's own buffer, which has the items of its lanes, or slots.
        group: the process group; a handle of this process's own, so that the state cannot be pickled.
        dealing: how it is dealt.
        rank: which shard this process has.
        process: the id of the process whose the group is, and not of one that was forked from it.
    """

    instead: ClassVar[str] = "state.part, which has the items of this process"
    index: State
    part: State
    group: dist.ProcessGroup
    dealing: Dealing
    rank: int
    process: int

    def __init__(
        self, index: State, part: State, spec: BufferSpec, group: dist.ProcessGroup, process: int | None = None
    ) -> None:
        dealing, rank = deal(spec, dist.get_world_size(group)), dist.get_rank(group)
        process = os.getpid() if process is None else process
        self.__dict__.update(
            index=index, part=part, spec=spec, group=group, dealing=dealing, rank=rank, process=process
        )

    def followed_by(self, index: State, part: State | None = None) -> ShardedState:
        """This state with another index, and with another part if one is given."""
        return ShardedState(index, self.part if part is None else part, self.spec, self.group, self.process)

    def talking(self) -> dist.ProcessGroup:
        """The group, to talk to the others of it.

        Raises:
            RuntimeError: in a forked process, which has not the threads of the group, and would wait for ever.
        """
        if os.getpid() != self.process:
            raise RuntimeError(
                "a sharded buffer: a process that was forked, such as a worker of a DataLoader, is not in the process "
                "group; draw in the process that is (frb.iterate draws ahead), or here with draw='local'"
            )
        return self.group

    def check_alive(self) -> None:
        self.index.check_alive()
        self.part.check_alive()

    @property
    def rows(self) -> Array:
        return self.index.rows

    @property
    def wide(self) -> tuple[Array, ...]:
        return self.index.wide

    @property
    def tree(self) -> Array | None:
        return self.index.tree

    @property
    def counters(self) -> Array:
        counters: torch.Tensor = self.index.counters
        return counters

    @property
    def auxiliary(self) -> dict[str, Array]:
        return self.index.auxiliary

    @property
    def axes(self) -> tuple[int, ...]:
        return self.index.axes

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a sharded buffer belongs to its process group, and cannot be pickled; send state.index and state.part, "
            "which are ordinary buffers"
        )

    def dealt(self) -> Dealt:
        self.check_alive()
        return Dealt(self.spec, self.index, {self.rank: self.part}, members(self.talking()))

    def reader(self, *_: object, **__: object) -> NoReturn:
        raise ValueError(
            "a process has only its own shard of a sharded buffer; give state.part, or frb.save the whole, which "
            "frb.load puts together"
        )


def members(group: dist.ProcessGroup) -> Group:
    """The processes of a group, each of which has one shard, as checkpoints know them."""
    number, count = dist.get_rank(group), dist.get_world_size(group)

    def tell(text: str) -> list[str]:
        texts = [""] * count
        dist.all_gather_object(texts, text, group)
        return texts

    return Group(number, count, count, (number,), tell)


def group_of(sharding: DeviceLike) -> dist.ProcessGroup:
    """The process group of what is given as one, or as a mesh of one axis."""
    if type(sharding).__name__ == "DeviceMesh":
        if sharding.ndim != 1:
            raise ValueError(
                f"init: sharding: expected a mesh of one axis, got {sharding}; name the one, as mesh['data']"
            )
        sharding = sharding.get_group()
    if not isinstance(sharding, dist.ProcessGroup):
        raise TypeError(
            f"init: sharding: expected a process group, such as torch.distributed.group.WORLD, or a DeviceMesh of one "
            f"axis, got {sharding!r}"
        )
    if dist.get_rank(sharding) < 0:
        raise ValueError("init: sharding: this process is not in the group; call init in those that are")
    return sharding
