"""A history of the core beside plain lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.core.draft import Draft
from functional_rb.ops import numpy_ops
from functional_rb.testing import carriers
from functional_rb.testing.faults import alike, differing, kind_of, shown_item
from functional_rb.testing.laws import Step
from functional_rb.testing.sampler_rules import check_heeding, check_probabilities, check_selection
from functional_rb.testing.strategies import BITS, Action, Add, Clear, Sample, Update
from functional_rb.testing.tried import Tried
from functional_rb.testing.writer_rules import check_added


def random_words(seed: int, shape: Sequence[int], odd: bool = False) -> NumpyArray:
    """Random bits int32 in [0, 2^31); of some seeds the ends of the range."""
    if odd and seed % 7 < 2:
        return np.full(tuple(shape), (0, BITS - 1)[seed % 7], np.int32)
    return np.random.default_rng(seed).integers(0, BITS, tuple(shape), np.int32)


class Walk(Tried):
    """A history of the core beside plain lists, on several carriers."""

    def run(self, history: Sequence[Action]) -> None:
        """Carry a history out, after a draw from the empty buffer."""
        self.go_on("init", self.call("init", self.spec))
        self.draw(Sample(self.spec.batch_size or 6, 0, None))
        self.follow_all(history)

    def follow_all(self, history: Sequence[Action]) -> None:
        """Take each action of a history."""
        for action in history:
            if isinstance(action, Add):
                self.add(action)
            elif isinstance(action, Sample):
                self.draw(action)
            elif isinstance(action, Update):
                self.update(action)
            elif isinstance(action, Clear):
                self.clear()

    def perform(self, name: str, *arguments: Nest) -> Nest:
        """Carry an update or a clear out, and return the arrays after it."""
        return self.call(name, self.arrays, self.spec, *arguments)

    def add(self, action: Add) -> None:
        """Add a batch, and see where its rows are."""
        spec, before = self.spec, dict(self.stored)
        leaves = nest.flatten_as(spec.plan.structure, action.items)
        count = len(leaves[0])
        bits = random_words(action.seed, (count, spec.writer.words)) if spec.writer.words else None
        arguments = (self.arrays, spec, leaves, count, action.mask, action.priorities, bits)
        after = self.call("add", *arguments)
        mask = np.ones(count, np.bool_) if action.mask is None else action.mask
        rows = self.rows_of(leaves)
        self.noted(rows, mask, action.priorities, bits)
        self.go_on("add", after)
        if not count:
            return
        check_added(self, before, [rows[row] for row in np.flatnonzero(mask)])

    def noted(
        self,
        rows: list[dict[str, NumpyArray]],
        mask: NumpyArray,
        priorities: NumpyArray | None,
        bits: NumpyArray | None,
    ) -> None:
        """Let the lists take note of a batch."""
        if self.model is not None:
            values = None if priorities is None else priorities.tolist()
            self.model.add(rows, mask.tolist(), values, bits)
        lanes = self.spec.lanes or 1
        for row in np.flatnonzero(mask):
            self.added.append(Step(len(self.added), int(row) % lanes, -1, -1, rows[row]))

    def draw(self, action: Sample) -> None:
        """Draw a batch, and compare it with the lists."""
        spec, sampler = self.spec, self.spec.sampler
        try:
            sampler.check_batch(spec.plan, action.batch_size)
        except ValueError:
            return
        size = action.batch_size
        bits = random_words(action.seed, sampler.draw_shape(spec.plan, size), odd=True)
        more = random_words(action.seed + 1, spec.extra_shape(size)) if spec.plan.extra_words else None
        beta = np.float32(getattr(sampler, "beta", 0.0) if action.beta is None else action.beta)
        some = bool(self.call("drawable", self.arrays, spec, 1))
        enough = bool(self.call("drawable", self.arrays, spec, size))
        if self.model is None or not self.model.law.epochs_done:
            check_probabilities(self, some)
        check_heeding(self, action.seed % (size + 1), bits, np.asarray(beta), size, more)
        after, leaves, selection = self.call("draw", self.arrays, spec, bits, np.asarray(beta), size, more)
        before = self.stored
        check_selection(self, selection, leaves, size, some, enough, more)
        changed = [name for name, _, _ in differing(self.arrays, after, "state")]
        self.expect(
            sampler.remembers or not changed,
            "a draw: expected the state unchanged, as `remembers` is False, got a change of "
            f"{', '.join(changed)}; let `remembers` be True, or change nothing",
        )
        self.go_on("draw", after, drawn=True)
        for handle, stored in self.stored.items():
            self.expect(
                handle in before and alike(before[handle], stored),
                f"a draw: expected what is stored to stay as it is, got another item under handle {handle}; a "
                "sampler changes the draft's tree, auxiliary arrays and counters alone",
            )

    def update(self, action: Update) -> None:
        """Set priorities and exchange leaves of what is there, and of what is not."""
        spec = self.spec
        slots = np.arange(spec.capacity, dtype=np.int32)
        current = Draft.of(self.arrays, spec.plan).handles_of(numpy_ops.OPS, slots)
        wanted = np.where(action.which < spec.capacity, 0, -spec.capacity) + current[action.which % spec.capacity]
        handles = np.maximum(wanted, -1).astype(np.int32)
        new: dict[int, NumpyArray] = {}
        if action.items is not None:  # what tells where episodes end cannot be exchanged
            flat = zip(
                spec.plan.names, spec.plan.leaves, nest.flatten_as(spec.plan.structure, action.items), strict=True
            )
            new = {
                k: leaf
                for k, (path, kind, leaf) in enumerate(flat)
                if path == "id" or (kind.dtype.startswith("float") and not self.trial.sampler_law)
            }
        after = self.perform("update", handles, action.priorities, new)
        named = {spec.plan.names[k]: leaf for k, leaf in new.items()}
        if self.model is not None:
            values = None if action.priorities is None else action.priorities.tolist()
            self.model.update(handles.tolist(), values, named or None)
        for row, handle in enumerate(handles.tolist()):
            if handle in self.stored:
                self.stored[handle] = self.stored[handle] | {path: leaf[row] for path, leaf in named.items()}
        wanted_items = dict(self.stored)
        self.added = []  # items are others now: laws of writers speak of what was added
        self.go_on("update", after)
        for handle, leaves in wanted_items.items():
            self.expect(
                handle in self.stored and alike(self.stored[handle], leaves),
                f"the item of handle {handle} after an update: expected {shown_item(leaves)}, got "
                f"{shown_item(self.stored.get(handle, {}))}; let hooks of an update change the draft's tree, "
                "auxiliary arrays and counters alone",
            )
        if self.trial.writer_law is not None:
            self.clear()

    def clear(self) -> None:
        """Take everything out."""
        after = self.perform("clear")
        if self.model is not None:
            self.model.clear()
        self.added = []
        self.go_on("clear", after)
        self.expect(not self.stored, f"a clear: expected nothing stored, got {sorted(self.stored)}; see `cleared`")
        some = bool(self.call("drawable", self.arrays, self.spec, 1))
        self.expect(not some, f"`drawable` after a clear: expected False, got {some}; forget all items in `cleared`")

    # What must hold at any time.

    def go_on(self, what: str, after: Nest, drawn: bool = False) -> None:
        """Go on from new arrays, which must be as they are declared, and hold what the lists hold."""
        spec = self.spec
        declared = dict(self.declared())
        kinds = {name: kind_of(array) for name, array in carriers.named(after, "state").items()}
        for name in declared | kinds:
            self.expect(
                declared.get(name) == kinds.get(name),
                f"`{name}` after `{what}`: expected {declared.get(name, 'no such array')}, got "
                f"{kinds.get(name, 'none')}; let `auxiliary`, `counters` and `tree_rows` declare what is kept, "
                "and hooks keep its shape and dtype",
            )
        slots = np.arange(spec.capacity, dtype=np.int32)
        self.arrays = after
        handles = np.asarray(Draft.of(after, spec.plan).handles_of(numpy_ops.OPS, slots), np.int32)
        live = self.call("is_live", after, spec, handles)
        leaves = self.call("get", after, spec, handles)
        before = set(self.stored)
        self.stored = {
            int(handle): {path: leaf[slot] for path, leaf in zip(spec.plan.names, leaves, strict=True)}
            for slot, handle in enumerate(handles)
            if live[slot]
        }
        back = self.gone & set(self.stored)
        self.expect(
            not back,
            f"handles after `{what}`: expected handles of items that are gone to name nothing for ever, got "
            f"{sorted(back)}; let handles go on: `ChoosingWriter.renew` and its `cleared` do so",
        )
        self.gone |= before - set(self.stored)
        size = int(Draft.of(after, spec.plan).size(numpy_ops.OPS))
        self.expect(
            size == len(self.stored),
            f"the size after `{what}`: expected {len(self.stored)}, the number of items that handles name, got "
            f"{size}; let `Write.after` have the sizes and the cursors that follow from what is written",
        )
        if self.model is not None:
            if drawn and spec.sampler.remembers and spec.writer.in_order:  # some samplers consume what they draw
                store = self.model.store
                store.lanes = [[step for step in lane if step.handle in self.stored] for lane in store.lanes]
            wanted = {step.handle: step.leaves for step in self.model.steps()}
            self.expect(
                wanted.keys() == self.stored.keys() and all(alike(wanted[h], self.stored[h]) for h in wanted),
                f"what is stored after `{what}`, by handle and id: expected "
                f"{ {h: shown_item(leaves) for h, leaves in sorted(wanted.items())}!s}, got "
                f"{ {h: shown_item(leaves) for h, leaves in sorted(self.stored.items())} }; leave the storage to "
                "the buffer",
            )

    def declared(self) -> Iterable[tuple[str, str]]:
        """The arrays of a state, and what they should be."""
        spec = self.spec
        for name, array in carriers.named(self.arrays or self.call("init", spec), "state").items():
            if not name.startswith("state.auxiliary") and name != "state.tree":
                yield name, kind_of(array)
        for name, auxiliary in spec.plan.auxiliary.items():
            yield f"state.auxiliary[{name!r}]", f"{auxiliary.dtype} {list(auxiliary.shape)}"
        if spec.plan.tree_shape is not None:
            yield "state.tree", f"float32 {list(spec.plan.tree_shape)}"
