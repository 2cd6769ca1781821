"""The values that the functions take and return."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from functional_rb.base.arrays import BackendArray
from functional_rb.base.errors import consumed
from functional_rb.buffer.reader import ArrayReader, Reader, TakeSnapshot
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters
from functional_rb.core.sample import Drawn


@dataclasses.dataclass(frozen=True, eq=False)
class State(Generic[Drawn]):
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
    | `Slices(fresh_first=True)` | windows [N] | completed [L], given [L] |
    | `PrioritizedSlices` | value [N] (float32) | |
    | `WithoutReplacement` | order [N], place [N] | epochs_done [1], remaining [1] |
    | `WithoutReplacement(shuffle=False)` | | epochs_done [1], next [L], end [L] |
    | `SlicesWithoutReplacement` | order [N], place [N] | epochs_done [1], remaining [1], count [1] |
    | `Staleness` | made_by_version [N] | policy_version [1] |
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
    spec: BufferSpec[Drawn]

    # What to give in its place where a buffer on one device is needed, if it is over several.
    instead: ClassVar[str] = ""

    def check_alive(self) -> None:
        """Refuse a state that was consumed: JAX deletes the arrays that are donated.

        Raises:
            RuntimeError: with the remedy.
        """
        if _is_deleted(self.counters) or _is_deleted(self.rows):
            raise consumed()

    def fullest_after(self, added: int = 0) -> int | None:
        """How many items the fullest lane has at most with so many added; None if only a look at arrays tells."""
        return None

    def dealt(self) -> Any:
        """What a process has of it, as checkpoints know it, if it is dealt to shards; None of other buffers."""
        return None

    def exported(self) -> Any:
        """What has the arrays as its attributes: asked for together they are copied once, where they must be copied."""
        return self

    def shares(self, other: State) -> bool:
        """Whether the two have an array in common, as JAX's do after what has changed others alone."""
        if not (type(self) is type(other) is State):  # all others own what they write
            return False
        ours, theirs = ((x.rows, *x.wide, x.tree, x.counters, *x.auxiliary.values()) for x in (self, other))
        return any(x is y and x is not None for x in ours for y in theirs)

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape of the counters: of one buffer (n,), of a stack of buffers with the axes of the stack before."""
        return tuple(self.counters.shape)

    @property
    def lost(self) -> BackendArray:
        """How many items were being added by processes that died, int32 scalar: 0, but for shared buffers."""
        return self.counters[..., counters.SIZE] * 0

    def __repr__(self) -> str:
        return f"State({self.spec!r})"

    def __reduce__(self) -> tuple[object, ...]:
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
    """What a buffer has counted since it was made, int32 scalars; each but the cursor stays at 2^31 - 1 once there.

    Attributes:
        rejected: bad priorities (NaN, infinite, negative).
        stale: handles of overwritten items that `update` has dropped.
        invalid: items outside of their specs that `add(validate=True)` has left out while tracing.
        refused: items that the writer has not taken: for want of room, or because their rank was NaN.
        lost: items that writers of a shared buffer were adding when they died. They are not in the buffer; of those
            stored it gave up the ones that they were to replace, and no others.
        epochs_done: passes without replacement; 0 for samplers that have none.
        cursor: the handle that the next item gets, which will lie in slot `handle % capacity`; with lanes [E], one for
            each lane. -1 for a writer that chooses slots (`MaxValue`, `Reservoir`), and of what is no single buffer.
    """

    rejected: BackendArray
    stale: BackendArray
    invalid: BackendArray
    refused: BackendArray
    lost: BackendArray
    epochs_done: BackendArray
    cursor: BackendArray

    @classmethod
    def of_refused(cls, refused: BackendArray) -> Counts:
        """The counts of what counts its refusals alone, such as a hash map."""
        nothing = refused - refused
        return cls(nothing, nothing, nothing, refused, nothing, nothing, nothing - 1)


class StateHolder:
    """What holds a state and is given to functions in place of one by mistake, such as a `Cell`.

    No `abc.ABC`, by which every call that asks whether it was given a `Mixture` would take half a microsecond longer.
    """

    @abc.abstractmethod
    def hint(self, function: str) -> str:
        """How the error goes on that refuses it: what to write instead."""
