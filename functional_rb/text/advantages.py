"""Advantages and returns, over any `Ops`."""

from __future__ import annotations

from functional_rb.ops.protocol import Array, Ops


def gae(
    ops: Ops,
    rewards: Array,
    values: Array,
    terminated: Array,
    truncated: Array,
    mask: Array,
    gamma: Array,
    lam: Array,
) -> tuple[Array, Array]:
    """Advantages and returns float32 [N, T] of rewards [N, T] and values [N, T + 1]; 0 where the mask is not set.

    The recurrence A_t = delta_t + c_t A_(t+1) is solved in log2 T rounds: after each, a sum reaches twice as far.
    """
    nothing = ops.full_like(rewards, 0)
    value, following = values[:, :-1], ops.where(terminated, nothing, values[:, 1:])
    advantages = ops.where(mask, rewards + gamma * following - value, nothing)
    factor = ops.where(mask & ~(terminated | truncated), nothing + gamma * lam, nothing)
    reach = 1
    while reach < rewards.shape[1]:
        advantages = advantages + factor * _earlier(ops, advantages, reach)
        factor = factor * _earlier(ops, factor, reach)
        reach *= 2
    return advantages, ops.where(mask, advantages + value, nothing)


def _earlier(ops: Ops, x: Array, by: int) -> Array:
    """Columns moved towards the first, with zeros behind."""
    return ops.concat([x[:, by:], x[:, :by] * 0], 1)
