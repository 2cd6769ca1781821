"""What a backend brings along for text, besides what its `Lib` has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from functional_rb.base.arrays import ArrayLike, BackendArray, Nest, NumpyArray
from functional_rb.lib import A, Lib
from functional_rb.ops.protocol import Array
from functional_rb.text.generation import Cache, Generation

Step = Callable[[Any, Cache, BackendArray, BackendArray], tuple[BackendArray, Cache]]
"""A model: (params, cache, ids int32 [B, T], positions int32 [B, T]) to (logits [B, T, V], cache)."""
EmptyCache = Callable[[int, int], Cache]
"""Makes a cache before the first token, for so many rows with room for so many tokens."""


@dataclasses.dataclass(frozen=True, eq=False)
class TextLib(Lib[A]):
    """The `Lib` that the functions of text are bound to.

    Attributes:
        converted: an array of `(x, dtype, name)`: "int32" of any integers, "bool" of these too, "float32" of floats;
            anything else is refused.
        number: a scalar of `(x, dtype, like)`, on the device of an array.
        without_gradients: a context in which nothing is remembered for gradients.
        run: `run(function, *given, static=())` is `function(ops, *given, *static)`, of nests of arrays and of what is
            hashable, compiled if that is the backend's way.
        generating: generates replies, of `(step, params, cache, prompts, mask, key, law, settings)`.
        log_probs_of: tells log-probabilities, of `(step, params, ids, mask, rows_at_once, tokens_at_once, cache)`.
    """

    converted: Callable[[ArrayLike, str, str], Array]
    number: Callable[[object, str, Array], Array]
    without_gradients: Callable[[], AbstractContextManager[object]]
    run: Callable[..., Nest]
    generating: Callable[..., Generation]
    log_probs_of: Callable[..., Array]

    def values(self, x: Array) -> NumpyArray | None:
        """An array in NumPy; None while it is traced."""
        return None if self.is_traced(x) else self.to_numpy(x)
