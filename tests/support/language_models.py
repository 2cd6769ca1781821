"""Language models of a few tokens, the same on both backends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.backends import Backend

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # as for a program started from there

HEADS, LAYERS, WIDTH, CONTEXT = 2, 2, 8, 16
VOCABULARY, END = 5, 4
PROMPTS = np.array([[1, 2, 3, 4], [2, 0, 0, 0], [3, 1, 0, 0]], np.int32)
MASK = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], bool)
"""Prompts of 4, 1 and 2 tokens, one of them with an end inside. Tests share them, as JAX compiles for their shapes."""
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
