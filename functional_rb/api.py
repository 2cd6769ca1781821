"""The public functions, up to the arrays: checked and flattened here, carried out by a backend.

A backend binds each of these to itself and takes over its docstring; the examples are run with either one as `rb`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from functional_rb import checks, nest, ring
from functional_rb.buffer_spec import BufferSpec
from functional_rb.ops import Array
from functional_rb.samplers import Drawn
from functional_rb.specs import ArraySpec
from functional_rb.state import Sample, State

F = TypeVar("F", bound=Callable[..., Any])


class Backend(Protocol):
    """What carries out the checked calls."""

    def convert(self, leaf: Any, expected: ArraySpec, name: str) -> Array:
        """Make an array of the backend of a leaf, refusing what would change its dtype."""
        ...

    def check_state(self, state: Any, function: str) -> None:
        """Refuse what is no state of this backend."""
        ...

    def as_vector(self, array: Any, name: str) -> Any:
        """A mask, priorities, indices or beta as an array of the backend, if they came as NumPy's."""
        ...

    def unsupported(self, dtype: str) -> str | None:
        """Why a dtype cannot be stored, with the remedy; None if it can."""
        ...

    def build_mapping(self, container: type | None, parts: dict[str, Any], batch_shape: tuple[int, ...]) -> Any:
        """Make a mapping of its parts."""
        ...

    def init(self, spec: BufferSpec, device: Any) -> State:
        """An empty state."""
        ...

    def add(
        self, state: State, leaves: Sequence[Array], batch: int, mask: Array | None, priorities: Array | None
    ) -> State:
        """Write a batch."""
        ...

    def sample(self, state: State, key: Array, batch: int, beta: Any) -> tuple[list[Array], Drawn]:
        """Draw items."""
        ...

    def update(
        self, state: State, handles: Array, priorities: Array | None, replacements: Mapping[int, Array]
    ) -> State:
        """Set priorities and rewrite leaves."""
        ...

    def get(self, state: State, handles: Array) -> list[Array]:
        """Read items by handle."""
        ...

    def items(self, state: State) -> list[Array]:
        """All of the storage, unpacked."""
        ...

    def is_live(self, state: State, handles: Array) -> Array:
        """Whether handles name stored items."""
        ...

    def has_priority(self, state: State) -> Array:
        """Whether some item has a positive priority."""
        ...


def documented_by(core: Callable[..., Any]) -> Callable[[F], F]:
    """Give a bound function the docstring of the core function that it binds."""

    def attach(bound: F) -> F:
        bound.__doc__ = core.__doc__
        return bound

    return attach


def init(backend: Backend, spec: BufferSpec, device: Any = None) -> State:
    """Make an empty buffer.

    Args:
        spec: what it holds.
        device: where its arrays live; the backend's default if None.

    Returns:
        A state of size 0.

    Raises:
        TypeError: if `spec` is no `BufferSpec`, or the backend lacks a dtype of it, naming the leaf.

    Example:
        >>> state = rb.init(frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4))
        >>> int(rb.size(state))
        0
    """
    checks.check_spec(spec)
    checks.leaves_for_backend(spec, backend.unsupported)
    return backend.init(spec, device)


def add(backend: Backend, state: State, items: Any, mask: Any = None, priorities: Any = None) -> State:
    """Write items; the oldest are replaced once the buffer is full.

    Args:
        state: the buffer.
        items: a nest like `spec.item`: a batch, leaves [B, *shape], or one item, leaves [*shape]. Of a batch
            larger than the capacity the last `capacity` items are kept.
        mask: bool [B]; only the marked rows are written, at a fixed shape, so that it can be compiled.
        priorities: float32 [B], before alpha; by default new items get what `Prioritized.new_priority` says.
            A bad one (NaN, infinite, negative) is counted in `rejected(state)`, and its item gets the default.

    Returns:
        The new state. The given one still reads as it did.

    Raises:
        TypeError: for a leaf of another dtype or kind, naming it.
        ValueError: for a missing leaf, another structure, or a shape that does not fit, naming the leaf.

    Example:
        >>> state = rb.init(frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4))
        >>> state = rb.add(state, {"reward": np.arange(3, dtype=np.float32)})
        >>> state = rb.add(state, {"reward": 7.0})
        >>> int(rb.size(state)), rb.items(state)["reward"].tolist()
        (4, [0.0, 1.0, 2.0, 7.0])
    """
    backend.check_state(state, "add")
    if mask is not None:
        mask = backend.as_vector(mask, "mask")
    if priorities is not None:
        priorities = backend.as_vector(priorities, "priorities")
    batch = checks.batch(state.spec, items, backend.convert, mask, priorities)
    return backend.add(state, batch.leaves, batch.size, mask, priorities)


def sample(
    backend: Backend, state: State, key: Any, batch_size: int | None = None, beta: Any = None
) -> tuple[State, Sample[Any]]:
    """Draw items, with replacement.

    Args:
        state: the buffer.
        key: randomness, from `key(seed)` or `split`; the same key draws the same items.
        batch_size: B; by default the spec's. Static under compilation.
        beta: overrides the sampler's; a number or a float32 scalar, traced if you like.

    Returns:
        The state after drawing (the same one, for samplers that remember nothing), and the `Sample`.

    Raises:
        ValueError: if nothing can be drawn and that is known (not while tracing: then indices are -1, weights 0), if
            the batch size is missing, or if `beta` is given to a sampler without weights.

    Example:
        >>> spec = frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4, sampler=frb.Prioritized())
        >>> state = rb.add(rb.init(spec), {"reward": np.arange(3, dtype=np.float32)})
        >>> state, sample = rb.sample(state, rb.key(0), batch_size=2)
        >>> sample.items["reward"].shape[0], sample.weights.tolist()
        (2, [1.0, 1.0])
    """
    backend.check_state(state, "sample")
    spec = state.spec
    size = checks.batch_size(spec, batch_size)
    if not isinstance(beta, (int, float)):
        beta = backend.as_vector(beta, "beta")
    checks.check_beta(spec, beta)
    leaves, drawn = backend.sample(state, key, size, getattr(spec.sampler, "beta", 0.0) if beta is None else beta)
    items = nest.unflatten(spec.structure, leaves, backend.build_mapping, (size,))
    return state, Sample(items, drawn.handles, drawn.weights, drawn.probabilities)


def update(backend: Backend, state: State, indices: Any, priorities: Any = None, items: Any = None) -> State:
    """Set priorities, rewrite stored leaves, or both.

    Args:
        state: the buffer.
        indices: int32 [B], handles from `sample.indices`. One whose item has been overwritten since is dropped and
            counted in `stale(state)`. Of equal ones the last wins.
        priorities: float32 [B], before alpha. A bad one (NaN, infinite, negative) is dropped and counted in
            `rejected(state)`: its item keeps its priority.
        items: a nest with some or all leaves of `spec.item`, each [B, *shape], to store in place of the old ones.

    Returns:
        The new state. The given one still reads as it did.

    Raises:
        TypeError: for a dtype that does not fit.
        ValueError: for a shape that does not fit, an unknown leaf, or priorities for a sampler that has none.

    Example:
        >>> spec = frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4, sampler=frb.Prioritized(alpha=1.0))
        >>> state = rb.add(rb.init(spec), {"reward": np.arange(3, dtype=np.float32)})
        >>> state, sample = rb.sample(state, rb.key(0), batch_size=2)
        >>> state = rb.update(state, sample.indices, np.array([0.5, np.nan], np.float32))
        >>> int(rb.rejected(state))
        1
    """
    return backend.update(state, *check_update(backend, state, indices, priorities, items))


def check_update(
    backend: Backend, state: State, indices: Any, priorities: Any, items: Any
) -> tuple[Array, Array | None, dict[int, Array]]:
    """The checked arguments of `update`: handles, priorities, and the leaves to rewrite by position."""
    backend.check_state(state, "update")
    indices = backend.as_vector(indices, "indices")
    priorities = backend.as_vector(priorities, "priorities")
    checks.handles(indices)
    count = int(indices.shape[0])
    checks.new_priorities(state.spec, priorities, count)
    return indices, priorities, checks.replacements(state.spec, items, backend.convert, count)


def get(backend: Backend, state: State, indices: Any) -> Any:
    """Read items by handle.

    Args:
        state: the buffer.
        indices: int32 [B], handles.

    Returns:
        The items, leaves [B, *shape]; zeros where a handle's item is no longer stored (`is_live` tells).

    Example:
        >>> state = rb.init(frb.BufferSpec(item={"reward": frb.Unbounded(())}, capacity=4))
        >>> state = rb.add(state, {"reward": np.arange(3, dtype=np.float32)})
        >>> rb.get(state, np.array([2, 9], np.int32))["reward"].tolist()
        [2.0, 0.0]
    """
    backend.check_state(state, "get")
    indices = backend.as_vector(indices, "indices")
    checks.handles(indices)
    leaves = backend.get(state, indices)
    return nest.unflatten(state.spec.structure, leaves, backend.build_mapping, (int(indices.shape[0]),))


def items(backend: Backend, state: State) -> Any:
    """All of the storage, unpacked.

    Args:
        state: the buffer.

    Returns:
        The item's structure, leaves [capacity, *shape]. The item of handle h lies in row `h % capacity`; rows never
        written are zero. On torch these are views without a copy, and they never change afterwards.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> rb.items(rb.add(state, (5.0,)))[0].tolist()
        [5.0, 0.0]
    """
    backend.check_state(state, "items")
    leaves = backend.items(state)
    return nest.unflatten(state.spec.structure, leaves, backend.build_mapping, (state.spec.capacity,))


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
    backend.check_state(state, "is_live")
    indices = backend.as_vector(indices, "indices")
    checks.handles(indices)
    return backend.is_live(state, indices)


def size(backend: Backend, state: State) -> Array:
    """How many items are stored, an int32 scalar.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=2))
        >>> int(rb.size(rb.add(state, (np.zeros(3, np.float32),))))
        2
    """
    backend.check_state(state, "size")
    return ring.read(state.counters).size


def can_sample(backend: Backend, state: State, n: int | None = None) -> Array:
    """Whether at least n items are stored and some can be drawn, a bool scalar.

    Args:
        state: the buffer.
        n: by default the spec's batch size, else 1.

    Example:
        >>> state = rb.init(frb.BufferSpec(item=(frb.Unbounded(()),), capacity=8, batch_size=4))
        >>> state = rb.add(state, (np.zeros(3, np.float32),))
        >>> bool(rb.can_sample(state)), bool(rb.can_sample(state, 3))
        (False, True)
    """
    backend.check_state(state, "can_sample")
    needed = state.spec.batch_size or 1 if n is None else checks.count("can_sample", "n", n)
    enough = ring.read(state.counters).size >= max(needed, 1)
    return enough if state.tree is None else enough & backend.has_priority(state)


def rejected(backend: Backend, state: State) -> Array:
    """How many bad priorities (NaN, infinite, negative) have been refused, an int32 scalar."""
    backend.check_state(state, "rejected")
    return ring.read(state.counters).rejected


def stale(backend: Backend, state: State) -> Array:
    """How many handles of overwritten items `update` has dropped, an int32 scalar."""
    backend.check_state(state, "stale")
    return ring.read(state.counters).stale
