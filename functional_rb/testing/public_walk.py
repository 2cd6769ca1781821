"""A history of the public functions of a backend beside the core and plain lists."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Nest
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays
from functional_rb.testing import carriers
from functional_rb.testing.faults import differing, no_error, shown
from functional_rb.testing.strategies import Action, Add, Sample
from functional_rb.testing.transform_rules import check_leaves
from functional_rb.testing.tried import Trial
from functional_rb.testing.walk import Walk
from functional_rb.testing.writer_rules import check_added


class PublicWalk(Walk):
    """A history of the public functions of a backend; what they do to arrays is what the core does."""

    def __init__(self, trial: Trial, name: str) -> None:
        super().__init__(trial, [carriers.on_numpy(carriers.IN_PLACE)])
        library = name.partition("-")[0]
        self.name, self.rb = name, importlib.import_module(f"{library}_backend")
        self.jit = importlib.import_module("jax").jit if name == "jax-jit" else None
        self.state: Nest = None
        self.older: list[tuple[State, Arrays]] = []

    def public(self, name: str, *arguments: object, static: tuple[int, ...] = ()) -> Nest:
        """Call a public function with the state that was reached, compiled where this carrier compiles."""
        function = getattr(self.rb, name + "_" if self.name.endswith("-inplace") else name)
        if self.jit is not None:
            function = self.jit(function, static_argnums=static)
        with no_error(self.who, f"`{name}` on {self.name}"):
            return function(self.state, *arguments)

    def arrays_of(self, state: State) -> Arrays:
        """The arrays of a copy of a state, as reading those of the state itself would pin its memory."""
        state = copy.deepcopy(state)
        fields = [getattr(state, field) for field in Arrays._fields]
        return Arrays(*carriers.mapped(carriers.as_numpy, fields))

    def run(self, history: Sequence[Action]) -> None:
        """Carry a history out; in the end every state reads as it did when it was new."""
        self.state = self.rb.init(self.spec)
        self.go_on("init", self.arrays_of(self.state))
        self.follow_all(history)
        if not self.name.endswith("-inplace"):
            for state, arrays in self.older:
                for path, _, now in differing(arrays, self.arrays_of(state), "state"):
                    self.expect(
                        False,
                        f"`{path}` of an older state on {self.name}: expected what it was, got {shown(now)}; "
                        "write to the draft's arrays by `ops` alone",
                    )

    def perform(self, name: str, *arguments: Nest) -> Nest:
        public_arguments = list(arguments)
        if name == "update":
            public_arguments[2] = (
                nest.nested({self.spec.plan.structure.paths[k]: leaf for k, leaf in arguments[2].items()}) or None
            )
        self.follow(name, self.public(name, *public_arguments), self.spec, *arguments)
        return self.arrays

    def follow(self, name: str, state: State, *arguments: object) -> None:
        """Go on from a new state, whose arrays must be those that the core gives."""
        expected = self.call(name, self.arrays, *arguments)
        arrays = self.arrays_of(state)
        for path, one, other in differing(expected, arrays, "state"):
            self.expect(
                False,
                f"`{path}` after `{name}` on {self.name}: expected the bits of the core on NumPy, {shown(one)}, "
                f"got {shown(other)}; compute by `ops` alone, in int32 and float32",
            )
        self.older.append((self.state, self.arrays))
        self.state, self.arrays = state, arrays

    def add(self, action: Add) -> None:
        """Add a batch; where a writer draws random bits, nothing is compared with the core."""
        spec = self.spec
        leaves = nest.flatten_as(spec.plan.structure, action.items)
        count = len(leaves[0])
        mask = np.ones(count, np.bool_) if action.mask is None else action.mask
        if self.model is not None and not self.model.store.fits(mask.tolist()):
            return
        lead = (count,) if spec.lanes is None else (count // spec.lanes, spec.lanes)
        shaped = [leaf.reshape(*lead, *leaf.shape[1:]) for leaf in leaves]
        items = nest.unflatten(spec.plan.structure, shaped, lambda _, parts, __: parts)
        priorities = None if action.priorities is None else action.priorities.reshape(lead)
        key = self.rb.key(action.seed) if spec.writer.words else None
        state = self.public("add", items, mask.reshape(lead), priorities, key)
        rows = self.rows_of(leaves)
        before = dict(self.stored)
        if spec.writer.words:
            self.model = None
            self.older.append((self.state, self.arrays))
            self.state, self.arrays = state, self.arrays_of(state)
        else:
            self.follow("add", state, spec, leaves, count, mask, action.priorities, None)
        self.noted(rows, mask, action.priorities, None)
        self.go_on("add", self.arrays)
        check_added(self, before, [rows[row] for row in np.flatnonzero(mask)])

    def draw(self, action: Sample) -> None:
        """Draw a batch by a key, and compare it with the lists."""
        spec, size = self.spec, action.batch_size
        some, enough = (bool(self.call("drawable", self.arrays, spec, n)) for n in (1, size))
        if not some or not enough:
            return
        state, sample = self.public("sample", self.rb.key(action.seed), size, static=(2,))
        leaves = [carriers.as_numpy(leaf) for leaf in nest.flatten_as(spec.plan.structure, sample.items)]
        handles = carriers.as_numpy(sample.indices).reshape(-1)
        mask = handles != -1 if sample.mask is None else carriers.as_numpy(sample.mask).reshape(-1)
        gone = [int(handle) for handle in handles[mask] if int(handle) not in self.stored]
        self.expect(not gone, f"a sample on {self.name}: expected handles of what is stored, got {gone}; see `draw`")
        if not spec.plan.extra_words:
            check_leaves(self, handles, mask, leaves, tuple(spec.sampler.leading_shape(size)), None)
        self.older.append((self.state, self.arrays))
        self.state, self.arrays = state, self.arrays_of(state)
        self.go_on("draw", self.arrays, drawn=True)
