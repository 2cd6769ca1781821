"""Language models of a few tokens, the same on both backends."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.backends import Backend

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # as for a program started from there

HEADS, LAYERS, WIDTH, CONTEXT = 2, 2, 8, 16
VOCABULARY, END = 5, 4
PROMPTS = np.array([[1, 2, 3, 4], [2, 0, 0, 0], [3, 1, 0, 0]], np.int32)
# Prompts of 4, 1 and 2 tokens, one of them with an end inside. Tests share them, as JAX compiles for their shapes.
MASK = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], bool)
N, REPLIES = 3, 4
_MODELS: dict[str, Any] = {}


def table(params: Any, cache: Any, ids: Any, positions: Any) -> tuple[Any, Any]:
    """Logits [V, V] by the last token alone: what follows a token has nothing to do with what was before it."""
    return params[ids], None


def gpt2(library: Backend) -> tuple[Any, Any]:
    """The functions of a small GPT-2; the same ones at each call, so that JAX compiles them once."""
    if library.library not in _MODELS:
        if library.library == "jax":
            import gpt2_jax as module
        else:
            from tests.support import gpt2_torch as module
        _MODELS[library.library] = module.model(HEADS, LAYERS, WIDTH)
    return _MODELS[library.library]


def gpt2_params(library: Backend, seed: int = 0) -> Any:
    import gpt2_jax

    return library.tree(gpt2_jax.init_params(seed, VOCABULARY, CONTEXT, WIDTH, LAYERS))


def law_of(logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray:
    """The probabilities of a law, float64 [V]; by its definition, token by token."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:top_k]
    weights = {i: np.exp((float(logits[i]) - float(logits[order[0]])) / temperature) for i in order}
    total, before, kept = sum(weights.values()), 0.0, []
    for i in order:
        if top_p is None or before < float(np.float32(top_p)) * total:
            kept.append(i)
        before += weights[i]
    found = np.zeros(len(logits))
    found[kept] = [weights[i] for i in kept]
    return found / found.sum()


def all_replies(told: np.ndarray, *law: Any) -> tuple[np.ndarray, np.ndarray]:
    """Every reply of 3 tokens of 5, ended by END or not: its probability by the model and by a law, each [125].

    Args:
        told: float [125, 3], log-probabilities by the model of the tokens of all 125 rows, in order.
        law: temperature, top_k and top_p.

    Returns:
        Of the row that begins with the reply and goes on with END; 0 for rows that are no reply, as END ends it.
    """
    given = np.float64(told).reshape(5, 5, 5, 3)
    after = [given[:, 0, 0, 0], given[:, :, 0, 1], given[:, :, :, 2]]  # of each prefix, what follows
    made = []
    for rule in (lambda x: np.exp(x), lambda x: law_of(x, *law)):
        whole = np.ones((5, 5, 5))
        for rows in itertools.product(range(5), repeat=3):
            for length in range(3):
                if END in rows[:length]:
                    whole[rows] *= rows[length] == END
                else:
                    whole[rows] *= rule(after[length][rows[:length]])[rows[length]]
        made.append(whole.reshape(125))
    return made[0], made[1]
