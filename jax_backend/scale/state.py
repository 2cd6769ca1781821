"""A buffer that is dealt to the devices of a mesh, as a value; see `functional_rb.sharding.deal`."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer import functions
from functional_rb.buffer.reader import Reader, TakeSnapshot
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import SameState, State
from functional_rb.checkpoint.shards import Dealt
from functional_rb.core import counters
from functional_rb.core.draft import Arrays
from functional_rb.core.sample import Drawn
from functional_rb.sharding import regroup
from functional_rb.sharding.deal import Dealing, check, deal
from jax_backend import compat
from jax_backend.arrays import ops, rules
from jax_backend.compiling.compile import arrays_of
from jax_backend.scale.members import members

Axis = str | tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ShardedState(State):
    """A replay buffer that is dealt to the devices along an axis of a mesh.

    The arrays of `State` are those of the index, which has all lanes and of the items only what sampler and writer
    read: they lie whole on each device.

    Attributes:
        part: the arrays of each shard's own buffer, one behind the other along their first axis, and divided along it;
            inside of `jax.shard_map` the device's own. (Stacked along an axis of their own they would be copied: XLA
            writes in place to an array, but not to the only row of one.)
        sharding: over which axis of which mesh; static, as the spec is.
    """

    part: Arrays
    sharding: NamedSharding

    instead: ClassVar[str] = "rb.shard(state, None)"

    @property
    def axis(self) -> Axis:
        """The axis of the mesh, or several that count as one."""
        return axis_of(self.sharding)

    @property
    def dealing(self) -> Dealing:
        return deal(self.spec, shards_of(self.sharding))

    @property
    def index(self) -> State:
        """The buffer that all shards have."""
        return State(self.rows, self.wide, self.tree, self.counters, self.auxiliary, self.dealing.index)

    @property
    def own(self) -> State:
        """The part of the device that reads this inside of `jax.shard_map`."""
        return State(*self.part, self.dealing.part)

    @property
    def is_mapped(self) -> bool:
        """Whether this is the shard that one device sees inside of `jax.shard_map`."""
        # Outside of `jax.shard_map` the counters of all shards lie one behind the other.
        return bool(self.part.counters.shape[0] == counters.length(self.dealing.part.plan))

    def with_index(self, arrays: Arrays) -> ShardedState:
        return dataclasses.replace(self, **arrays._asdict())

    def with_own(self, arrays: Arrays) -> ShardedState:
        """This state with another part for the device that runs this."""
        return dataclasses.replace(self, part=arrays)

    def __repr__(self) -> str:
        return f"ShardedState({self.spec!r}, {self.sharding.spec} of {dict(self.sharding.mesh.shape)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a sharded buffer belongs to the devices of its mesh, and cannot be pickled; send rb.shard(state, None), "
            "which is an ordinary buffer, or frb.save it, and give sharding= to frb.load"
        )

    # Copies go by `__reduce__` where nothing else is said.
    def __copy__(self) -> ShardedState:
        return dataclasses.replace(self)

    def __deepcopy__(self, memo: dict[int, object]) -> ShardedState:
        copied: ShardedState = jax.tree.map(lambda x: copy.deepcopy(x, memo), self)
        return copied

    def reader(self, lasting: bool = False, snapshot: TakeSnapshot | None = None) -> Reader:
        return joined(self).reader(lasting, snapshot)

    def dealt(self) -> Dealt:
        self.check_alive()
        group = members(self.sharding, self.dealing.shards, once=True)
        # The index lies whole on each device, so any of this process's has it.
        index: Arrays = jax.tree.map(lambda x: x.addressable_data(0), arrays_of(self))
        parts = {k: State(*self._part_of(k), self.dealing.part) for k in group.own}
        return Dealt(self.spec, State(*index, self.dealing.index), parts, group)

    # The arrays of a shard on one of this process's devices.
    def _part_of(self, shard: int) -> Arrays:
        def rows_of_shard(x: jax.Array) -> jax.Array:
            first = shard * x.shape[0] // self.dealing.shards
            return next(block.data for block in x.addressable_shards if (block.index[0].start or 0) == first)

        part: Arrays = jax.tree.map(rows_of_shard, self.part)
        return part


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


def check_sharding(sharding: object) -> None:
    """Refuse what names no axis of a mesh."""
    example = 'NamedSharding(mesh, jax.P("d"))' if hasattr(jax, "P") else 'NamedSharding(mesh, PartitionSpec("d"))'
    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"init: sharding: expected a jax.sharding.NamedSharding such as {example}, got {sharding!r}")
    if len(sharding.spec) != 1 or not isinstance(sharding.spec[0], str | tuple) or not sharding.spec[0]:
        raise ValueError(
            f"init: sharding: expected one that names the axis of the mesh to which the buffer is dealt, such as "
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


# The same function for the same spec, so that JAX finds what it has compiled of it.
@functools.lru_cache(maxsize=256)
def _maker(spec: BufferSpec, sharding: NamedSharding) -> Callable[[], State]:
    if shards_of(sharding) == 1:

        def make() -> State:
            with rules.promoting_ranks():
                return State(*functions.init(ops.OPS, spec), spec)
    else:
        dealing = deal(spec, shards_of(sharding))

        def make() -> State:
            with rules.promoting_ranks():
                index = functions.init(ops.OPS, dealing.index)
                part = functions.init(ops.OPS, dealing.part)
            parts = part.each(lambda x: jnp.broadcast_to(x, (dealing.shards, *x.shape)).reshape(-1, *x.shape[1:]))
            return ShardedState(*index, spec, parts, sharding)

    return _placed(make, sharding)


def _placed(make: Callable[..., object], sharding: NamedSharding) -> Callable[..., Any]:
    def program(*arguments: object) -> Any:
        specs = partition_specs(jax.eval_shape(make, *arguments))
        places = jax.tree.map(lambda spec: NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind), specs)
        return jax.jit(make, out_shardings=places)(*arguments)

    return program


# --- from and to a buffer on one device -----------------------------------------------------------------------------


@rules.transfers
def shard(state: State[Drawn], sharding: NamedSharding | None) -> State[Drawn]:
    """Deal the lanes of a buffer, or its slots if its writer chooses these, to the devices along an axis of a mesh.

    Args:
        state: a buffer that is not sharded, such as one that was loaded.
        sharding: as for `init`. None puts the parts of a sharded buffer together on the first device of its mesh.

    Returns:
        The sharded buffer: it holds and draws what the given one does, and handles stay as they are. With None the
        state that the same calls make of a buffer that is not sharded, bit for bit.

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
        >>> shard(state, None) is state
        True
    """
    if sharding is None and isinstance(state, State):
        return joined(state)
    if type(state) is not State:
        dealt = isinstance(state, ShardedState)
        remedy = "rb.shard(state, None) puts its parts together" if dealt else "make one by rb.init(spec)"
        raise TypeError(f"shard: expected a state on one device, got {type(state).__name__}; {remedy}")
    state.check_alive()
    check_sharding(sharding)
    check(state.spec)
    count = shards_of(sharding)
    whole: Arrays = jax.device_get(arrays_of(state))
    index, parts = regroup.of_whole(state.spec, whole, count, members(sharding, count, once=False).own)
    return of_numpy(state.spec, index, parts, sharding)


@rules.transfers
def joined(state: State) -> SameState:
    """A state on the first device of a sharded buffer's mesh; one that is not sharded as it is."""
    if not isinstance(state, ShardedState):
        return state
    state.check_alive()
    if not state.counters.is_fully_addressable:
        raise ValueError(
            "shard: expected a buffer whose shards are all in this process, got one over a mesh of several "
            "processes; frb.save it, and load it in one: frb.load(path, jax_backend)"
        )
    on_host: ShardedState = jax.device_get(state)
    old, new = state.dealing, deal(state.spec, 1)

    def of_one(k: int, array: NumpyArray) -> NumpyArray:
        return np.split(array, old.shards)[k]

    parts = {k: on_host.part.each(functools.partial(of_one, k)) for k in range(old.shards)}
    index = arrays_of(on_host)
    whole = regroup.join(state.spec, index, regroup.regrouped(old, index, parts, new, 0))
    placed: Arrays = jax.device_put(whole, state.sharding.mesh.devices.flat[0])
    return State(*placed, state.spec)


def of_numpy(spec: BufferSpec, index: Arrays, parts: Mapping[int, Arrays], sharding: NamedSharding) -> SameState:
    """A buffer over a mesh, of arrays of NumPy: its index, and the parts of this process's devices by number."""
    mesh, count, kind = sharding.mesh, shards_of(sharding), sharding.memory_kind
    whole = NamedSharding(mesh, PartitionSpec(), memory_kind=kind)

    def everywhere(array: jax.Array) -> jax.Array:
        return jax.make_array_from_callback(array.shape, whole, lambda place: array[place])

    if count == 1:
        return State(*regroup.join(spec, index, parts[0]).each(everywhere), spec)
    divided = NamedSharding(mesh, PartitionSpec(axis_of(sharding)), memory_kind=kind)

    def one_behind_the_other(*arrays: Any) -> jax.Array:
        of_shard = dict(zip(parts, arrays, strict=True))
        n, *shape = arrays[0].shape

        def of_device(place: Any) -> Any:
            return of_shard[(place[0].start or 0) // n]

        return jax.make_array_from_callback((count * n, *shape), divided, of_device)

    dealt = jax.tree.map(one_behind_the_other, *parts.values())
    return ShardedState(*index.each(everywhere), spec, dealt, sharding)


# --- between the devices, while something is mapped over them -------------------------------------------------------


def shard_number(state: ShardedState) -> jax.Array:
    """Which shard a device has, an int32 scalar."""
    return lax.axis_index(state.axis)


def gathered(state: ShardedState, words: jax.Array) -> jax.Array:
    """The words int32 [...] of all shards, [D, ...]: the same on each device, which `jax.shard_map` knows too.

    They are added up, each at its own place, since what an all-gather gives counts as different on each device.
    """
    place = jnp.arange(state.dealing.shards, dtype=jnp.int32).reshape(-1, *[1] * words.ndim)
    summed: jax.Array = lax.psum(jnp.where(place == shard_number(state), words[None], 0), state.axis)
    return summed


def scattered(state: ShardedState, rows: jax.Array) -> jax.Array:
    """Rows int32 [n, ...], added up over all shards, of which each gets n / D: one collective."""
    summed: jax.Array = lax.psum_scatter(rows, state.axis, scatter_dimension=0, tiled=True)
    return summed


def own_share(state: ShardedState, array: jax.Array) -> jax.Array:
    """The n / D rows of an array [n, ...], that all have, which belong to a device."""
    n = array.shape[0] // state.dealing.shards
    return lax.dynamic_slice_in_dim(array, shard_number(state) * n, n)
