"""The public functions that write to buffers and draw from them: checked and flattened here, carried out by a backend.

A backend binds each of these to itself and takes over its docstring; the examples are run with either one as `rb`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from functional_rb.base.arrays import ArrayLike, BackendArray, DeviceLike, Nest, PRNGKey
from functional_rb.buffer import checked_items, checks, mapping, respec
from functional_rb.buffer.backend import Backend, check_one, handles_of
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import S, SameState, State
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.core import counters
from functional_rb.core.sample import AnySample, sample_of
from functional_rb.core.strategy import Selection
from functional_rb.ops.protocol import Array


def init(
    backend: Backend,
    spec: BufferSpec,
    device: DeviceLike = None,
    items: Nest = None,
    validate: bool = False,
    fill: Callable[..., State] | None = None,
) -> State:
    """Make a buffer; or an empty hash map of a `frb.HashMapSpec`, or a forest or trees of their specs in `frb.trees`.

    Args:
        spec: what it holds.
        device: where its arrays live; the backend's default if None.
        items: what it holds at first, a batch as for `add`; how an `Immutable` buffer is filled. Of a
            `frb.trees.TreeSpec` the roots, a `frb.trees.Expansion`: content of B nodes, prior [B, A], value [B].
        validate: whether these are checked to lie in the domains of their specs, as by `add`.
        sharding: on JAX, a `jax.sharding.NamedSharding` by the axis of a mesh to whose devices the buffer is dealt, in
            place of a device; on torch a process group, or a `DeviceMesh` of one axis. See docs/scale.md.

    Returns:
        A state of size 0, or one that holds the items. Of a `TreeSpec` a batch of B trees of one node each.

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
    check_init(backend, spec, items)
    state = backend.init(spec, device)
    if items is None:
        return state
    batch = checked_items.batch(spec, items, backend.convert, None, None)
    checks.fits_at_first(spec, batch.size)
    mask, outside = _validated(backend, state, batch.leaves, None) if validate else (None, None)
    leaves = mapping.stored(backend, spec, batch.leaves, batch.size, None, mask)
    state = (fill or backend.add)(state, batch._replace(leaves=leaves, mask=mask), None)  # nobody else has the state
    state = state if outside is None else backend.count_invalid(state, outside)
    if spec.plan.frames is not None:
        checks.holds_all(spec, batch.size, backend.known(state, None))
    return state


def check_init(backend: Backend, spec: Any, items: Nest) -> None:
    """Refuse what no buffer can be made of; what the items are is looked at as they are written."""
    checks.check_spec(spec)
    checks.leaves_for_backend(spec, backend.unsupported)
    mapping.check_gives(backend, spec)
    checks.check_first_items(spec, items is not None)


def add(
    backend: Backend,
    state: S,
    items: Nest,
    mask: ArrayLike = None,
    priorities: ArrayLike = None,
    key: PRNGKey = None,
    validate: bool = False,
    time_major: bool = True,
    to: object = None,
) -> S:
    """Write items; where they go, and what they replace, is the writer's to say: by default the oldest are replaced.

    A hash map (`frb.HashMapSpec`) takes keys, a forest (`frb.trees.ForestSpec`) steps in TED, both with a mask.

    Args:
        state: the buffer.
        items: a nest like `spec.item`: a batch, leaves [B, *shape], or one item, leaves [*shape]. Of a batch
            larger than the capacity the last `capacity` items are kept. With lanes, leaves [E, *shape] for one step
            of each lane, or [T, E, *shape].
        mask: bool [B] (with lanes [E] or [T, E]); only the marked rows are written, at a fixed shape, so that it can be
            compiled. An environment that did not step leaves no gap in its lane.
        priorities: float32 in the shape of the mask, before alpha, or others that `update` takes; by default new items
            get what `Prioritized.new_priority` says. A bad one (NaN, infinite, negative) is counted in
            `counts(state).rejected`, and its item gets the default.
        key: randomness, from `key(seed)` or `split`, for a writer that draws (`Reservoir`), or a function of added
            items (`map_items`) that does.
        validate: whether items are checked to lie in the domains of their specs, beyond shape and dtype: between
            bounds, allowed choices, no NaN. One that does not is an error, before anything is written; while tracing
            it is left out as if it were not marked, and counted in `counts(state).invalid`.
        time_major: False for leaves [E, T, *shape], as collectors give them, with mask and priorities [E, T].
        to: the number of the buffer in a `Mixture`; a tuple of numbers for one in a mixture in it.

    Returns:
        The new state. The given one still reads as it did. Of a hash map also what became of each key: `ids` int32
        [*batch], -1 where it is masked or found no room, and `is_new` bool [*batch].

    Raises:
        TypeError: for a leaf of another dtype or kind, naming it.
        ValueError: for a missing leaf, another structure, or a shape that does not fit, naming the leaf; for items
            that a full `StopWhenFull` buffer has no room for, where that is known (while tracing they are
            refused and counted in `rb.counts`); for any write to an `Immutable` one; for a missing key; with
            `validate`, for an item outside of its spec, naming leaf and row.

    Example:
        >>> state = rb.init(frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4))
        >>> state = rb.add(state, {"reward": np.arange(3, dtype=np.float32)})
        >>> state = rb.add(state, {"reward": 7.0})
        >>> int(rb.size(state)), rb.items(state)["reward"].tolist()
        (4, [0.0, 1.0, 2.0, 7.0])
    """
    checks.check_single("add", to=to)
    given = Given(items, mask, priorities, key, validate, time_major)
    batch, outside = check_add(backend, state, given, "add")
    state = backend.add(state, batch, key)
    return state if outside is None else backend.count_invalid(state, outside)


class Given(NamedTuple):
    """What `add` is given for one buffer, as it comes; see there."""

    items: Nest
    mask: ArrayLike = None
    priorities: ArrayLike = None
    key: PRNGKey = None
    validate: bool = False
    time_major: bool = True


def check_add(backend: Backend, state: State, given: Given, function: str) -> tuple[Batch, BackendArray | None]:
    """The batch that `add` is given, checked, and which of its items are invalid, bool [B]; None if none can be."""
    check_one(backend, state, function)
    spec, key = state.spec, given.key
    mask = None if given.mask is None else backend.as_vector(given.mask, "mask")
    priorities = None if given.priorities is None else backend.as_vector(given.priorities, "priorities")
    batch = checked_items.batch(spec, given.items, backend.convert, mask, priorities, given.time_major)
    outside = None
    if given.validate:
        mask, outside = _validated(backend, state, batch.leaves, batch.mask)
        batch = batch._replace(mask=mask)
    checks.check_writable(spec)
    checks.check_timely(spec, batch.priorities)
    checks.check_writer_key(spec, key)
    # Asked of these alone, as to look at the counters waits for an accelerator.
    if not spec.writer.overwrites:
        fullest = state.fullest_after(batch.size)
        if fullest is None or fullest > spec.plan.ring.length:
            checks.check_room(spec, batch.size, backend.known(state, batch.mask))
    leaves = mapping.stored(backend, spec, batch.leaves, batch.size, key, batch.mask)
    return batch._replace(leaves=leaves), outside


def _validated(
    backend: Backend, state: State, leaves: Sequence[Array], mask: Array | None
) -> tuple[Array | None, Array | None]:
    """Which rows are written, and which of those marked lie outside of their specs, bool [B]; None if none can.

    Raises:
        ValueError: for a marked row outside of its spec, where that is known, naming leaf and row.
    """
    outline = state.spec.added
    in_domain = backend.inside(outline, leaves)
    if not in_domain:
        return mask, None
    valid = functools.reduce(operator.and_, in_domain)
    outside = ~valid if mask is None else ~valid & mask
    known = backend.known(state, outside)
    if known is not None:
        checks.check_valid(outline, leaves, [~one for one in in_domain], known[1])
        return mask, None
    return valid if mask is None else valid & mask, outside


def sample(
    backend: Backend, state: S, key: PRNGKey, batch_size: int | None = None, beta: ArrayLike = None, p: object = None
) -> tuple[S, AnySample[Nest]]:
    """Draw items, as the sampler of the spec says.

    What is stored is data: gradients through the items of a sample are zero, see the guide.

    Args:
        state: the buffer, or a `Mixture` of several.
        key: randomness, from `key(seed)` or `split`; the same key draws the same items.
        batch_size: B; by default the spec's. Static under compilation.
        beta: overrides the sampler's; a number in [0, 100] or a float32 scalar, traced if you like: then weights are
            NaN where it is NaN or negative. For a mixture also where no sampler has one.
        p: float32 [K], overrides how much of a batch each buffer of a mixture gives; traced if you like.
        axis_name: on JAX, inside of `jax.shard_map`, the axis along which the buffer is sharded; another is refused.
            The batch size is that of all devices, of which each gets its part, [B / D].
        group: on torch, in place of it, the process group that the buffer is sharded over; another is refused.
        draw: of a sharded buffer: "global", what a buffer on one device draws, bit for bit; "local", as many
            items of each device's own, with the weights of that law, so that nothing is moved. See docs/scale.md.

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
    checks.check_single("sample", p=p)
    checks.check_not_a_size(key, batch_size, "sample")
    size, beta = check_sample(backend, state, batch_size, beta, "sample")
    state, leaves, selection = backend.sample(state, key, size, beta)
    return state, as_sample(backend, state.spec, size, key, leaves, selection)


def check_sample(
    backend: Backend, state: State, batch_size: object, beta: ArrayLike, function: str
) -> tuple[int, object]:
    """The checked arguments of `sample`: how many to draw, and beta."""
    check_one(backend, state, function)
    spec = state.spec
    size = checks.batch_size(spec, batch_size)
    if beta is not None:
        if not isinstance(beta, (int, float)):
            beta = backend.as_vector(beta, "beta")
        checks.check_beta(spec, beta, backend.value_of)
    spec.sampler.check_batch(spec.plan, size)
    checks.rows_of_sample(spec, size)
    return size, getattr(spec.sampler, "beta", 0.0) if beta is None else beta


def as_sample(
    backend: Backend, spec: BufferSpec, size: int, key: PRNGKey, leaves: list[BackendArray], selection: Selection
) -> AnySample[Nest]:
    """A sample of leaves, put together as items, and of the selection's handles, weights, probabilities and mask."""
    lead = spec.sampler.leading_shape(size)
    items = mapping.given_out(backend, spec, leaves, lead, key, selection.mask)
    return sample_of(items, selection._replace(extras=dict(selection.extras)))  # the caller's own, to add to


def update(
    backend: Backend,
    state: S,
    indices: ArrayLike = None,
    priorities: ArrayLike = None,
    items: Nest = None,
    version: ArrayLike = None,
) -> S:
    """Set priorities, rewrite stored leaves, or tell which version of the policy learns; or several of these.

    Args:
        state: the buffer.
        indices: int32 [B], handles from `sample.indices`, or a list of some; of a mixture [B, 2]. One whose item has
            been overwritten since is dropped and counted in `rb.counts`; -1, as of what could not be drawn, is just
            dropped. Of equal ones the last wins.
        priorities: float32 [B] or [B, 1], before alpha; also of another dtype of floats or whole numbers if float32 has
            all of the numbers exactly. A bad one (NaN, infinite, negative) is dropped and counted in
            `counts(state).rejected`: its item keeps its priority.
        items: a nest with some or all leaves of `spec.stored`, each [B, *shape], to store in place of the old ones.
        version: of the policy that learns, for `frb.Staleness`: an int, or an integer scalar, traced if you like. It
            takes a pass over all items. Without indices it is all that is set.

    Returns:
        The new state. The given one still reads as it did.

    Raises:
        TypeError: for a dtype that does not fit, or neither indices nor a version.
        ValueError: for a shape that does not fit, an unknown leaf, priorities for a sampler that has none, a version
            for one that compares none, a leaf that tells a sampler where trajectories end or how stale an item is, or
            one that compact storage shares between items.

    Example:
        >>> spec = frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4, sampler=frb.Prioritized(alpha=1.0))
        >>> state = rb.add(rb.init(spec), {"reward": np.arange(3, dtype=np.float32)})
        >>> state, sample = rb.sample(state, rb.key(0), batch_size=2)
        >>> state = rb.update(state, sample.indices, np.array([0.5, np.nan], np.float32))
        >>> int(rb.counts(state).rejected)
        1
    """
    advanced = check_version(backend, state, version, "update")
    if advanced is None or of_items(indices, priorities, items):
        state = backend.update(state, *check_update(backend, state, indices, priorities, items, "update"))
    return state if advanced is None else backend.advance(state, advanced)


def of_items(*given: object) -> bool:
    """Whether `update` is given anything about items: it may be a version alone."""
    return any(x is not None for x in given)


def check_version(backend: Backend, state: State, version: ArrayLike, function: str) -> ArrayLike:
    """The version of the policy that learns, an int within int32 or an integer scalar; None if none is given."""
    if version is None:
        return None
    check_one(backend, state, function)
    checks.check_version(state.spec, version, function)
    if isinstance(version, int):
        return (version + 2**31) % 2**32 - 2**31  # as versions are compared
    return backend.as_vector(version, "version")


def check_update(
    backend: Backend, state: State, indices: ArrayLike, priorities: ArrayLike, items: Nest, function: str
) -> tuple[BackendArray, BackendArray | None, dict[int, BackendArray]]:
    """The checked arguments of `update`: handles, priorities, and the leaves to rewrite by position."""
    check_one(backend, state, function)
    handles = handles_of(backend, indices)
    count = checks.known_size("indices", handles.shape[0])
    checks.check_unpacked(items, function)
    if priorities is not None:
        priorities = backend.as_vector(priorities, "priorities")
        checks.check_prioritized(state.spec, "update")
        priorities = checks.one_for_each(priorities, count)
    return handles, priorities, checked_items.replacements(state.spec, items, backend.convert, count)


def clear(backend: Backend, state: S) -> S:
    """Take all items out.

    What is added from now on is stored and drawn as in a buffer that `init` has just made: trajectories begin, steps
    that waited for n-step returns are dropped, a first priority counts 1, a `Reservoir` has seen nothing. Only the
    handles go on, so no earlier one names a new item (until their numbers begin again, after some
    2^31 items): a late `update` drops it, and `rb.counts` tells so. What has been counted stays counted, and an epoch
    under way counts as done.

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
    check_one(backend, state, function)
    checks.check_writable(state.spec)


def with_spec(backend: Backend, state: S, spec: Nest, elsewhere: Callable[[State, BufferSpec], SameState]) -> S:
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
    - What has been counted stays so, see `counts`.

    It takes O(capacity), or, where only beta, the batch size and the like change, nothing. Where items stay in their
    slots (the same capacity, storage and kind of writer) no row is copied.

    Args:
        state: the buffer, or a mixture.
        spec: the new spec; its items have the same leaves, shapes and dtypes. Static under `jax.jit`. For a mixture one
            for each of its buffers, or None for those that stay as they are.

    Returns:
        The new state, or mixture. The given one still reads as it did.

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
    check_one(backend, state, "with_spec")
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
