"""Public functions that do what functions of the core do, bound to what carries them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from functional_rb.buffer.binding import bound

P = ParamSpec("P")
A = TypeVar("A")


class Binder:
    """Binds functions of the core to an engine.

    Args:
        engine_of: the engine for what a public function is given first; the public functions are of its module.
    """

    def __init__(self, engine_of: Callable[[Any], Any]) -> None:
        self._engine_of = engine_of

    def __call__(self, core: Callable[Concatenate[Any, P], A]) -> Callable[P, A]:
        """Bind a function."""
        return bound(core, self._engine_of)

    def array(self, core: Callable[Concatenate[Any, P], Any]) -> Callable[P, torch.Tensor]:
        """Bind a function that gives a tensor."""
        return bound(core, self._engine_of, "torch.Tensor")
