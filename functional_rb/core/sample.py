"""Samples, and which of them a sampler draws, as type checkers read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.core.strategy import NO_EXTRAS, Selection

# Type checkers know defaults of type variables by this module, of which each has a copy; nothing needs it to run.
if TYPE_CHECKING:
    import typing_extensions

    Items = typing_extensions.TypeVar("Items", default=Nest)
else:
    Items = TypeVar("Items")


class Sample(NamedTuple, Generic[Items]):
    """A batch drawn from a buffer, by a sampler all of whose draws are always real.

    Where nothing could be drawn (under jit), indices are -1, weights and probabilities 0; the items there are
    meaningless.

    Attributes:
        items: the structure that was added, leaves [B, *shape].
        indices: int32 [B], handles for `update` and `get`.
        weights: float32 [B], importance weights in (0, 1].
        probabilities: float32 [B], the probability of each draw; each sampler says of what.
        extras: what transforms, and `Groups`, tell of each item, arrays by name, in the shape of the indices.
    """

    items: Items
    indices: BackendArray
    weights: BackendArray
    probabilities: BackendArray
    extras: Mapping[str, BackendArray] = NO_EXTRAS

    @property
    def mask(self) -> None:
        """None, as all draws are real."""

    @property
    def is_first(self) -> None:
        """None, as only slices have it."""

    @property
    def is_last(self) -> None:
        """None, as only slices have it."""

    @property
    def truncated(self) -> None:
        """None, as only slices have it."""

    @property
    def slice_start(self) -> None:
        """None, as only slices have it."""


class MaskedSample(NamedTuple, Generic[Items]):
    """A batch drawn from a buffer, by a sampler that may have less to give than was asked for.

    Attributes:
        items: as in `Sample`.
        indices: int32 [B], handles as in `Sample`; -1 where the mask is False.
        weights: float32 [B], as in `Sample`; 0 where the mask is False.
        probabilities: float32 [B], as in `Sample`; 0 where the mask is False.
        mask: bool [B], which draws are real.
        extras: what transforms, and `Groups`, tell of each item, arrays by name, in the shape of the indices.
    """

    items: Items
    indices: BackendArray
    weights: BackendArray
    probabilities: BackendArray
    mask: BackendArray
    extras: Mapping[str, BackendArray] = NO_EXTRAS

    @property
    def is_first(self) -> None:
        """None, as only slices have it."""

    @property
    def is_last(self) -> None:
        """None, as only slices have it."""

    @property
    def truncated(self) -> None:
        """None, as only slices have it."""

    @property
    def slice_start(self) -> None:
        """None, as only slices have it."""


class SliceSample(NamedTuple, Generic[Items]):
    """A batch of slices.

    Attributes:
        items: the structure that was added, leaves [B, length, *shape] (flat ones [B * length, *shape]).
        indices: int32 [B, length], the handle of each step; -1 where the mask is False.
        weights: float32 [B], importance weights of slices in (0, 1].
        probabilities: float32 [B], the probability of each draw; each sampler says of what.
        mask: bool [B, length], which steps are real.
        is_first: bool [B, length], whether a step is the first of its trajectory.
        is_last: bool [B, length], whether it is known to be the last of its trajectory.
        truncated: bool [B, length], whether the slice ends there though the trajectory goes on.
        slice_start: bool [B, length], whether the slice begins there; computed of the mask, as it is asked for.
        extras: what transforms, and `Groups`, tell of each item, arrays by name, in the shape of the indices.
    """

    items: Items
    indices: BackendArray
    weights: BackendArray
    probabilities: BackendArray
    mask: BackendArray
    is_first: BackendArray
    is_last: BackendArray
    truncated: BackendArray
    extras: Mapping[str, BackendArray] = NO_EXTRAS

    @property
    def slice_start(self) -> BackendArray:
        """Bool in the shape of the mask, whether a slice begins with a step: where a recurrent state begins anew.

        A slice never crosses the end of a trajectory, so these are the only such steps, in flat slices too, of which
        each begins right behind the one before. Each slice that is real has one; it is the first step of its
        trajectory only if `is_first` says so.
        """
        first = self.mask.reshape(*self.weights.shape, -1)
        return ((first.cumsum(-1) == 1) & first).reshape(self.mask.shape)


# What `sample` returns, as the sampler has it: a tuple of arrays alone, which can be mapped over and batched.
AnySample = Sample[Items] | MaskedSample[Items] | SliceSample[Items]

# The type of the samples of a buffer, by which specs and states are generic: what is annotated as `frb.State` alone may
# give any. And the type of `sample.mask`, None or an array, by which those samplers are whose options decide on it.
if TYPE_CHECKING:
    Drawn = typing_extensions.TypeVar("Drawn", bound=AnySample[Nest], covariant=True, default=AnySample[Nest])
    Mask = typing_extensions.TypeVar("Mask", default=Any)
else:
    Drawn = TypeVar("Drawn", covariant=True)
    Mask = TypeVar("Mask")

_Items = TypeVar("_Items", contravariant=True)
_Drawn = TypeVar("_Drawn", covariant=True)


class Gives(Protocol[_Items, _Drawn]):
    """A sampler that gives samples of one type, of items of another."""

    def _gives(self, items: _Items, /) -> _Drawn:
        """What type checkers read; there is no such function."""


def sample_of(items: Items, selection: Selection) -> AnySample[Items]:
    """A sample of items, and of what was selected: of the class that has a field for all of it."""
    handles, weights, probabilities, mask, extras = *selection[:4], selection.extras
    if mask is None:
        return Sample(items, handles, weights, probabilities, extras)
    if selection.is_first is None:
        return MaskedSample(items, handles, weights, probabilities, mask, extras)
    slices: SliceSample[Items] = SliceSample(items, *selection)
    return slices
