"""Sharded buffers of JAX from checkpoints."""

from __future__ import annotations

from functional_rb.base.arrays import DeviceLike
from functional_rb.buffer import checks
from functional_rb.buffer.state import State
from functional_rb.checkpoint.agreement import Group
from functional_rb.checkpoint.loading import Content
from jax_backend.engines import execute
from jax_backend.scale import state as sharded_state
from jax_backend.scale.members import members


def group_of(sharding: DeviceLike) -> Group:
    """The processes whose devices a mesh has."""
    sharded_state.check_sharding(sharding)
    return members(sharding, sharded_state.shards_of(sharding), once=False)


def restore(content: Content, sharding: DeviceLike, device: object) -> State:
    """A buffer over the devices of a mesh; over a single one an ordinary one."""
    if device is not None:
        raise ValueError(
            "load: device and sharding were given; the sharding says where the arrays live, so leave device out"
        )
    checks.leaves_for_backend(content.spec, execute.unsupported)
    assert content.parts is not None
    parts = {k: part.arrays for k, part in content.parts.items()}
    return sharded_state.of_numpy(content.spec, content.arrays, parts, sharding)
