"""Maps on torch: `rb.maps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from functional_rb.buffer.api import documented_by
from functional_rb.buffer.binding import bound
from functional_rb.maps import functions
from functional_rb.maps.functions import Inserted, Map
from torch_backend import carried

P = ParamSpec("P")
A = TypeVar("A")


def _binds(core: Callable[Concatenate[Any, P], A]) -> Callable[P, A]:
    """Bind a function of the core."""
    return bound(core, lambda _: carried)


def _reads(core: Callable[Concatenate[Any, P], Any]) -> Callable[P, torch.Tensor]:
    """Bind a function of the core that reads a tensor off a map."""
    return bound(core, lambda _: carried, "torch.Tensor")


init = _binds(functions.init)
insert = _binds(functions.insert)
lookup = _reads(functions.lookup)
count = _reads(functions.count)
size = _reads(functions.size)
refused = _reads(functions.refused)
keys = _binds(functions.keys)


@documented_by(functions.insert_)
def insert_(map: Map, keys: Any, mask: Any = None) -> tuple[Map, Inserted]:
    made = functions.insert_(carried, map, keys, mask)
    if not torch.compiler.is_compiling():
        object.__setattr__(map, "counters", None)  # its memory is the new map's
    return made
