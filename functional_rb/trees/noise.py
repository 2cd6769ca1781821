"""Dirichlet noise of random bits, the same on each backend."""

from __future__ import annotations

import math
from typing import Final

from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.trees.scores import fractions, softmax

# A try is accepted with a probability above 0.95: one element in 10^8 has the last one all the same.
TRIES: Final = 6
# How many words of random bits a number takes.
WORDS: Final = 3 * TRIES + 1


def dirichlet(ops: TreeOps, bits: Array, alpha: float, valid: Array) -> Array:
    """Probabilities of a symmetric Dirichlet distribution over the valid slots, float32 [B, A]; 0 for the others.

    They are made of random bits int32 [B, A, WORDS], uniform in [0, 2^31): gamma numbers divided by their sum. Where
    alpha is small they underflow, so only their logarithms are computed. A gamma number for alpha is one for alpha + 1,
    times a uniform one to the power 1 / alpha. Marsaglia, Tsang: A simple method for generating gamma variables (2000),
    section 6.
    """
    u = fractions(ops, bits)
    d = alpha + 1 - 1 / 3
    c = 1 / math.sqrt(9 * d)
    chosen = u[..., 0] * 0
    is_chosen = chosen > 0
    # All tries are made, as the number of random bits is fixed; the first that is accepted counts.
    for k in range(TRIES):
        # Box and Muller's transform of two uniform numbers.
        normal = (-2.0 * ops.log(u[..., 3 * k])) ** 0.5 * ops.cos(u[..., 3 * k + 1] * (2 * math.pi))
        root = 1.0 + c * normal
        v = ops.maximum(root, ops.full_like(root, 1e-6)) ** 3
        log_v = ops.log(v)
        accepted = (root > 0) & (ops.log(u[..., 3 * k + 2]) < 0.5 * normal**2 + d - d * v + d * log_v)
        value = math.log(d) + log_v
        chosen = ops.where(is_chosen, chosen, value)
        is_chosen = is_chosen | accepted
    return softmax(ops, chosen + ops.log(u[..., 3 * TRIES]) / alpha, valid)
