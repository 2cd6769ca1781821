"""What carries out the public functions of text, once what they are given has been checked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from functional_rb.ops.protocol import Array
from functional_rb.text.generation import Generation, Settings
from functional_rb.text.laws import Law

# A model: (params, cache, ids int32 [B, T], positions int32 [B, T]) to (logits [B, T, V], cache).
Step = Callable[[Any, Any, Array, Array], tuple[Array, Any]]
# Makes a cache before the first token, for so many rows with room for so many tokens.
EmptyCache = Callable[[int, int], Any]


class Backend(Protocol):
    """What carries out the checked calls."""

    def array(self, x: Any, dtype: str, name: str) -> Array:
        """An array of the backend: "int32" of any integers, "bool" of these too, "float32" of floats."""
        ...

    def without_gradients(self) -> AbstractContextManager[Any]:
        """A context in which nothing is remembered for gradients."""
        ...

    def number(self, x: object, dtype: str, like: Array) -> Array:
        """A number as a scalar, on the device of an array."""
        ...

    def convert(self, leaf: object, expected: object, name: str) -> Array:
        """An array of the backend, of the dtype of a spec; that of another library is refused, naming the leaf."""
        ...

    def build_mapping(self, container: Any, parts: dict[str, Any], batch_shape: tuple[int, ...]) -> Any:
        """How mappings are made."""
        ...

    def values(self, x: Array) -> Any:
        """The array in NumPy; None while tracing."""
        ...

    def generate(
        self,
        step: Step,
        params: object,
        cache: EmptyCache | None,
        prompts: Array,
        mask: Array,
        key: object,
        law: Law,
        settings: Settings,
    ) -> Generation:
        """Generate replies."""
        ...

    def log_probs(
        self,
        step: Step,
        params: object,
        ids: Array,
        mask: Array,
        rows_at_once: int | None,
        tokens_at_once: int | None,
        cache: EmptyCache | None,
    ) -> Array:
        """Tell log-probabilities."""
        ...

    def run(self, function: Callable[..., Any], *given: Any, static: tuple[Any, ...] = ()) -> Any:
        """`function(ops, *given, *static)`, of nests of arrays and of what is hashable, compiled if that is its way."""
        ...
