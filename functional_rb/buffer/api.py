"""The public functions, up to the arrays: checked and flattened here, carried out by a backend.

A backend binds each of these to itself and takes over its docstring; the examples are run with either one as `rb`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from functional_rb.base import nest
from functional_rb.base.containers import Registered
from functional_rb.base.object_arrays import is_non_tensor
from functional_rb.buffer import checks, functions, mapping, respec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, Crop, MaskedSample, S, SameState, Sample, SliceSample, State
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.core import counters
from functional_rb.core.counters import REFUSED
from functional_rb.core.item_function import ItemFunction
from functional_rb.core.strategy import Selection
from functional_rb.ops.protocol import Array
from functional_rb.samplers.epochs import EPOCHS_DONE
from functional_rb.specs import ArraySpec, freeze
from functional_rb.specs.regrouped import with_lead
from functional_rb.specs.values import Outline
from functional_rb.structures.ring import INT32_MAX
from functional_rb.transforms.map_items import map_items

F = TypeVar("F", bound=Callable[..., Any])
OF_DRAWS = frozenset({"weights", "probabilities"})
"""Fields of a sample that have one number for each draw, [B]."""
ARRAYS = OF_DRAWS | {"indices", "mask", "is_first", "is_last", "truncated"}
"""These, and the fields in the shape of the mask, which of slices is [B, length] or flat, [B * length]."""


class Backend(mapping.Mapper, Protocol):
    """What carries out the checked calls."""

    def convert(self, leaf: Any, expected: ArraySpec, name: str) -> Array:
        """Make an array of the backend of a leaf, refusing what would change its dtype."""

    def check_state(self, state: Any, function: str) -> None:
        """Refuse what is no state of this backend."""

    def as_vector(self, array: Any, name: str) -> Any:
        """A mask, priorities, indices or beta as an array of the backend, if they came as NumPy's."""

    def unsupported(self, dtype: str) -> str | None:
        """Why a dtype cannot be stored, with the remedy; None if it can."""

    def build_mapping(
        self, container: type | Registered | None, parts: dict[str, Any], batch_shape: tuple[int, ...]
    ) -> Any:
        """Make a mapping of its parts."""

    def init(self, spec: BufferSpec, device: Any) -> State:
        """Make an empty state of a spec."""

    def add(
        self, state: State, leaves: Sequence[Array], batch: int, mask: Array | None, priorities: Array | None, key: Any
    ) -> SameState:
        """Write a batch of checked items; returns the new state."""

    def value_of(self, scalar: Any) -> float | None:
        """The number in a scalar array; None while tracing, and where reading it would wait for an accelerator."""

    def known(self, state: State, mask: Array | None) -> tuple[Any, Any] | None:
        """The state's counters and a mask as NumPy arrays, None while tracing."""

    def inside(self, outline: Outline, leaves: Sequence[Array]) -> Sequence[Array]:
        """Whether leaves [B, *shape] lie in the domain of each unit, bool [B]."""

    def count_invalid(self, state: State, outside: Array) -> SameState:
        """The same state, in which the items that bool [B] marks are counted as invalid."""

    def sample(self, state: State, key: Array, batch: int, beta: Any) -> tuple[SameState, list[Array], Selection]:
        """Draw a batch of items; returns the new state, the items' leaves and their selection."""

    def update(
        self, state: State, handles: Array, priorities: Array | None, replacements: Mapping[int, Array]
    ) -> SameState:
        """Set priorities and rewrite leaves."""

    def clear(self, state: State) -> State:
        """Take all items out."""

    def with_spec(self, state: State, spec: BufferSpec) -> State:
        """Another spec, with the items in the same place."""

    def get(self, state: State, handles: Array) -> list[Array]:
        """Read items by handle."""

    def items(self, state: State) -> list[Array]:
        """All of the storage, unpacked."""

    def is_live(self, state: State, handles: Array) -> Array:
        """Whether handles name stored items."""

    def look(
        self, state: State, function: Callable[..., Array], handles: Array | None = None, n: int | None = None
    ) -> Array:
        """What a function of `buffer` reads off a state: it takes handles int32 [B], or a number, or nothing."""

    def split(self, key: Any) -> Any:
        """Two keys from one."""

    def random_crop(
        self, leaves: Sequence[Array], lengths: Array | None, key: Any, length: int
    ) -> tuple[list[Array], Array, Array]:
        """Crop windows at random places, as `transforms.crop.random_crop` does."""

    def drawable(self, state: State, n: int) -> Array:
        """Whether n can be drawn."""


def documented_by(core: Callable[..., Any]) -> Callable[[F], F]:
    """Give a bound function the docstring of the core function that it binds."""

    def attach(bound: F) -> F:
        bound.__doc__ = core.__doc__
        return bound

    return attach


def init(
    backend: Backend,
    spec: BufferSpec,
    device: Any = None,
    items: Any = None,
    validate: bool = False,
    fill: Callable[..., State] | None = None,
) -> State:
    """Make a buffer.

    Args:
        spec: what it holds.
        device: where its arrays live; the backend's default if None.
        items: what it holds at first, a batch as for `add`; how an `Immutable` buffer is filled.
        validate: whether these are checked to lie in the domains of their specs, as by `add`.

    Returns:
        A state of size 0, or one that holds the items.

    Raises:
        TypeError: if `spec` is no `BufferSpec`, or the backend lacks a dtype of it, naming the leaf.
        ValueError: if an `Immutable` buffer gets no items, or more than fit, or compact storage (`frb.Compact`) has no
            room for the observations of all of them; if a `Reservoir` gets some, as there is no
            key to draw by; with `validate`, for an item outside of its spec.

    Example:
        >>> state = rb.init(frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4))
        >>> int(rb.size(state))
        0
        >>> spec = frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4, writer=frb.Immutable())
        >>> int(rb.size(rb.init(spec, items={"reward": np.arange(3, dtype=np.float32)})))
        3
    """
    checks.check_spec(spec)
    checks.leaves_for_backend(spec, backend.unsupported)
    mapping.check_gives(backend, spec)
    state = backend.init(spec, device)
    if items is None:
        checks.may_start_empty(spec)
        return state
    checks.may_start_filled(spec)
    batch = checks.batch(spec, items, backend.convert, None, None)
    checks.fits_at_first(spec, batch.size)
    mask, outside = _validated(backend, state, batch.leaves, None) if validate else (None, None)
    leaves = _stored(backend, spec, batch.leaves, batch.size, None, mask)
    state = (fill or backend.add)(state, leaves, batch.size, mask, None, None)  # nobody else has the state
    state = state if outside is None else backend.count_invalid(state, outside)
    checks.holds_all(spec, batch.size, backend.known(state, None))
    return state


def add(
    backend: Backend,
    state: S,
    items: Any,
    mask: Any = None,
    priorities: Any = None,
    key: Any = None,
    validate: bool = False,
    time_major: bool = True,
    to: Any = None,
) -> S:
    """Write items; where they go, and what they replace, is the writer's to say: by default the oldest are replaced.

    Args:
        state: the buffer.
        items: a nest like `spec.item`: a batch, leaves [B, *shape], or one item, leaves [*shape]. Of a batch
            larger than the capacity the last `capacity` items are kept. With lanes, leaves [E, *shape] for one step
            of each lane, or [T, E, *shape].
        mask: bool [B] (with lanes [E] or [T, E]); only the marked rows are written, at a fixed shape, so that it can be
            compiled. An environment that did not step leaves no gap in its lane.
        priorities: float32 in the shape of the mask, before alpha, or others that `update` takes; by default new items
            get what `Prioritized.new_priority` says. A bad one (NaN, infinite, negative) is counted in
            `rejected(state)`, and its item gets the default.
        key: randomness, from `key(seed)` or `split`, for a writer that draws (`Reservoir`), or a function of added
            items (`map_items`) that does.
        validate: whether items are checked to lie in the domains of their specs, beyond shape and dtype: between
            bounds, allowed choices, no NaN. One that does not is an error, before anything is written; while tracing
            it is left out as if it were not marked, and counted in `invalid(state)`.
        time_major: False for leaves [E, T, *shape], as collectors give them, with mask and priorities [E, T].
        to: the number of the buffer in a `Mixture`; a tuple of numbers for one in a mixture in it.

    Returns:
        The new state. The given one still reads as it did.

    Raises:
        TypeError: for a leaf of another dtype or kind, naming it.
        ValueError: for a missing leaf, another structure, or a shape that does not fit, naming the leaf; for items
            that a full `StopWhenFull` buffer has no room for, where that is known (while tracing they are
            refused and counted in `refused(state)`); for any write to an `Immutable` one; for a missing key; with
            `validate`, for an item outside of its spec, naming leaf and row.

    Example:
        >>> state = rb.init(frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4))
        >>> state = rb.add(state, {"reward": np.arange(3, dtype=np.float32)})
        >>> state = rb.add(state, {"reward": 7.0})
        >>> int(rb.size(state)), rb.items(state)["reward"].tolist()
        (4, [0.0, 1.0, 2.0, 7.0])
    """
    if to is not None:
        raise ValueError("add: to was given, but there is a single buffer; leave it out, or add to a Mixture")
    *given, outside = check_add(backend, state, items, mask, priorities, key, validate, "add", time_major)
    state = backend.add(state, *given)
    return state if outside is None else backend.count_invalid(state, outside)


def check_add(
    backend: Backend,
    state: State,
    items: Any,
    mask: Any,
    priorities: Any,
    key: Any,
    validate: bool,
    function: str,
    time_major: bool,
) -> tuple[list[Array], int, Array | None, Array | None, Any, Array | None]:
    """The checked arguments of `add`: leaves [B, *shape], B, mask [B], priorities [B], the key, and invalid [B]."""
    _check_one(backend, state, function)
    spec = state.spec
    if mask is not None:
        mask = backend.as_vector(mask, "mask")
    if priorities is not None:
        priorities = backend.as_vector(priorities, "priorities")
    batch = checks.batch(spec, items, backend.convert, mask, priorities, time_major)
    outside = None
    if validate:
        mask, outside = _validated(backend, state, batch.leaves, batch.mask)
        batch = batch._replace(mask=mask)
    if not spec.plan.fused or not spec.writer.overwrites:
        checks.check_writable(spec)
        checks.check_timely(spec, batch.priorities)
        checks.check_writer_key(spec, key)
        if not spec.writer.overwrites:
            checks.check_room(spec, batch.size, backend.known(state, batch.mask))
    leaves = _stored(backend, spec, batch.leaves, batch.size, key, batch.mask)
    return leaves, batch.size, batch.mask, batch.priorities, key, outside


def _stored(
    backend: Backend, spec: BufferSpec, leaves: list[Array], batch: int, key: Any, mask: Array | None
) -> list[Array]:
    """The leaves that are stored of leaves that are added."""
    return leaves if spec.on_add is None else mapping.stored(backend, spec, leaves, batch, key, mask)


def _validated(
    backend: Backend, state: State, leaves: Sequence[Array], mask: Array | None
) -> tuple[Array | None, Array | None]:
    """Which rows are written, and which of those marked lie outside of their specs, bool [B]; None if none can.

    Raises:
        ValueError: for a marked row outside of its spec, where that is known, naming leaf and row.
    """
    outline = state.spec.added
    found = backend.inside(outline, leaves)
    if not found:
        return mask, None
    valid = functools.reduce(operator.and_, found)
    outside = ~valid if mask is None else ~valid & mask
    known = backend.known(state, outside)
    if known is not None:
        checks.check_valid(outline, leaves, [~one for one in found], known[1])
        return mask, None
    return valid if mask is None else valid & mask, outside


def sample(
    backend: Backend, state: S, key: Any, batch_size: int | None = None, beta: Any = None, p: Any = None
) -> tuple[S, AnySample[Any]]:
    """Draw items, as the sampler of the spec says.

    What is stored is data: gradients through the items of a sample are zero, see the guide.

    Args:
        state: the buffer, or a `Mixture` of several.
        key: randomness, from `key(seed)` or `split`; the same key draws the same items.
        batch_size: B; by default the spec's. Static under compilation.
        beta: overrides the sampler's; a number in [0, 100] or a float32 scalar, traced if you like: then weights are
            NaN where it is NaN or negative. For a mixture also where no sampler has one.
        p: float32 [K], overrides how much of a batch each buffer of a mixture gives; traced if you like.

    Returns:
        The state after drawing (the same one, for samplers that remember nothing), and the `Sample`; of samplers
            that tell more, a `MaskedSample` or a `SliceSample`. Of a mixture the indices are [B, 2], buffer and handle,
            with a column more for each level of mixtures in it, and `extras["buffer_ids"]` int32 [B] are the buffers.

    Raises:
        ValueError: if nothing can be drawn and that is known (not while tracing: then indices are -1, weights 0), if
            the batch size is missing, if `beta` is given to a sampler without weights, or `p` to a single buffer, or if
            one is out of range and that is known; for a mixture whose buffers hold different items or give slices of
            different form, or a batch size that its equal parts do not divide.

    Example:
        >>> spec = frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4, sampler=frb.Prioritized())
        >>> state = rb.add(rb.init(spec), {"reward": np.arange(3, dtype=np.float32)})
        >>> state, sample = rb.sample(state, rb.key(0), batch_size=2)
        >>> sample.items["reward"].shape[0], sample.weights.tolist()
        (2, [1.0, 1.0])
    """
    if p is not None:
        raise ValueError(
            "sample: p was given, but a single buffer gives all of the batch; leave it out, or sample a Mixture"
        )
    size, beta = check_sample(backend, state, batch_size, beta, "sample")
    state, leaves, selection = backend.sample(state, key, size, beta)
    return state, as_sample(backend, state.spec, size, key, leaves, selection)


def check_sample(backend: Backend, state: State, batch_size: Any, beta: Any, function: str) -> tuple[int, Any]:
    """The checked arguments of `sample`: how many to draw, and beta."""
    _check_one(backend, state, function)
    spec = state.spec
    size = checks.batch_size(spec, batch_size)
    if not isinstance(beta, (int, float)):
        beta = backend.as_vector(beta, "beta")
    checks.check_beta(spec, beta, backend.value_of)
    if not spec.plan.fused:
        spec.sampler.check_batch(spec.plan, size)
        checks.rows_of_sample(spec, size)
    return size, getattr(spec.sampler, "beta", 0.0) if beta is None else beta


def as_sample(
    backend: Backend, spec: BufferSpec, size: int, key: Any, leaves: list[Array], selection: Selection
) -> AnySample[Any]:
    """A sample of leaves, put together as items, and of the selection's handles, weights, probabilities and mask."""
    extras = dict(selection.extras)  # the caller's own, as it may add to it
    lead = (size,) if spec.plan.fused else spec.sampler.leading_shape(size)
    if spec.on_sample is None:
        items = nest.unflatten(spec.plan.structure, leaves, backend.build_mapping, lead)
    else:
        items = mapping.given_out(backend, spec, leaves, lead, key, selection.mask)
    if selection.mask is None:
        return Sample(items, selection.handles, selection.weights, selection.probabilities, extras)
    if selection.is_first is None:
        return MaskedSample(
            items, selection.handles, selection.weights, selection.probabilities, selection.mask, extras
        )
    slices: SliceSample[Any] = SliceSample(items, *selection._replace(extras=extras))
    return slices


def update(backend: Backend, state: S, indices: Any, priorities: Any = None, items: Any = None) -> S:
    """Set priorities, rewrite stored leaves, or both.

    Args:
        state: the buffer.
        indices: int32 [B], handles from `sample.indices`; of a mixture [B, 2]. One whose item has been overwritten
            since is dropped and counted in `stale(state)`; -1, as of what could not be drawn, is just dropped. Of equal
            ones the last wins.
        priorities: float32 [B] or [B, 1], before alpha; also of another float dtype if float32 has all of the numbers
            exactly. A bad one (NaN, infinite, negative) is dropped and counted in
            `rejected(state)`: its item keeps its priority.
        items: a nest with some or all leaves of `spec.stored`, each [B, *shape], to store in place of the old ones.

    Returns:
        The new state. The given one still reads as it did.

    Raises:
        TypeError: for a dtype that does not fit.
        ValueError: for a shape that does not fit, an unknown leaf, priorities for a sampler that has none, a leaf that
            tells a sampler of slices where trajectories end, or one that compact storage shares between items.

    Example:
        >>> spec = frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4, sampler=frb.Prioritized(alpha=1.0))
        >>> state = rb.add(rb.init(spec), {"reward": np.arange(3, dtype=np.float32)})
        >>> state, sample = rb.sample(state, rb.key(0), batch_size=2)
        >>> state = rb.update(state, sample.indices, np.array([0.5, np.nan], np.float32))
        >>> int(rb.rejected(state))
        1
    """
    return backend.update(state, *check_update(backend, state, indices, priorities, items, "update"))


def check_update(
    backend: Backend, state: State, indices: Any, priorities: Any, items: Any, function: str
) -> tuple[Array, Array | None, dict[int, Array]]:
    """The checked arguments of `update`: handles, priorities, and the leaves to rewrite by position."""
    _check_one(backend, state, function)
    indices = _handles(backend, indices)
    count = int(indices.shape[0])
    priorities = checks.new_priorities(state.spec, backend.as_vector(priorities, "priorities"), count)
    return indices, priorities, checks.replacements(state.spec, items, backend.convert, count)


def clear(backend: Backend, state: State) -> State:
    """Take all items out.

    What is added from now on is stored and drawn as in a buffer that `init` has just made: trajectories begin, steps
    that waited for n-step returns are dropped, a first priority counts 1, a `Reservoir` has seen nothing. Only the
    handles go on, so no earlier one names a new item (until their numbers begin again, after some
    2^31 items): a late `update` drops it and counts it in `stale(state)`. What has been counted stays so: `rejected`,
    `stale`, `refused`, `invalid`, `lost`, and `epochs_done`, where an epoch under way counts as done.

    The rows are not written to: of a large buffer this costs what its sum tree does, and in mapped files the room on
    the disk stays reserved for what is to come. Python objects are let go.

    Args:
        state: the buffer.

    Returns:
        The new state, of size 0. The given one still reads as it did.

    Raises:
        ValueError: for an `Immutable` buffer.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4))
        >>> state = rb.clear(rb.add(state, (np.zeros(3, np.float32),)))
        >>> state = rb.add(state, (np.ones(2, np.float32),))
        >>> int(rb.size(state)), rb.is_live(state, np.arange(5, dtype=np.int32)).tolist()
        (2, [False, False, False, True, True])
    """
    check_clear(backend, state, "clear")
    return backend.clear(state)


def check_clear(backend: Backend, state: State, function: str) -> None:
    """Refuse to empty what can never be filled again."""
    _check_one(backend, state, function)
    checks.check_writable(state.spec)


def with_spec(
    backend: Backend, state: State, spec: BufferSpec, elsewhere: Callable[[State, BufferSpec], State]
) -> State:
    """Give a buffer another spec: sampler, writer, capacity, batch size, storage.

    The new state is as if the items had been added to a buffer of the new spec, the oldest first, with their
    priorities. In particular:

    - A smaller capacity keeps the newest items, of each lane; `MaxValue` keeps the best.
    - Another `alpha` (which may be annealed so) makes `priority ** alpha` anew of numbers near the priorities, exact to
      1.5 + new / min(old, 1) units in the last place; an item without a priority gets that of a new one.
    - Another sampler or transform finds the steps in their episodes where the old one kept them; else the oldest stored
      step of each lane counts as the first of its trajectory. Epochs begin anew; how often items were drawn is kept
      where it was counted and is asked for.
    - Handles go on where every item can stay in its slot, and with a single lane under another capacity too (until
      their numbers begin again, after some 2^31 items). Otherwise all old handles are stale; none ever names another
      item.
    - What has been counted stays so: `rejected`, `stale`, `refused`, `invalid`, `epochs_done`.

    It takes O(capacity), or, where only beta, the batch size and the like change, nothing. Where items stay in their
    slots (the same capacity, storage and kind of writer) no row is copied.

    Args:
        state: the buffer.
        spec: the new spec; its items have the same leaves, shapes and dtypes. Static under `jax.jit`.

    Returns:
        The new state. The given one still reads as it did.

    Raises:
        ValueError: for what would change items or has no meaning, naming the field: other leaves, lanes, compact
            storage, transforms of what is stored; a `Reservoir` of another capacity, or instead of another writer; a
            ring instead of a writer that chooses slots; an alpha above 0 instead of 0; a capacity into which the items
            of a buffer that loses none do not fit, where that is known (else the newest stay); files that are in use.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4)
        >>> state = rb.add(rb.init(spec), (np.arange(4, dtype=np.float32),))
        >>> larger = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=8, sampler=frb.Prioritized())
        >>> state = rb.with_spec(state, larger)
        >>> state = rb.update(state, np.array([3]), np.array([2], np.float32))
        >>> int(rb.size(state)), rb.get(state, np.array([3]))[0].tolist()
        (4, [3.0])
        >>> rb.priorities(state, np.array([2, 3])).tolist()
        [1.0, 2.0]
    """
    _check_one(backend, state, "with_spec")
    checks.check_spec(spec, "with_spec")
    if spec == state.spec:
        return state
    checks.leaves_for_backend(spec, backend.unsupported)
    respec.check(state.spec, spec)
    if not spec.writer.overwrites:
        known = backend.known(state, None)
        if known is not None:
            respec.check_room(state.spec, spec, counters.read(state.spec.plan, known[0]).ends.sizes)
    if not respec.same_place(state.spec, spec):
        return elsewhere(state, spec)
    if isinstance(spec.storage, Memmap) and not respec.stays(state.spec, spec):
        respec.check_path(spec)
        return elsewhere(state, spec)
    return backend.with_spec(state, spec)


def get(backend: Backend, state: State, indices: Any) -> Any:
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
    _check_one(backend, state, "get")
    indices = _handles(backend, indices)
    leaves = backend.get(state, indices)
    return nest.unflatten(state.spec.plan.structure, leaves, backend.build_mapping, (int(indices.shape[0]),))


def items(backend: Backend, state: State) -> Any:
    """All of the storage, unpacked.

    Args:
        state: the buffer.

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
    _check_one(backend, state, "items")
    leaves = backend.items(state)
    return nest.unflatten(state.spec.plan.structure, leaves, backend.build_mapping, (state.spec.capacity,))


def is_live(backend: Backend, state: State, indices: Any) -> Array:
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
    _check_one(backend, state, "is_live")
    return backend.is_live(state, _handles(backend, indices))


def priorities(backend: Backend, state: State, indices: Any) -> Array:
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
    _check_one(backend, state, "priorities")
    checks.need_priorities(state.spec, "priorities")
    return backend.look(state, functions.priorities, _handles(backend, indices))


def probabilities(backend: Backend, state: State, indices: Any) -> Array:
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
    _check_one(backend, state, "probabilities")
    return backend.look(state, functions.probabilities, _handles(backend, indices))


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
    _check_one(backend, state, "newest")
    checks.need_order(state.spec, "newest")
    found = backend.look(state, functions.newest, n=checks.count("newest", "n", n))
    return found if state.spec.lanes is not None else found.reshape(-1)


def cursor(backend: Backend, state: State) -> Array:
    """The handle that the next item gets; it will lie in slot `handle % capacity`.

    Args:
        state: the buffer.

    Returns:
        int32 scalar; with lanes [E], one for each lane.

    Raises:
        ValueError: for a writer that chooses slots (`MaxValue`, `Reservoir`).

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> int(rb.cursor(rb.add(state, (np.zeros(3, np.float32),))))
        3
    """
    _check_one(backend, state, "cursor")
    checks.need_order(state.spec, "cursor")
    found = backend.look(state, functions.cursor)
    return found if state.spec.lanes is not None else found[0]


def _handles(backend: Backend, indices: Any) -> Array:
    indices = backend.as_vector(indices, "indices")
    checks.handles(indices)
    return indices


def size(backend: Backend, state: State) -> Array:
    """How many items are stored, an int32 scalar.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> int(rb.size(rb.add(state, (np.zeros(3, np.float32),))))
        2
    """
    backend.check_state(state, "size")
    return state.counters[..., counters.SIZE]


def can_sample(backend: Backend, state: State, n: int | None = None) -> Array:
    """Whether a batch of n can be drawn, a bool scalar.

    That is, at least n items are stored and some can be drawn; of slices, which may come again, whether there is any.

    Args:
        state: the buffer.
        n: by default the spec's batch size, else 1.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=8, batch_size=4))
        >>> state = rb.add(state, (np.zeros(3, np.float32),))
        >>> bool(rb.can_sample(state)), bool(rb.can_sample(state, 3))
        (False, True)
    """
    _check_one(backend, state, "can_sample")
    needed = state.spec.batch_size or 1 if n is None else checks.needed(n)
    possible = backend.drawable(state, max(min(needed, INT32_MAX), 1))
    return possible if needed <= INT32_MAX else possible & False


def rejected(backend: Backend, state: State) -> Array:
    """How many bad priorities (NaN, infinite, negative) have been refused, an int32 scalar."""
    backend.check_state(state, "rejected")
    return state.counters[..., counters.REJECTED]


def stale(backend: Backend, state: State) -> Array:
    """How many handles of overwritten items `update` has dropped, an int32 scalar."""
    backend.check_state(state, "stale")
    return state.counters[..., counters.STALE]


def invalid(backend: Backend, state: State) -> Array:
    """How many items outside of their specs `add(validate=True)` has left out while tracing, an int32 scalar."""
    backend.check_state(state, "invalid")
    return state.counters[..., counters.INVALID]


def refused(backend: Backend, state: State) -> Array:
    """How many items the writer has refused, an int32 scalar: for want of room, or because their rank was NaN."""
    backend.check_state(state, "refused")
    return _more(state, REFUSED)


def lost(backend: Backend, state: State) -> Array:
    """How many items writers of a shared buffer were adding when they died, an int32 scalar; 0 for other buffers.

    These items are not in the buffer; of the stored ones, it gave up those that they were to replace, and no others.

    Example:
        >>> int(rb.lost(rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))))
        0
    """
    backend.check_state(state, "lost")
    return state.lost


def epochs_done(backend: Backend, state: State) -> Array:
    """How many epochs (passes without replacement) are done, an int32 scalar; 0 for samplers that have none.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=4, sampler=frb.WithoutReplacement())
        >>> state = rb.add(rb.init(spec), (np.zeros(4, np.float32),))
        >>> state, sample = rb.sample(state, rb.key(0), 3)
        >>> state, short = rb.sample(state, rb.key(1), 3)
        >>> int(rb.epochs_done(state)), short.mask.tolist()
        (1, [True, False, False])
    """
    backend.check_state(state, "epochs_done")
    return _more(state, EPOCHS_DONE)


def epochs(
    backend: Backend, state: State, key: Any, batch_size: int | None = None, n: int = 1
) -> Generator[tuple[State, AnySample[Any]], State | None, None]:
    """Go through the buffer n times, batch by batch, the last batch of an epoch without its padding.

    Args:
        state: a buffer whose sampler is `WithoutReplacement` or `SlicesWithoutReplacement`. An epoch that is under
            way counts as the first.
        key: randomness, from `key(seed)` or `split`.
        batch_size: by default the spec's.
        n: how many epochs.

    Yields:
        The state after each draw, and the sample. To go on with another state (after `update`, say), send it.

    Raises:
        ValueError: for another sampler, a batch size of 0, or as `sample` does.

    Example:
        >>> spec = frb.BufferSpec(item=(frb.Unbounded(()),), capacity=8, sampler=frb.WithoutReplacement(shuffle=False))
        >>> state = rb.add(rb.init(spec), (np.arange(5, dtype=np.float32),))
        >>> [sample.items[0].tolist() for state, sample in rb.epochs(state, rb.key(0), 2)]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]
    """
    _check_one(backend, state, "epochs")
    checks.check_epochs(state.spec, batch_size)
    wanted = int(epochs_done(backend, state)) + checks.count("epochs", "n", n)
    while int(epochs_done(backend, state)) < wanted:
        key, now = backend.split(key)
        state, selection = sample(backend, state, now, batch_size)
        following = yield state, _unpadded(backend, state.spec, selection)
        state = state if following is None else following


def _unpadded(backend: Backend, spec: BufferSpec, sample: AnySample[Any]) -> AnySample[Any]:
    """A sample without the rows behind the last real one."""
    mask = sample.mask
    assert mask is not None
    rows = int(mask.reshape(sample.weights.shape[0], -1)[:, 0].sum())
    steps = mask.shape[0] // max(sample.weights.shape[0], 1) * rows  # of flat slices there are several in a row
    leaves, structure = mapping.taken_apart(spec, sample.items)
    items = nest.unflatten(
        structure, [leaf[:steps] for leaf in leaves], backend.build_mapping, (steps, *mask.shape[1:])
    )
    extras = {name: x[:steps] for name, x in sample.extras.items()}
    arrays = {name: x[: rows if name in OF_DRAWS else steps] for name, x in sample._asdict().items() if name in ARRAYS}
    return sample._replace(items=items, extras=extras, **arrays)


def map_spec(
    backend: mapping.Mapper, fn: Callable[..., Any] | ItemFunction, item: Any, keyed: bool = False, masked: bool = False
) -> Any:
    """The spec of the items that a function of items gives, found by an abstract evaluation: no array is made.

    Args:
        fn: a function for `frb.map_items`, of a batch of items; one of `frb.items` says itself what it gives.
        item: the spec of the items that it is given, or a nest of specs.
        keyed: whether it takes a key.
        masked: whether it takes `mask=`, which is None here.

    Returns:
        A nest of specs, for `map_items(fn, at="add", gives=...)`; of arrays of any values, `Unbounded` or `Binary`.

    Raises:
        TypeError: if `fn` is no function, or gives a leaf that is no array.
        ValueError: if it fails on such items, or gives a leaf without an entry for each of them.

    Example:
        >>> rb.map_spec(lambda item: {"twice": item["x"] * 2}, {"x": frb.Unbounded((3,))})
        Composite({'twice': Unbounded((3,))})
    """
    transform = map_items(fn, keyed=keyed, masked=masked)
    if isinstance(fn, ItemFunction):
        return freeze(transform.spec_after(item, 1))
    return mapping.item_spec(backend, transform.bound(item, Outline.of(item, "map_spec"), 1))


def sample_spec(backend: mapping.Mapper, spec: BufferSpec, batch_size: int | None = None) -> Any:
    """The spec of the items of a whole sample, its leading axes included.

    Args:
        spec: of the buffer.
        batch_size: as for `sample`; by default the spec's.

    Returns:
        A nest of specs; with a function of items (`map_items`) whose result is not told beforehand they are found by
        an abstract evaluation.

    Raises:
        ValueError: as `map_spec` does.

    Example:
        >>> halved = frb.map_items(lambda item: {"x": item["x"][..., ::2]})
        >>> rb.sample_spec(frb.BufferSpec({"x": frb.Unbounded((4,))}, 10, transforms=halved), batch_size=8)
        Composite({'x': Unbounded((8, 2))})
    """
    checks.check_spec(spec, "sample_spec")
    lead = spec.sampler.leading_shape(checks.batch_size(spec, batch_size))
    one = spec.stored
    if spec.on_sample is not None:
        one = spec.on_sample.spec_after(spec.stored, len(lead))
        if one is None:
            return mapping.batch_spec(backend, spec.on_sample, lead)
    return with_lead(one, lambda shape: (*lead, *shape))


def random_crop(backend: Backend, items: Any, key: Any, length: int, lengths: Any = None) -> Crop[Any]:
    """Cut a random piece out of each of a batch of trajectories, for buffers whose items are whole trajectories.

    Args:
        items: a nest of arrays [B, T, *shape], such as `sample.items`.
        key: randomness, from `key(seed)` or `split`.
        length: steps of a piece.
        lengths: int32 [B], how many of the T steps are real; T by default. The rest is padding.

    Returns:
        The pieces, [B, length, *shape], every start from which a piece is whole being equally likely, with their
        starts and a mask; a trajectory shorter than a piece comes from its start on, masked behind its end.

    Raises:
        TypeError: for a leaf that is no array of the backend, or lengths that are not int32.
        ValueError: if a leaf is not [B, T, ...] as the first one is, or `length` is not from 1 to T.

    Example:
        >>> whole = {"reward": np.arange(10, dtype=np.float32)[None]}
        >>> piece = rb.random_crop(whole, rb.key(0), length=3)
        >>> start = int(piece.starts[0])
        >>> piece.items["reward"][0].tolist() == [start, start + 1, start + 2]
        True
    """
    leaves, structure = nest.flatten(
        items, lambda x: is_non_tensor(x) or (hasattr(x, "dtype") and not hasattr(x, "keys"))
    )
    names = [nest.show(path) for path in structure.paths]
    arrays = [backend.as_vector(leaf, f"leaf {name!r}") for name, leaf in zip(names, leaves, strict=True)]
    batch = checks.crop(names, arrays, length, backend.unsupported)
    if lengths is not None:
        lengths = backend.as_vector(lengths, "lengths")
        checks.crop_lengths(lengths, batch)
    cut, starts, mask = backend.random_crop(arrays, lengths, key, length)
    return Crop(nest.unflatten(structure, cut, backend.build_mapping, (batch, length)), starts, mask)


def _more(state: State, name: str) -> Array:
    """One number that sampler or writer keep; 0 for those that do not."""
    place = counters.place(state.spec.plan, name)
    return state.counters[..., counters.SIZE] * 0 if place is None else state.counters[..., place]


def _check_one(backend: Backend, state: State, function: str) -> None:
    """Refuse what is no state of the backend, and a stack of states, which only vmap takes apart."""
    backend.check_state(state, function)
    if len(state.axes) != 1:
        raise checks.not_one(state.axes, function)
