"""What a backend brings along for trees, besides what its `Lib` has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from functional_rb.base.arrays import DeviceLike, Nest, PRNGKey
from functional_rb.lib import A, Lib
from functional_rb.ops.protocol import Array
from functional_rb.trees.policies import Policy
from functional_rb.trees.state import Expansion, Tree

AskedStep = Callable[[Nest, Nest, PRNGKey], Expansion]
"""A user's model: nodes as a nest like `TreeSpec.node`, actions or slots, and a key to what lies behind."""


class Search(NamedTuple):
    """What a search is asked for, static: a model, and one of chance or None; how often, by which policy, how deep."""

    step: AskedStep
    simulations: int
    policy: Policy
    max_depth: int
    chance_step: AskedStep | None


Searching = Callable[["TreesLib[Any]", Tree, PRNGKey, Search], tuple[Tree, Array, Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class TreesLib(Lib[A]):
    """The `Lib` that the functions of trees are bound to."""

    # `run(function, *given, static=(), writes=False)` is `function(ops, *given, *static)`, of nests of arrays and of
    # what is hashable, compiled if that is the backend's way. With `writes`, the function writes to the tree that is
    # given first, which is copied before where arrays can be written to.
    run: Callable[..., Any]
    check_key: Callable[[object], object]  # refuses what is no key
    # Uniform int32 [rows, words] in [0, 2^31), of `(key, rows, words, like)`, on the device of an array.
    draws: Callable[[PRNGKey, int, int, Array], Array]
    # The device of an array, as `ops` take it; None where an array follows those that it is made of.
    device_of: Callable[[Array], DeviceLike]
    device_by_default: Callable[[], DeviceLike]  # where arrays are made that follow no other
    put: Callable[[Nest, DeviceLike], Nest]  # a nest of arrays on a device; where they are, if that is None
    searching: Searching  # what carries out a search, which asks the caller's functions
