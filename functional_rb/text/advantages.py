"""Advantages and returns, over any `Ops`."""

from __future__ import annotations

from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.recurrence import discounted


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
    """Advantages and returns float32 [N, T] of rewards [N, T] and values [N, T + 1]; 0 where the mask is not set."""
    nothing = ops.full_like(rewards, 0)
    value, following = values[:, :-1], ops.where(terminated, nothing, values[:, 1:])
    advantages = ops.where(mask, rewards + gamma * following - value, nothing)
    factor = ops.where(mask & ~(terminated | truncated), nothing + gamma * lam, nothing)
    advantages = discounted(ops, advantages, factor)
    return advantages, ops.where(mask, advantages + value, nothing)
