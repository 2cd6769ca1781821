"""The public functions on sharded buffers: the engine of `ShardedState`.

All processes of the group call the same functions in the same order, with the same keys, as they do collectives. Each
of them gives the steps of its own lanes, and gets its own share of a batch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from functional_rb.base.arrays import ArrayLike, BackendArray, DeviceLike, Nest, NumpyArray, PRNGKey
from functional_rb.buffer import api, checks, functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import SameState
from functional_rb.buffer.state import State as CoreState
from functional_rb.core import counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.sample import AnySample
from functional_rb.core.strategy import Selection
from functional_rb.ops.protocol import Array, Ops
from functional_rb.sharding import adding, asked, deal, follow, local, shares
from functional_rb.sharding.adding import Shard
from torch_backend.arrays import ops, random
from torch_backend.arrays.convert import check_known, number
from torch_backend.engines import execute
from torch_backend.engines.execute import as_vector as as_vector
from torch_backend.engines.execute import build_mapping as build_mapping
from torch_backend.engines.execute import convert as convert
from torch_backend.engines.execute import evaluated as evaluated
from torch_backend.engines.execute import inside as inside
from torch_backend.engines.execute import map_items as map_items
from torch_backend.engines.execute import split as split
from torch_backend.engines.execute import unsupported as unsupported
from torch_backend.engines.execute import value_of as value_of
from torch_backend.memory import library
from torch_backend.memory.state import State
from torch_backend.scale.exchange import exchanged, gathered, on_device_of
from torch_backend.scale.state import ShardedState, group_of


def init(spec: Any, device: DeviceLike, items: Nest, validate: bool, sharding: object) -> CoreState:
    """Make a buffer over a process group; with a group of one process an ordinary buffer."""
    api.check_init(_ENGINE, spec, items)
    group = group_of(sharding)
    deal.check(spec)
    shards = torch.distributed.get_world_size(group)
    if shards == 1:
        return api.init(execute, spec, device, items, validate)
    dealing = deal.deal(spec, shards)
    state = ShardedState(execute.init(dealing.index, device), execute.init(dealing.part, device), spec, group)
    if items is None:
        return state
    filled: CoreState = add_items(state, api.Given(items, validate=validate), "add_")
    return filled


def check_state(state: object, function: str) -> None:
    checks.check_state(state, function)
    assert isinstance(state, CoreState)
    state.check_alive()
    if torch.compiler.is_compiling():
        raise TypeError(
            f"{function}: torch.compile cannot trace what the processes of a sharded buffer tell each other; call "
            f"{function} outside of the compiled function"
        )


def known(state: CoreState, mask: torch.Tensor | None) -> tuple[NumpyArray, NumpyArray | None]:
    vector: torch.Tensor = state.counters
    return vector.cpu().numpy(), None if mask is None else mask.cpu().numpy()


# --- writing --------------------------------------------------------------------------------------------------------


def add_items(state: ShardedState, given: api.Given, function: str) -> SameState:
    """Note the steps of all lanes in the index, and write to this process's part what belongs there."""
    check_state(state, function)
    dealing, old_part, key = state.dealing, state.part, given.key
    own_key = None if key is None else random.split(random.check_key(key), dealing.shards)[state.rank]
    view = CoreState(old_part.counters, (), None, old_part.counters, {}, dealing.asked)
    batch, outside = api.check_add(_ENGINE, view, given._replace(key=own_key), function)
    assert outside is None  # what lies outside is known, and an error
    in_place = function == "add_" and not dealing.part_tells  # else the state is there until all have told the same
    device = old_part.counters.device
    if batch.mask is not None and not dealing.is_even:
        batch = batch._replace(mask=batch.mask.to(device))
    # A writer that draws chooses by one key of all.
    words = dealing.index.writer.words
    alike = key.cpu().numpy().tobytes() if words else b""
    write = execute.add_ if in_place else execute.add
    shard = Shard(
        ops.OPS,
        dealing,
        _shard_number(state, old_part.counters),
        index=state.index,
        part=old_part,
        add=lambda buffer, batch: write(buffer, batch, None),
        run=execute.write_by_ if in_place else execute.write_by,
        read=execute.read_by,
        everyones=functools.partial(_of_all_lanes, state, alike=alike),
        draws=lambda rows, words: library.numbers(key, (rows, words), device),
    )
    index, part = adding.added(shard, batch)
    if in_place and index is state.index:  # nothing was added
        index, part = execute.renamed(index), execute.renamed(part)
    if function == "add_" and not in_place:
        index, part = execute.taken_over(state.index, index), execute.taken_over(old_part, part)
    return state.followed_by(index, part)


# Which shard this process has, an int32 scalar where a tensor is.
def _shard_number(state: ShardedState, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(state.rank, dtype=torch.int32, device=like.device)


# Tensors [steps * lanes_each, *shape] of own lanes as those of all, [steps * lanes, *shape]; None stays None.
def _of_all_lanes(state: ShardedState, tensors: Sequence[torch.Tensor | None], alike: bytes) -> list[Any]:
    present, device = [x for x in tensors if x is not None], state.index.counters.device
    of_all = iter(gathered(state, present, alike) if present else ())
    return [None if x is None else deal.of_all_lanes(ops.OPS, state.dealing, next(of_all)).to(device) for x in tensors]


def update_items(
    function: str, state: ShardedState, indices: object, priorities: object, items: object, version: object
) -> SameState:
    """Set the priorities that all processes give, rewrite leaves where their items lie, and tell a version."""
    check_state(state, function)
    version = api.check_version(_ENGINE, state, version, function)
    alike = b"" if version is None else _version_in_bytes(state, version)
    if version is None or api.of_items(indices, priorities, items):
        state = _updated(state, indices, priorities, items, function, alike)
    else:  # other versions in other processes are an error before anything is written
        gathered(state, [_shard_number(state, state.index.counters).reshape(1)], alike)
    if version is None:
        return state
    if function == "update":
        return state.followed_by(execute.advance(state.index, version))
    return state.followed_by(execute.advance_(state.index, version), execute.renamed(state.part))


def _version_in_bytes(state: ShardedState, version: BackendArray) -> bytes:
    check_known(version, state.index.counters.device)
    return str(int(version)).encode()


def _updated(
    state: ShardedState, indices: object, priorities: object, items: object, function: str, alike: bytes
) -> ShardedState:
    handles, priorities, replacements = api.check_update(_ENGINE, state, indices, priorities, items, function)
    priorities = None if priorities is None else priorities.reshape(len(handles))
    operands = [handles, *([] if priorities is None else [priorities]), *replacements.values()]
    handles, *rest = [x.flatten(0, 1) for x in gathered(state, operands, alike)]
    priorities = None if priorities is None else rest.pop(0)
    replacements = dict(zip(replacements, rest, strict=True))
    in_place = function.endswith("_")
    write = execute.update_ if in_place else execute.update
    dealing, part = state.dealing, None
    if replacements:
        live = execute.look(state.index, functions.is_live, handles)
        slots, held = _own_slots(state, handles, live)
        named = execute.look(state.part, _handles_in, slots)
        named = torch.where(held, named, torch.full_like(named, functions.NOTHING))
        part = write(state.part, named, None, replacements)
    elif in_place:
        part = execute.renamed(state.part)
    read = {k: replacements[position] for k, position in enumerate(dealing.index_leaves) if position in replacements}
    return state.followed_by(write(state.index, handles, priorities, read), part)


def _handles_in(ops: Ops, arrays: Arrays, spec: BufferSpec, slots: Array) -> Array:
    return Draft.of(arrays, spec.plan).handles_of(ops, slots)


def clear(state: ShardedState) -> ShardedState:
    return state.followed_by(execute.clear(state.index), execute.clear(state.part))


def clear_(state: ShardedState) -> ShardedState:
    return state.followed_by(execute.clear_(state.index), execute.clear_(state.part))


def with_spec(state: ShardedState, spec: BufferSpec) -> ShardedState:
    deal.check(spec)
    dealing, old = deal.deal(spec, state.dealing.shards), state.dealing
    rearranged = spec.writer != state.spec.writer and (dealing.by_slots or old.by_slots)
    if dealing.index.item != old.index.item or dealing.slots_each != old.slots_each or rearranged:
        raise ValueError(
            "with_spec: a sharded buffer keeps its capacity, a writer that chooses slots stays, and a sampler can only "
            "take the place of another that reads the same leaves; make a new buffer by rb.init, and add the items of "
            "this one"
        )
    index, part = execute.with_spec(state.index, dealing.index), execute.with_spec(state.part, dealing.part)
    return ShardedState(index, part, spec, state.group, state.process)


# --- drawing --------------------------------------------------------------------------------------------------------


def sample_items(
    state: ShardedState,
    key: PRNGKey,
    batch_size: int | None,
    beta: ArrayLike,
    p: object,
    axis_name: None,
    draw: str,
    function: str,
) -> tuple[SameState, AnySample[Nest]]:
    """This process's share of a batch of `batch_size`, drawn from a sharded buffer for all processes."""
    checks.check_single(function, p=p)
    checks.check_not_a_size(key, batch_size, function)
    check_state(state, function)
    random.check_key(key)
    size, beta = asked.check_sample(_ENGINE, state, batch_size, beta, draw, function)
    asked.check_shares(state.dealing, size, draw)
    in_place = function == "sample_"
    drawn = _drawn_among_own if draw == "local" else _drawn_among_all
    index, leaves, selection = drawn(state, key, size, beta, in_place)
    part = execute.renamed(state.part) if in_place else None
    if state.spec.sampler.takes_out:
        # What the sampler has taken out of the index leaves this process's part too.
        number = _shard_number(state, index.counters)

        def taken_out(ops: Ops, arrays: Arrays, spec: BufferSpec) -> Arrays:
            left = follow.emptied(ops, state.dealing, index.counters, arrays.counters, number)
            return arrays._replace(counters=left)

        write_by = execute.write_by_ if in_place else execute.write_by
        part = write_by(state.part if part is None else part, taken_out)
    if state.spec.on_sample is not None:  # each process maps its share by draws of its own
        key = random.split(key, state.dealing.shards)[state.rank]
    batch = api.as_sample(_ENGINE, state.spec, size // state.dealing.shards, key, leaves, selection)
    return state.followed_by(index, part), batch


def check_asked(state: object, axis_name: object, group: object, draw: object, function: str) -> None:
    """Refuse another group than that of the buffer, and a local draw where there is no such thing."""
    asked.check_draw(draw, function)
    if axis_name is not None:
        raise ValueError(f"{function}: axis_name={axis_name!r} is of JAX; on torch give group=, or leave it out")
    if isinstance(state, ShardedState):
        if group is not None and group_of(group) is not state.group:
            raise ValueError(
                f"{function}: expected the process group that the buffer was made with, got another; leave group out"
            )
        return
    if draw == "local" and isinstance(state, CoreState):
        local.check(state.spec)
    if group is None or (isinstance(group, torch.distributed.ProcessGroup) and group.size() == 1):
        return
    if torch.distributed.get_world_size(group_of(group)) > 1:
        raise ValueError(
            f"{function}: a group of several processes was given, but this buffer is not sharded; make it by "
            f"rb.init(spec, sharding=group), or leave group out, for a buffer of each process's own"
        )


Drawn = tuple[State, list[torch.Tensor], Selection]


# This process's share of the batch that a buffer that is not sharded draws: index, leaves, selection.
def _drawn_among_all(state: ShardedState, key: torch.Tensor, size: int, beta: object, in_place: bool) -> Drawn:
    dealing, spec = state.dealing, state.spec
    key, words = _words_of_transforms(state, key, size)
    index, selection = _draw_of_index(state, key, size, beta, in_place)
    handles = selection.handles.reshape(-1)
    state = state.followed_by(index)
    read, names = _read_for_all(state, handles, words)

    def own_share(nested: Any) -> Any:
        if nested is None or isinstance(nested, torch.Tensor):
            return None if nested is None else nested.chunk(dealing.shards)[state.rank]
        return {name: own_share(x) for name, x in nested.items()}

    mine = own_share(selection._asdict())
    leaves, extras = _with_leading_axes(spec, size // dealing.shards, read, names)
    return index, leaves, Selection(**mine | {"extras": mine["extras"] | extras})


# The index after a draw of the batch of all processes, and what was drawn.
def _draw_of_index(
    state: ShardedState, key: torch.Tensor, size: int, beta: object, in_place: bool
) -> tuple[State, Selection]:
    if in_place:
        after, drawn = execute.sample_(state.index, key, size, beta, lambda _, selection: selection)
        return after, drawn
    index, _, selection = execute.sample(state.index, key, size, beta)
    return index, selection


# The batch that this process draws among its own items, without asking the others.
def _drawn_among_own(state: ShardedState, key: torch.Tensor, size: int, beta: object, in_place: bool) -> Drawn:
    dealing, share = state.dealing, size // state.dealing.shards
    key = random.split(key, dealing.shards)[state.rank]
    key, words = _words_of_transforms(state, key, share)
    if state.spec.sampler.takes_out:
        index, all_windows = _draw_of_index(state, key, size, beta, in_place)
        selection = local.own_windows(ops.OPS, dealing, all_windows, _shard_number(state, index.counters))
    else:
        selection = execute.read_by(state.index, _draw_local, state, key, share, beta)
        if share and not bool((selection.handles >= 0).any()) and not int(state.index.counters[counters.SIZE]):
            checks.check_nonempty(state.spec, False, 0)
        index = execute.renamed(state.index) if in_place else state.index
    handles = selection.handles.reshape(-1)
    slots, _ = _own_slots(state, handles, handles != functions.NOTHING)
    leaves, extras = _read_own(state, slots, handles, words)
    leaves, read_extras = _with_leading_axes(state.spec, share, [*leaves, *extras.values()], list(extras))
    return index, leaves, selection._replace(extras={**selection.extras, **read_extras})


# The selection that this process draws from the index.
def _draw_local(
    ops: Ops, arrays: Arrays, spec: BufferSpec, state: ShardedState, key: PRNGKey, share: int, beta: object
) -> Any:
    draft = Draft.of(arrays, spec.plan)
    sizes: Any = draft.counters.ends.sizes
    numbers = library.numbers(key, local.draw_shape(state.dealing, share), sizes.device)
    level = number(beta, sizes.device)
    return local.draw(ops, state.dealing, draft, numbers, level, share, _shard_number(state, sizes))[1]


# The key that is left for the sampler, and the random words of transforms, as a buffer that is not sharded has them.
def _words_of_transforms(state: ShardedState, key: PRNGKey, batch: int) -> tuple[PRNGKey, torch.Tensor | None]:
    if not state.spec.plan.extra_words:
        return key, None
    key, other = random.split_at_once(key, 2)
    return key, random.draws(other, *state.spec.extra_shape(batch))


# The slots in this process's part of handles int32 [n], 0 for those of others, and which are real and its own.
def _own_slots(state: ShardedState, handles: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    slots = torch.where(real, handles % state.spec.capacity, torch.zeros_like(handles))
    local_slots, held = deal.own_slots(ops.OPS, state.dealing, slots, _shard_number(state, slots))
    return local_slots, held & real


# The leaves in slots of the part, as transforms have them, and what these tell.
def _read_own(
    state: ShardedState, slots: torch.Tensor, handles: torch.Tensor, words: torch.Tensor | None
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    words = None if words is None else words.to(slots.device)

    def read(ops: Ops, arrays: Arrays, spec: BufferSpec) -> object:
        return functions.read_drawn(ops, Draft.of(arrays, spec.plan), spec, slots, handles, words)

    drawn: tuple[list[torch.Tensor], dict[str, torch.Tensor]] = execute.read_by(state.part, read)
    return drawn


# Read the rows of a batch that are this process's own, and give each process its share of the batch.
def _read_for_all(
    state: ShardedState, handles: torch.Tensor, words: torch.Tensor | None
) -> tuple[list[torch.Tensor], list[str]]:
    exchange = shares.exchange(state.dealing, handles.cpu().numpy(), state.rank)
    asked_for, slots = on_device_of(handles, exchange.asked), on_device_of(handles, exchange.slots)
    chosen = None if words is None else words.to(handles.device)[asked_for]
    leaves, extras = _read_own(state, slots, handles[asked_for], chosen)
    return exchanged(state, [*leaves, *extras.values()], exchange), list(extras)


# Leaves, and what transforms tell by name, with the leading axes of a sample.
def _with_leading_axes(
    spec: BufferSpec, share: int, read: list[torch.Tensor], names: list[str]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    shaped = functions.with_leading_axes(spec, share, read)
    count = len(shaped) - len(names)
    return shaped[:count], dict(zip(names, shaped[count:], strict=True))


# --- reading --------------------------------------------------------------------------------------------------------


def get(state: ShardedState, handles: torch.Tensor) -> list[torch.Tensor]:
    """Read items by their handles: each process asks for as many."""
    (everyones,) = gathered(state, [handles])
    everyones = everyones.flatten()
    live = execute.look(state.index, functions.is_live, everyones)
    named = torch.where(live, everyones, torch.full_like(everyones, functions.NOTHING))
    exchange = shares.exchange(state.dealing, named.cpu().numpy(), state.rank)
    every = range(len(state.dealing.part.plan.leaves))
    leaves = execute.read_by(state.part, adding.stored, on_device_of(handles, exchange.slots), every)
    return exchanged(state, leaves, exchange)


def items(state: ShardedState) -> NoReturn:
    raise ValueError(
        "items: no process has all items of a sharded buffer; rb.items(state.part) are those that this process has"
    )


def look(
    state: ShardedState,
    function: Callable[..., torch.Tensor],
    handles: torch.Tensor | None = None,
    n: int | None = None,
) -> torch.Tensor:
    return execute.look(state.index, function, handles, n)


def counter(state: ShardedState, place: int) -> torch.Tensor:
    return execute.counter(state.index, asked.place_in_index(state.dealing, place))


_ENGINE: Any = sys.modules[__name__]
