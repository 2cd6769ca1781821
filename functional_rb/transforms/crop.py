"""Random pieces of trajectories that are items of their own."""

from __future__ import annotations

from collections.abc import Sequence

from functional_rb.base.arrays import BackendArray
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import below


def random_crop(
    ops: Ops, leaves: Sequence[Array], lengths: Array, draws: Array, length: int
) -> tuple[list[BackendArray], BackendArray, BackendArray]:
    """Cut a piece out of each trajectory, every start from which it is whole being equally likely.

    Args:
        leaves: [B, T, *shape].
        lengths: int32 [B], how many of the T steps are real; the rest is padding.
        draws: int32 [B, 2], uniform in [0, 2^31).
        length: steps of a piece, at most T.

    Returns:
        Leaves [B, length, *shape]; starts int32 [B]; mask bool [B, length], False behind the end of trajectories that
        are shorter than a piece, which come from their start on.
    """
    batch, steps = leaves[0].shape[:2]
    lengths = ops.minimum(ops.maximum(lengths, ops.full_like(lengths, 0)), ops.full_like(lengths, steps))
    room = ops.maximum(lengths - length, ops.full_like(lengths, 0))
    starts = below(ops, draws, room + 1)
    column = starts[:, None] + ops.arange(length, like=starts)[None, :]
    rows = (ops.arange(batch, like=starts)[:, None] * steps + column).reshape(-1)
    cut = [ops.take(leaf.reshape(batch * steps, *leaf.shape[2:]), rows) for leaf in leaves]
    cut = [piece.reshape(batch, length, *piece.shape[1:]) for piece in cut]
    return cut, starts, column < lengths[:, None]
