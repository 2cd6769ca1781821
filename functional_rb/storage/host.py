"""The functions on host states: a new state takes over the memory of the old one, which can be rebuilt.

Inputs are checked, and arrays of NumPy whose rows follow upon each other; randomness comes as draws. The primitives
are `host.ops`, or a module that has its own `call`, for functions of the user's on arrays of another library.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from functional_rb.base.object_arrays import is_object_array
from functional_rb.buffer import checks, functions, respec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.save_history import SaveHistory
from functional_rb.cpu_kernels.switch import switch
from functional_rb.ops import numpy_ops as host_ops
from functional_rb.ops.numpy_ops import Vector
from functional_rb.ops.protocol import Ops
from functional_rb.samplers import Selection
from functional_rb.storage import host_memory as memories
from functional_rb.storage.host_state import HostState, readable
from functional_rb.storage.placement import Placement
from functional_rb.structures import frame_ring, row_layout
from functional_rb.structures.ring import modulus
from functional_rb.versions.object_table import Table
from functional_rb.versions.recorder import Log, Recorder
from functional_rb.versions.version import Files, Memory, Saved, SavedSlots, Version, separate

HAVE_KERNELS = importlib.util.find_spec("numba") is not None

quiet = np.errstate(all="ignore")
"""NumPy warns of what the core reckons with (NaN among priorities, say), and torch and XLA do not."""


@functools.cache
def _kernels() -> Any:
    """Imported when first used: numba takes longer to import than all the rest."""
    return importlib.import_module("functional_rb.storage.host_kernels")


@quiet
def init(spec: BufferSpec, files: Files | None, device: Any = None) -> HostState:
    """An empty state, in mapped files if there are some."""
    stored = None if files is None else (files.rows, files.wide, files.auxiliary)
    arrays = functions.init(host_ops, spec, stored=stored)
    table = Table(spec) if spec.plan.objects else None
    return HostState(memories.fresh(arrays, spec, table=table, files=files), arrays.counters, spec, device)


@quiet
def add(
    ops: Ops,
    state: HostState,
    leaves: Sequence[Vector],
    batch: int,
    mask: Vector | None,
    priorities: Vector | None,
    draws: Vector | None,
) -> HostState:
    """Write a batch, by draws int32 [rows, words] if the writer takes any."""
    version, spec, before = readable(state), state.spec, state._counters
    if batch == 0:
        return state
    _tidy(version, spec)
    with version.lock:
        target = version.writable()
        if target.files is not None:
            target.files.make_room(spec, before, batch)
        saved = _room(spec, version, target, min(batch, spec.capacity), rows=True, values=target.tree is not None)
        following = version.succeed(target, saved)
        leaves = [_stored(target, leaf) for leaf in leaves]
        if spec.plan.fused and _by_kernel(target, saved):
            after = _kernels().add(spec, target, before, leaves, batch, mask, priorities, saved)
        else:
            arrays = _arrays(target, before)
            added = functions.add(_recording(ops, target, saved), arrays, spec, leaves, batch, mask, priorities, draws)
            after = _written(target, added)
        past = None if state._save_history is None else state._save_history.after(spec.rows(batch))
        return _following(version, following, saved, after, state, past)


@quiet
def sample(
    ops: Ops, state: HostState, draws: Vector, more: Vector | None, beta: float, batch: int
) -> tuple[HostState, list[Any], Selection]:
    """Draw items by draws int32 [rows, words]; more draws are for transforms. Of an empty buffer it is an error."""
    version, spec, before = readable(state), state.spec, state._counters
    with version.lock:
        if not (spec.sampler.remembers and batch):
            return state, *_draw(ops, version.own(), spec, before, draws, more, beta, batch, None)[1:]
        target = version.writable()
        saved = Log() if target is version.memory else None
        following = version.succeed(target, saved)
        try:
            after, leaves, selection = _draw(ops, target, spec, before, draws, more, beta, batch, saved)
        except Exception:  # there is nothing to draw, or a transform calls a function that fails
            version.roll_back()
            raise
        return _following(version, following, saved, after, state, state._save_history), leaves, selection


def _draw(
    ops: Ops,
    memory: Memory,
    spec: BufferSpec,
    before: Vector,
    draws: Vector,
    more: Vector | None,
    beta: float,
    batch: int,
    saved: Saved | None,
) -> tuple[Vector, list[Any], Selection]:
    """Draw items from memory; the counters afterwards come first."""
    if batch and spec.plan.fused_draws and _native(memory):
        leaves, selection, drawable = _kernels().draw(spec, memory, before, draws, batch, beta)
        _check_nonempty(spec, drawable, before)
        after = before
        if not spec.plan.fused:
            leaves, selection = _completed(ops, spec, memory, before, leaves, selection, more)
    else:
        primitives, arrays = _recording(ops, memory, saved), _arrays(memory, before)
        made, leaves, selection = functions.draw(primitives, arrays, spec, draws, np.float32(beta), batch, more)
        after = _written(memory, made)
        if batch:
            _check_nonempty(spec, bool(selection.handles.max() >= 0), before)
    return after, leaves if memory.table is None else memory.table.read(leaves), selection


def _completed(
    ops: Ops,
    spec: BufferSpec,
    memory: Memory,
    before: Vector,
    stored: list[Vector],
    selection: Selection,
    more: Vector | None,
) -> tuple[list[Vector], Selection]:
    """What a kernel has drawn, with leaves that are frames, and as transforms have it."""
    known = dict(zip(spec.plan.stored, stored, strict=True))
    slots = selection.handles % np.int32(spec.capacity)
    if spec.plan.frames is not None and not spec.transforms:
        known |= frame_ring.read(ops, spec.plan.frames, memory.auxiliary, slots, range(len(spec.plan.leaves)))
        return [known[k] for k in range(len(spec.plan.leaves))], selection
    draft = Draft.of(_arrays(memory, before), spec.plan)
    leaves, extras = functions.read_drawn(ops, draft, spec.transforms, slots, selection.handles, more, known)
    return leaves, selection._replace(extras=extras)


def _check_nonempty(spec: BufferSpec, drawable: bool, before: Vector) -> None:
    checks.check_nonempty(spec, drawable, 1 if drawable else int(before[counters.SIZE]))


@quiet
def update(
    ops: Ops, state: HostState, handles: Vector, priorities: Vector | None, replacements: Mapping[int, Vector]
) -> HostState:
    """Set priorities and rewrite leaves."""
    version, spec, before = readable(state), state.spec, state._counters
    _tidy(version, spec)
    with version.lock:
        target = version.writable()
        if target.files is not None and replacements:
            # What names nothing may be written as slot 0, as it was.
            known = (handles >= 0) & (handles < modulus(spec.capacity))
            target.files.prepare_slots(np.where(known, handles, 0) % np.int32(spec.capacity))
        saved = _room(spec, version, target, handles.shape[0], bool(replacements), priorities is not None)
        following = version.succeed(target, saved)
        new = {k: _stored(target, leaf) for k, leaf in replacements.items()}
        if spec.plan.fused and _by_kernel(target, saved):
            after = _kernels().update(spec, target, before, handles, priorities, new, saved)
        else:
            primitives, arrays = _recording(ops, target, saved), _arrays(target, before)
            after = _written(target, functions.update(primitives, arrays, spec, handles, priorities, new))
        return _following(version, following, saved, after, state, None if replacements else state._save_history)


@quiet
def clear(state: HostState) -> HostState:
    """Take all items out."""
    version, spec = readable(state), state.spec
    with version.lock:
        memory = version.own()
        arrays = functions.clear(host_ops, _arrays(memory, state._counters), spec)
        following = version.exchange(arrays, memory.placement)
    if memory.table is not None:
        memory.table.tidy_soon()
    past = None if spec.plan.objects else state._save_history
    return HostState(following, arrays.counters, spec, state.device, past)


@quiet
def with_spec(state: HostState, spec: BufferSpec) -> HostState:
    """The same items under another spec, in the same storage."""
    version, old = readable(state), state.spec
    if respec.is_label(old, spec):
        return HostState(version, state._counters, spec, state.device, state._save_history)
    with version.lock:
        memory = version.own()
        arrays = _arrays(memory, state._counters)
        made = respec.with_spec(host_ops, arrays, old, spec, step=respec.step_of(spec))
        if memory.table is None and respec.stays(old, spec):
            return HostState(version.exchange(made, Placement(spec)), made.counters, spec, state.device)
        table = None if memory.table is None else Table(spec, memory.table.held(arrays))
        made = separate(made, arrays, host_ops.copy)
        return HostState(memories.fresh(made, spec, table=table), made.counters, spec, state.device)


def count_invalid(state: HostState, outside: Vector) -> HostState:
    """The same state, with what was left out counted."""
    after = counters.with_invalid(host_ops, state._counters, outside)
    return HostState(readable(state), after, state.spec, state.device, state._save_history)


@quiet
def get(state: HostState, handles: Vector) -> list[Any]:
    """Read items by handle."""
    version = readable(state)
    with version.lock:
        memory = version.own()
        return _read(memory, functions.get(host_ops, _arrays(memory, state._counters), state.spec, handles))


@quiet
def items(state: HostState) -> list[Any]:
    """All of the storage, unpacked: a copy."""
    version = readable(state)
    with version.lock:
        memory, spec = version.own(), state.spec
        arrays = _arrays(memory, state._counters)
        if spec.plan.frames is not None:
            return _read(memory, functions.items(host_ops, arrays, spec))
        leaves = _read(memory, row_layout.unpack(host_ops, spec.plan.layout, arrays.rows, arrays.wide))
        return [leaf if is_object_array(leaf) else host_ops.copy(leaf) for leaf in leaves[: len(spec.plan.leaves)]]


@quiet
def is_live(state: HostState, handles: Vector) -> Vector:
    """Whether handles name stored items."""
    version = readable(state)
    with version.lock:
        arrays = _arrays(version.own(), state._counters)
        live: Vector = functions.is_live(host_ops, arrays, state.spec, handles)
        return live


@quiet
def drawable(state: HostState, n: int) -> bool:
    """Whether n can be drawn."""
    version = readable(state)
    with version.lock:
        return bool(functions.drawable(host_ops, _arrays(version.own(), state._counters), state.spec, n))


@quiet
def look(state: HostState, function: Callable[..., Vector], *given: Any) -> Vector:
    """What a function of `buffer` reads off a state."""
    version = readable(state)
    with version.lock:
        return np.asarray(function(host_ops, _arrays(version.own(), state._counters), state.spec, *given))


def _native(memory: Memory) -> bool:
    """Whether to use kernels."""
    return HAVE_KERNELS and memory.is_ordinary and switch.on


def _by_kernel(memory: Memory, saved: Saved | None) -> bool:
    """Whether a kernel writes; where there is room for what it overwrites, that has been decided."""
    return _native(memory) if saved is None else isinstance(saved, SavedSlots)


# ---------------------------------------------------------------- versions


def _room(spec: BufferSpec, version: Version, target: Memory, n: int, rows: bool, values: bool) -> Saved | None:
    """Where what is overwritten is saved: a kernel and the recorder do that on their way. None in a copy."""
    if target is not version.memory:
        return None
    if spec.plan.fused and _native(target):
        room: SavedSlots = _kernels().room(spec, n, rows, values)
        return room
    return Log()


def _following(
    version: Version,
    following: Version,
    saved: Saved | None,
    after: Vector,
    state: HostState,
    past: SaveHistory | None,
) -> HostState:
    """The next state, once all is written: what was saved for the older version is counted, if not known before."""
    if isinstance(saved, Log):
        version.settle()
    return HostState(following, after, state.spec, state.device, past)


def _recording(ops: Ops, memory: Memory, saved: Saved | None) -> Ops:
    if not isinstance(saved, Log):
        return ops
    recorder: Any = Recorder(ops, memory, saved)
    return recorder


def _arrays(memory: Memory, vector: Vector) -> Arrays:
    return Arrays(memory.rows, memory.wide, memory.tree, vector, dict(memory.auxiliary))


def _written(memory: Memory, arrays: Arrays) -> Vector:
    """The new counters. All other arrays were written in place."""
    assert arrays.tree is memory.tree
    assert all(arrays.auxiliary[name] is array for name, array in memory.auxiliary.items())
    after: Vector = arrays.counters
    return after


# ---------------------------------------------------------------- objects


def _tidy(version: Version, spec: BufferSpec) -> None:
    """Drop Python objects that nobody can read any more, if there may be many: before a write, as it takes the lock."""
    if spec.plan.objects:
        with version.lock:
            table = version.own().table
        assert table is not None
        table.tidy()


def _stored(memory: Memory, leaf: Any) -> Vector:
    """A leaf as it is stored, of objects their tokens. Hold the lock until they are in memory."""
    if memory.table is None or not is_object_array(leaf):
        return leaf
    return memory.table.tokens(leaf)


def _read(memory: Memory, leaves: list[Any]) -> list[Any]:
    return leaves if memory.table is None else memory.table.read(leaves)
