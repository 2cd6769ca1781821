"""What losses of preferences have in common: the checks of their arrays, and means and rewards over texts."""

from __future__ import annotations

from collections.abc import Sequence

from functional_rb.base.arrays import ArrayLike
from functional_rb.ops.protocol import Array, FloatOps
from functional_rb.text.computing import Computing


def checked_mask(lib: Computing, who: str, axes: int, arrays: list[Array], mask: ArrayLike) -> Array | None:
    real = None if mask is None else lib.converted(mask, "bool", "mask")
    check_shapes(who, axes, [*arrays, *([] if real is None else [real])])
    return real


def check_shapes(who: str, axes: int, arrays: Sequence[Array]) -> None:
    shapes = [tuple(x.shape) for x in arrays]
    if len(set(shapes)) > 1 or len(shapes[0]) != axes or shapes[0][-1] == 0:
        expected = "[B]" if axes == 1 else "[B, T]"
        raise ValueError(f"{who}: expected arrays of one shape {expected}, not empty, got {shapes}; pad to one length")


def diverging(
    ops: FloatOps,
    chosen: Array,
    chosen_mask: Array,
    chosen_rewards: Array,
    rejected: Array,
    rejected_mask: Array,
    rejected_rewards: Array,
) -> Array:
    """The loss of rewards [B, T] over the places from the first difference on, as long as one of two texts goes on."""
    either = chosen_mask | rejected_mask
    differ = either & ((chosen != rejected) | (chosen_mask != rejected_mask))
    counted = either & (ops.cummax(ops.cast(differ, "int32")) > 0)
    ahead = carried(ops, chosen_rewards, chosen_mask) - carried(ops, rejected_rewards, rejected_mask)
    losses = minus_log_sigmoid(ops, ahead)
    whole = (ops.total(chosen_mask) > 0) & (ops.total(rejected_mask) > 0) & (ops.total(counted) > 0)
    return mean(ops, mean(ops, losses, counted), whole)


def last_rewards(ops: FloatOps, rewards: Array, mask: Array) -> Array:
    return carried(ops, rewards, mask)[:, -1]


def carried(ops: FloatOps, rewards: Array, mask: Array) -> Array:
    """Rewards [B, T], where there is no token that of the last one before; 0 before the first."""
    length = rewards.shape[1]
    kept = ops.where(mask, rewards, ops.full_like(rewards, 0))  # before gradients meet what is in the padding
    column = ops.arange(length, like=mask)[None, :]
    last = ops.cummax(ops.where(mask, column, ops.full_like(column, 0)))
    rows = ops.arange(rewards.shape[0], like=mask)[:, None] * length
    return ops.take(kept.reshape(-1), (rows + last).reshape(-1)).reshape(*rewards.shape)


def minus_log_sigmoid(ops: FloatOps, x: Array) -> Array:
    """log(1 + exp(-x)), without overflow."""
    zero = ops.full_like(x, 0)
    return ops.maximum(-x, zero) + ops.log(1 + ops.exp(-ops.maximum(x, -x)))


def mean(ops: FloatOps, x: Array, real: Array) -> Array:
    """Along the last axis; 0 where there is no real element."""
    count = ops.cast(ops.total(real), "float32")
    return ops.total(ops.where(real, x, ops.full_like(x, 0))) / ops.maximum(count, ops.full_like(count, 1))
