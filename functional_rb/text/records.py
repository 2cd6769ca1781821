"""The records of torchrl's family for reinforcement learning from human feedback."""

from __future__ import annotations

import math
from collections.abc import Sequence

from functional_rb.base.arrays import BackendArray
from functional_rb.base.containers import record
from functional_rb.ops.protocol import Array
from functional_rb.text import losses
from functional_rb.text.computing import Computing, computed


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

    def last_rewards(self) -> BackendArray:
        """The reward of each text's last token, which is its score where a reward model gives one at each token.

        Returns:
            float32 [B], of the library of the arrays, NumPy's too, B any leading axes as those of `frb.Groups`; 0 of a
            text without any token.

        Raises:
            ValueError: for shapes that do not fit, and for texts without rewards.
            TypeError: for rewards that are no floats.

        Example:
            >>> ids, mask = np.array([[5, 1, 2]], np.int32), np.array([[True, True, False]])
            >>> RewardData(ids, mask, rewards=np.array([[1, 2, 3]], np.float32)).last_rewards().tolist()
            [2.0]
        """
        return computed(_last_rewards, (self.rewards, self.attention_mask), self)


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

    def loss(self) -> BackendArray:
        """How badly the rewards of single tokens tell the preferred texts from the others, as torchrl's reward model.

        Of each pair the mean of `-log sigmoid(chosen - rejected)` over the positions from the first at which the texts
        differ to the end of the longer one; then the mean over the pairs. Behind its end a text has the reward of its
        last token, so what stands in the padding never counts. Equal texts, and a text without any token, tell nothing,
        and such pairs do not count.

        The texts are to begin in the same column, integer [B, T], with rewards float [B, T] of the model; B stands for
        any leading axes, and the mean is over all pairs.

        Returns:
            float32 [], of the library of the arrays, NumPy's too; 0 if no pair counts. It can be differentiated with
            respect to the rewards.

        Raises:
            ValueError: for shapes that do not fit, and for texts without rewards.
            TypeError: for rewards that are no floats, and tokens that are no integers.

        Example:
            >>> ids, mask = np.array([[5, 1, 2], [5, 3, 0]], np.int32), np.array([[1, 1, 1], [1, 1, 0]], bool)
            >>> rewards = np.array([[9, 2, 2], [9, 1, 7]], np.float32)
            >>> one, other = (RewardData(ids[k:k + 1], mask[k:k + 1], rewards[k:k + 1]) for k in (0, 1))
            >>> round(float(PairwiseDataset(one, other).loss()), 4)
            0.3133
        """
        sides = self.chosen_data, self.rejected_data
        arrays = [x for side in sides for x in (side.rewards, side.input_ids, side.attention_mask)]
        return computed(_loss, tuple(arrays), self)


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


def _last_rewards(lib: Computing, text: RewardData) -> BackendArray:
    arrays = _rewards(lib, "RewardData.last_rewards", text, ""), lib.converted(text.attention_mask, "bool", "mask")
    texts, lead = _texts("RewardData.last_rewards", arrays)
    return lib.run(losses.last_rewards, *texts).reshape(lead)


def _loss(lib: Computing, pairs: PairwiseDataset) -> BackendArray:
    arrays: list[Array] = []
    for side in ("chosen_data", "rejected_data"):
        text: RewardData = getattr(pairs, side)
        arrays.append(lib.converted(text.input_ids, "int32", f"{side}/input_ids"))
        arrays.append(lib.converted(text.attention_mask, "bool", f"{side}/attention_mask"))
        arrays.append(_rewards(lib, "PairwiseDataset.loss", text, f"{side}/"))
    texts, _ = _texts("PairwiseDataset.loss", arrays)
    return lib.run(losses.diverging, *texts)


def _texts(who: str, arrays: Sequence[Array]) -> tuple[list[Array], tuple[int, ...]]:
    """Arrays of one shape with any leading axes as [B, T], and these axes."""
    shapes = [tuple(x.shape) for x in arrays]
    if len(set(shapes)) > 1 or not shapes[0] or shapes[0][-1] == 0:
        raise ValueError(f"{who}: expected arrays of one shape [B, T], not empty, got {shapes}; pad to one length")
    *lead, length = shapes[0]
    return [x.reshape(math.prod(lead), length) for x in arrays], tuple(lead)


def _rewards(lib: Computing, who: str, text: RewardData, place: str) -> Array:
    if text.rewards is None:
        raise ValueError(
            f"{who}: leaf '{place}rewards': expected rewards of each token, got None; put the model's there by "
            f"dataclasses.replace(text, rewards=...)"
        )
    return lib.converted(text.rewards, "float32", f"{place}rewards")
