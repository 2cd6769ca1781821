"""Several functions, one after the other."""

from __future__ import annotations

import dataclasses

from functional_rb.core.item_function import ItemFunction, Lead, Leaves, Specs, item_after
from functional_rb.ops.protocol import Array, ItemOps


@dataclasses.dataclass(frozen=True)
class Compose(ItemFunction):
    """Several functions, one after the other; see `compose`."""

    functions: tuple[ItemFunction, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "functions", tuple(self.functions))
        for function in self.functions:
            if not isinstance(function, ItemFunction):
                raise TypeError(f"compose: expected functions of frb.items, got {type(function).__name__}")

    @property
    def words(self) -> int:
        # Those of all functions: each takes its own.
        return sum(function.words for function in self.functions)

    def spec(self, leaves: Specs, lead: int) -> Specs:
        for function in self.functions:
            leaves = function.spec(leaves, lead)
        return leaves

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        start = 0
        for function in self.functions:
            words = function.words
            function_draws = None if draws is None or not words else draws[:, start : start + words]
            leaves, start = function.apply(ops, leaves, lead, function_draws, mask), start + words
        return leaves

    def inverse(self, item: object) -> ItemFunction:
        # The inverses, the last function's first.
        backwards: list[ItemFunction] = []
        for function in self.functions:
            backwards.insert(0, function.inverse(item))
            item = item_after(function, item, lead=2)  # as functions of slices ask for; others give the same
        return Compose(tuple(backwards))


def compose(*functions: ItemFunction) -> Compose:
    """Several functions, one after the other, for `frb.map_items`; of none, items stay as they are.

    Random ones take random words of their own each. The inverse has the functions' inverses, the last one's first.

    Raises:
        TypeError: for what is no function of `frb.items`.

    Example:
        >>> frb.items.compose(frb.items.to_image(), frb.items.random_shift(4)).words
        2
    """
    return Compose(functions)
