"""The public functions on memory that is written in place: a new state takes over the memory of the old one.

The way of a write is the same for all functions: lock the version, own its memory, make room for what is overwritten,
let the next version succeed, write by the core, and count what was saved; where the native chain does it, it does all
of that. `Engine` is the part of `buffer.backend.Backend` and `buffer.in_place.InPlace` that is so, for any library;
inputs have been checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functional_rb.buffer import checks, functions, respec
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters as core_counters
from functional_rb.core.draft import Draft
from functional_rb.core.strategy import Selection
from functional_rb.ops.part_kernels import NONE, Table, carried_out, using
from functional_rb.ops.protocol import Array
from functional_rb.structures import frame_ring
from functional_rb.versions.library import Library, Replacements
from functional_rb.versions.memory import Memory, Saved
from functional_rb.versions.recorder import Log, Recorder
from functional_rb.versions.state import readable
from functional_rb.versions.version import Version, forget_dead, part_with_older, separate


class Engine:
    """The functions of a replay buffer over versioned memory, for the arrays of one library."""

    def __init__(self, library: Library) -> None:
        """Take the library; nothing is compiled yet."""
        self.library = library

    # ---------------------------------------------------------------- writes
    #
    # The functions with an underscore consume the state, before the first write: an interrupt in its midst leaves none
    # that can be read and is wrong. The others save what they overwrite, for the state that they were given.

    def add(
        self,
        state: Any,
        leaves: Sequence[Array],
        batch: int,
        mask: Array | None,
        priorities: Array | None,
        key: Any,
        consume: bool = False,
    ) -> Any:
        """Write a batch of items; returns the new state."""
        library, spec, counters = self.library, state.spec, state._counters
        version = self._writable(state, "add_", consume)
        with library.lock(version):
            memory = version.own()
            leaves, mask, priorities = self._placed_batch(state, memory, leaves, batch, mask, priorities, key)
            if batch == 0:
                return self._followed_by(state, version, counters) if consume else state
            leaves = self._stored(memory, leaves)
            made = library.natively("write_" if consume else "write", state, leaves, mask, priorities)
            if made is not NotImplemented:
                return made
            target = memory.copy() if memory.pinned else memory
            if target.files is not None:
                library.make_room(target, spec, counters, batch)
            kernels, saved = library.on_device(target, spec), None
            if target is memory and not consume:
                saved = Log() if kernels is None else kernels.room(memory, min(batch, spec.capacity), True)

            def write() -> Array:
                if kernels is not None:
                    return kernels.add(target, spec, counters, leaves, batch, mask, priorities, saved)
                target.written = True
                with library.core():
                    bits = None
                    if key is not None and spec.writer.words:
                        bits = library.random_bits(key, (spec.rows(batch), spec.writer.words), target)
                    given = target.state_arrays(counters), spec, leaves, batch, mask, priorities, bits
                    return _written(target, self._carry_out(functions.add, target, saved, *given))

            return self._next_state(state, version, target, saved, write, consume, self._past(state, batch))

    def update(
        self,
        state: Any,
        handles: Array,
        priorities: Array | None,
        replacements: Replacements,
        consume: bool = False,
    ) -> Any:
        """Set priorities and rewrite leaves of items, by handle; returns the new state."""
        library, spec, counters = self.library, state.spec, state._counters
        version = self._writable(state, "update_", consume)
        with library.lock(version):
            memory = version.own()
            handles, priorities, replacements = self._placed_update(state, memory, handles, priorities, replacements)
            leaves = [replacements.get(k) for k in range(len(spec.plan.leaves))] if replacements else None
            made = library.natively("update_" if consume else "update", state, handles, priorities, leaves)
            if made is not NotImplemented:
                return made
            target = memory.copy() if memory.pinned else memory
            if replacements and target.files is not None:
                library.make_room_at(target, spec, handles)
            alone = priorities is not None and not replacements
            kernels, saved = library.on_device(target, spec) if alone and handles.shape[0] else None, None
            if target is memory and not consume:
                saved = Log() if kernels is None else kernels.room(memory, handles.shape[0], False)

            def write() -> Array:
                if kernels is not None:
                    assert priorities is not None
                    return kernels.update(target, spec, counters, handles, priorities, saved)
                with library.core():
                    given = target.state_arrays(counters), spec, handles, priorities, replacements
                    return _written(target, self._carry_out(functions.update, target, saved, *given))

            past = None if replacements else self._past(state)
            return self._next_state(state, version, target, saved, write, consume, past)

    def sample(
        self, state: Any, key: Any, batch: int, beta: Any, wanted: Array | None = None
    ) -> tuple[Any, list[Any], Selection]:
        """Draw items, of which the first `wanted` count, or all.

        Where the result is at hand, an empty buffer is an error.
        """
        library = self.library
        library.check_key(key)
        version = readable(state)
        with library.lock(version):
            memory = version.own()
            made = NotImplemented if wanted is not None else self._draw_natively(state, memory, key, batch, beta)
            if made is NotImplemented:
                made = self._draw_and_remember(state, version, memory, key, batch, beta, wanted)
            after, leaves, selection = made
            return after, *library.sent_sample(leaves, selection, state._target)

    def _draw_and_remember(
        self, state: Any, version: Version, memory: Memory, key: Any, batch: int, beta: Any, wanted: Array | None
    ) -> tuple[Any, list[Any], Selection]:
        """Draw by the core; the next state remembers it, if the sampler is such a one."""
        given = state.spec, state._counters, key, batch, beta, wanted
        if not state.spec.sampler.remembers or batch == 0:
            _, *drawn = self._draw(memory, *given)
            return state, *drawn
        target = memory.copy() if memory.pinned else memory
        saved = Log() if target is memory else None
        told: list[Any] = []

        def write() -> Array:
            after, *drawn = self._draw(target, *given, saved)
            told.extend(drawn)
            return after

        made = self._next_state(state, version, target, saved, write, False, state._save_history)
        return made, told[0], told[1]

    def add_(
        self, state: Any, leaves: Sequence[Array], batch: int, mask: Array | None, priorities: Array | None, key: Any
    ) -> Any:
        """`add`, in place."""
        return self.add(state, leaves, batch, mask, priorities, key, consume=True)

    def update_(self, state: Any, handles: Array, priorities: Array | None, replacements: Replacements) -> Any:
        """`update`, in place."""
        return self.update(state, handles, priorities, replacements, consume=True)

    def sample_(
        self, state: Any, key: Any, batch: int, beta: Any, finish: Callable[..., Any], wanted: Array | None = None
    ) -> tuple[Any, Any]:
        """Draw items, of which the first `wanted` count, or all, and finish the sample; then the state is consumed."""
        library, spec = self.library, state.spec
        library.check_key(key)
        version = readable(state)
        if not spec.sampler.remembers or batch == 0:
            sample = finish(*self.sample(state, key, batch, beta, wanted)[1:])
            return self._followed_by(state, version, state._counters), sample
        if library.is_tracing():
            version = self._writable(state, "sample_", True)
            given = state._counters, key, batch, beta, wanted
            counters, leaves, selection = self._draw(version.own(), spec, *given)
            sample = finish(*library.sent_sample(leaves, selection, state._target))
            return self._followed_by(state, version, counters), sample
        with library.lock(version):
            after, *drawn = self.sample(state, key, batch, beta, wanted)
            try:  # transforms call functions of the user's, which may fail
                sample = finish(*drawn)
            except Exception:
                version.roll_back()
                raise
            state.consume()
            del version  # so that nobody holds it but other states
            forget_dead(readable(after).own())
        return after, sample

    def own_(self, state: Any) -> Any:
        """Make a state the only owner of its memory."""
        return self._followed_by(state, self._owner(state), state._counters)

    def clear_(self, state: Any) -> Any:
        """Take all items out; the state is consumed."""
        version = self._writable(state, "clear_", True)
        memory = version.own()
        with self.library.core():
            arrays = functions.clear(self.library.ops, memory.state_arrays(state._counters), state.spec)
            pairs = [(memory.rows, arrays.rows), (memory.tree, arrays.tree)]
            pairs += [(array, arrays.auxiliary[name]) for name, array in memory.auxiliary.items()]
            state.consume()
            for array, new in pairs:
                if new is not array:
                    array[...] = new
        if memory.table is not None:
            memory.table.tidy_soon()
        past = None if state.spec.plan.objects else self._past(state)
        return type(state)(version, arrays.counters, state.spec, past, state._target)

    def _writable(self, state: Any, function: str, consume: bool) -> Version:
        """The state's version; for an in-place write one that alone owns its memory."""
        if consume and not self.library.is_tracing():
            return self._owner(state)
        version = readable(state)
        if state.spec.plan.objects:
            tidy(version)
        memory = version.memory
        if consume and (memory is None or memory.pinned or memory.shared):
            raise ValueError(
                f"{function}: under torch.compile the state must be the only owner of its memory, but older states "
                f"or arrays given out still need it; call state = rb.own_(state) before the compiled function"
            )
        return version

    def _owner(self, state: Any) -> Version:
        """The state's version, or one with a copy of its memory if that is not its own."""
        version = readable(state)
        if state.spec.plan.objects:
            tidy(version)
        with version.lock:
            memory = version.own()
            forget_dead(memory)
            if memory.files is not None:  # which stay the live ones: the older states get copies
                part_with_older(memory)
            return version.succeed(memory.copy(), None) if memory.pinned or memory.shared else version

    def _next_state(
        self,
        state: Any,
        version: Version,
        target: Memory,
        saved: Saved | None,
        write: Callable[[], Array],
        consume: bool,
        past: Any,
    ) -> Any:
        """The state after a write, which gives its counters; the given one is consumed, or found from what is saved."""
        if consume:
            state.consume()
            return type(state)(version, write(), state.spec, past, state._target)
        following = version.succeed(target, saved)
        try:
            after = write()
            if isinstance(saved, Log):
                version.count_saved()
            return type(state)(following, after, state.spec, past, state._target)
        except BaseException:  # there is nothing to draw, or a transform calls a function that fails
            version.roll_back()
            raise

    def _followed_by(self, state: Any, version: Version, counters: Array) -> Any:
        """The next state, with the given one consumed."""
        past = self._past(state)
        state.consume()
        return type(state)(version, counters, state.spec, past, state._target)

    def _past(self, state: Any, added: int = 0) -> Any:
        """The saves that the next state succeeds.

        What is traced knows nothing of saves: it would be compiled again after each.
        """
        past = None if self.library.is_tracing() else state._save_history
        return None if past is None else past.after(state.spec.rows(added))

    # ---------------------------------------------------------------- other arrays

    def clear(self, state: Any) -> Any:
        """Take all items out; the rows are handed on as they are."""
        library, spec = self.library, state.spec
        version = readable(state)
        with library.lock(version), library.making(), library.core():
            memory = version.own()
            arrays = functions.clear(library.ops, memory.state_arrays(state._counters), spec)
            following = version.exchange(arrays, memory.placement)
        if memory.table is not None:
            memory.table.tidy_soon()
        past = None if spec.plan.objects else state._save_history
        return type(state)(following, arrays.counters, spec, past, state._target)

    def with_spec(self, state: Any, spec: BufferSpec) -> Any:
        """Another spec, with the items in the same storage; rows that stay are handed on as they are."""
        library, old, made_by = self.library, state.spec, type(state)
        version = readable(state)
        if respec.is_label(old, spec) and library.is_tracing():
            return made_by(version, state._counters, spec, state._save_history, state._target)
        with library.lock(version), library.making(), library.core():
            memory = version.own()
            arrays = memory.state_arrays(state._counters)
            if respec.is_label(old, spec):  # a version of its own, as in-place functions write to that of a state
                following = version.exchange(arrays, memory.placement)
                return made_by(following, state._counters, spec, state._save_history, state._target)
            kernels, device = self._kernels(memory), getattr(memory.rows, "device", None)
            given = library.ops, arrays, old, spec, device
            made = carried_out(kernels, respec.with_spec, *given, step=respec.step_of(spec))
            if memory.table is None and respec.stays(old, spec):
                following = version.exchange(made, library.placement(spec))
                return made_by(following, made.counters, spec, None, state._target)
            table = None if memory.table is None else library.table_type(spec, memory.table.held(arrays))
            made = separate(made, arrays, memory.clone)
            return made_by.of_arrays(made, spec, pinned=False, table=table, target=state._target)

    def count_invalid(self, state: Any, outside: Array) -> Any:
        """The same state, with what was left out counted."""
        after = core_counters.with_invalid(self.library.ops, state._counters, outside)
        return type(state)(readable(state), after, state.spec, state._save_history, state._target)

    # ---------------------------------------------------------------- reading

    def get(self, state: Any, handles: Array) -> list[Any]:
        """Read stored items by their handles."""
        version = readable(state)
        with self.library.lock(version):
            memory, target = version.own(), state._target
            handles = self.library.placed("indices", handles, memory, target)
            arrays = memory.state_arrays(state._counters)
            leaves = functions.get(self.library.ops, arrays, state.spec, handles)
            leaves = leaves if memory.table is None else memory.table.read(leaves)
            return [self.library.sent(leaf, target) for leaf in leaves]

    def items(self, state: Any) -> list[Any]:
        """All of the storage, for ever as it is now."""
        version = readable(state)
        with self.library.lock(version):
            leaves = self.library.items(state)
            table = version.own().table
            return leaves if table is None else table.read(leaves)

    def is_live(self, state: Any, handles: Array) -> Array:
        """Whether handles name stored items."""
        version = readable(state)
        with self.library.lock(version):
            memory, target = version.own(), state._target
            handles = self.library.placed("indices", handles, memory, target)
            live = functions.is_live(self.library.ops, memory.state_arrays(state._counters), state.spec, handles)
            return self.library.sent(live, target)

    def counter(self, state: Any, place: int) -> Array:
        """One of the counters, int32."""
        found: Array = state.counters[..., place]
        return found

    def drawable(self, state: Any, n: int) -> Array:
        """Whether n items can be drawn from the state now."""
        version = readable(state)
        with self.library.lock(version):
            arrays = version.own().state_arrays(state._counters)
            return functions.drawable(self.library.ops, arrays, state.spec, n)

    def look(
        self, state: Any, function: Callable[..., Any], handles: Array | None = None, n: int | None = None
    ) -> Array:
        """What a function of `buffer.functions` reads off a state."""
        version = readable(state)
        with self.library.lock(version), self.library.core():
            memory, target = version.own(), state._target
            given = [] if handles is None else [self.library.placed("indices", handles, memory, target)]
            given += [] if n is None else [n]
            found = function(self.library.ops, memory.state_arrays(state._counters), state.spec, *given)
            return self.library.sent(found, target)

    def read_by(self, state: Any, function: Callable[..., Any], *given: Any) -> Any:
        """What `function(ops, draft, *given)` reads off a state; it writes nothing."""
        version = readable(state)
        with self.library.lock(version), self.library.core():
            memory = version.own()
            draft = Draft.of(memory.state_arrays(state._counters), state.spec.plan)
            return self._carry_out(function, memory, None, draft, *given)

    # ---------------------------------------------------------------- in memory

    def _placed_batch(
        self,
        state: Any,
        memory: Memory,
        leaves: Sequence[Array],
        batch: int,
        mask: Array | None,
        priorities: Array | None,
        key: Any,
    ) -> tuple[Sequence[Array], Array | None, Array | None]:
        """The checked inputs of `add` as kernels take them, where the memory is."""
        library, target = self.library, state._target
        if key is not None:
            library.check_key(key)
        if mask is not None:
            mask = library.placed("mask", mask.reshape(batch), memory, target)
        if priorities is not None:
            priorities = library.placed("priorities", priorities.reshape(batch), memory, target)
        return library.placed_leaves(state.spec, leaves, memory, target), mask, priorities

    def _placed_update(
        self, state: Any, memory: Memory, handles: Array, priorities: Array | None, replacements: Replacements
    ) -> tuple[Array, Array | None, Replacements]:
        """The checked inputs of `update` as kernels take them, where the memory is."""
        library, spec, target = self.library, state.spec, state._target
        handles = library.placed("indices", handles, memory, target)
        if priorities is not None:
            priorities = library.placed("priorities", priorities.reshape(handles.shape[0]), memory, target)
        placed = {
            k: leaf if k in spec.plan.objects else library.placed(f"leaf {spec.plan.names[k]!r}", leaf, memory, target)
            for k, leaf in replacements.items()
        }
        return handles, priorities, dict(zip(placed, self._stored(memory, list(placed.values())), strict=True))

    def _stored(self, memory: Memory, leaves: Sequence[Any]) -> list[Array]:
        """Leaves as they are stored: of Python objects, tokens of these."""
        if memory.table is None:
            return list(leaves)
        with memory.table.lock:
            return [memory.table.stored(leaf, memory.rows) for leaf in leaves]

    def _draw_natively(self, state: Any, memory: Memory, key: Any, batch: int, beta: Any) -> Any:
        """The state afterwards, leaves and selection by the native chain; `NotImplemented` where it cannot be."""
        library, spec = self.library, state.spec
        if library.is_tracing() or batch == 0 or not spec.known.draws:
            return NotImplemented
        if library.is_batched(key) or (type(beta) is not float and library.is_batched(beta)):
            return NotImplemented
        kernels = library.on_device(memory, spec)
        if kernels is not None:
            if not memory.written or not library.is_number(beta):
                return NotImplemented
            leaves, *told = kernels.draw(memory, spec, state._counters, key, batch, float(beta))
            return state, leaves, Selection(*told)
        key, bits = self._bits_for_transforms(memory, spec, key, batch)
        drawn = library.natively("draw", state, key, batch, float(beta))
        if drawn is NotImplemented:
            return NotImplemented
        after, leaves, slots, *told = drawn
        selection = Selection(*told)
        if not spec.known.plain:
            known = memory, spec, state._counters, batch, leaves, slots, selection, bits
            leaves, selection = carried_out(library.kernels.TABLE, self._completed, *known)
        return after, leaves if memory.table is None else memory.table.read(leaves), selection

    def _bits_for_transforms(self, memory: Memory, spec: BufferSpec, key: Any, batch: int) -> tuple[Any, Array | None]:
        """What is left of a key for the sampler, and the random bits of transforms if they take any."""
        if not spec.plan.extra_words:
            return key, None
        key, other = self.library.split(key)
        return key, self.library.random_bits(other, spec.extra_shape(batch), memory)

    def _draw(
        self,
        memory: Memory,
        spec: BufferSpec,
        counters: Array,
        key: Any,
        batch: int,
        beta: Any,
        wanted: Array | None,
        saved: Saved | None = None,
    ) -> tuple[Array, list[Any], Selection]:
        """Draw items from memory by the core; the counters afterwards come first."""
        library = self.library
        if not memory.written and batch > 0 and not library.is_tracing():
            checks.check_nonempty(spec, False, 0)
        key, bits = self._bits_for_transforms(memory, spec, key, batch)
        with library.core():
            words = library.random_bits(key, spec.draw_shape(batch), memory)
            given = memory.state_arrays(counters), spec, words, library.number(beta, memory), batch, bits, wanted
            if library.is_batched(key) or library.is_batched(beta):
                made, leaves, selection = functions.draw(library.ops, *given)
            else:
                made, leaves, selection = self._carry_out(functions.draw, memory, saved, *given)
            after = _written(memory, made)
        at_hand = batch > 0 and not library.is_tracing() and memory.is_ordinary
        if at_hand and not library.is_batched(selection.handles) and not bool(selection.handles.max() >= 0):
            checks.check_nonempty(spec, False, int(counters[core_counters.SIZE]))
        return after, leaves if memory.table is None else memory.table.read(leaves), selection

    def _completed(
        self,
        memory: Memory,
        spec: BufferSpec,
        counters: Array,
        batch: int,
        stored: list[Array],
        slots: Array | None,
        selection: Selection,
        bits: Array | None,
    ) -> tuple[list[Array], Selection]:
        """What the chain has drawn, with the leaves that it has not read, and as transforms have it."""
        ops, plan, known = self.library.ops, spec.plan, dict(zip(spec.plan.stored, stored, strict=False))
        slots = selection.handles % spec.capacity if slots is None else slots
        if stored and plan.frames is not None and not spec.inner:  # all but frames is there
            known |= frame_ring.read(ops, plan.frames, memory.auxiliary, slots, range(len(plan.leaves)))
            return [known[k] for k in range(len(plan.leaves))], selection
        draft = Draft.of(memory.state_arrays(counters), plan)
        with self.library.core():
            return functions.read_selection(ops, draft, spec, slots, selection, batch, bits, known)

    def _carry_out(self, function: Callable[..., Any], memory: Memory, saved: Saved | None, *given: Any) -> Any:
        """Carry a function of the core out: with part kernels where they can work, and what it overwrites recorded."""
        library = self.library
        if library.is_tracing():
            table = library.traced(memory)
            whole = table.get(function)
            with using(table):
                return function(library.ops, *given) if whole is None else whole(*given)
        table = self._kernels(memory)
        if saved is None and (memory.files is None or memory.files.undo is None):
            return carried_out(table, function, library.ops, *given)
        log = saved if isinstance(saved, Log) else Log()  # of files the recorder tells the undo log too
        recorder = Recorder(library.ops, memory, log)
        return carried_out(recorder.kernels(table), function, recorder, *given)

    def _kernels(self, memory: Memory) -> Table:
        """The part kernels that can work on a memory."""
        return self.library.kernels.TABLE if self.library.uses_kernels(memory) else NONE


def tidy(version: Version) -> None:
    """Drop Python objects that nobody can read any more, if there may be many: before a write, as it takes the lock."""
    with version.lock:
        table = version.own().table
    assert table is not None
    table.tidy()


def _written(memory: Memory, arrays: Any) -> Array:
    """The new counters. All other arrays were written in place."""
    assert arrays.tree is memory.tree
    assert all(arrays.auxiliary[name] is array for name, array in memory.auxiliary.items())
    return arrays.counters
