"""Rollouts: replies as steps of episodes, with a reward at the end and a penalty at each token, over any `TextOps`."""

from __future__ import annotations

from typing import NamedTuple

from functional_rb.ops.protocol import Array, TextOps
from functional_rb.text.generation import Generation, Joined


class Episodes(NamedTuple):
    """What steps are made of, T = S - 1 for rows of S places: step t goes from the token in place t to the next one."""

    observation: Array  # int32 [N, T], the token before
    action: Array  # int32 [N, T], the token that followed
    reward: Array  # float32 [N, T]
    terminated: Array  # bool [N, T]
    truncated: Array  # bool [N, T]
    mask: Array  # bool [N, T], which steps there are
    reply: Array  # bool [N, T], whose action is a token of the reply
    log_prob: Array  # float32 [N, T], of the action by the model; 0 outside of the reply
    reference_log_prob: Array  # float32 [N, T], of the action by the reference; 0 outside of the reply
    kl: Array  # float32 [N], the sum of log_prob - reference_log_prob over the reply


def episodes(
    ops: TextOps,
    joined: Joined,
    generation: Generation,
    scores: Array,
    reference: Array | None,
    coefficient: Array,
) -> Episodes:
    """Steps of joined rows, by scores float32 [N] and the reference's log-probabilities float32 [N, S]."""
    kept = ~generation.rejected[:, None]  # what the model could not go on with is no episode
    reply = joined.reply[:, 1:] & kept
    number = ops.cumsum(ops.cast(reply, "int32"))  # the number of the reply's token that a step leads to, from 1 on
    nothing = ops.cast(reply, "float32") * 0
    at = ops.maximum(number - 1, number * 0)
    log_prob = ops.where(reply, ops.take_along(generation.log_probs, at), nothing)
    reference_log_prob = log_prob if reference is None else ops.where(reply, reference[:, 1:], nothing)
    difference = log_prob - reference_log_prob
    # A coefficient of 0 leaves out what the reference has no probability for, too: else infinity would become NaN.
    penalty = ops.where((coefficient > 0) & reply, coefficient * difference, nothing)
    last = reply & (number == generation.lengths[:, None])
    return Episodes(
        observation=joined.ids[:, :-1],
        action=joined.ids[:, 1:],
        reward=ops.where(last, scores[:, None] - penalty, nothing - penalty),
        terminated=last & generation.terminated[:, None],
        truncated=last & generation.truncated[:, None],
        mask=joined.mask[:, 1:] & kept,
        reply=reply,
        log_prob=log_prob,
        reference_log_prob=reference_log_prob,
        kl=ops.total(difference),
    )
