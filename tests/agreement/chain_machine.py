"""Random programs on the version chain of torch, and beside it on the plain engine."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import stateful

import functional_rb as frb
import torch_backend as rb
from tests.support import chain_programs as programs
from torch_backend.kernels import chain
from torch_backend.memory.library import TORCH

# With DLPack's C interface, and as torch before 2.13 has it.
CHAINS = {"exchange": TORCH.chain, "capsules": chain.made(has_exchange=False)}
KINDS = ("dict", "dict", "map", "nested", "tuple", "named tuple", "dataclass", "bare")
SAMPLERS = (frb.Uniform(), frb.Prioritized(), frb.Prioritized(alpha=1.0, beta=1.0, new_priority="ever"))
EPOCHS = frb.WithoutReplacement(), frb.WithoutReplacement(drop_last=True)
SLICES = (
    frb.Slices(2, end_keys=()),
    frb.Slices(3, end_keys=("done",), strict_length=False, span=True, weighting="window"),
    frb.Slices(2, end_keys=("done",), strict_length=False, period=2, batch="steps", flat=True),
    frb.Slices(3, trajectory_key="n", strict_length=False),
    frb.PrioritizedSlices(2, end_keys=("done",), strict_length=False),
    frb.PrioritizedSlices(2, trajectory_key="big", batch="steps", new_priority="ever"),
    frb.PrioritizedSlices(2, end_keys=(), strict_length=False, flat=True, alpha=1.0),
)
ON_HOSTS = (
    frb.Prioritized(replacement=False),
    frb.Prioritized(max_times_sampled=2, replacement=False, alpha=1.0),
    frb.Prioritized(max_times_sampled=3),
    frb.Uniform(max_times_sampled=1),
    frb.WithoutReplacement(shuffle=False),
    frb.Recency(3),
)
ANY = st.sampled_from(SAMPLERS) | st.sampled_from(ON_HOSTS) | st.sampled_from(EPOCHS) | st.sampled_from(SLICES)
REWARDS = "x", "long"
# Of items that are mappings: steps that wait for others.
WAITING = (
    frb.n_step(3, 0.9, at="add", reward_key=REWARDS[0], terminated_key="done"),
    frb.n_step(2, 0.5, at="add", reward_key=REWARDS[1], terminated_key="done", next_keys=["image"], trajectory_key="n"),
)
OTHERS = ("let go", "deepcopy", "pickle", "clear", "label", "alpha")
# States that are alive.
MOST = 6


class Kept(NamedTuple):
    """A state of the chain, the plain engine's, and the bits of both when they were new."""

    native: Any
    plain: Any
    bits: list[bytes]


def same(items: Any) -> Any:
    """A function of items that are sampled."""
    return items


def kept(native: Any, plain: Any) -> Kept:
    found = programs.peek(native)
    assert found == programs.peek(plain)
    assert native._save_history == plain._save_history
    assert native.spec == plain.spec
    return Kept(native, plain, found)


places = st.integers(0, 5) | st.just(0)
seeds, sizes = st.integers(0, 2**32 - 1), st.sampled_from([1, 1, 2, 3, 5, 9, 20])


class Programs(stateful.RuleBasedStateMachine):
    """Every call is made twice, on the chain and on the plain engine; after it all states that live are looked at."""

    chain: programs.Noting

    @stateful.initialize(
        kind=st.sampled_from(KINDS),
        names=st.lists(st.sampled_from([*programs.LEAVES]), min_size=1, max_size=5, unique=True),
        capacity=st.sampled_from([1, 2, 3, 7, 17]),
        sampler=ANY,
        lanes=st.sampled_from([None, None, 1, 2, 3]),
        mapped=st.sampled_from([False, False, True]),
        batch_size=st.sampled_from([None, 4]),
        core=st.booleans(),
        empty=st.sampled_from([False, False, False, True]),
        more=st.sampled_from([*[None] * 6, "waits", "waits", "shares", "shares", "stops"]),
    )
    def begin(
        self,
        kind: str,
        names: list[str],
        capacity: int,
        sampler: Any,
        lanes: int | None,
        mapped: bool,
        batch_size: int | None,
        core: bool,
        empty: bool,
        more: str | None = None,
    ) -> None:
        marks = [*(getattr(sampler, "end_keys", None) or ()), getattr(sampler, "trajectory_key", None)]
        if marks != [None]:  # which are paths
            kind, names = "map" if kind == "map" else "dict", [*dict.fromkeys([*names, *filter(None, marks)])]
        if getattr(sampler, "strict_length", False):
            capacity = max(capacity, sampler.length)
        transforms = frb.map_items(same) if mapped else ()
        shape: Any = {"lanes": lanes, "batch_size": batch_size, "transforms": transforms}
        if more and marks == [None] and not mapped:
            kind = "map" if kind == "map" else "dict"
            if more == "waits":
                shape["transforms"] = WAITING[len(names) % len(WAITING)]
                names = [*dict.fromkeys([*names, "x", "long", "image", "n", "done"])]
            elif more == "stops":
                shape["writer"], capacity = frb.StopWhenFull(), 40
            elif sampler in SAMPLERS:
                shape["compact"] = frb.Compact(next={}, stack={"tiny": 2, "short": 3})
                names = [*dict.fromkeys([*names, "tiny", "short"])]
        self.kind, self.core, self.lanes = kind, core, lanes
        self.leaves = {name: programs.LEAVES[name] for name in (names[:1] if kind == "bare" else names)}
        item = programs.arranged("dict" if kind == "map" else kind, self.leaves)
        self.spec = frb.BufferSpec(item, capacity * (lanes or 1), sampler, **shape)
        self.states = [kept(*self.fresh())]
        self.exported: list[tuple[torch.Tensor, bytes]] = []
        if not empty:
            self.add(0, 9, 0, False, False)

    def fresh(self) -> tuple[Any, Any]:
        """Two empty states, of which the first is that of the chain."""
        return rb.init(self.spec), rb.init(self.spec)

    def place(self, at: int) -> int:
        """Of the states that live, the newest first."""
        return len(self.states) - 1 - at % len(self.states)

    # --- calls

    def both(self, name: str, at: Kept, *given: Any) -> tuple[Any, Any]:
        """What each way returns; both raise the same."""
        with programs.using(self.chain):
            native, error = programs.outcome(getattr(rb, name), at.native, *given)
        with programs.using(programs.NotHere()), frb.kernels(not self.core):
            plain, other = programs.outcome(getattr(rb, name), at.plain, *given)
        assert error == other
        return native, plain

    def write(self, name: str, at: int, in_place: bool, *given: Any) -> None:
        """A call that makes a state; one in place consumes the one that it is given."""
        before = self.states[at]
        # What `with_spec` made of a state has its memory, as long as only a label is another.
        in_place = in_place and sum(x.native._version is before.native._version for x in self.states) == 1
        native, plain = self.both(name + "_" * in_place, before, *given)
        if native is None:
            return
        if in_place:
            del self.states[at]
            self.both("size", before)
            self.both(name, before, *given)
        self.states.append(kept(native, plain))
        del self.states[:-MOST]

    def companion(self, rng: np.random.Generator, array: np.ndarray) -> Any:
        """A mask, priorities or handles in a usual form, or not."""
        form = str(rng.choice(["tensor", "numpy"] if rng.random() < 0.85 else programs.FORMS))
        return programs.in_form(form, array[: len(array) - int(rng.random() < 0.03)])

    def some_leaf(self, rng: np.random.Generator, name: str, lead: tuple[int, ...]) -> Any:
        usual = rng.integers(programs.USUAL * len(self.leaves)) > 0
        form = str(rng.choice(programs.FORMS[:2] if usual else programs.FORMS))
        array = programs.random_array(rng, self.leaves[name], lead)
        if self.spec.transforms and name in REWARDS:  # sums of several NaN may have the bits of either
            array = np.where(np.isnan(array), 1, array).astype(array.dtype)
        return programs.in_form(form, array)

    def some_priorities(self, rng: np.random.Generator, lead: tuple[int, ...]) -> Any:
        if not self.spec.sampler.has_priorities:
            return None if rng.random() < 0.98 else torch.ones(lead)
        array = rng.choice(programs.PRIORITIES, lead)
        return self.companion(rng, array[..., None] if rng.random() < 0.2 else array)

    @stateful.rule(at=places, n=sizes, seed=seeds, in_place=st.booleans(), beside=st.booleans())
    def add(self, at: int, n: int, seed: int, in_place: bool, beside: bool) -> None:
        rng = np.random.default_rng(seed)
        lead = () if n == 1 and rng.random() < 0.5 else (n,)
        lead = lead if self.lanes is None else (*lead, self.lanes)
        leaves = {name: self.some_leaf(rng, name, lead) for name in self.leaves}
        if rng.random() < 0.05:
            leaves.pop(str(rng.choice(list(leaves))))
            items: Any = leaves
        else:
            items = programs.arranged(self.kind, leaves)
        mask = self.companion(rng, rng.random(lead or 1) < 0.6) if beside and rng.random() < 0.7 else None
        priorities = self.some_priorities(rng, lead or (1,)) if beside else None
        self.write("add", self.place(at), in_place, items, mask, priorities)

    @stateful.rule(at=places, n=sizes, seed=seeds, in_place=st.booleans(), rewrites=st.booleans())
    def update(self, at: int, n: int, seed: int, in_place: bool, rewrites: bool) -> None:
        rng, state = np.random.default_rng(seed), self.states[self.place(at)].native
        cursor = int(rb.size(state)) if self.lanes else int(state._counters[0])
        handles = rng.integers(cursor - 1 - int(rng.choice([1, 3, 30])), cursor + 2, n).clip(-1).astype(np.int32)
        items = None
        rewrites = rng.random() < 0.5 if self.spec.sampler in SLICES else rewrites
        rewrites = rewrites or not self.spec.sampler.has_priorities
        if rewrites and self.kind in ("dict", "map"):
            chosen = [name for name in self.leaves if rng.random() < 0.6] or list(self.leaves)
            items = {name: self.some_leaf(rng, name, (n,)) for name in chosen}
            items |= {"nobody": torch.ones(n)} if rng.random() < 0.05 else {}
        elif rewrites:
            items = programs.arranged(self.kind, {name: self.some_leaf(rng, name, (n,)) for name in self.leaves})
        priorities = self.some_priorities(rng, (n,)) if rng.random() < 0.8 else None
        given = self.companion(rng, handles), priorities, items
        self.write("update", self.place(at), in_place, *given)

    @stateful.rule(
        at=places,
        seed=st.integers(-(2**63), 2**63 - 1),
        size=st.sampled_from([1, 2, 8, 33]),
        beta=st.sampled_from([0.0, 0.7, 1, 1.5]),
        odd=st.sampled_from([*[None] * 8, "size", "beta", "both"]),
        in_place=st.booleans(),
    )
    def sample(self, at: int, seed: int, size: Any, beta: Any, odd: str | None, in_place: bool) -> None:
        at = self.place(at)
        before = self.states[at]
        in_place = in_place and sum(x.native._version is before.native._version for x in self.states) == 1
        beta = None if not before.native.spec.sampler.has_priorities or seed % 3 else beta
        size = (None, 0, -1, True, 2.0)[seed % 5] if odd in ("size", "both") else size
        beta = (None, 100.5, float("nan"), True, -1)[seed // 5 % 5] if odd in ("beta", "both") else beta
        native, plain = self.both("sample" + "_" * in_place, before, torch.tensor(seed), size, beta)
        if native is None:
            return
        assert programs.told(self.spec, native[1]) == programs.told(self.spec, plain[1])
        if not self.core:
            assert programs.strides(self.spec, native[1]) == programs.strides(self.spec, plain[1])
        if not in_place and not self.spec.sampler.remembers:
            assert native[0] is before.native
            return
        if in_place:
            del self.states[at]
            self.both("size", before)
        self.states.append(kept(native[0], plain[0]))
        del self.states[:-MOST]

    # --- what else befalls states

    @stateful.rule(at=places, by=st.sampled_from(["export", "export", *OTHERS]))
    def befall(self, at: int, by: str) -> None:
        before = self.states[self.place(at)]
        if by == "export":
            arrays = [x for x in (before.native.rows, *before.native.wide, before.native.tree) if x is not None]
            self.exported = [*self.exported, *((x, programs.bits(x)) for x in arrays)][-8:]
        elif by == "let go":
            del self.states[self.place(at)]
            self.states = self.states or [before]
        else:
            self.transform(before, by)

    def transform(self, before: Kept, by: str) -> None:
        spec = before.native.spec
        more: dict[str, Any] = {"batch_size": 2 if spec.batch_size != 2 else 5}
        if spec.sampler.has_priorities and by == "label":
            more = {"sampler": dataclasses.replace(spec.sampler, beta=0.25)}
        if spec.sampler.has_priorities and by == "alpha":
            more = {"sampler": dataclasses.replace(spec.sampler, alpha=0.5)}
        change = {
            "deepcopy": copy.deepcopy,
            "pickle": lambda state: pickle.loads(pickle.dumps(state)),
            "clear": rb.clear,
        }.get(by, lambda state: rb.with_spec(state, dataclasses.replace(spec, **more)))
        self.states.append(kept(change(before.native), change(before.plain)))
        del self.states[:-MOST]

    @stateful.rule(seed=seeds)
    def several(self, seed: int) -> None:
        """A piece of a program: by themselves programs are short."""
        rng = np.random.default_rng(seed)
        for _ in range(12):
            at, more, coins = int(rng.integers(3)), int(rng.integers(2**32)), [bool(x) for x in rng.random(2) < 0.4]
            match rng.integers(8):
                case 0 | 1 | 2:
                    self.add(at, int(rng.choice([1, 2, 5, 20])), more, *coins)
                case 3 | 4 | 5:
                    self.update(at, int(rng.choice([1, 3, 9])), more, *coins)
                case 6:
                    self.sample(at, more, int(rng.choice([1, 8, 33])), 0.7, None, coins[0])
                case _:
                    self.befall(at, str(rng.choice(["export", "export", *OTHERS])))
            self.values_stay()
            self.exports_stay()

    # --- what holds after each step

    @stateful.invariant()
    def values_stay(self) -> None:
        for each in getattr(self, "states", ()):
            assert programs.peek(each.native) == each.bits
            programs.check_books(each.native)

    @stateful.invariant()
    def exports_stay(self) -> None:
        for array, found in getattr(self, "exported", ()):
            assert programs.bits(array) == found
