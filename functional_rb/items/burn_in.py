"""Which steps of a slice bring a recurrent state up to date, and are not learned from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from functional_rb.base import dtypes, nest
from functional_rb.base.nest import Key
from functional_rb.core.item_function import ItemFunction, Lead, Leaves, Specs
from functional_rb.items.in_slices import LONGEST, InSlices
from functional_rb.items.leafwise import check_new, name_of, path_of
from functional_rb.items.names import Select
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import Binary


@dataclasses.dataclass(frozen=True)
class BurnIn(InSlices):
    """Which steps of a slice are not learned from; see `burn_in`."""

    who: ClassVar[str] = "burn_in"

    n: int
    out: Key = "burn_in"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "out", name_of(self.out, "out", self.who))
        dtypes.checked_count("burn_in: n", self.n, 0, LONGEST)

    def spec(self, leaves: Specs, lead: int) -> Specs:
        self.check_slices(leaves, lead)
        check_new(path_of(self.out), leaves, self.who)
        return leaves | {path_of(self.out): Binary(())}

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        # The first steps, as long as they are of the slice's first episode.
        first = self.starts(ops, leaves, lead)
        marked = (first == 0) & (ops.arange(lead[1], like=first)[None, :] < self.n)
        return leaves | {path_of(self.out): marked if mask is None else marked & mask}

    def inverse(self, item: object) -> ItemFunction:
        return Select((self.out,), left_out=True)


def burn_in(
    n: int, out: Key = "burn_in", *, end_keys: Key | Sequence[Key] | None = None, trajectory_key: Key | None = None
) -> BurnIn:
    """Which steps of a slice only bring a recurrent state up to date, for `frb.map_items`: a bool leaf more.

    The network is run over the whole slice from the state stored with its first step, and the loss leaves out the steps
    that are marked (S. Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning", 2019,
    section 3). Those are the first n that are of the slice's first episode: where another begins, the state is reset,
    and is known exactly. Steps that are not real (`sample.mask`) are not marked.

    Args:
        n: how many steps, from 0 on.
        out: the new leaf.
        end_keys: where episodes end, as for `frb.Slices`.
        trajectory_key: likewise.

    Raises:
        ValueError: for another n; where it is used, for single items, or a leaf `out` that there is already.

    Example:
        >>> frb.items.burn_in(40).out
        'burn_in'
    """
    return BurnIn(n, out, end_keys=nest.checked_keys(end_keys, "end_keys", "burn_in"), trajectory_key=trajectory_key)
