"""A buffer whose lanes are dealt to the devices of a mesh, as a value; see `functional_rb.scale.deal`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from functional_rb.buffer import functions
from functional_rb.buffer.reader import Reader, TakeSnapshot
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core import counters
from functional_rb.core.counters import Counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.scale.deal import Dealing, check, deal
from functional_rb.structures import row_layout
from functional_rb.structures.ring import RingState
from jax_backend import compat, ops, rules

Axis = str | tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ShardedState(State):
    """A replay buffer whose lanes are dealt to the devices along an axis of a mesh.

    The arrays of `State` are those of the index, which has all lanes and of the items only what the sampler reads: they
    lie whole on each device.

    Attributes:
        part: the arrays of each shard's own buffer, one behind the other along their first axis, and divided along it;
            inside of `jax.shard_map` the device's own. (Stacked along an axis of their own they would be copied: XLA
            writes in place to an array, but not to the only row of one.)
        sharding: over which axis of which mesh; static, as the spec is.
    """

    part: Arrays
    sharding: NamedSharding

    instead: ClassVar[str] = "rb.unshard(state)"

    @property
    def axis(self) -> Axis:
        """The axis of the mesh, or several that count as one."""
        return axis_of(self.sharding)

    @property
    def dealing(self) -> Dealing:
        """How the lanes are dealt."""
        return deal(self.spec, shards_of(self.sharding))

    @property
    def index(self) -> State:
        """The buffer that all shards have."""
        return State(self.rows, self.wide, self.tree, self.counters, self.auxiliary, self.dealing.index)

    @property
    def own(self) -> State:
        """The device's own part; while it is mapped over the shards."""
        return State(*self.part, self.dealing.part)

    @property
    def is_mapped(self) -> bool:
        """Whether this is what `jax.shard_map` shows a device."""
        return bool(self.part.counters.shape[0] == counters.length(self.dealing.part.plan))

    def with_index(self, arrays: Arrays) -> ShardedState:
        """The same, with another index."""
        return dataclasses.replace(self, **arrays._asdict())

    def with_own(self, arrays: Arrays) -> ShardedState:
        """The same, with another part of the device's own."""
        return dataclasses.replace(self, part=arrays)

    def __repr__(self) -> str:
        """The description, and how it is divided; not the arrays."""
        return f"ShardedState({self.spec!r}, {self.sharding.spec} of {dict(self.sharding.mesh.shape)})"

    def reader(self, lasting: bool = False, snapshot: TakeSnapshot | None = None) -> Reader:
        """Read the arrays of the buffer put together on one device.

        Raises:
            ValueError: if the mesh is that of several processes, none of which has all of them.
        """
        if not self.counters.is_fully_addressable:
            raise ValueError(
                "save: expected a buffer whose shards are all in this process, got one over a mesh of several "
                "processes; checkpoints are written by one process"
            )
        return unshard(self).reader(lasting, snapshot)


jax.tree_util.register_dataclass(
    ShardedState,
    data_fields=("rows", "wide", "tree", "counters", "auxiliary", "part"),
    meta_fields=("spec", "sharding"),
)


def axis_of(sharding: NamedSharding) -> Axis:
    """The axis along which a sharding divides."""
    axis: Axis = sharding.spec[0]
    return axis


def shards_of(sharding: NamedSharding) -> int:
    """Into how many parts it divides."""
    axis, count = axis_of(sharding), 1
    for name in (axis,) if isinstance(axis, str) else axis:
        count *= sharding.mesh.shape[name]
    return count


def check_sharding(sharding: Any) -> None:
    """Refuse what names no axis of a mesh.

    Raises:
        TypeError: for what is no sharding by a mesh.
        ValueError: for one that divides nothing, or by another axis of arrays than the first.
    """
    example = 'NamedSharding(mesh, jax.P("d"))' if hasattr(jax, "P") else 'NamedSharding(mesh, PartitionSpec("d"))'
    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"init: sharding: expected a jax.sharding.NamedSharding such as {example}, got {sharding!r}")
    if len(sharding.spec) != 1 or not isinstance(sharding.spec[0], str | tuple) or not sharding.spec[0]:
        raise ValueError(
            f"init: sharding: expected one that names the axis of the mesh to which lanes are dealt, such as "
            f"{example}, got {sharding.spec}"
        )
    compat.explicit_axes(sharding.mesh)  # refuses such on an older JAX


def partition_specs(state: State) -> Any:
    """The `PartitionSpec`s of a buffer's arrays, for `in_specs` and `out_specs` of `jax.shard_map`.

    Args:
        state: a buffer, sharded or not.

    Returns:
        A pytree like the state. Of a sharded buffer the parts are divided along its axis, and all else is the same on
        each device; of another one all is.

    Example:
        >>> import functional_rb as frb
        >>> import jax_backend as rb
        >>> len(partition_specs(rb.init(frb.BufferSpec((frb.Unbounded(()),), 4))).counters)
        0
    """
    whole = jax.tree.map(lambda _: PartitionSpec(), state)
    if not isinstance(state, ShardedState):
        return whole
    return dataclasses.replace(whole, part=jax.tree.map(lambda _: PartitionSpec(state.axis), state.part))


def init(spec: BufferSpec, sharding: NamedSharding) -> State:
    """An empty buffer, dealt; on a single device an ordinary one, which is what it is there."""
    check_sharding(sharding)
    check(spec)
    return _maker(spec, sharding)()


@functools.lru_cache(maxsize=256)
def _maker(spec: BufferSpec, sharding: NamedSharding) -> Callable[[], State]:
    if shards_of(sharding) == 1:

        def make() -> State:
            with rules.promoting_ranks():
                return State(*functions.init(ops, spec), spec)
    else:
        dealing = deal(spec, shards_of(sharding))

        def make() -> State:
            with rules.promoting_ranks():
                index = functions.init(ops, dealing.index)
                part = functions.init(ops, dealing.part)
            parts = part.each(lambda x: jnp.broadcast_to(x, (dealing.shards, *x.shape)).reshape(-1, *x.shape[1:]))
            return ShardedState(*index, spec, parts, sharding)

    return _placed(make, sharding)


def _placed(make: Callable[..., Any], sharding: NamedSharding) -> Callable[..., Any]:
    """A program whose results lie where those of a dealt buffer belong."""

    def program(*given: Any) -> Any:
        specs = partition_specs(jax.eval_shape(make, *given))
        places = jax.tree.map(lambda spec: NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind), specs)
        return jax.jit(make, out_shardings=places)(*given)

    return program


# --- from and to a buffer on one device -----------------------------------------------------------------------------


@rules.transfers
def shard(state: State, sharding: NamedSharding) -> State:
    """Deal the lanes of a buffer to the devices along an axis of a mesh.

    Args:
        state: a buffer that is not sharded, such as one that was loaded.
        sharding: as for `init`.

    Returns:
        The sharded buffer: it holds and draws what the given one does, and handles stay as they are.

    Raises:
        TypeError: for what is no such state.
        ValueError: as `init` does, for a buffer that cannot be dealt.

    Example:
        >>> import functional_rb as frb
        >>> import jax_backend as rb
        >>> state = rb.init(frb.BufferSpec({"x": frb.Unbounded(())}, 8, lanes=2))
        >>> mesh = jax.make_mesh((1,), ("d",))
        >>> int(rb.size(shard(state, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))))
        0
    """
    if type(state) is not State:
        dealt = isinstance(state, ShardedState)
        remedy = "rb.unshard(state) puts its parts together" if dealt else "make one by rb.init(spec)"
        raise TypeError(f"shard: expected a state on one device, got {type(state).__name__}; {remedy}")
    state.check_alive()
    check_sharding(sharding)
    check(state.spec)
    if shards_of(sharding) == 1:
        return _placed(_as_it_is, sharding)(state)
    return _placed(functools.partial(_dealt, sharding), sharding)(state)


@rules.transfers
def unshard(state: State) -> State:
    """Put the parts of a sharded buffer together on one device.

    Args:
        state: a sharded buffer; another one is returned as it is.

    Returns:
        An ordinary state on the first device of the mesh, bit for bit the one that the same calls make of a buffer that
        is not sharded.

    Example:
        >>> import functional_rb as frb
        >>> import jax_backend as rb
        >>> state = rb.init(frb.BufferSpec((frb.Unbounded(()),), 4, lanes=2))
        >>> unshard(state) is state
        True
    """
    if not isinstance(state, ShardedState):
        return state
    state.check_alive()
    first = state.sharding.mesh.devices.flat[0]
    # By way of the host: what comes off explicit axes by `device_put` still counts as divided along them.
    with jax.default_device(first):
        whole: State = jax.jit(_together)(jax.device_get(state))
    return whole


def _as_it_is(state: State) -> State:
    return state


def _lanes_first(numbers: jax.Array, shards: int) -> jax.Array:
    """Numbers of each shard's lanes, [D, k * lanes_each], as those of all lanes, [k, D * lanes_each], for some k."""
    return jnp.moveaxis(numbers, 0, 1).reshape(numbers.shape[1], -1)


def _together(state: ShardedState) -> State:
    """The buffer of all lanes, of its index and its parts."""
    dealing, spec = state.dealing, state.spec
    index = counters.read(dealing.index.plan, state.counters)

    def whole(array: jax.Array) -> jax.Array:
        return array[: spec.capacity]

    vectors = state.part.counters.reshape(dealing.shards, -1)
    own = jax.vmap(lambda vector: counters.read(dealing.part.plan, vector).more)(vectors)
    more = {}
    for name, count in spec.plan.counter_names:
        if name in index.more:
            more[name] = index.more[name]
            continue
        words = count // dealing.lanes
        split = own[name].reshape(dealing.shards, words, dealing.lanes_each)
        more[name] = _lanes_first(split, dealing.shards)[:, : dealing.lanes].reshape(-1)
    numbers = dataclasses.replace(index, more=more)
    part = state.part
    auxiliary = {
        name: state.auxiliary[name] if name in state.auxiliary else whole(part.auxiliary[name])
        for name in spec.plan.auxiliary
    }
    vector = counters.write(ops, spec.plan, numbers)
    return State(whole(part.rows), tuple(map(whole, part.wide)), state.tree, vector, auxiliary, spec)


def _dealt(sharding: NamedSharding, state: State) -> ShardedState:
    """The inverse of `_together`."""
    spec = state.spec
    dealing = deal(spec, shards_of(sharding))
    known = counters.read(spec.plan, state.counters)
    index_plan, part_plan = dealing.index.plan, dealing.part.plan
    missing = dealing.shards * dealing.lanes_each - dealing.lanes

    def padded(array: jax.Array) -> jax.Array:
        padding = jnp.zeros((dealing.shards * dealing.slots_each - spec.capacity, *array.shape[1:]), array.dtype)
        return jnp.concatenate([array, padding])

    def of_lanes(numbers: jax.Array) -> jax.Array:
        """[k * lanes] as [D, k * lanes_each]."""
        rows = jnp.pad(numbers.reshape(-1, dealing.lanes), ((0, 0), (0, missing)))
        return jnp.moveaxis(rows.reshape(-1, dealing.shards, dealing.lanes_each), 1, 0).reshape(dealing.shards, -1)

    def vector(cursors: jax.Array, sizes: jax.Array, more: dict[str, jax.Array]) -> jax.Array:
        nothing = jnp.zeros((), jnp.int32)
        numbers = Counters(RingState(cursors, sizes), nothing, nothing, nothing, nothing, more)
        return counters.write(ops, part_plan, numbers)

    with rules.promoting_ranks():
        index_rows = functions.init(ops, dealing.index)
        slots = jnp.arange(spec.capacity, dtype=jnp.int32)
        kept = row_layout.unpack(ops, spec.plan.layout, state.rows, state.wide)
        draft = Draft.of(index_rows, index_plan)
        draft.store(ops, slots, None, None, [kept[k] for k in dealing.index_leaves])
        numbers = dataclasses.replace(known, more={name: known.more[name] for name, _ in index_plan.counter_names})
        index = Arrays(
            draft.rows,
            draft.wide,
            state.tree,
            counters.write(ops, index_plan, numbers),
            {name: state.auxiliary[name] for name in index_plan.auxiliary},
        )
        ends = known.ends
        own = {name: of_lanes(known.more[name]) for name, _ in part_plan.counter_names}
        part = Arrays(
            padded(state.rows),
            tuple(map(padded, state.wide)),
            None,
            jax.vmap(vector)(of_lanes(ends.cursors % part_plan.ring.limit), of_lanes(ends.sizes), own).reshape(-1),
            {name: padded(state.auxiliary[name]) for name in part_plan.auxiliary},
        )
    return ShardedState(*index, spec, part, sharding)


# --- between the devices, while something is mapped over them -------------------------------------------------------


def shard_number(state: ShardedState) -> jax.Array:
    """Which shard a device has, an int32 scalar."""
    return lax.axis_index(state.axis)


def gathered(state: ShardedState, words: jax.Array) -> jax.Array:
    """The words int32 [...] of all shards, [D, ...]: the same on each device, which `jax.shard_map` knows too.

    They are added up, each at its own place, since what an all-gather gives counts as different on each device.
    """
    place = jnp.arange(state.dealing.shards, dtype=jnp.int32).reshape(-1, *[1] * words.ndim)
    found: jax.Array = lax.psum(jnp.where(place == shard_number(state), words[None], 0), state.axis)
    return found


def scattered(state: ShardedState, rows: jax.Array) -> jax.Array:
    """Rows int32 [n, ...], added up over all shards, of which each gets n / D: one collective."""
    found: jax.Array = lax.psum_scatter(rows, state.axis, scatter_dimension=0, tiled=True)
    return found


def own_share(state: ShardedState, array: jax.Array) -> jax.Array:
    """The n / D rows of an array [n, ...], that all have, which belong to a device."""
    n = array.shape[0] // state.dealing.shards
    return lax.dynamic_slice_in_dim(array, shard_number(state) * n, n)
