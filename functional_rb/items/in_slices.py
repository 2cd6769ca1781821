"""What the functions have in common that look at several steps of a slice: where episodes end in it."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Final

from functional_rb.base import nest
from functional_rb.base.nest import Key, Keys
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.item_function import ItemFunction, Lead, Leaves, Specs
from functional_rb.items.leafwise import array_spec
from functional_rb.ops.protocol import Array, ItemOps

# Steps, at most, that are looked back at.
LONGEST: Final = 2**20


@dataclasses.dataclass(frozen=True)
class InSlices(ItemFunction):
    """A function of slices [B, T]; those that come in one row are given to it as such."""

    # How users call it.
    who: ClassVar[str]
    # Where episodes end, as `frb.Slices` has it; None for the usual leaves.
    end_keys: Keys | None = dataclasses.field(default=None, kw_only=True)
    trajectory_key: Key | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "end_keys", nest.checked_keys(self.end_keys, "end_keys", self.who))

    def check_slices(self, leaves: Specs, lead: int) -> None:
        """Refuse single items, and leaves that cannot tell where episodes end."""
        if lead != 2:
            raise ValueError(
                f"{self.who}: needs slices [B, T], and these are single items; "
                "use sampler=frb.Slices(...), and at='sample'"
            )
        boundaries = self._boundaries(leaves)
        for key in (*boundaries.end_keys, *(() if boundaries.trajectory_key is None else (boundaries.trajectory_key,))):
            path = self._path(leaves, key)
            spec, kind = array_spec(leaves[path]), "int" if key == boundaries.trajectory_key else "bool"
            if kind not in spec.dtype or math.prod(spec.shape) != 1:
                raise ValueError(
                    f"{self.who}: leaf {nest.show(path)!r}: expected one {kind} an item, got {spec.dtype} of shape "
                    f"{spec.shape}; name another leaf"
                )

    def ends(self, ops: ItemOps, leaves: Leaves, lead: Lead) -> Array | None:
        """Whether an episode ends with each step, bool [B, T]; for the slice's last step anything; None for never."""
        boundaries = self._boundaries(leaves)
        parts = [leaves[self._path(leaves, key)].reshape(lead) for key in boundaries.end_keys]
        if boundaries.trajectory_key is not None:
            ids = leaves[self._path(leaves, boundaries.trajectory_key)].reshape(lead)
            parts.append(ids != ops.concat([ids[:, 1:], ids[:, -1:]], 1))
        together = None
        for flags in parts:
            together = flags if together is None else together | flags
        return together

    def starts(self, ops: ItemOps, leaves: Leaves, lead: Lead) -> Array:
        """The step of the slice, from 0 on, with which the part of an episode begins that each is of, int32 [B, T]."""
        ends = self.ends(ops, leaves, lead)
        like = next(iter(leaves.values())) if ends is None else ends
        step = ops.arange(lead[1], like=like)[None, :] + ops.arange(lead[0], like=like)[:, None] * 0
        zero = step * 0
        if ends is None:
            return zero
        begins = ops.concat([zero[:, :1] == 1, ends[:, :-1]], 1)
        return ops.cummax(ops.where(begins, step, zero))

    def _boundaries(self, leaves: Specs | Leaves) -> EpisodeBoundaries:
        return EpisodeBoundaries.find(self.end_keys, self.trajectory_key, [*map(nest.show, leaves)], self.who)

    def _path(self, leaves: Specs | Leaves, key: Key) -> nest.Path:
        paths = tuple(leaves)
        return paths[nest.position(tuple(map(nest.show, paths)), key, self.who)]
