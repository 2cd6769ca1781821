"""The public functions that read a buffer: its items, what each has, and what has been counted.

A backend binds each of these to itself, as those of `api`.
"""

from __future__ import annotations

from functional_rb.base import nest
from functional_rb.base.arrays import ArrayLike, BackendArray, Nest
from functional_rb.buffer import checks, functions
from functional_rb.buffer.backend import Backend, check_one, handles_of
from functional_rb.buffer.state import Counts, State
from functional_rb.core import counters
from functional_rb.core.counters import REFUSED
from functional_rb.ops.protocol import Array
from functional_rb.samplers.epochs import EPOCHS_DONE
from functional_rb.structures.ring import INT32_MAX


def get(backend: Backend, state: State, indices: BackendArray) -> Nest:
    """Read items by handle.

    Args:
        state: the buffer.
        indices: int32 [B], handles.

    Returns:
        The items as they are stored, leaves [B, *shape]; zeros where a handle's item is no longer stored (`is_live`
        tells), None in leaves of Python objects. Transforms that work as one samples have no part in this.

    Example:
        >>> state = rb.init(frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4))
        >>> state = rb.add(state, {"reward": np.arange(3, dtype=np.float32)})
        >>> rb.get(state, np.array([2, 9], np.int32))["reward"].tolist()
        [2.0, 0.0]
    """
    check_one(backend, state, "get")
    indices = handles_of(backend, indices)
    lead = (checks.known_size("indices", indices.shape[0]),)
    leaves = backend.get(state, indices)
    return nest.unflatten(state.spec.plan.structure, leaves, backend.build_mapping, lead)


def items(backend: Backend, state: State) -> Nest:
    """All of the storage, unpacked.

    Args:
        state: the buffer; or a hash map, of which these are the keys by number, zeros behind the last.

    Returns:
        The item's structure, leaves [capacity, *shape]. The item of handle h lies in row `h % capacity`; rows never
        written are zero, and rows whose item was taken out (by a `Queue`, by `clear`) may hold it still. On torch these
        are views without a copy, and they never change afterwards. From compact storage (`frb.Compact`) all items are
        rebuilt, and rows of which the item is gone are zero. Transforms that work as one samples have no part in this:
        what is read is what is stored.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> rb.items(rb.add(state, (5.0,)))[0].tolist()
        [5.0, 0.0]
    """
    check_one(backend, state, "items")
    leaves = backend.items(state)
    return nest.unflatten(state.spec.plan.structure, leaves, backend.build_mapping, (state.spec.capacity,))


def is_live(backend: Backend, state: State, indices: ArrayLike) -> Array:
    """Whether the items that handles name are still stored.

    Args:
        state: the buffer.
        indices: int32 [B], handles.

    Returns:
        bool [B].

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> state = rb.add(state, (np.zeros(3, np.float32),))
        >>> rb.is_live(state, np.array([0, 1, 2, 3], np.int32)).tolist()
        [False, True, True, False]
    """
    check_one(backend, state, "is_live")
    return backend.look(state, functions.is_live, handles_of(backend, indices))


def priorities(backend: Backend, state: State, indices: ArrayLike) -> Array:
    """Read priorities, before alpha: as `update` takes them.

    Given back to `update` they change nothing, bit for bit. What is kept is the priority to the power alpha, so what is
    read is the number that was set up to some 2^-23 of itself, or 2^-23 / alpha for an alpha below 1; where alpha is 0
    it is 1 for whatever is positive.

    Args:
        state: the buffer.
        indices: int32 [B], handles.

    Returns:
        float32 [B], 0 where a handle's item is no longer stored, or may not be drawn any more (`max_times_sampled`).

    Raises:
        ValueError: if the sampler has no priorities.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4, sampler=frb.Prioritized(alpha=0.5))
        >>> state = rb.add(rb.init(spec), (np.zeros(2, np.float32),), priorities=np.array([9, 2], np.float32))
        >>> [round(p, 5) for p in rb.priorities(state, np.array([0, 1, 7], np.int32)).tolist()]
        [9.0, 2.0, 0.0]
    """
    check_one(backend, state, "priorities")
    checks.need_priorities(state.spec, "priorities")
    return backend.look(state, functions.priorities, handles_of(backend, indices))


def probabilities(backend: Backend, state: State, indices: ArrayLike) -> Array:
    """The probability with which the next draw gives each of some items.

    That is of one draw, the first of the next sample; of slices, that the first begins with this step. Over all items
    they add up to 1, unless nothing can be drawn. For samplers that leave nothing to chance the next item has 1 (of a
    `Queue` with lanes, that of each lane), and the others 0.

    Args:
        state: the buffer.
        indices: int32 [B], handles.

    Returns:
        float32 [B], 0 where a handle's item is no longer stored.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4, sampler=frb.Prioritized(alpha=1.0))
        >>> state = rb.add(rb.init(spec), (np.zeros(2, np.float32),), priorities=np.array([3, 1], np.float32))
        >>> rb.probabilities(state, np.array([0, 1, 7], np.int32)).tolist()
        [0.75, 0.25, 0.0]
    """
    check_one(backend, state, "probabilities")
    return backend.look(state, functions.probabilities, handles_of(backend, indices))


def newest(backend: Backend, state: State, n: int) -> Array:
    """The handles of the items that were added last: those of a batch just added.

    Args:
        state: the buffer.
        n: how many; with lanes, of each lane.

    Returns:
        int32 [n], the newest last; with lanes [n, E], as `add` takes steps [T, E]. -1 where so many are not stored.

    Raises:
        ValueError: for a writer that chooses slots (`MaxValue`, `Reservoir`): there nothing tells what came last.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4, sampler=frb.Prioritized())
        >>> state = rb.add(rb.init(spec), (np.zeros(3, np.float32),))
        >>> handles = rb.newest(state, 2)
        >>> handles.tolist(), rb.newest(state, 4).tolist()
        ([1, 2], [-1, 0, 1, 2])
    """
    check_one(backend, state, "newest")
    checks.need_order(state.spec, "newest")
    handles = backend.look(state, functions.newest, n=checks.count("newest", "n", n))
    return handles if state.spec.lanes is not None else handles.reshape(-1)


def size(backend: Backend, state: State, *, each: bool = False) -> Array:
    """How many items are stored, an int32 scalar; of a hash map its keys, of a forest its observations.

    Args:
        backend: the backend.
        state: the buffer, or a `Mixture`, whose buffers count together, up to 2^31 - 1; or a hash map, or a forest.
        each: of a mixture of K buffers the number of each, int32 [K]; what is a mixture itself counts as one.

    Raises:
        TypeError: for `each` of what is no mixture.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> int(rb.size(rb.add(state, (np.zeros(3, np.float32),))))
        2
    """
    backend.check_state(state, "size")
    if each:
        raise TypeError("size: expected a Mixture beside each=True, got a State, which is one buffer; leave it out")
    return backend.counter(state, counters.SIZE)


def can_sample(backend: Backend, state: State, n: int | None = None) -> Array:
    """Whether a batch of n can be drawn, a bool scalar.

    That is, at least n items are stored and some can be drawn; of slices, which may come again, whether there is any.

    Args:
        state: the buffer; or a `Mixture`, from which something can be drawn by its own shares, and whose buffers store
            at least n items together.
        n: by default the spec's batch size, else 1.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=8, batch_size=4))
        >>> state = rb.add(state, (np.zeros(3, np.float32),))
        >>> bool(rb.can_sample(state)), bool(rb.can_sample(state, 3))
        (False, True)
    """
    check_one(backend, state, "can_sample")
    needed = state.spec.batch_size or 1 if n is None else checks.needed(n)
    possible = backend.look(state, functions.drawable, n=max(min(needed, INT32_MAX), 1))
    return possible if needed <= INT32_MAX else possible & False


def counts(backend: Backend, state: State) -> Counts:
    """What the buffer has counted since it was made: what was refused or dropped, how many epochs are done; its cursor.

    Args:
        state: the buffer, or a mixture, whose buffers are counted together; or a hash map, or a forest, which count
            what they refused alone.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4, sampler=frb.WithoutReplacement())
        >>> state = rb.add(rb.init(spec), (np.zeros(4, np.float32),))
        >>> state, sample = rb.sample(state, rb.key(0), 3)
        >>> state, short = rb.sample(state, rb.key(1), 3)
        >>> counts = rb.counts(state)
        >>> int(counts.epochs_done), int(counts.stale), int(counts.cursor), short.mask.tolist()
        (1, 0, 4, [True, False, False])
    """
    backend.check_state(state, "counts")
    rejected, stale, invalid = (
        backend.counter(state, k) for k in (counters.REJECTED, counters.STALE, counters.INVALID)
    )
    refused, done = (_more(backend, state, name) for name in (REFUSED, EPOCHS_DONE))
    return Counts(rejected, stale, invalid, refused, state.lost, done, _cursor(backend, state))


def _cursor(backend: Backend, state: State) -> Array:
    if not state.spec.writer.in_order:
        size = backend.counter(state, counters.SIZE)
        return size - size - 1
    if state.spec.lanes is None:  # the handles of a single lane are its serial numbers
        return backend.counter(state, counters.CURSOR)
    return backend.look(state, functions.cursor)


# One number that sampler or writer keep; 0 for those that do not.
def _more(backend: Backend, state: State, name: str) -> Array:
    place = counters.place(state.spec.plan, name)
    if place is None:
        size = backend.counter(state, counters.SIZE)
        return size - size
    return backend.counter(state, place)
