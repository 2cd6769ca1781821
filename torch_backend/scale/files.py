"""Sharded buffers of torch from checkpoints."""

from __future__ import annotations

import torch.distributed as dist

from functional_rb.buffer.state import State as CoreState
from functional_rb.checkpoint.agreement import Group
from functional_rb.checkpoint.loading import Content
from functional_rb.sharding import regroup
from torch_backend.engines.restore import restore as restore_one
from torch_backend.memory.state import State
from torch_backend.scale.state import ShardedState, members
from torch_backend.scale.state import group_of as process_group_of


def group_of(sharding: object) -> Group:
    """The processes of a group, or of a mesh of one axis."""
    return members(process_group_of(sharding))


def restore(content: Content, sharding: object, device: object) -> CoreState:
    """What this process has of a buffer; with a group of one process an ordinary one."""
    group, spec = process_group_of(sharding), content.spec
    count, number = dist.get_world_size(group), dist.get_rank(group)
    dealing = regroup.deal(spec, count)
    assert content.parts is not None
    part = content.parts[number]
    if count == 1:
        return restore_one(spec, regroup.join(spec, content.arrays, part.arrays), device, objects=content.objects)
    stamps = content.stamp or None, part.stamp
    index = restore_one(dealing.index, content.arrays, device, objects=content.objects, stamp=stamps[0])
    restored = restore_one(dealing.part, part.arrays, device, objects=content.objects, stamp=stamps[1])
    assert isinstance(index, State)
    assert isinstance(restored, State)
    return ShardedState(index, restored, spec, group)
