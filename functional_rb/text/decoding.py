"""What replies are to be, and what they are paid: the options of generation and of rollouts, as frozen records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from functional_rb.base.arrays import ArrayLike, BackendArray
from functional_rb.text.lib import Step

Score = Callable[[BackendArray, BackendArray, BackendArray], ArrayLike]


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How replies are drawn from the logits of a model, how long they are, and how many.

    Its numbers are checked where it is used; temperature, top_k and top_p may be traced.

    Attributes:
        n: the number of tokens of a reply at most.
        temperature: the number by which logits are divided; 0 takes the most likely token, of equal ones the first.
        top_k: only so many of the most likely tokens are drawn, of equal ones the first; None for all.
        top_p: of these, only the fewest of the most likely ones whose probabilities sum to this at least, of equal ones
            the first; the least likely of them may be what brings the sum beyond it. None for all.
        eos: the token that ends a reply, or several; None for none.
        pad: what stands where there is no token.
        replies: r, how many replies each prompt gets.
        at_once: how many replies of each prompt are generated together, a divisor of r; r if None. The cache of the
            prompts is computed once, and held at_once times: with 1, caches take O(B (L + n)) memory, whatever r is.

    Example:
        >>> Decoding(8, temperature=0.7, eos=5).replies
        1
    """

    n: int
    temperature: object = 1.0
    top_k: object = None
    top_p: object = None
    eos: int | Sequence[int] | None = None
    pad: int = 0
    replies: int = 1
    at_once: int | None = None


@dataclasses.dataclass(frozen=True)
class Reward:
    """What a reply is paid: a score, less a penalty for going away from a reference model.

    Attributes:
        score: the reward model, `score(ids, mask, reply)` of the rows of `join`, each [N, L + n]: float32 [N]. It is
            called once.
        reference: the parameters of the model that the policy is to stay near; None for no penalty.
        kl: the coefficient of the penalty, a number such as `frb.text.KLController` has. May be traced.
        reference_step: the reference's function, if that is not the policy's.

    Raises:
        ValueError: for a function of the reference without its parameters.

    Example:
        >>> Reward(lambda ids, mask, reply: reply.sum(1), reference=None).kl
        0.0
    """

    score: Score
    reference: object = None
    kl: float | BackendArray = 0.0
    reference_step: Step | None = None

    def __post_init__(self) -> None:
        if self.reference is None and self.reference_step is not None:
            raise ValueError("text.Reward: reference_step was given without parameters; give reference=... too")
