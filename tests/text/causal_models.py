"""Causal language models of `transformers` with a vocabulary of a few tokens, and prompts for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.support.language_models import HEADS, LAYERS

EOS, PAD, VOCABULARY = 1, 0, 11
COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": PAD}
LLAMA = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
KINDS = {  # after GPT-2: rotated positions and grouped queries; the last three tokens alone; a state in place of tokens
    "GPT2": {"n_positions": 16, "n_embd": 16, "n_layer": LAYERS, "n_head": HEADS},
    "Llama": {**LLAMA, "num_hidden_layers": 2},
    "Mistral": {**LLAMA, "num_hidden_layers": 2, "sliding_window": 3},
    "Mamba": {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
}
# Prompts; an end and padding are among their tokens.
TEXTS = [[4, 2, 7, 9, 10, 3], [5], [8, 1, 6], [7, 0], [3, 3, 10, 9, 2]]


def made(kind: str, **options: Any) -> Any:
    import transformers

    torch.manual_seed(1)  # with which some replies end, and others do not
    config = getattr(transformers, f"{kind}Config")(**COMMON | KINDS[kind] | {"initializer_range": 0.4} | options)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def padded(side: str) -> tuple[np.ndarray, np.ndarray]:
    """The prompts with padding on a side, or anywhere; what stands in it are tokens that the mask takes out."""
    rng, width = np.random.default_rng(0), max(map(len, TEXTS))
    ids, mask = rng.integers(2, VOCABULARY, (len(TEXTS), width)), np.zeros((len(TEXTS), width), bool)
    for row, text in enumerate(TEXTS):
        free = {"left": range(width)[width - len(text) :], "right": range(len(text))}
        at = list(free.get(side, sorted(rng.choice(width, len(text), replace=False))))
        ids[row, at], mask[row, at] = text, True
    return ids, mask


def own_log_probs(model: Any, row: list[int]) -> np.ndarray:
    """What the model says of each token of a row after the first, alone and without a cache."""
    with torch.no_grad():
        logits = model(torch.tensor([row])).logits[0, :-1].double()
    return logits.log_softmax(-1).numpy()[np.arange(len(row) - 1), row[1:]]
