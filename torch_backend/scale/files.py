"""Sharded buffers of torch from checkpoints."""

from __future__ import annotations

from functional_rb.buffer.state import State as CoreState
from functional_rb.checkpoint.loading import Content
from functional_rb.scale import regroup as dealer
from torch_backend.engines.restore import restore as restore_one
from torch_backend.memory.state import State
from torch_backend.scale.members import Members
from torch_backend.scale.state import ShardedState
from torch_backend.scale.state import group_of as process_group_of

__all__ = ["dealer", "group_of", "restore"]


def group_of(sharding: object) -> Members:
    """The processes of a group, or of a mesh of one axis."""
    return Members(process_group_of(sharding))


def restore(content: Content, sharding: object, device: object) -> CoreState:
    """What this process has of a buffer; with a group of one process an ordinary one.

    Args:
        content: the index, and the parts of its own shards.
        sharding: the process group, or the mesh.
        device: where it goes, as for `init`.
    """
    group = process_group_of(sharding)
    members = Members(group)
    dealing, spec = dealer.deal(content.spec, members.count), content.spec
    assert content.parts is not None
    part = content.parts[members.number]
    if members.count == 1:
        return restore_one(spec, dealer.join(spec, content.arrays, part.arrays), device, objects=content.objects)
    stamps = content.stamp or None, part.stamp
    index = restore_one(dealing.index, content.arrays, device, objects=content.objects, stamp=stamps[0])
    own = restore_one(dealing.part, part.arrays, device, objects=content.objects, stamp=stamps[1])
    assert isinstance(index, State)
    assert isinstance(own, State)
    return ShardedState(index, own, spec, group)
