"""The records of torchrl's family for reinforcement learning from human feedback."""

from __future__ import annotations

from functional_rb.base.arrays import BackendArray
from functional_rb.base.containers import record


@record
class RewardData:
    """Texts, and what was paid for them.

    B stands for any leading axes, none for an item of a buffer; T for the tokens of the longest text.

    Attributes:
        input_ids: integer [B, T], the tokens; behind a text's end anything.
        attention_mask: bool or integer [B, T], nonzero where a token belongs to the text.
        rewards: float [B, T], the reward of each token; None where it is not known.
        end_scores: float [B], the score of the whole text; None where it is not known.

    Example:
        >>> RewardData(np.zeros((2, 8), np.int32), np.ones((2, 8), np.bool_), end_scores=np.zeros(2, np.float32))
        RewardData(input_ids=int32 [2, 8], attention_mask=bool [2, 8], rewards=None, end_scores=float32 [2])
    """

    input_ids: BackendArray
    attention_mask: BackendArray
    rewards: BackendArray | None = None
    end_scores: BackendArray | None = None


@record
class PairwiseDataset:
    """Pairs of texts, of which one is preferred; what is filtered or shuffled stays a pair.

    Attributes:
        chosen_data: the preferred texts.
        rejected_data: the others, in the same leading axes.
        prompt_rindex: integer [B, 2], where the reply begins in the chosen and in the rejected text, as in
            `PromptData`; None where it is not known.
    """

    chosen_data: RewardData
    rejected_data: RewardData
    prompt_rindex: BackendArray | None = None


@record
class PromptData:
    """Prompts, with the reply that is to be learned where there is one.

    B stands for any leading axes, none for an item of a buffer; T for the tokens of the longest text, V for the
    vocabulary.

    Attributes:
        input_ids: integer [B, T], prompt and reply.
        attention_mask: bool or integer [B, T], nonzero where a token belongs to the text.
        prompt_rindex: integer [B], where the reply begins: the prompt is `input_ids[:prompt_rindex]`, padding before it
            counted. torchrl stores the position of the prompt's last token, and slices with it as if it were this.
        labels: integer [B, T], the token that each position is to tell, -100 where none; None for a prompt alone.
        logits: float [B, T, V], what a model gives; None before that.
        loss: float [B], or of the whole batch; None before it is known.
    """

    input_ids: BackendArray
    attention_mask: BackendArray
    prompt_rindex: BackendArray
    labels: BackendArray | None = None
    logits: BackendArray | None = None
    loss: BackendArray | None = None
