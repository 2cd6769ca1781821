"""The public functions on memory that is written in place: a new state takes over the memory of the old one.

The way of a write is the same for all functions: lock the version, own its memory, let native code do the whole of it
if it knows how, else let the next version succeed and write by the core, recording what is overwritten. `Engine` is the
part of `buffer.backend.Backend` and `buffer.in_place.InPlace` that is so, for any library; inputs have been checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from functional_rb.base.arrays import ArrayLike, BackendArray, PRNGKey
from functional_rb.buffer import checks, functions, respec
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters as core_counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.strategy import Selection
from functional_rb.ops.part_kernels import NONE, carried_out, using
from functional_rb.versions.library import Library
from functional_rb.versions.memory import Memory
from functional_rb.versions.object_table import held_objects
from functional_rb.versions.recorder import Log, Recorder
from functional_rb.versions.state import VersionedState, readable
from functional_rb.versions.version import forget_dead, part_with_older, separate

R = TypeVar("R")
V = TypeVar("V", bound=VersionedState)
# Of the core, called as `function(ops, arrays, spec, *args)`; or of the engine.
Function = Callable[..., Any]
Finish = Callable[[list[BackendArray], Selection], R]


def _in_place(write: Function) -> Function:
    """A function that writes, of which the given state is consumed; so nothing is kept for it, or for older ones."""

    def consuming(engine: Engine, state: VersionedState, *args: object, **named: object) -> object:
        with engine._lock_in_place(state, write.__name__):
            part_with_older(state.own())
            return engine.taken_over(state, write(engine, state, *args, consume=True, **named))

    return consuming


class Engine:
    """The functions of a replay buffer over versioned memory, for the arrays of one library."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def add(self, state: V, batch: Batch, key: object, consume: bool = False) -> V:
        library, spec = self.library, state.spec
        with self._lock_to_write(state):
            memory = state.fitting("add")
            if key is not None:
                library.check_key(key)
            beside = {"mask": batch.mask, "priorities": batch.priorities}.items()
            mask, priorities = (x if x is None else library.placed(n, x, memory, state._target) for n, x in beside)
            stored, size = [self._stored(state, memory, k, leaf) for k, leaf in enumerate(batch.leaves)], batch.size
            if size == 0:
                return state
            fullest = state.fullest_after(size)
            # Asked again, now that all is converted: before, the input alone may have been unusual.
            after: V = library.natively("write_" if consume else "write", state, stored, mask, priorities, size, key)
            if after is NotImplemented:
                # Before anything is written: a page of a mapping for which the disk has no room kills the process.
                if memory.files is not None:
                    library.make_room(memory, spec, state._counters, size)
                bits = None
                if key is not None and spec.writer.words:
                    bits = library.random_bits(key, (spec.rows(size), spec.writer.words), memory)
                args = stored, size, mask, priorities, bits
                after, _ = self._write(state, size, consume, functions.add, *args)
            return after.note_fullest(fullest)

    def update(
        self,
        state: V,
        handles: BackendArray,
        priorities: BackendArray | None,
        replacements: Mapping[int, BackendArray],
        consume: bool = False,
    ) -> V:
        library, spec, target = self.library, state.spec, state._target
        with self._lock_to_write(state):
            memory = state.fitting("update")
            handles = library.placed("indices", handles, memory, target)
            if priorities is not None:
                priorities = library.placed("priorities", priorities.reshape(handles.shape[0]), memory, target)
            stored = {k: self._stored(state, memory, k, leaf) for k, leaf in replacements.items()}
            leaves = [stored.get(k) for k in range(len(spec.plan.leaves))] if stored else None
            after: V = library.natively("update_" if consume else "update", state, handles, priorities, leaves)
            if after is NotImplemented:
                if stored and memory.files is not None:
                    library.make_room(memory, spec, state._counters, 0, handles)
                # Where rows are rewritten a checkpoint cannot go on from an earlier one by those that were added alone.
                args = handles, priorities, stored
                after, _ = self._write(state, None if stored else 0, consume, functions.update, *args)
            return after

    def write_by(
        self, state: V, function: Function, *args: object, rows: int = 0, consume: bool = False, rewrites: bool = False
    ) -> V:
        """The state with the arrays that `function(ops, arrays, spec, *args)` makes of its own.

        No row is another, but for those that adding so many rows would write, as where a shard on Ray ends trajectories
        that wait; or, if it rewrites, any may be.
        """
        with self._lock_to_write(state):
            memory = state.own()
            if rows and memory.files is not None:
                self.library.make_room(memory, state.spec, state._counters, rows)
            after, _ = self._write(state, None if rewrites else rows, consume, function, *args)
            return after.note_fullest(None) if rows or rewrites else after

    def advance(self, state: V, version: object, consume: bool = False) -> V:
        """Tell the sampler the version of the policy that learns."""
        with state.lock():
            args = functions.advance, self.library.number(version, state.own(), "int32")
            return self.write_by(state, *args, consume=consume)

    def _write(self, state: V, added: int | None, consume: bool, function: Function, *args: object) -> tuple[V, Any]:
        """The state after a write by a function of the core, which has added so many items; and what that gives.

        If other rows are rewritten, `added` is None. What is overwritten is saved for the given state, but where a
        program is traced that consumes it.
        """
        version, tracing = readable(state), self.library.is_tracing()
        saved = None if tracing or version.own().pinned else Log()  # nothing is recorded while somebody traces
        following = version if tracing and consume else version.succeed(saved)
        try:
            result = self._carry_out(function, state, following.own(), saved, *args)
            after: Arrays = result if isinstance(result, Arrays) else result[0]
            if any(map(self.library.is_batched, args)):
                _expect_in_place(following.own(), after)
            past = None if added is None else state.saves_after(added)
            new = type(state)(following, after.counters, state.spec, past, state._target, state.fullest_after())
            # Only now it is known how much the write has saved.
            version.count_saved(following)
            return new, result
        except BaseException:  # whatever interrupts it
            version.roll_back(following)
            raise

    def sample(
        self, state: V, key: PRNGKey, batch: int, beta: ArrayLike, wanted: BackendArray = None, consume: bool = False
    ) -> tuple[V, list[BackendArray], Selection]:
        """Draw items, of which the first `wanted` count, or all; only a sampler that remembers may consume the state.

        Where the result is at hand, an empty buffer is an error.
        """
        library, spec = self.library, state.spec
        library.check_key(key)
        with state.lock():
            version, memory, bits = readable(state), state.fitting("sample"), None
            if spec.plan.extra_words:  # what is left of the key is the sampler's
                key, other = library.split(key)
                bits = library.random_bits(other, spec.extra_shape(batch), memory)
            drawn = library.drawn(state, key, batch, beta, wanted)
            if drawn is NotImplemented:
                after, leaves, selection = self._draw(state, consume, key, beta, batch, bits, wanted)
            else:
                after, *parts = drawn
                try:  # transforms call functions of the user's, which may fail
                    leaves, selection = self._completed(state, memory, batch, bits, *parts)
                except BaseException:
                    version.roll_back(readable(after))
                    raise
            if spec.sampler.takes_out and wanted is None and (fullest := after.fullest_after()) is not None:
                after.note_fullest(spec.sampler.most_left(fullest, batch // spec.plan.ring.lanes))
            leaves = self._with_objects(state, memory, leaves)
            return after, *library.sent_sample(leaves, selection, state._target)

    def _draw(
        self, state: V, consume: bool, key: PRNGKey, beta: object, batch: int, bits: BackendArray, wanted: BackendArray
    ) -> tuple[V, list[BackendArray], Selection]:
        """Draw by the core; the next state remembers it, if the sampler is such a one."""
        library, spec, version, memory, after = self.library, state.spec, readable(state), state.own(), state
        # Where some rows are wanted it is a buffer of a mixture, of which others give what it has not.
        at_hand = batch > 0 and wanted is None and not library.is_tracing()
        if at_hand and state.fullest_after() == 0:  # known without a look at the device's numbers
            checks.check_nonempty(spec, False, 0)
        with library.core():
            words = library.random_bits(key, spec.draw_shape(batch), memory)
            args = words, library.number(beta, memory), batch, bits, wanted
        if spec.sampler.remembers and batch:
            after, (_, leaves, selection) = self._write(state, 0, consume, functions.draw, *args)
        else:
            _, leaves, selection = self._carry_out(functions.draw, state, memory, None, *args)
        is_known = at_hand and memory.is_ordinary and not library.is_batched(selection.handles)
        if is_known and not bool(selection.handles.max() >= 0):
            version.roll_back(readable(after))
            checks.check_nonempty(spec, False, int(state._counters[core_counters.SIZE]))
        return after, leaves, selection

    def _completed(
        self, state: V, memory: Memory, batch: int, bits: object, leaves: Any, slots: Any, extras: Any, *numbers: Any
    ) -> tuple[list[BackendArray], Selection]:
        """What native code has drawn, with the leaves that it has not read, and as transforms have it."""
        library, spec, selection = self.library, state.spec, Selection(*numbers)
        if extras is not None:
            return leaves, selection._replace(extras=extras)
        is_whole = len(leaves) == len(spec.plan.leaves)  # with the frames
        if is_whole and not spec.inner:
            return leaves, selection
        table = {**library.standing_in(memory), **(NONE if spec.inner else library.sending(state._target))}
        draft = Draft.of(memory.state_arrays(state._counters), spec.plan)
        known = dict(zip(range(len(leaves)) if is_whole else spec.plan.stored, leaves, strict=False))
        with library.core():
            slots = selection.handles % spec.capacity if slots is None else slots
            args = draft, spec, slots, selection, batch, bits, known
            return carried_out(table, functions.read_selection, library.ops, *args)

    def clear(self, state: V, consume: bool = False) -> V:
        """Take all items out; the rows are handed on as they are."""
        library, spec = self.library, state.spec
        with self._lock_to_write(state), library.making(), library.core():
            version, memory = readable(state), state.fitting("clear")
            arrays = functions.clear(library.ops, memory.state_arrays(state._counters), spec)
            past = state.saves_after()
            if spec.plan.objects:  # their tokens go, so rows change that nobody has added, and the next write sweeps
                past, memory.table.limit = None, 0
            if consume and library.is_tracing():  # no version before it could be told from one that somebody holds
                memory.take(memory.like(arrays).by_name)
            else:
                version = version.exchange(arrays)
            return type(state)(version, arrays.counters, spec, past, state._target, 0)

    def with_spec(self, state: V, spec: BufferSpec) -> V:
        """Another spec, with the items in the same storage; rows that stay are handed on as they are."""
        library, old, made_by = self.library, state.spec, type(state)
        is_label = respec.is_label(old, spec)
        if is_label and library.is_tracing():
            return made_by(readable(state), state._counters, spec, state._save_history, state._target)
        with state.lock(), library.making(), library.core():
            version, memory = readable(state), state.fitting("with_spec")
            arrays = memory.state_arrays(state._counters)
            if is_label:  # a version of its own, as in-place functions write to that of a state
                return made_by(version.exchange(arrays), state._counters, spec, state._save_history, state._target)
            args = library.ops, arrays, old, spec, getattr(memory.rows, "device", None)
            changed = carried_out(library.standing_in(memory), respec.with_spec, *args, step=respec.step_of(spec))
            if memory.table is None and respec.stays(old, spec):
                return made_by(version.exchange(changed), changed.counters, spec, None, state._target)
            # Both memories are written in place, so no array may belong to both.
            changed = separate(changed, arrays, memory.clone)
            return made_by.of_arrays(changed, spec, pinned=False, objects=held_objects(memory), target=state._target)

    def count_invalid(self, state: V, outside: BackendArray) -> V:
        return state.likewise(core_counters.with_invalid(self.library.ops, state.counters, outside), state._target)

    # ---------------------------------------------------------------- in place

    add_, update_, advance_ = _in_place(add), _in_place(update), _in_place(advance)
    clear_, write_by_ = _in_place(clear), _in_place(write_by)

    def sample_(
        self, state: V, key: PRNGKey, batch: int, beta: ArrayLike, finish: Finish[R], wanted: BackendArray = None
    ) -> tuple[V, R]:
        """Draw items, of which the first `wanted` count, and finish the sample; then the state is consumed."""
        if not state.spec.sampler.remembers or batch == 0:
            _, leaves, selection = self.sample(state, key, batch, beta, wanted)
            sample = finish(leaves, selection)
            return self.renamed(state), sample
        with self._lock_in_place(state, "sample"):
            version = readable(state)
            after, leaves, selection = self.sample(state, key, batch, beta, wanted, consume=True)
            try:  # transforms call functions of the user's, which may fail
                sample = finish(leaves, selection)
            except Exception:
                version.roll_back(readable(after))
                raise
            del version  # so that nobody holds it but other states
            return self.taken_over(state, after), sample

    def _lock_in_place(self, state: V, function: str) -> AbstractContextManager[object]:
        """The lock of a state that is to be consumed; while somebody traces it has to be its memory's only owner."""
        lock, memory = self._lock_to_write(state), readable(state).memory
        if self.library.is_tracing() and (memory is None or memory.pinned or memory.history):
            raise ValueError(
                f"{function}_: under torch.compile the state must be the only owner of its memory, but older states "
                f"or arrays given out still need it; call state = rb.own_(state) before the compiled function"
            )
        return lock

    def taken_over(self, state: V, after: V) -> V:
        """The state after some writes, with the one before them consumed, so that nothing is kept for it."""
        if after is state:
            return self.renamed(state)
        with after.lock():
            state.consume()
            forget_dead(after.own())
        return after

    def renamed(self, state: V) -> V:
        """The same value in another state, with the given one consumed."""
        new = state.likewise(state._counters, state._target)
        state.consume()
        return new

    def _lock_to_write(self, state: VersionedState) -> AbstractContextManager[object]:
        """The lock of a state; of Python objects those are gone before that nobody can read any more."""
        if state.spec.plan.objects:
            with state.lock():
                table = state.own().table
            table.tidy()
        return state.lock()

    # ---------------------------------------------------------------- reading

    def get(self, state: VersionedState, handles: BackendArray) -> list[BackendArray]:
        with state.lock():
            memory = state.fitting("get")
            leaves = self.read_by(state, functions.get, self.library.placed("indices", handles, memory, state._target))
            return self.library.sent(self._with_objects(state, memory, leaves), state._target)

    def items(self, state: VersionedState) -> list[BackendArray]:
        """All of the storage, for ever as it is now."""
        with state.lock():
            return self._with_objects(state, state.fitting("items"), self.library.items(state))

    def counter(self, state: VersionedState, place: int) -> BackendArray:
        return state.counters[..., place]

    def look(
        self, state: VersionedState, function: Function, handles: BackendArray | None = None, n: int | None = None
    ) -> BackendArray:
        with state.lock():
            memory = state.own() if handles is None else state.fitting(function.__name__)  # stacks are counted, too
            args = [] if handles is None else [self.library.placed("indices", handles, memory, state._target)]
            result = self.read_by(state, function, *args, *([] if n is None else [n]))
        return self.library.sent([result], state._target)[0]

    def read_by(self, state: VersionedState, function: Function, *args: object) -> Any:
        """What `function(ops, arrays, spec, *args)` reads off a state."""
        with state.lock():
            return self._carry_out(function, state, state.own(), None, *args)

    def _with_objects(self, state: VersionedState, memory: Memory, leaves: list[BackendArray]) -> list[BackendArray]:
        """The leaves of items, with Python objects in place of their tokens. Hold the lock since they were read."""
        for k in state.spec.plan.objects:
            self.library.check_single(leaves[k], state.spec)
            leaves[k] = memory.table.objects(leaves[k])
        return leaves

    def _stored(self, state: VersionedState, memory: Memory, k: int, leaf: BackendArray) -> BackendArray:
        """A checked leaf as it is stored, where the memory is: of Python objects, fresh tokens of these."""
        if k in state.spec.plan.objects:
            leaf = memory.taken(memory.table.tokens(leaf))
        return self.library.placed(f"leaf {state.spec.plan.names[k]!r}", leaf, memory, state._target)

    def _carry_out(self, function: Function, state: V, memory: Memory, saved: Log | None, *args: object) -> Any:
        """Carry a function of the core out: with part kernels where they can work, and what it overwrites recorded."""
        library, arrays = self.library, memory.state_arrays(state._counters)
        with library.core():
            table, given = library.standing_in(memory), (arrays, state.spec, *args)
            if library.is_tracing():
                whole = table.get(function)
                with using(table):
                    return function(library.ops, *given) if whole is None else whole(*given)
            if any(map(library.is_batched, args)):
                table = NONE
            if saved is None:
                return carried_out(table, function, library.ops, *given)
            recorder = Recorder(library.ops, memory, saved)
            return carried_out(recorder.recorded(table), function, recorder, *given)


def _expect_in_place(memory: Memory, after: Arrays) -> None:
    """Refuse what `torch.vmap` has written for each of its rows, where there is one memory for all of them."""
    if any(array is not memory.by_name.get(name) for name, array in memory.like(after).by_name.items()):
        raise TypeError(
            "torch.vmap cannot write to one buffer for each of its rows, as where a sampler remembers what it drew; "
            "give all rows as one batch, such as a larger batch_size, or map over a stack of states"
        )
