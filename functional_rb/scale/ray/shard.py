"""A shard: a part of the items, in a buffer of its own, which may be called twice. It knows nothing of Ray."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import functional_rb.checkpoint as checkpoints
from functional_rb.base import nest
from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.base.errors import NoCheckpointError
from functional_rb.buffer import functions, mapping
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.checkpoint.background import SaveFuture
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.sample import MaskedSample, SliceSample
from functional_rb.mixture.value import Mixture
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Ops
from functional_rb.samplers import Prioritized, Queue
from functional_rb.scale.ray import blocks
from functional_rb.scale.ray.blocks import Block
from functional_rb.scale.ray.ledger import KeptAnswers, Ledger
from functional_rb.scale.ray.messages import Drawn, Standing, Ticket, Welcome, Write, Wrote
from functional_rb.scale.ray.taken import Taken
from functional_rb.specs import Unbounded
from functional_rb.structures import sum_tree
from functional_rb.structures.ring import RingState
from functional_rb.writers import Immutable

_log = logging.getLogger("functional_rb")


class Shard:
    """The buffer of one shard, on the CPU of its machine, by torch's functions; all that goes in and out is NumPy's.

    It is used by one thread. What clients send is applied once, however often it arrives. A checkpoint has the items
    and, in the same atomic save, which writes they came by.
    """

    def __init__(
        self,
        number: int,
        shards: int,
        spec: BufferSpec,
        checkpoint: str | None = None,
        restarted: bool = False,
        save_every: int | None = None,
    ) -> None:
        """Begin a shard of a part's spec, or go on where its directory in `checkpoint` has one of the same spec.

        `restarted` says that there was one before that has died. After `save_every` items that were added it writes a
        checkpoint by itself.
        """
        self.number, self.shards, self.spec = number, shards, spec
        self._rb = importlib.import_module("torch_backend")
        self._engine: Callable[[State], Any] = importlib.import_module("torch_backend.lib").LIB.engine
        self._checkpoint = None if checkpoint is None else os.path.join(checkpoint, f"shard_{number}")
        self._save_every = save_every
        self._ledger = Ledger()
        self._standing: Standing | None = None
        self._stale = self._duplicates = self._gaps = self._save_failures = self._masked = 0
        # A save in the background, and how many items had been added when it began.
        self._saving: tuple[SaveFuture, int] | None = None
        self._structure: nest.Structure | None = None
        # The connection whose steps came last; None if what comes next does not follow on these.
        self._line: tuple[str, int] | None = None
        # What `Write.version` said of these steps.
        self._line_version = 0
        self._answers, self._full = KeptAnswers(), False
        self._taken = Taken(f"{self._checkpoint}.taken" if self._checkpoint and spec.sampler.takes_out else None)
        state = self._restored()
        fresh = state is None
        if state is None:
            state = self._rb.init(spec)
            # Handles of the one before must not name items of this one, and nothing tells how often it was restarted.
            self._ledger.epoch = 1 + secrets.randbelow((2**31 - 1) // shards - 1) if restarted else 0
        self._state: State = state
        if spec.sampler.takes_out:
            if not fresh:  # the checkpoint still has what was given out since it was written
                limit = spec.plan.ring.limit
                given_out = self._taken.since(self._ledger.epoch - 1, self._begins(), self._sizes(), limit)
                if given_out.any():
                    self._state = self._engine(state).write_by(state, _without, self._rb.from_dlpack(given_out))
            self._taken.note(self._ledger.epoch, self._begins())  # in this life nothing is given out yet
        # The epoch in which the item in each slot was written; of those restored, the one before.
        self._written_in = np.full(spec.capacity, self._ledger.epoch - 1, np.int64)
        # What `Write.version` said of the item in each slot.
        self._versions = np.zeros(spec.capacity, np.int64)
        self._versioned = False
        self._saved_at = self._ledger.inserted
        self.saves = 0
        if checkpoint is not None and self._ledger.epoch:
            self.save()  # so that the next restart counts on from here

    # ---------------------------------------------------------------- what clients call

    def hello(self, client: str, connection: str | None = None) -> Welcome:
        """Let a client connect; with None it has only lost touch, and goes on with the session that it has."""
        entry = self._ledger.of(client) if connection is None else self._ledger.connect(client, connection)
        return Welcome(entry.session, entry.applied, entry.adds, entry.items, self.standing())

    def write(self, writes: Sequence[Write]) -> Wrote:
        """Apply writes of one client in their order, each unless it has been."""
        self._full = False
        refused = tuple(self._apply(write) for write in writes)
        return Wrote(self._ledger.of(writes[0].client).applied, self.standing(), refused, self._full)

    # Why the write was refused, if it was.
    def _apply(self, write: Write) -> Exception | None:
        self._collect()
        verdict = self._ledger.judge(write.client, write.session, write.epoch, write.sequence, write.after)
        refused: Exception | None = None
        if verdict == "apply" and write.kind == "add" and self._has_to_wait(write):
            self._full = True
        elif verdict == "apply":
            items = 0
            try:
                items = getattr(self, f"_{write.kind}")(write)
            except (TypeError, ValueError) as error:  # as the public functions refuse; nothing has changed
                refused = type(error)(str(error))
            except Exception as error:  # nor has it here: what is written is a new value
                refused = RuntimeError(f"shard {self.number}: {type(error).__name__}: {error}")
            self._standing = None
            self._ledger.apply(write.client, write.session, write.sequence, write.kind == "add", items)
            self._save_now_and_then()
        elif verdict == "duplicate":
            self._duplicates += 1
        elif verdict == "gap":
            self._gaps += 1
        else:
            refused = RuntimeError(
                f"client {write.client!r} has connected anew since, and goes on there; close this client, or give each "
                f"a name of its own"
            )
        return refused

    def sample(self, seed: int, batch: int, oldest: int | None = None, ticket: Ticket | None = None) -> Drawn:
        """Draw by this shard's own law, by a seed of 64 bits; items that were made by an older version are masked.

        Of a queue a batch is the most that is given, in whole rounds of its lanes, and the same ticket is given the
        same items.
        """
        if ticket is None:
            return self._draw(seed, batch, oldest)
        return self._answers.once(ticket, self._ledger.epoch, lambda: self._take(batch, oldest), self._nothing)

    def _nothing(self) -> Drawn:
        return Drawn(0, blocks.pack([]), (), (), self.standing())

    # The oldest items are taken out, or windows of each lane in turn, as many as there are.
    def _take(self, batch: int, oldest: int | None) -> Drawn:
        whole = self._windows()
        lanes = len(whole)
        batch = min(batch // lanes, int(whole.max())) * lanes
        if not batch:
            return self._nothing()
        before = self._state, self._ledger.sampled, self._masked
        try:
            drawn = self._draw(0, batch, oldest, whole_alone=True)
            self._taken.note(self._ledger.epoch, self._begins())
        except BaseException:  # what nobody is told of stays
            self._state, self._ledger.sampled, self._masked = before
            raise
        finally:
            self._standing = None
        return drawn._replace(standing=self.standing())

    def _draw(self, seed: int, batch: int, oldest: int | None, whole_alone: bool = False) -> Drawn:
        standing = self.standing()
        if standing.mass <= 0:
            return self._nothing()
        self._state, sample = self._rb.sample(self._state, self._rb.key(seed), batch)
        leaves, self._structure = mapping.taken_apart(self.spec, sample.items)
        handles = _numpy(sample.indices)
        arrays = {"indices": self._global(handles), "probabilities": _numpy(sample.probabilities)}
        names = {SliceSample: ("mask", "is_first", "is_last", "truncated"), MaskedSample: ("mask",)}
        arrays |= {name: _numpy(getattr(sample, name)) for name in names.get(type(sample), ())}
        if oldest is not None:
            fresh = (self._versions[handles % self.spec.capacity] >= oldest) | (handles < 0)
            self._masked += int((~fresh).sum())
            arrays["mask"] = fresh & arrays["mask"] if "mask" in arrays else fresh
            arrays["indices"] = self._global(np.where(fresh, handles, -1))
        extras = {name: _numpy(array) for name, array in sample.extras.items()}
        columns = [*map(_numpy, leaves), *arrays.values(), *extras.values()]
        if whole_alone:  # lanes that have no window give none
            there = _numpy(sample.mask).reshape(batch, -1)[:, 0]
            columns, batch = [column[there] for column in columns], int(there.sum())
        block = blocks.pack(columns)
        self._ledger.sampled += batch
        self._standing = self._standing and self._standing._replace(sampled=self._ledger.sampled)
        return Drawn(batch, block, tuple(arrays), tuple(extras), standing)

    def description(self) -> nest.Structure | None:
        """How the items of the last draw look, where a function of items makes others of them."""
        return self._structure

    def standing(self) -> Standing:
        if self._standing is None:
            mass, least = self._mass()
            size = int(self._rb.size(self._state))
            ledger = self._ledger
            room = None if self.spec.writer.overwrites else int(self._room().max()) * self.spec.plan.ring.lanes
            self._standing = Standing(ledger.epoch, mass, least, size, ledger.inserted, ledger.sampled, room)
        return self._standing

    def save(self) -> int:
        """Write a checkpoint, and wait for it; returns its number."""
        if self._checkpoint is None:
            raise ValueError("save: expected frb.ray.start(..., checkpoint=directory), got none; start with one")
        self._collect(wait=True)
        inserted = self._ledger.inserted
        saved = checkpoints.save(self._whole(), self._checkpoint, incremental=True, progress=False)
        self._note_saved(inserted)
        return saved.generation

    def counts(self) -> dict[str, int | float]:
        self._collect()
        counts, standing = self._rb.counts(self._state), self.standing()
        return {
            "epoch": standing.epoch,
            "mass": standing.mass,
            "size": standing.size,
            "capacity": self.spec.capacity,
            "inserted": standing.inserted,
            "sampled": standing.sampled,
            "stale": int(counts.stale) + self._stale,
            "rejected": int(counts.rejected),
            "duplicates": self._duplicates,
            "gaps": self._gaps,
            "masked": self._masked,
            "saves": self.saves,
            "save_failures": self._save_failures,
            "unsaved": standing.inserted - self._saved_at,
        }

    def get(self, handles: NumpyArray) -> Block:
        """The leaves of stored items, by the handles of a sharded sample, and which are there."""
        local, live = self._local(handles)
        items = self._rb.get(self._state, np.where(live, local, -1).astype(np.int32))
        leaves = nest.flatten_as(self.spec.plan.outline.structure, items)
        live &= _numpy(self._rb.is_live(self._state, local))
        return blocks.pack([*map(_numpy, leaves), live])

    # ---------------------------------------------------------------- writes

    def _add(self, write: Write) -> int:
        line, self._line = self._line, None
        if line != (write.client, write.session):
            with self._noting(self._line_version):
                self._end_trajectories()
        leaves, named = _opened(write)
        items = nest.unflatten(self.spec.added.structure, leaves)
        self._versioned |= write.version != 0
        with self._noting(write.version):
            self._state = self._rb.add(self._state, items, **named)
        self._line, self._line_version = (write.client, write.session), write.version
        return int(named["mask"].sum()) if "mask" in named else _rows(self.spec, leaves)

    # No trajectory may go on over steps that are not there, or are another client's. Steps that wait for others to
    # follow, as with `n_step(at="add")`, are stored with the returns over what there is.
    def _end_trajectories(self) -> None:
        plan, waits = self.spec.plan, any(transform.carried() for transform in self.spec.inner)
        if plan.boundaries is not None or waits:
            rows = plan.ring.lanes if waits else 0
            self._state = self._engine(self._state).write_by(self._state, functions.cut, rows=rows)

    # Note of all items that are stored meanwhile by which version they are, and in which life of this shard.
    @contextlib.contextmanager
    def _noting(self, version: int) -> Iterator[None]:
        if not self._versioned and not self._ledger.epoch:  # before a restart all items are of the first life
            yield
            return
        before = self._rb.counts(self._state).cursor
        yield
        slots = self._new_slots(before)
        self._written_in[slots] = self._ledger.epoch
        self._versions[slots] = version

    # The slots between two cursors; all of them where more lie between than there are.
    def _new_slots(self, before: Array) -> NumpyArray:
        ring = self.spec.plan.ring
        ends = []
        for cursor in (before, self._rb.counts(self._state).cursor):
            handles = np.atleast_1d(_numpy(cursor)).astype(np.int64)
            if ring.lanes > 1:  # a handle's number in its lane; see `ring.handle_of`
                handles = handles // ring.capacity * ring.length + handles % ring.capacity % ring.length
            ends.append(handles)
        slots = []
        for lane, (first, last) in enumerate(zip(*ends, strict=True)):
            written = min((last - first) % ring.limit, ring.length)
            slots.append(lane * ring.length + (last - written + np.arange(written)) % ring.length)
        return np.concatenate(slots)

    def _update(self, write: Write) -> int:
        leaves, named = _opened(write)
        local, live = self._local(named["indices"])
        self._stale += int((~live).sum())
        priorities = named["priorities"][live] if "priorities" in named else None
        items: Nest = None
        if leaves:
            paths = self.spec.plan.structure.paths
            items = nest.nested({paths[k]: leaf[live] for k, leaf in zip(write.leaves, leaves, strict=True)})
        self._state = self._rb.update(self._state, local[live], priorities, items=items)
        return 0

    def _clear(self, write: Write) -> int:
        self._state = self._rb.clear(self._state)
        return 0

    # ---------------------------------------------------------------- queues

    # Whether a queue has no room for items that would fit into it, were it empty.
    def _has_to_wait(self, write: Write) -> bool:
        if not self.spec.sampler.takes_out:
            return False
        (leaves, named), ring = _opened(write), self.spec.plan.ring
        if "mask" in named:
            wanted = named["mask"].reshape(-1, ring.lanes).sum(0)
        else:
            wanted = np.full(ring.lanes, _rows(self.spec, leaves) // ring.lanes)
        return bool((wanted > self._room()).any() and (wanted <= ring.length).all())

    # How many items each lane has room for, int [lanes].
    def _room(self) -> NumpyArray:
        return np.asarray(self.spec.plan.ring.length - self._sizes())

    # How many items, or windows, each lane of a queue has to give, int [lanes].
    def _windows(self) -> NumpyArray:
        assert isinstance(self.spec.sampler, Queue)
        return np.asarray(self._sizes() // (self.spec.sampler.length or 1))

    # The sequence numbers of the oldest items of the lanes, int64 [lanes].
    def _begins(self) -> NumpyArray:
        cursors = np.asarray(self._look(lambda ops, draft: draft.counters.ends.cursors), np.int64)
        return np.asarray((cursors - self._sizes()) % self.spec.plan.ring.limit)

    # How many items each lane has, int [lanes].
    def _sizes(self) -> NumpyArray:
        return self._look(lambda ops, draft: draft.counters.ends.sizes)

    # ---------------------------------------------------------------- handles

    def _global(self, handles: NumpyArray) -> NumpyArray:
        """Handles of this shard's buffer, int32 [B], as those of all shards, int32 [B, 2].

        The first column names the shard, and by which of its lives: the number plus `shards` for each restart. A buffer
        that goes on from a checkpoint gives the handles of lost items to others, which old ones must not name.
        """
        place = np.where(handles >= 0, self.number + self.shards * self._ledger.epoch, -1)
        return np.stack([place, handles], -1).astype(np.int32)

    # This buffer's handles int32 [B] of those of all shards int32 [B, 2], and which may name what they named.
    def _local(self, handles: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        place, local = handles[:, 0].astype(np.int64), np.ascontiguousarray(handles[:, 1], np.int32)
        epochs = place // self.shards
        live = (place >= 0) & (local >= 0) & (epochs <= self._ledger.epoch)
        live &= self._written_in[np.where(live, local, 0) % self.spec.capacity] <= epochs
        return local, live

    # ---------------------------------------------------------------- masses

    # What a draw goes by: the mass of all items, and the least chance of one.
    def _mass(self) -> tuple[float, float]:
        state, sampler = self._state, self.spec.sampler
        if sampler.takes_out:
            return float(self._windows().sum()), 1.0
        if self.spec.plan.tree_shape is None:
            size = int(self._rb.size(state))
            if not size:
                return 0.0, 0.0
            plain = type(sampler).__name__ == "Uniform"
            return float(size), 1 / size if plain else float(self._look(sampler.least_chance))
        # The last rows of the sum tree, which have its root: a small array of its own.
        root = self._look(lambda ops, draft: draft.known_tree[-3:] * 1)
        mass = float(sum_tree.total(root))
        if mass <= 0:
            return 0.0, 0.0
        if isinstance(sampler, Prioritized):
            return mass, float(sum_tree.smallest(numpy_ops.OPS, root)) / mass
        return mass, float(self._look(sampler.least_chance))

    # What a function reads off the state.
    def _look(self, function: Callable[[Ops, Draft], Array]) -> NumpyArray:
        def looked(ops: Ops, state: State, spec: BufferSpec) -> Array:
            return function(ops, Draft.of(state, spec.plan))

        return _numpy(self._engine(self._state).look(self._state, looked))

    # ---------------------------------------------------------------- checkpoints

    def _restored(self) -> State | None:
        if self._checkpoint is None or not os.path.isdir(self._checkpoint):
            return None
        try:
            saved = checkpoints.load(
                self._checkpoint, self._rb, checkpoints.LoadOptions(fall_back=True, progress=False)
            )
        except NoCheckpointError:
            return None
        if not isinstance(saved, Mixture) or len(saved) != 2:
            raise ValueError(f"{self._checkpoint}: expected the checkpoint of a shard, got another; give another path")
        state, ledger = saved
        assert isinstance(state, State)
        if state.spec != self.spec:
            raise ValueError(
                f"{self._checkpoint}: expected a shard of {self.spec}, got {state.spec}; start with the spec and the "
                f"number of shards that it was saved with, or give another path"
            )
        self._ledger = Ledger.decode(_numpy(self._rb.items(ledger)))
        self._ledger.epoch += 1
        return state

    def _whole(self) -> Mixture:
        record = self._ledger.encode()
        spec = BufferSpec(Unbounded((), "uint8"), len(record), writer=Immutable())
        return Mixture([self._state, self._rb.init(spec, items=record.copy())])

    def _save_now_and_then(self) -> None:
        due = self._save_every is not None and self._ledger.inserted - self._saved_at >= self._save_every
        if not due or self._checkpoint is None or self._saving is not None:
            return
        saving = checkpoints.save(self._whole(), self._checkpoint, incremental=True, progress=False, background=True)
        self._saving = saving, self._ledger.inserted

    def _collect(self, wait: bool = False) -> None:
        if self._saving is None or not (wait or self._saving[0].done()):
            return
        (saving, inserted), self._saving = self._saving, None
        try:
            saving.result()
        except Exception as error:  # the items stay, and the next save tries again
            self._save_failures += 1
            _log.error("shard %d: a checkpoint could not be written: %s", self.number, error)
            return
        self._note_saved(inserted)

    def _note_saved(self, inserted: int) -> None:
        self._saved_at = inserted
        self.saves += 1


# The buffer without so many of the oldest items of each lane, int64 [lanes].
def _without(ops: Ops, state: State, spec: BufferSpec, items: Array) -> Arrays:
    draft = Draft.of(state, spec.plan)
    ends = draft.counters.ends
    fewer = ends.sizes - ops.cast(items, "int32")
    draft.counters = draft.counters.replace(ends=RingState(ends.cursors, fewer))
    return draft.finish(ops)


# The leaves of a write, and its other arrays by name.
def _opened(write: Write) -> tuple[list[NumpyArray], dict[str, NumpyArray]]:
    arrays, count = blocks.unpack(write.block), len(write.leaves)
    return arrays[:count], dict(zip(write.names, arrays[count:], strict=True))


def _numpy(array: Any) -> NumpyArray:
    return array if isinstance(array, np.ndarray) else np.asarray(array.numpy())


# How many items leaves [B, *shape] have, or [T, E, *shape].
def _rows(spec: BufferSpec, leaves: Sequence[NumpyArray]) -> int:
    lead = leaves[0].shape[: leaves[0].ndim - len(spec.added.leaves[0].shape)]
    return int(np.prod(lead))
