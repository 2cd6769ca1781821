"""The values that the functions take and return."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from functional_rb.base.arrays import BackendArray
from functional_rb.base.errors import consumed
from functional_rb.buffer.reader import ArrayReader, Reader, TakeSnapshot
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters
from functional_rb.core.strategy import NO_EXTRAS, Selection

Items = TypeVar("Items")


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """A replay buffer as a value. Use the functions to read it; the fields are for those who write backends.

    Attributes:
        rows: int32 [capacity, words], the packed leaves of the items.
        wide: arrays [capacity, *shape] of the leaves that are not packed.
        tree: float32 [tree rows, 16], the sampler's sum tree; None if it has none.
        counters: int32 [n]: the cursor and the size of the buffer, bad priorities refused, stale handles, the bits of
            the largest priority ever, items outside of their specs; with lanes the cursor and the size of each; then
            the counters below, in the order of the table.
        auxiliary: arrays by name, those below.
        spec: the buffer's description, static.

    The auxiliary arrays (int32, if nothing else is said) and counters of each part of a spec. N is the capacity, L the
    number of rings (the lanes; 1 without lanes, or where the writer chooses slots), E that of the lanes, or 1, and W
    the words of a packed step:

    | part of the spec | auxiliary arrays | counters |
    |---|---|---|
    | `Compact` | frame_at [N], frames [frames, W], frames_... [frames, *shape] | frame_cursor [L] |
    | slices, `n_step` at sampling, `her` | step_in_episode [N] | next_step_in_episode [L], newest_id [ids] |
    | `max_times_sampled` | times [N] | |
    | `PrioritizedSlices` | value [N] (float32) | |
    | `WithoutReplacement` | order [N], place [N] | epochs_done [1], remaining [1] |
    | `WithoutReplacement(shuffle=False)` | | epochs_done [1], next [L], end [L] |
    | `SlicesWithoutReplacement` | order [N], place [N] | epochs_done [1], remaining [1], count [1] |
    | `StopWhenFull` | | refused [1] |
    | `Reservoir` | handle [N] | seen [1] |
    | `MaxValue` | handle [N], rank [tree rows, 16] | refused [1] |
    | `n_step` at adding | n_step_waiting [waiting, W], n_step_waiting/... [waiting, *shape] | n_step_pending [E] |

    There are `L * room` frames and `E * (n - 1)` waiting steps; arrays [..., *shape] have a leaf's own dtype, and there
    is one for each leaf that is not packed. The ids are L words of a trajectory key, 2 L of one of 64 bits, and none
    without a key.
    """

    rows: BackendArray
    wide: tuple[BackendArray, ...]
    tree: BackendArray | None
    counters: BackendArray
    auxiliary: dict[str, BackendArray]
    spec: BufferSpec

    # What to give in its place where a buffer on one device is needed, if it is over several.
    instead: ClassVar[str] = ""

    def check_alive(self) -> None:
        """Refuse a state that was consumed: JAX deletes the arrays that are donated.

        Raises:
            RuntimeError: with the remedy.
        """
        if _is_deleted(self.counters) or _is_deleted(self.rows):
            raise consumed()

    def surely_takes(self, batch: int) -> bool:
        """Whether a batch fits into a buffer that never overwrites, if that is known without looking at arrays."""
        return False

    def dealt(self) -> Any:
        """What a process has of it, as checkpoints know it, if it is dealt to shards; None of other buffers."""
        return None

    def exported(self) -> Any:
        """What has the arrays as its attributes: asked for together they are copied once, where they must be copied."""
        return self

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape of the counters: of one buffer (n,), of a stack of buffers with the axes of the stack before."""
        return tuple(self.counters.shape)

    @property
    def lost(self) -> BackendArray:
        """How many items were being added by processes that died, int32 scalar: 0, but for shared buffers."""
        return self.counters[..., counters.SIZE] * 0

    def __repr__(self) -> str:
        """The description, not the arrays."""
        return f"State({self.spec!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the fields, in their order."""
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def reader(self, lasting: bool = False, snapshot: TakeSnapshot | None = None) -> Reader:
        """Read the arrays piece by piece, as a checkpoint does.

        Args:
            lasting: whether the arrays may be written, donated or deleted before the reader is closed.
            snapshot: takes the snapshot of the buffer's own files, if it is for a checkpoint that may lie beside them.
        """
        self.check_alive()
        return ArrayReader(self, self.spec, lasting)


S = TypeVar("S", bound=State)
"""A state of one kind, such as a shared one."""
# A state of the kind that was given: each engine knows its own, which a protocol that modules meet cannot say.
SameState = Any


# Whether an array is one of JAX's that was donated; what is traced, and what others make, never is.
def _is_deleted(array: BackendArray) -> bool:
    try:
        return bool(array.is_deleted())
    except Exception:
        return False


class Counts(NamedTuple):
    """What a buffer has counted since it was made, int32 scalars; each stays at 2^31 - 1 once it is there.

    Attributes:
        rejected: bad priorities (NaN, infinite, negative).
        stale: handles of overwritten items that `update` has dropped.
        invalid: items outside of their specs that `add(validate=True)` has left out while tracing.
        refused: items that the writer has not taken: for want of room, or because their rank was NaN.
        lost: items that writers of a shared buffer were adding when they died. They are not in the buffer; of those
            stored it gave up the ones that they were to replace, and no others.
        epochs_done: passes without replacement; 0 for samplers that have none.
    """

    rejected: BackendArray
    stale: BackendArray
    invalid: BackendArray
    refused: BackendArray
    lost: BackendArray
    epochs_done: BackendArray

    @classmethod
    def of_refused(cls, refused: BackendArray) -> Counts:
        """Those of what counts nothing else."""
        nothing = refused - refused
        return cls(nothing, nothing, nothing, refused, nothing, nothing)


class StateHolder:
    """What holds a state and is given to functions in place of one by mistake, such as a `Cell`.

    No `abc.ABC`, by which every call that asks whether it was given a `Mixture` would take half a microsecond longer.
    """

    @abc.abstractmethod
    def hint(self, function: str) -> str:
        """How the error goes on that refuses it: what to write instead."""


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
        """None: all draws are real."""

    @property
    def is_first(self) -> None:
        """None: of slices only."""

    @property
    def is_last(self) -> None:
        """None: of slices only."""

    @property
    def truncated(self) -> None:
        """None: of slices only."""

    @property
    def slice_start(self) -> None:
        """None: of slices only."""


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
        """None: of slices only."""

    @property
    def is_last(self) -> None:
        """None: of slices only."""

    @property
    def truncated(self) -> None:
        """None: of slices only."""

    @property
    def slice_start(self) -> None:
        """None: of slices only."""


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


def sample_of(items: Items, selection: Selection) -> AnySample[Items]:
    """A sample of items, and of what was selected: of the class that has a field for all of it."""
    handles, weights, probabilities, mask, extras = *selection[:4], selection.extras
    if mask is None:
        return Sample(items, handles, weights, probabilities, extras)
    if selection.is_first is None:
        return MaskedSample(items, handles, weights, probabilities, mask, extras)
    slices: SliceSample[Items] = SliceSample(items, *selection)
    return slices
