"""Advantages and returns, over any `Ops`."""

from __future__ import annotations

from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.ops.recurrence import discounted


def gae(
    ops: TreeOps,
    rewards: Array,
    values: Array,
    terminated: Array,
    truncated: Array,
    mask: Array | None,
    gamma: Array,
    lam: Array,
) -> tuple[Array, Array]:
    """Advantages and returns float32 [N, T] of rewards [N, T] and values [N, T + 1].

    Steps where the mask is not set are passed over: theirs are 0, and those before go on with those behind.
    """
    nothing = ops.full_like(rewards, 0)
    done, value, following = terminated | truncated, values[:, :-1], values[:, 1:]
    step = nothing + gamma * lam
    if mask is not None:
        # The value after a step is that of the next step that the mask has; after the last one, the next place's.
        followed = ops.total(mask)[:, None] > ops.cumsum(ops.cast(mask, "int32"))
        following = ops.where(followed & ~truncated, _next_of(ops, value, mask), following)
        # A step that is passed over hands on the value of the step after it.
        done, step = done & mask, ops.where(mask, step, nothing + 1)
    delta = rewards + gamma * ops.where(terminated, nothing, following) - value
    delta = delta if mask is None else ops.where(mask, delta, nothing)
    advantages = discounted(ops, delta, ops.where(done, nothing, step))
    if mask is None:
        return advantages, advantages + value
    return ops.where(mask, advantages, nothing), ops.where(mask, advantages + value, nothing)


def _next_of(ops: TreeOps, x: Array, mask: Array) -> Array:
    # For each place the number in the next place behind it where the mask is set; else 0.
    nothing = ops.full_like(x, 0)
    here_or_next = discounted(ops, ops.where(mask, x, nothing), ops.where(mask, nothing, nothing + 1))
    return ops.concat([here_or_next[:, 1:], nothing[:, :1]], 1)
