"""The public functions on memory that is written in place: a new state takes over the memory of the old one.

The way of a write is the same for all functions: lock the version, own its memory, let native code do the whole of it
if it knows how, else let the next version succeed and write by the core, recording what is overwritten. `Engine` is the
part of `buffer.backend.Backend` and `buffer.in_place.InPlace` that is so, for any library; inputs have been checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from functional_rb.base.arrays import BackendArray, PRNGKey
from functional_rb.buffer import checks, functions, respec
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.reader import check_fits
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters as core_counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.save_history import SaveHistory
from functional_rb.core.strategy import Selection
from functional_rb.ops.part_kernels import NONE, carried_out, using
from functional_rb.versions.library import Library
from functional_rb.versions.memory import Memory, named
from functional_rb.versions.recorder import Log, Recorder
from functional_rb.versions.state import VersionedState, held_objects, readable
from functional_rb.versions.version import Version, forget_dead, part_with_older, separate

R = TypeVar("R")
V = TypeVar("V", bound=VersionedState)
# Of the core, called as `function(ops, arrays, spec, *args)`; or of the engine.
Function = Callable[..., Any]
Finish = Callable[[list[BackendArray], Selection], R]


def _in_place(write: Function) -> Function:
    """A function that writes, of which the given state is consumed; so nothing is kept for it, or for older ones."""

    def consuming(engine: Engine, state: VersionedState, *args: object, **named: object) -> object:
        with engine._lock_in_place(state, write.__name__):
            part_with_older(readable(state).own())
            return engine.taken_over(state, write(engine, state, *args, consume=True, **named))

    return consuming


class Engine:
    """The functions of a replay buffer over versioned memory, for the arrays of one library."""

    def __init__(self, library: Library) -> None:
        self.library = library

    # ---------------------------------------------------------------- writes

    def add(self, state: V, batch: Batch, key: object, consume: bool = False) -> V:
        library, spec = self.library, state.spec
        version = self._writable(state)
        with library.lock(version):
            memory = _fitting(state, version, "add")
            if key is not None:
                library.check_key(key)
            mask, priorities = (
                None if x is None else library.placed(name, x, memory, state._target)
                for name, x in (("mask", batch.mask), ("priorities", batch.priorities))
            )
            stored, size = [self._stored(state, memory, k, leaf) for k, leaf in enumerate(batch.leaves)], batch.size
            if size == 0:
                return state
            fullest = state.fullest_after(size)
            # Asked again, now that all is checked and converted: before, it may have been the input alone that was
            # unusual.
            after: V = library.natively("write_" if consume else "write", state, stored, mask, priorities, size, key)
            if after is NotImplemented:
                # Before anything is written: a page of a mapping for which the disk has no room kills the process.
                if memory.files is not None:
                    library.make_room(memory, spec, state._counters, size)
                bits = None
                if key is not None and spec.writer.words:
                    bits = library.random_bits(key, (spec.rows(size), spec.writer.words), memory)
                args = stored, size, mask, priorities, bits
                after, _ = self._write(state, version, past_of(state, size), consume, functions.add, *args)
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
        version = self._writable(state)
        with library.lock(version):
            memory = _fitting(state, version, "update")
            handles = library.placed("indices", handles, memory, target)
            if priorities is not None:
                priorities = library.placed("priorities", priorities.reshape(handles.shape[0]), memory, target)
            stored = {k: self._stored(state, memory, k, leaf) for k, leaf in replacements.items()}
            leaves = [stored.get(k) for k in range(len(spec.plan.leaves))] if stored else None
            after: V = library.natively("update_" if consume else "update", state, handles, priorities, leaves)
            if after is NotImplemented:
                if stored and memory.files is not None:
                    library.make_room(memory, spec, state._counters, 0, handles)
                # Rewritten rows are none that were added, so a checkpoint could not go on from an earlier one by those
                # alone.
                past = None if stored else past_of(state)
                after, _ = self._write(state, version, past, consume, functions.update, handles, priorities, stored)
            return after

    def write_by(
        self, state: V, function: Function, *args: object, rows: int = 0, consume: bool = False, rewrites: bool = False
    ) -> V:
        """The state with the arrays that `function(ops, arrays, spec, *args)` makes of its own.

        No row is another, but for those that adding so many rows would write, as where a shard on Ray ends trajectories
        that wait; or, if it rewrites, any may be.
        """
        version = self._writable(state)
        with self.library.lock(version):
            memory = version.own()
            if rows and memory.files is not None:
                self.library.make_room(memory, state.spec, state._counters, rows)
            past = None if rewrites else past_of(state, rows)
            after, _ = self._write(state, version, past, consume, function, *args)
            return after.note_fullest(None) if rows or rewrites else after

    def advance(self, state: V, version: object, consume: bool = False) -> V:
        """Tell the sampler the version of the policy that learns."""
        own = readable(state)
        with self.library.lock(own):
            number = self.library.number(version, own.own(), "int32")
        return self.write_by(state, functions.advance, number, consume=consume)

    def _write(
        self, state: V, version: Version, past: SaveHistory | None, consume: bool, function: Function, *args: object
    ) -> tuple[V, Any]:
        """The state after a write by a function of the core, with the saves that it succeeds; and what that gives.

        What is overwritten is saved for the given state, but where a program is traced that consumes it.
        """
        memory, tracing = version.own(), self.library.is_tracing()
        following, saved = version, None
        if tracing and memory.files is not None and not consume:
            raise ValueError(
                "under torch.compile a Memmap buffer is written in place alone, as its files cannot be copied there; "
                "call add_, update_ or sample_"
            )
        if not (tracing or memory.pinned):
            saved = Log()
            following = version.succeed(memory, saved)
        elif not consume or not tracing:  # nothing is recorded while somebody traces, so that a copy is written to
            memory = memory.copy()
            following = version.succeed(memory, None)
        try:
            result = self._carry_out(function, memory, saved, state._counters, state.spec, *args)
            after: Arrays = result if isinstance(result, Arrays) else result[0]
            if any(map(self.library.is_batched, args)):
                _expect_in_place(memory, after)
            new = type(state)(following, after.counters, state.spec, past, state._target)
            # Only now it is known how much the write has saved.
            version.count_saved()
            return new, result
        except BaseException:  # whatever interrupts it
            version.roll_back(following)
            raise

    def sample(
        self, state: V, key: Any, batch: int, beta: Any, wanted: BackendArray | None = None, consume: bool = False
    ) -> tuple[V, list[BackendArray], Selection]:
        """Draw items, of which the first `wanted` count, or all; only a sampler that remembers may consume the state.

        Where the result is at hand, an empty buffer is an error.
        """
        library, spec = self.library, state.spec
        library.check_key(key)
        version = readable(state)
        with library.lock(version):
            memory, bits = _fitting(state, version, "sample"), None
            if spec.plan.extra_words:  # what is left of the key is the sampler's
                key, other = library.split(key)
                bits = library.random_bits(other, spec.extra_shape(batch), memory)
            drawn = library.drawn(state, key, batch, beta, wanted)
            if drawn is NotImplemented:
                after, leaves, selection = self._draw(state, version, consume, key, beta, batch, bits, wanted)
            else:
                after, leaves, slots, extras, *numbers = drawn
                selection = Selection(*numbers)
                if extras is not None:
                    selection = selection._replace(extras=extras)
                elif not spec.known.plain:
                    sending = NONE if spec.inner else library.sending(state._target)
                    table = {**library.standing_in(memory), **sending}
                    draft = Draft.of(memory.state_arrays(state._counters), spec.plan)
                    known = draft, spec, batch, leaves, slots, selection, bits
                    try:  # transforms call functions of the user's, which may fail
                        leaves, selection = carried_out(table, self._completed, *known)
                    except BaseException:
                        version.roll_back(after._version)
                        raise
            if spec.sampler.takes_out and wanted is None and not library.is_tracing():
                fullest = readable(after).own().fullest
                if fullest is not None:
                    after.note_fullest(spec.sampler.most_left(fullest, batch // spec.plan.ring.lanes))
            leaves = self._with_objects(state, memory, leaves)
            return after, *library.sent_sample(leaves, selection, state._target)

    def _draw(
        self, state: V, version: Version, consume: bool, key: Any, beta: Any, batch: int, bits: Any, wanted: Any
    ) -> tuple[V, list[BackendArray], Selection]:
        """Draw by the core; the next state remembers it, if the sampler is such a one."""
        library, spec, memory, after = self.library, state.spec, version.own(), state
        # Where some rows are wanted it is a buffer of a mixture, of which others give what it has not.
        at_hand = batch > 0 and wanted is None and not library.is_tracing()
        if at_hand and memory.fullest == 0:  # known without a look at the device's numbers
            checks.check_nonempty(spec, False, 0)
        with library.core():
            words = library.random_bits(key, spec.draw_shape(batch), memory)
            args = words, library.number(beta, memory), batch, bits, wanted
        if spec.sampler.remembers and batch:
            after, result = self._write(state, version, past_of(state), consume, functions.draw, *args)
        else:
            result = self._carry_out(functions.draw, memory, None, state._counters, spec, *args)
        _, leaves, selection = result
        is_known = at_hand and memory.is_ordinary and not library.is_batched(selection.handles)
        if is_known and not bool(selection.handles.max() >= 0):
            version.roll_back(after._version)
            checks.check_nonempty(spec, False, int(state._counters[core_counters.SIZE]))
        return after, leaves, selection

    def _completed(
        self,
        draft: Draft,
        spec: BufferSpec,
        batch: int,
        stored: list[BackendArray],
        slots: BackendArray | None,
        selection: Selection,
        bits: BackendArray | None,
    ) -> tuple[list[BackendArray], Selection]:
        """What native code has drawn, with the leaves that it has not read, and as transforms have it."""
        is_whole = len(stored) == len(spec.plan.leaves)  # with the frames
        if is_whole and not spec.inner:
            return stored, selection
        known = dict(zip(range(len(stored)) if is_whole else spec.plan.stored, stored, strict=False))
        slots = selection.handles % spec.capacity if slots is None else slots
        with self.library.core():
            return functions.read_selection(self.library.ops, draft, spec, slots, selection, batch, bits, known)

    def clear(self, state: V, consume: bool = False) -> V:
        """Take all items out; the rows are handed on as they are."""
        library, spec = self.library, state.spec
        version = self._writable(state)
        with library.lock(version), library.making(), library.core():
            memory = _fitting(state, version, "clear")
            arrays = functions.clear(library.ops, memory.state_arrays(state._counters), spec)
            # The tokens of Python objects go, so rows change that nobody has added.
            past = None if spec.plan.objects else past_of(state)
            if memory.table is not None:
                memory.table.tidy_soon()
            if consume and library.is_tracing():  # no version before it could be told from one that somebody holds
                memory.take(named(arrays))
            else:
                version = version.exchange(arrays)
            return type(state)(version, arrays.counters, spec, past, state._target).note_fullest(0)

    def with_spec(self, state: V, spec: BufferSpec) -> V:
        """Another spec, with the items in the same storage; rows that stay are handed on as they are."""
        library, old, made_by = self.library, state.spec, type(state)
        version, is_label = readable(state), respec.is_label(old, spec)
        if is_label and library.is_tracing():
            return made_by(version, state._counters, spec, state._save_history, state._target)
        with library.lock(version), library.making(), library.core():
            memory = _fitting(state, version, "with_spec")
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
        after = core_counters.with_invalid(self.library.ops, state.counters, outside)
        return type(state)(readable(state), after, state.spec, state._save_history, state._target)

    # ---------------------------------------------------------------- in place

    add_, update_, advance_ = _in_place(add), _in_place(update), _in_place(advance)
    clear_, write_by_ = _in_place(clear), _in_place(write_by)

    def sample_(
        self, state: V, key: PRNGKey, batch: int, beta: Any, finish: Finish[R], wanted: BackendArray | None = None
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
                version.roll_back(after._version)
                raise
            del version  # so that nobody holds it but other states
            return self.taken_over(state, after), sample

    def _lock_in_place(self, state: V, function: str) -> AbstractContextManager[object]:
        """The lock of a state that is to be consumed; while somebody traces it has to be its memory's only owner."""
        version = self._writable(state)
        memory = version.memory
        if self.library.is_tracing() and (memory is None or memory.pinned or memory.history):
            raise ValueError(
                f"{function}_: under torch.compile the state must be the only owner of its memory, but older states "
                f"or arrays given out still need it; call state = rb.own_(state) before the compiled function"
            )
        return self.library.lock(version)

    def taken_over(self, state: V, after: V) -> V:
        """The state after some writes, with the one before them consumed, so that nothing is kept for it."""
        if after is state:
            return self.renamed(state)
        version = readable(after)
        with self.library.lock(version):
            state.consume()
            forget_dead(version.own())
        return after

    def own_(self, state: V) -> V:
        """Make a state the only owner of its memory: older ones have copies then, or it has, of what was exported."""
        version = readable(state)
        with version.lock:
            memory = version.own()
            if memory.pinned:
                version = version.succeed(memory.copy(), None)
            else:
                part_with_older(memory)
            return self.renamed(state, version)

    def renamed(self, state: V, version: Version | None = None) -> V:
        """The same value in another state, with the given one consumed; of its own version, if none is given."""
        new = type(state)(version or readable(state), state._counters, state.spec, past_of(state), state._target)
        state.consume()
        return new

    def _writable(self, state: VersionedState) -> Version:
        """The state's version; of Python objects those are gone that nobody can read any more."""
        version = readable(state)
        if state.spec.plan.objects:  # before the write takes the lock
            with version.lock:
                table = version.own().table
            table.tidy()
        return version

    # ---------------------------------------------------------------- reading

    def get(self, state: VersionedState, handles: BackendArray) -> list[BackendArray]:
        version = readable(state)
        with self.library.lock(version):
            memory = _fitting(state, version, "get")
            leaves = self.read_by(state, functions.get, self.library.placed("indices", handles, memory, state._target))
            return self.library.sent(self._with_objects(state, memory, leaves), state._target)

    def items(self, state: VersionedState) -> list[BackendArray]:
        """All of the storage, for ever as it is now."""
        version = readable(state)
        with self.library.lock(version):
            return self._with_objects(state, _fitting(state, version, "items"), self.library.items(state))

    def counter(self, state: VersionedState, place: int) -> BackendArray:
        return state.counters[..., place]

    def look(
        self, state: VersionedState, function: Function, handles: BackendArray | None = None, n: int | None = None
    ) -> BackendArray:
        version = readable(state)
        with self.library.lock(version):
            memory = _fitting(state, version, function.__name__)
            args = [] if handles is None else [self.library.placed("indices", handles, memory, state._target)]
            result = self.read_by(state, function, *args, *([] if n is None else [n]))
        return self.library.sent([result], state._target)[0]

    def read_by(self, state: VersionedState, function: Function, *args: object) -> Any:
        """What `function(ops, arrays, spec, *args)` reads off a state."""
        version = readable(state)
        with self.library.lock(version):
            return self._carry_out(function, version.own(), None, state._counters, state.spec, *args)

    def _with_objects(self, state: VersionedState, memory: Memory, leaves: list[BackendArray]) -> list[BackendArray]:
        """The leaves of items, with Python objects in place of their tokens. Hold the lock since they were read."""
        if not state.spec.plan.objects:
            return leaves  # as they are: what lies in the room that they were drawn to is known by that
        with_objects = list(leaves)
        for k in state.spec.plan.objects:
            self.library.check_single(leaves[k], state.spec)
            with_objects[k] = memory.table.objects(leaves[k])
        return with_objects

    # ---------------------------------------------------------------- in memory

    def _stored(self, state: VersionedState, memory: Memory, k: int, leaf: BackendArray) -> BackendArray:
        """A checked leaf as it is stored, where the memory is: of Python objects, fresh tokens of these."""
        if k in state.spec.plan.objects:
            leaf = memory.taken(memory.table.tokens(leaf))
        return self.library.placed(f"leaf {state.spec.plan.names[k]!r}", leaf, memory, state._target)

    def _carry_out(
        self, function: Function, memory: Memory, saved: Log | None, counters: BackendArray, *args: object
    ) -> Any:
        """Carry a function of the core out: with part kernels where they can work, and what it overwrites recorded."""
        library, arrays = self.library, memory.state_arrays(counters)
        with library.core():
            table = library.standing_in(memory)
            if library.is_tracing():
                whole = table.get(function)
                with using(table):
                    return function(library.ops, arrays, *args) if whole is None else whole(arrays, *args)
            if any(map(library.is_batched, args)):
                table = NONE
            if saved is None:
                return carried_out(table, function, library.ops, arrays, *args)
            recorder = Recorder(library.ops, memory, saved)
            return carried_out(recorder.recorded(table), function, recorder, arrays, *args)


def _expect_in_place(memory: Memory, after: Arrays) -> None:
    """Refuse what `torch.vmap` has written for each of its rows, where there is one memory for all of them."""
    if any(array is not memory.by_name.get(name) for name, array in named(after).items()):
        raise TypeError(
            "torch.vmap cannot write to one buffer for each of its rows, as where a sampler remembers what it drew; "
            "give all rows as one batch, such as a larger batch_size, or map over a stack of states"
        )


def _fitting(state: VersionedState, version: Version, function: str) -> Memory:
    """The memory of a version, which native code has not looked at where arrays were given to it."""
    memory = version.own()
    if not memory.fits:
        check_fits(memory.state_arrays(state._counters), state.spec.plan, function)
    return memory


def past_of(state: VersionedState, added: int = 0) -> SaveHistory | None:
    """The saves that the next state succeeds, with so many items added.

    What is traced knows nothing of saves: it would be compiled again after each.
    """
    past = None if state.library.is_tracing() else state._save_history
    return past.after(state.spec.rows(added)) if added and past is not None else past
