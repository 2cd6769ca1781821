"""The public functions on memory that is written in place: a new state takes over the memory of the old one.

The way of a write is the same for all functions: lock the version, own its memory, let native code do the whole of it
if it knows how, else let the next version succeed and write by the core, recording what is overwritten. `Engine` is the
part of `buffer.backend.Backend` and `buffer.in_place.InPlace` that is so, for any library; inputs have been checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from functional_rb.base.arrays import ArrayLike, BackendArray, PRNGKey
from functional_rb.buffer import checks, functions, respec
from functional_rb.buffer.reader import check_fits
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters as core_counters
from functional_rb.core.draft import Draft, by_name
from functional_rb.core.save_history import SaveHistory
from functional_rb.core.strategy import Selection
from functional_rb.ops.part_kernels import carried_out, using
from functional_rb.structures import frame_ring
from functional_rb.versions.library import Library, Replacements
from functional_rb.versions.memory import Memory, Saved
from functional_rb.versions.recorder import Log, Recorder
from functional_rb.versions.state import VersionedState, fullest_of, readable
from functional_rb.versions.version import Version, forget_dead, part_with_older, separate

R = TypeVar("R")
V = TypeVar("V", bound=VersionedState)


class Engine:
    """The functions of a replay buffer over versioned memory, for the arrays of one library."""

    def __init__(self, library: Library) -> None:
        """Take the library; nothing is compiled yet."""
        self.library = library

    # ---------------------------------------------------------------- writes
    #
    # In place, a function consumes the state before the first write: an interrupt in its midst leaves none that can be
    # read and is wrong. Else it saves what it overwrites, for the state that it was given.

    def add(
        self,
        state: V,
        leaves: Sequence[BackendArray],
        batch: int,
        mask: BackendArray | None,
        priorities: BackendArray | None,
        key: object,
        consume: bool = False,
    ) -> V:
        """Write a batch of items; returns the new state."""
        library, spec, counters = self.library, state.spec, state._counters
        version = self._writable(state, "add_", consume)
        with library.lock(version):
            memory = _fitting(state, version, "add")
            if key is not None:
                library.check_key(key)
            mask = self._placed(state, memory, "mask", mask, batch)
            priorities = self._placed(state, memory, "priorities", priorities, batch)
            stored = [self._stored(state, memory, k, leaf) for k, leaf in enumerate(leaves)]
            # Nothing is written; but whoever called an in-place function must go on with another state.
            if batch == 0:
                return self.renamed(state, version) if consume else state
            fullest = None if library.is_tracing() else fullest_of(memory, spec, batch)
            # Asked again, now that all is checked and converted: before, it may have been the input alone that was
            # unusual.
            made: V = library.natively("write_" if consume else "write", state, stored, mask, priorities, batch, key)
            if made is not NotImplemented:
                return _told(made, fullest)
            # Before anything is written: a page of a mapping for which the disk has no room kills the process.
            if memory.files is not None:
                library.make_room(memory, spec, counters, batch)

            def write(target: Memory, saved: Saved | None) -> BackendArray:
                target.written, target.fullest = True, None
                bits = None
                if key is not None and spec.writer.words:
                    bits = library.random_bits(key, (spec.rows(batch), spec.writer.words), target)
                given = spec, stored, batch, mask, priorities, bits
                return self._carry_out(functions.add, target, saved, counters, *given).counters

            made = next_state(state, version, write, past_of(state, batch), consume)
            return _told(made, fullest)

    def update(
        self,
        state: V,
        handles: BackendArray,
        priorities: BackendArray | None,
        replacements: Replacements,
        consume: bool = False,
    ) -> V:
        """Set priorities and rewrite leaves of items, by handle; returns the new state."""
        library, spec, counters = self.library, state.spec, state._counters
        version = self._writable(state, "update_", consume)
        with library.lock(version):
            memory = _fitting(state, version, "update")
            handles = library.placed("indices", handles, memory, state._target)
            priorities = self._placed(state, memory, "priorities", priorities, handles.shape[0])
            stored = {k: self._stored(state, memory, k, leaf) for k, leaf in replacements.items()}
            leaves = [stored.get(k) for k in range(len(spec.plan.leaves))] if stored else None
            made: V = library.natively("update_" if consume else "update", state, handles, priorities, leaves)
            if made is not NotImplemented:
                return made
            if stored and memory.files is not None:
                library.make_room(memory, spec, counters, 0, handles)

            def write(target: Memory, saved: Saved | None) -> BackendArray:
                given = spec, handles, priorities, stored
                return self._carry_out(functions.update, target, saved, counters, *given).counters

            # Rewritten rows are none that were added, so a checkpoint could not go on from an earlier one by those
            # alone.
            return next_state(state, version, write, None if stored else past_of(state), consume)

    def write_by(
        self,
        state: V,
        function: Callable[..., object],
        *given: object,
        rows: int = 0,
        consume: bool = False,
        rewrites: bool = False,
    ) -> V:
        """The state with the arrays that `function(ops, arrays, spec, *given)` makes of its own.

        No row is another, but for those that adding so many rows would write; or, if it rewrites, any may be.
        """
        spec, counters = state.spec, state._counters
        version = self._writable(state, "write_by", consume)
        with self.library.lock(version):
            memory = version.own()
            if rows and memory.files is not None:
                self.library.make_room(memory, spec, counters, rows)

            def write(target: Memory, saved: Saved | None) -> BackendArray:
                target.written |= rewrites
                target.fullest = None
                return self._carry_out(function, target, saved, counters, spec, *given).counters

            return next_state(state, version, write, None if rewrites else past_of(state, rows), consume)

    def sample(
        self, state: V, key: Any, batch: int, beta: Any, wanted: BackendArray | None = None, consume: bool = False
    ) -> tuple[V, list[BackendArray], Selection]:
        """Draw items, of which the first `wanted` count, or all; only a sampler that remembers may consume the state.

        Where the result is at hand, an empty buffer is an error.
        """
        library, spec = self.library, state.spec
        library.check_key(key)
        version = self._writable(state, "sample_", True) if consume else readable(state)
        with library.lock(version):
            memory, bits = _fitting(state, version, "sample"), None
            fullest, key = memory.fullest, library.key_beside(key, memory)
            if spec.plan.extra_words:  # what is left of the key is the sampler's
                key, other = library.split(key)
                bits = library.random_bits(other, spec.extra_shape(batch), memory)
            room: Any = None if wanted is not None else library.room(spec, batch, state._target)
            made: Any = NotImplemented
            if wanted is None:
                by_bits = room is not None and room.by_bits
                by = library.random_bits(key, spec.draw_shape(batch), memory) if by_bits else key
                made = library.natively("draw", state, by, batch, beta, None if room is None else room.parts)
            if made is not NotImplemented:
                after, leaves, slots, *told = made
                selection = Selection(*told)
                if not spec.known.plain:
                    known = state, memory, batch, leaves, slots, selection, bits
                    try:  # transforms call functions of the user's, which may fail
                        leaves, selection = carried_out(library.standing_in(memory), self._completed, *known)
                    except BaseException:
                        version.roll_back()
                        raise
            else:
                after, leaves, selection = self._draw(state, version, key, bits, batch, beta, wanted, consume)
            if spec.sampler.takes_out and wanted is None and not library.is_tracing():
                _told(
                    after, None if fullest is None else spec.sampler.most_left(fullest, batch // spec.plan.ring.lanes)
                )
            return after, *library.sent_sample(_with_objects(memory, leaves), selection, state._target, room)

    def sample_(
        self,
        state: V,
        key: PRNGKey,
        batch: int,
        beta: ArrayLike,
        finish: Callable[[list[BackendArray], Selection], R],
        wanted: BackendArray | None = None,
    ) -> tuple[V, R]:
        """Draw items, of which the first `wanted` count, or all, and finish the sample; then the state is consumed."""
        if not state.spec.sampler.remembers or batch == 0:
            _, leaves, selection = self.sample(state, key, batch, beta, wanted)
            sample = finish(leaves, selection)
            return self.renamed(state), sample
        if self.library.is_tracing():
            after, leaves, selection = self.sample(state, key, batch, beta, wanted, consume=True)
            return after, finish(leaves, selection)
        version = readable(state)
        with version.lock:
            after, leaves, selection = self.sample(state, key, batch, beta, wanted)
            try:  # transforms call functions of the user's, which may fail
                sample = finish(leaves, selection)
            except Exception:
                version.roll_back()
                raise
            del version  # so that nobody holds it but other states
            return self.taken_over(state, after), sample

    def taken_over(self, state: V, after: V) -> V:
        """The state after some writes, with the one before them consumed, so that nothing is kept for it."""
        if after is state:
            return self.renamed(state)
        version = readable(after)
        with version.lock:
            state.consume()
            forget_dead(version.own())
        return after

    def own_(self, state: V) -> V:
        """Make a state the only owner of its memory."""
        return self.renamed(state, self._owner(state))

    def clear(self, state: V, consume: bool = False) -> V:
        """Take all items out; the rows are handed on as they are."""
        library, spec = self.library, state.spec
        version = self._writable(state, "clear_", consume)
        with library.lock(version), library.making(), library.core():
            memory = version.own()
            fullest = None if memory.fullest is None else 0
            arrays = functions.clear(library.ops, memory.state_arrays(state._counters), spec)
            # Of Python objects the tokens go, so rows change that nobody has added.
            past = None if spec.plan.objects else past_of(state)
            if consume:
                state.consume()
                memory.take(by_name(arrays, spec.plan))
            else:
                version = version.exchange(arrays)
        if memory.table is not None:
            memory.table.tidy_soon()
        return _told(type(state)(version, arrays.counters, spec, past, state._target), fullest)

    def _writable(self, state: VersionedState, function: str, consume: bool) -> Version:
        """The state's version; for an in-place write one that alone owns its memory."""
        version, tracing = readable(state), self.library.is_tracing()
        if state.spec.plan.objects:  # those that nobody can read any more, before the write takes the lock
            with version.lock:
                table = version.own().table
            table.tidy()
        if consume and not tracing:
            return self._owner(state)
        memory = version.memory
        if consume and (memory is None or memory.pinned or memory.shared):
            raise ValueError(
                f"{function}: under torch.compile the state must be the only owner of its memory, but older states "
                f"or arrays given out still need it; call state = rb.own_(state) before the compiled function"
            )
        return version

    def _owner(self, state: VersionedState) -> Version:
        """The state's version, of which older ones have copies then; or one with a copy if others hold its arrays."""
        version = readable(state)
        with version.lock:
            memory = version.own()
            # What was exported is never written again.
            if memory.pinned:
                return version.succeed(memory.copy(), None)
            part_with_older(memory)
            return version

    def renamed(self, state: V, version: Version | None = None) -> V:
        """The same value in another state, with the given one consumed; of its own version, if none is given."""
        made = type(state)(version or readable(state), state._counters, state.spec, past_of(state), state._target)
        state.consume()
        return made

    def with_spec(self, state: V, spec: BufferSpec) -> V:
        """Another spec, with the items in the same storage; rows that stay are handed on as they are."""
        library, old, made_by = self.library, state.spec, type(state)
        version = readable(state)
        if respec.is_label(old, spec) and library.is_tracing():
            return made_by(version, state._counters, spec, state._save_history, state._target)
        with library.lock(version), library.making(), library.core():
            memory = version.own()
            arrays = memory.state_arrays(state._counters)
            if respec.is_label(old, spec):  # a version of its own, as in-place functions write to that of a state
                return made_by(version.exchange(arrays), state._counters, spec, state._save_history, state._target)
            given = library.ops, arrays, old, spec, getattr(memory.rows, "device", None)
            made = carried_out(library.standing_in(memory), respec.with_spec, *given, step=respec.step_of(spec))
            if memory.table is None and respec.stays(old, spec):
                return made_by(version.exchange(made), made.counters, spec, None, state._target)
            table = None if memory.table is None else library.table_type(spec, memory.table.held(memory))
            # Both memories are written in place, so no array may belong to both.
            made = separate(made, arrays, memory.clone)
            return made_by.of_arrays(made, spec, pinned=False, table=table, target=state._target)

    def count_invalid(self, state: V, outside: BackendArray) -> V:
        """The same state, with what was left out counted."""
        after = core_counters.with_invalid(self.library.ops, state.counters, outside)
        return type(state)(readable(state), after, state.spec, state._save_history, state._target)

    # ---------------------------------------------------------------- reading

    def get(self, state: VersionedState, handles: BackendArray) -> list[BackendArray]:
        """Read stored items by their handles."""
        version = readable(state)
        with self.library.lock(version):
            memory = _fitting(state, version, "get")
            leaves = self._read(state, functions.get, handles)
            return [self.library.sent(leaf, state._target) for leaf in _with_objects(memory, leaves)]

    def items(self, state: VersionedState) -> list[BackendArray]:
        """All of the storage, for ever as it is now."""
        version = readable(state)
        with self.library.lock(version):
            return _with_objects(version.own(), self.library.items(state))

    def is_live(self, state: VersionedState, handles: BackendArray) -> BackendArray:
        """Whether handles name stored items."""
        return self.look(state, functions.is_live, handles)

    def counter(self, state: VersionedState, place: int) -> BackendArray:
        """One of the counters, int32."""
        return state.counters[..., place]

    def drawable(self, state: VersionedState, n: int) -> BackendArray:
        """Whether n items can be drawn from the state now."""
        return self._read(state, functions.drawable, None, n)

    def look(
        self,
        state: VersionedState,
        function: Callable[..., object],
        handles: BackendArray | None = None,
        n: int | None = None,
    ) -> BackendArray:
        """What a function of `buffer.functions` reads off a state."""
        given = [] if n is None else [n]
        return self.library.sent(self._read(state, function, handles, *given), state._target)

    def _read(
        self, state: VersionedState, function: Callable[..., object], handles: BackendArray | None, *given: object
    ) -> Any:
        """What a function of `buffer.functions` reads of items, or of all, where the memory is."""
        version = readable(state)
        with self.library.lock(version), self.library.core():
            memory = version.own()
            named = [] if handles is None else [self.library.placed("indices", handles, memory, state._target)]
            return function(self.library.ops, memory.state_arrays(state._counters), state.spec, *named, *given)

    def read_by(self, state: VersionedState, function: Callable[..., object], *given: object) -> Any:
        """What `function(ops, arrays, spec, *given)` reads off a state, by part kernels where they can work."""
        version = readable(state)
        with self.library.lock(version):
            return self._carry_out(function, version.own(), None, state._counters, state.spec, *given)

    # ---------------------------------------------------------------- in memory

    def _placed(
        self, state: VersionedState, memory: Memory, name: str, array: BackendArray | None, batch: int
    ) -> BackendArray | None:
        """A checked input with one number for each item, where the memory is."""
        if array is None:
            return None
        return self.library.placed(name, array.reshape(batch), memory, state._target)

    def _stored(self, state: VersionedState, memory: Memory, k: int, leaf: BackendArray) -> BackendArray:
        """A checked leaf as it is stored, where the memory is: of Python objects, fresh tokens of these."""
        if memory.table is not None and k in state.spec.plan.objects:
            return memory.table.stored(leaf, memory.rows)
        return self.library.placed(f"leaf {state.spec.plan.names[k]!r}", leaf, memory, state._target)

    def _draw(
        self,
        state: V,
        version: Version,
        key: object,
        bits: BackendArray | None,
        batch: int,
        beta: ArrayLike,
        wanted: BackendArray | None,
        consume: bool,
    ) -> tuple[V, list[BackendArray], Selection]:
        """Draw by the core; the next state remembers it, if the sampler is such a one."""
        library, spec, counters = self.library, state.spec, state._counters
        told: list[Any] = []  # the leaves and the selection
        # Of a buffer of a mixture, of which some rows are wanted, others give what it has not.
        at_hand = batch > 0 and wanted is None and not library.is_tracing()
        # Known without a look at the device's numbers.
        if at_hand and not version.own().written:
            checks.check_nonempty(spec, False, 0)

        def draw(memory: Memory, saved: Saved | None) -> BackendArray:
            with library.core():
                words = library.random_bits(key, spec.draw_shape(batch), memory)
                given = spec, words, library.number(beta, memory), batch, bits, wanted
                # Kernels cannot read values that stand for many, over which somebody maps.
                if library.is_batched(key) or library.is_batched(beta):
                    made = functions.draw(library.ops, memory.state_arrays(counters), *given)
                else:
                    made = self._carry_out(functions.draw, memory, saved, counters, *given)
            after, leaves, selection = made
            is_known = at_hand and memory.is_ordinary and not library.is_batched(selection.handles)
            if is_known and not bool(selection.handles.max() >= 0):
                checks.check_nonempty(spec, False, int(counters[core_counters.SIZE]))
            told.extend((leaves, selection))
            return after.counters

        if spec.sampler.remembers and batch:
            after = next_state(state, version, draw, past_of(state), consume)
        else:
            draw(version.own(), None)
            after = state
        return after, *told

    def _completed(
        self,
        state: VersionedState,
        memory: Memory,
        batch: int,
        stored: list[BackendArray],
        slots: BackendArray | None,
        selection: Selection,
        bits: BackendArray | None,
    ) -> tuple[list[BackendArray], Selection]:
        """What native code has drawn, with the leaves that it has not read, and as transforms have it."""
        spec, plan = state.spec, state.spec.plan
        slots = selection.handles % spec.capacity if slots is None else slots
        if plan.frames is not None and len(stored) == len(plan.leaves):  # frames too
            if not spec.inner:
                return stored, selection
            known = dict(enumerate(stored))
        else:
            known = dict(zip(plan.stored, stored, strict=False))
        if stored and plan.frames is not None and not spec.inner:  # all but frames is there
            gather, every = self.library.gather(state._target), range(len(plan.leaves))
            known |= frame_ring.read(self.library.ops, plan.frames, memory.auxiliary, slots, every, gather)
            return [known[k] for k in range(len(plan.leaves))], selection
        draft = Draft.of(memory.state_arrays(state._counters), plan)
        with self.library.core():
            return functions.read_selection(self.library.ops, draft, spec, slots, selection, batch, bits, known)

    def _carry_out(
        self,
        function: Callable[..., object],
        memory: Memory,
        saved: Saved | None,
        counters: BackendArray,
        *given: object,
    ) -> Any:
        """Carry a function of the core out: with part kernels where they can work, and what it overwrites recorded."""
        library, arrays = self.library, memory.state_arrays(counters)
        with library.core():
            table = library.standing_in(memory)
            if library.is_tracing():
                whole = table.get(function)
                with using(table):
                    return function(library.ops, arrays, *given) if whole is None else whole(arrays, *given)
            if saved is None and (memory.files is None or memory.files.undo is None):
                return carried_out(table, function, library.ops, arrays, *given)
            log = saved if isinstance(saved, Log) else Log()  # of files the recorder tells the undo log too
            recorder = Recorder(library.ops, memory, log)
            return carried_out(recorder.kernels(table), function, recorder, arrays, *given)


def _fitting(state: VersionedState, version: Version, function: str) -> Memory:
    """The memory of a version, which native code has not looked at where arrays were given to it."""
    memory = version.own()
    if not memory.fits:
        check_fits(memory.state_arrays(state._counters), state.spec.plan, function)
    return memory


def _told(state: V, fullest: int | None) -> V:
    """A new state, whose memory tells how many items its fullest lane has at most, if that is known."""
    if fullest is not None:
        readable(state).own().fullest = min(fullest, state.spec.plan.ring.length)
    return state


def next_state(
    state: V,
    version: Version,
    write: Callable[[Memory, Saved | None], BackendArray],
    past: SaveHistory | None,
    consume: bool = False,
) -> V:
    """The state after a write; the given one is consumed, or found from what is saved.

    Args:
        state: the given one.
        version: its own; to consume the state, one that alone owns its memory.
        write: writes to a memory, saves what it overwrites if it is told where, and returns the new counters.
        past: the saves that the new state succeeds.
        consume: whether the state is consumed.
    """
    memory = version.own()
    if consume:
        state.consume()
        return type(state)(version, write(memory, None), state.spec, past, state._target)
    tracing = state.library.is_tracing()  # where nothing is recorded, so that it is a copy that is written to
    if tracing and memory.files is not None:
        raise ValueError(
            "under torch.compile a Memmap buffer is written in place alone, as its files cannot be copied there; call "
            "add_, update_ or sample_"
        )
    target = memory.copy() if memory.pinned or tracing else memory
    saved = Log() if target is memory else None
    following = version.succeed(target, saved)
    try:
        made = type(state)(following, write(target, saved), state.spec, past, state._target)
        # Only now it is known how much the write has saved.
        version.count_saved()
        return made
    except BaseException:  # there is nothing to draw, or a transform calls a function that fails
        version.roll_back()
        raise


def past_of(state: VersionedState, added: int = 0) -> SaveHistory | None:
    """The saves that the next state succeeds, with so many items added.

    What is traced knows nothing of saves: it would be compiled again after each.
    """
    past = None if state.library.is_tracing() else state._save_history
    return past.after(state.spec.rows(added)) if added and past is not None else past


def _with_objects(memory: Memory, leaves: list[BackendArray]) -> list[BackendArray]:
    """The leaves of items, with Python objects in place of their tokens."""
    if memory.table is None:
        return leaves
    found: list[object] = memory.table.read(leaves)
    return found
