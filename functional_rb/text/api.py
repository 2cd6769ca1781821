"""The public functions of text, which backends bind. Each takes a `TextLib` first."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from functional_rb.base.arrays import ArrayLike, BackendArray, Nest, PRNGKey
from functional_rb.lib import A
from functional_rb.ted.steps import from_transitions
from functional_rb.text import advantages, rollouts
from functional_rb.text.arguments import rows_of, shaped, unset, whole
from functional_rb.text.checks import check_callable, law_of, settings_of
from functional_rb.text.decoding import Decoding, Reward, Score
from functional_rb.text.generation import Generation, Joined
from functional_rb.text.lib import EmptyCache, Step, TextLib

NAMES: Final = (
    "bradley_terry_loss",
    "gae",
    "generate",
    "group_advantages",
    "log_probs",
    "pairs_of_groups",
    "rollout",
)
"""What `rb.text` has on every backend."""


class Rollout(NamedTuple):
    """What `rollout` gives: N = B * replies rows of T = L + n - 1 steps, prompt and reply.

    Attributes:
        steps: the steps in TED, a dict of arrays [N, T]: "observation" is the token before, "action" and the next
            observation the token that followed. Beside these "reply" says whether that is one of the reply,
            "log_prob" and, with a reference, "reference_log_prob" tell its log-probabilities, 0 outside of the reply.
        mask: bool [N, T], which steps there are: what lies behind the reply is padding.
        scores: float32 [N], what the reward model said.
        kl: float32 [N], the sum over each reply of log_prob - reference_log_prob; 0 without a reference.
        generation: the replies.
        joined: the rows, of T + 1 tokens.
    """

    steps: dict[str, Nest]
    mask: BackendArray
    scores: BackendArray
    kl: BackendArray
    generation: Generation
    joined: Joined


class Advantages(NamedTuple):
    """What `gae` gives.

    Attributes:
        advantages: float32 [N, T].
        returns: float32 [N, T], advantages + values, to which values are fitted.
    """

    advantages: BackendArray
    returns: BackendArray


def generate(
    lib: TextLib[A],
    step: Step,
    params: object,
    prompts: ArrayLike,
    key: PRNGKey,
    decoding: Decoding | int,
    *,
    mask: ArrayLike = None,
    cache: EmptyCache | None = None,
) -> Generation:
    """Generate replies to prompts, token by token.

    The same logits and the same random bits give the same tokens on every backend and device. A reply ends with the
    first eos, or after `decoding.n` tokens; behind it stands `pad`, which may be an eos or any token else, as masks and
    lengths say what is a token.

    Args:
        step: the model, a pure function `(params, cache, ids, positions) -> (logits, cache)`, of ids int32 [B, T],
            tokens that follow those in the cache, and their positions int32 [B, T]; logits are [B, T, V], those of the
            token that follows each. A token at position -1 is padding: no other may see it, and what is computed of it
            must be finite. Tokens see those of their row at positions up to their own. On torch the cache may be
            written in place. On JAX the function is traced, and a program compiled for each function that is given. If
            it has an attribute `prefill`, a function of the same arguments that gives the cache alone, prompts go
            through that, and their logits are never computed. Of the logits of a token one at least is to be above
            minus infinity, and none NaN or infinite.
        params: the model's parameters, handed to it as they are.
        prompts: integers [B, L].
        key: randomness, from `key(seed)` or `split`.
        decoding: how replies are drawn, or the number of tokens of a reply at most, `Decoding(n)`.
        mask: [B, L], which are tokens of the prompt, bool or integers that are 0 or not; all if None. Padding may be
            anywhere.
        cache: makes an empty cache of so many rows and so many tokens, `cache(rows, tokens)`: a nest of arrays with the
            rows as first axis, and scalars; on torch also objects whose method `take(rows)` gives a copy of rows int32
            [M]. Without it the model gets None, and all tokens at each step.

    Returns:
        B * r replies, reply j to prompt b in row b * r + j.

    Raises:
        TypeError: for arguments of another kind, naming them.
        ValueError: for numbers out of range, shapes that do not fit, and, where that can be seen, for a prompt without
            any token, naming its row, and for logits that say of no token how likely it is, naming the reply. In a
            compiled program such a reply ends before that token, and is marked as `rejected`.

    Example:
        >>> def step(params, cache, ids, positions):  # after token i comes i + 1, or 0 after the last
        ...     return params[ids], None
        >>> after = np.log(np.roll(np.eye(4, dtype=np.float32), 1, 1) + 1e-9)
        >>> params = rb.from_dlpack(after, copy=True)
        >>> decoding = frb.text.Decoding(3, eos=3, pad=3)
        >>> made = rb.text.generate(step, params, np.array([[1], [3]], np.int32), rb.key(0), decoding)
        >>> made.tokens.tolist(), made.lengths.tolist(), made.terminated.tolist()
        ([[2, 3, 3], [0, 1, 2]], [2, 3], [True, False])
    """
    who = "text.generate"
    check_callable(step, "step", who)
    ids, there = rows_of(lib, prompts, mask, "prompts", who)
    decoding = decoding if isinstance(decoding, Decoding) else Decoding(decoding)
    law, settings = law_of(lib, ids, decoding, who), settings_of(decoding, who)
    if cache is not None:
        check_callable(cache, "cache", who)
    known = lib.values(there)
    if known is not None and not known.any(1).all():
        row = int((~known.any(1)).argmax())
        raise ValueError(f"{who}: prompt {row} has no token; give each a first one, such as the tokenizer's bos")
    generation = lib.generating(step, params, cache, ids, there, key, law, settings)
    rejected = lib.values(generation.rejected)
    if rejected is not None and rejected.any():
        row = int(rejected.argmax())
        prompt, reply = divmod(row, settings.replies)
        token = int(generation.lengths[row])
        raise ValueError(
            f"{who}: token {token} of reply {reply} to prompt {prompt}: expected logits below infinity, one at least "
            f"above minus infinity, got NaN, infinity or minus infinity alone; look at the model's parameters, and at "
            f"its dtype, in which numbers may overflow"
        )
    return generation


def log_probs(
    lib: TextLib[A],
    step: Step,
    params: object,
    ids: ArrayLike,
    mask: ArrayLike = None,
    *,
    rows_at_once: int | None = None,
    tokens_at_once: int | None = None,
    cache: EmptyCache | None = None,
) -> BackendArray:
    """The log-probability of each token by those before it, in one pass (teacher forcing).

    Differentiable with respect to the parameters. Minus infinity for a token whose logit is; never NaN for it. NaN
    where a logit of the place before is NaN or infinite.

    What takes memory are the logits [N, S, V] that the model gives, and their gradient: of softmaxes there are some at
    a time. `rows_at_once` bounds the logits, and what else the model computes, which is computed again for gradients,
    but not under torch.compile; `tokens_at_once`, with a cache, bounds them for long rows, on torch without gradients.

    Args:
        step: the model, as for `generate`; it gets None for a cache, unless `tokens_at_once` is given.
        params: the model's parameters.
        ids: integers [N, S].
        mask: [N, S], which are tokens, bool or integers that are 0 or not; all if None. Padding may be anywhere.
        rows_at_once: how many rows the model is asked about at a time; all if None.
        tokens_at_once: how many tokens of each of these rows at a time, with those before in the cache; all if None.
        cache: as for `generate`; needed with `tokens_at_once`. A model that writes into it has no gradients then.

    Returns:
        float32 [N, S]; 0 of the first token of each row, which nothing is before, and where there is no token.

    Raises:
        TypeError: for arguments of another kind, naming them.
        ValueError: for shapes that do not fit, naming them.

    Example:
        >>> def step(params, cache, ids, positions):
        ...     return params[ids], None
        >>> params = rb.from_dlpack(np.log(np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)), copy=True)
        >>> logs = rb.text.log_probs(step, params, np.array([[0, 1, 1]], np.int32))
        >>> np.exp(np.array(logs.tolist())).round(3).tolist()
        [[1.0, 0.5, 0.75]]
        >>> ids = np.array([[0, 1, 1], [1, 1, 0], [1, 0, 0]], np.int32)
        >>> logs = rb.text.log_probs(step, params, ids, rows_at_once=1)  # logits [1, 3, 2] at a time
        >>> np.exp(np.array(logs.tolist())).round(3)[1].tolist()
        [1.0, 0.75, 0.25]
    """
    who = "text.log_probs"
    check_callable(step, "step", who)
    if (tokens_at_once is None) != (cache is None):
        one, other = ("cache", "tokens_at_once") if tokens_at_once is None else ("tokens_at_once", "cache")
        raise ValueError(f"{who}: {one} was given without {other}; give both, or none")
    rows = None if rows_at_once is None else whole(rows_at_once, "rows_at_once", 1, who)
    tokens = None if tokens_at_once is None else whole(tokens_at_once, "tokens_at_once", 1, who)
    return lib.log_probs_of(step, params, *rows_of(lib, ids, mask, "ids", who), rows, tokens, cache)


def gae(
    lib: TextLib[A],
    rewards: ArrayLike,
    values: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike = None,
    mask: ArrayLike = None,
    gamma: object = 1.0,
    lam: object = 0.95,
) -> Advantages:
    """Generalized advantage estimation (Schulman et al., 2016, equations 11, 12 and 16).

        delta_t = r_t + gamma * V(s_(t+1)) - V(s_t),    A_t = delta_t + gamma * lam * A_(t+1)

    After a step that terminated there is no value: V(s_(t+1)) counts as 0. After one that was truncated there is, the
    last state's. In both cases, and after a row's last step, A_(t+1) counts as 0.

    A mask may have gaps, as where a row has several turns and only the model's own tokens are steps. The step after
    one is then the next that the mask has: V(s_(t+1)) and A_(t+1) are that step's, as if the others were not there.

    Args:
        rewards: float32 [N, T].
        values: float32 [N, T + 1], of the state before each step, and of the one after the last. For the steps of
            `rollout` that is the value at each token of its rows. Of the last step the next place's counts.
        terminated: bool [N, T].
        truncated: bool [N, T]; none if None.
        mask: [N, T], which steps there are, anywhere in a row; all if None. What the others have counts for nothing:
            rewards, values, NaN among them, and whether they ended anything. What was paid for them is to be added to
            the reward of a step before.
        gamma: the discount. May be traced.
        lam: from 0, one step, to 1, all rewards. May be traced.

    Returns:
        Advantages, and returns: advantages + values. 0 where there is no step.

    Raises:
        TypeError: for arrays of another dtype, naming them.
        ValueError: for shapes that do not fit, naming them.

    Example:
        >>> rewards, values = np.array([[0, 0, 1]], np.float32), np.full((1, 4), 0.5, np.float32)
        >>> end = np.array([[False, False, True]])
        >>> rb.text.gae(rewards, values, terminated=end, lam=1.0).advantages.tolist()
        [[0.5, 0.5, 0.5]]
        >>> rb.text.gae(rewards, values, terminated=end & False, truncated=end, lam=1.0).returns.tolist()
        [[1.5, 1.5, 1.5]]
        >>> own = np.array([[True, False, True]])  # the token between is not the model's
        >>> rb.text.gae(rewards, values, terminated=end, mask=own, lam=1.0).advantages.tolist()
        [[0.5, 0.0, 0.5]]
    """
    who = "text.gae"
    paid = lib.converted(rewards, "float32", f"{who}: rewards")
    if len(paid.shape) != 2 or not paid.shape[1]:
        raise ValueError(f"{who}: rewards: expected shape [N, T], got {list(paid.shape)}")
    rows, steps = (int(size) for size in paid.shape)
    values = shaped(lib, values, "float32", (rows, steps + 1), "values", who)
    none = lib.run(unset, paid)
    flags = [
        none if x is None else shaped(lib, x, "bool", (rows, steps), name, who)
        for name, x in (("terminated", terminated), ("truncated", truncated))
    ]
    there = None if mask is None else shaped(lib, mask, "bool", (rows, steps), "mask", who)
    numbers = [lib.number(x, "float32", paid) for x in (gamma, lam)]
    return Advantages(*lib.run(advantages.gae, paid, values, *flags, there, *numbers))


def rollout(
    lib: TextLib[A],
    step: Step,
    params: object,
    prompts: ArrayLike,
    key: PRNGKey,
    decoding: Decoding | int,
    reward: Reward | Score,
    *,
    mask: ArrayLike = None,
    cache: EmptyCache | None = None,
) -> Rollout:
    """Generate replies, and tell them as steps of episodes in TED.

    The reward of a step that leads to a token a of the reply, after s, is

        - kl * (log pi(a | s) - log pi_ref(a | s)),    plus the score at the reply's last token, and only there

    (Ziegler et al., 2019, equation 2): an estimate at each token, whose mean over what the model draws at temperature 1
    is the divergence KL(pi || pi_ref). Steps inside of the prompt have no reward. The last step is terminated if
    its token is an eos, else truncated. All takes O(N (L + n)) memory. On torch no gradients are remembered.

    Args:
        step: the model, as for `generate`.
        params: the model's parameters.
        prompts: integers [B, L].
        key: randomness, from `key(seed)` or `split`.
        decoding: as for `generate`; `at_once` bounds how many rows the reference is asked about at a time, too.
        reward: what a reply is paid, or its score alone, `Reward(score)`.
        mask: as for `generate`.
        cache: as for `generate`.

    Returns:
        The steps, with what they were made of.

    Raises:
        TypeError: for arguments of another kind, naming them.
        ValueError: for numbers out of range and shapes that do not fit; where that can be seen, for a score that is NaN
            or infinite, and for a reference that tells NaN, naming the row, and for what `generate` refuses. In a
            compiled program a reply that was rejected has no step.

    Example:
        >>> def step(params, cache, ids, positions):
        ...     return params[ids], None
        >>> params = rb.from_dlpack(np.log(np.roll(np.eye(4, dtype=np.float32), 1, 1) + 1e-9), copy=True)
        >>> def score(ids, mask, reply):  # how long the reply is
        ...     return reply.sum(1) * np.float32(1)
        >>> prompts, decoding = np.array([[0, 1]], np.int32), frb.text.Decoding(3, eos=3)
        >>> made = rb.text.rollout(step, params, prompts, rb.key(0), decoding, score)
        >>> frb.ted.check(made.steps, time_axis=1, mask=made.mask)
        >>> made.steps["next"]["reward"].tolist(), made.steps["action"].tolist(), made.mask.tolist()
        ([[0.0, 0.0, 2.0, 0.0]], [[1, 2, 3, 0]], [[True, True, True, False]])
    """
    who = "text.rollout"
    decoding = decoding if isinstance(decoding, Decoding) else Decoding(decoding)
    reward = reward if isinstance(reward, Reward) else Reward(reward)
    check_callable(reward.score, "score", who)
    ids, there = rows_of(lib, prompts, mask, "prompts", who)
    with lib.without_gradients():
        generation = generate(lib, step, params, ids, key, decoding, mask=there, cache=cache)
        joined = generation.join(ids, there, decoding.pad)
        rows = (int(joined.ids.shape[0]),)
        scores = shaped(lib, reward.score(*joined), "float32", rows, "what score gave", who)
        values = lib.values(scores)
        if values is not None and not np.isfinite(values).all():
            row = int((~np.isfinite(values)).argmax())
            raise ValueError(f"{who}: the score of row {row} is {values[row]}; give a finite one")
        by_reference = None
        if reward.reference is not None:
            by_whom = step if reward.reference_step is None else reward.reference_step
            # As many rows at once as generation had, for which memory was enough.
            some = None if decoding.at_once is None else int(ids.shape[0]) * decoding.at_once
            by_reference = lib.log_probs_of(by_whom, reward.reference, *joined[:2], some, None, None)
            values = lib.values(by_reference)
            if values is not None and np.isnan(values).any():
                row = int(np.isnan(values).any(1).argmax())
                raise ValueError(
                    f"{who}: the reference's logits of row {row} are NaN or infinite; look at its parameters"
                )
        coefficient = lib.number(reward.kl, "float32", scores)
        episodes = lib.run(rollouts.episodes, joined, generation, scores, by_reference, coefficient)
    # The token that is generated is the action, and what is observed next.
    steps = from_transitions(
        episodes.observation, episodes.action, episodes.reward, episodes.action, episodes.terminated, episodes.truncated
    )
    steps |= {"reply": episodes.reply, "log_prob": episodes.log_prob}
    if reward.reference is not None:
        steps["reference_log_prob"] = episodes.reference_log_prob
    return Rollout(steps, episodes.mask, scores, episodes.kl, generation, joined)
