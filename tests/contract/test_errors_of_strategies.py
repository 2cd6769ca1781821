"""Every error of calls and specs that samplers, writers, transforms and storages do not fit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.contract.refusals import ITEM, PRIORITIZED, UNIFORM, Cases, batch, floats, refused
from tests.support import gpu
from tests.support.backends import Backend

LEAF = {"x": frb.Unbounded(())}


STEP = {
    "x": frb.Unbounded(()),
    "done": frb.Binary(()),
    "id": frb.Unbounded((), "int32"),
    "v": frb.Unbounded((2,), "float16"),
}


def spec_with(sampler: Any = None, writer: Any = None, capacity: int = 8, lanes: Any = None) -> frb.BufferSpec:
    given = {} if writer is None else {"writer": writer}
    return frb.BufferSpec(STEP, capacity, sampler or frb.Uniform(), lanes=lanes, **given)


RESERVOIR = frb.Reservoir()


WRONG_MEMBERS: Cases = [
    (
        "BufferSpec.capacity: expected a multiple of lanes=3, got 10; 9 would do",
        lambda: spec_with(capacity=10, lanes=3),
    ),
    ("BufferSpec.lanes: expected 1 to 8, got 0", lambda: spec_with(lanes=0)),
    ("BufferSpec.lanes: expected 1 to 8, got 9", lambda: spec_with(lanes=9)),
    ("TypeError: BufferSpec.lanes: expected an int, got True", lambda: spec_with(lanes=True)),
    ("TypeError: BufferSpec.lanes: expected an int, got 2.0", lambda: spec_with(lanes=2.0)),
    ("Slices: expected length as a positive int, got 0", lambda: frb.Slices(0)),
    ("Slices: expected length as a positive int, got '2'", lambda: frb.Slices("2")),
    ("PrioritizedSlices: expected length as a positive int, got 2.5", lambda: frb.PrioritizedSlices(2.5)),
    ("Slices: expected period as a positive int, got 0", lambda: frb.Slices(2, period=0)),
    (
        r"Slices: span=\(True, True\) gives slices shorter than 2 steps.*give strict_length=False",
        lambda: frb.Slices(2, span=True),
    ),
    (r"expected span as a bool, a number of steps from 0 to length - 1 = 1, .*3", lambda: frb.Slices(2, span=3)),
    (r"expected span as a bool, .*, got \(True,\)", lambda: frb.Slices(2, span=(True,))),
    (r"expected span as a bool, .*, got \(-1, 0\)", lambda: frb.Slices(2, span=(-1, 0))),
    (r"expected span as a bool, .*, got 0.5", lambda: frb.Slices(2, span=0.5)),
    ("Slices: expected strict_length as a bool, got 'no'", lambda: frb.Slices(2, strict_length="no")),
    ("Slices: expected flat as a bool, got 1", lambda: frb.Slices(2, flat=1)),
    ("Slices: expected batch 'slices' or 'steps', got 'windows'", lambda: frb.Slices(2, batch="windows")),
    ("Slices: expected weighting 'trajectory' or 'window', got 'x'", lambda: frb.Slices(2, weighting="x")),
    ("Slices: expected end_keys as a leaf's name, .* or a list of such, got 16", lambda: frb.Slices(2, 16)),
    ("TypeError: Slices: end_keys: expected the key of a leaf as a name, .*, got 3", lambda: frb.Slices(2, [3])),
    (
        r"windows that reach out before .*; give span=\(False, True\), or weighting='trajectory'",
        lambda: frb.SlicesWithoutReplacement(2, weighting="window", span=(True, False), strict_length=False),
    ),
    ("expected weighting 'trajectory' or 'window'", lambda: frb.SlicesWithoutReplacement(2, weighting="x")),
    ("expected drop_last as a bool, got 3", lambda: frb.SlicesWithoutReplacement(2, drop_last=3)),
    (
        r"PrioritizedSlices: priorities belong to the first step .*; give span=\(False, True\)",
        lambda: frb.PrioritizedSlices(2, span=True, strict_length=False),
    ),
    ("PrioritizedSlices: expected alpha as a number", lambda: frb.PrioritizedSlices(2, alpha=-1)),
    (
        r"Slices: the item has no leaf 'done' .*; give end_keys=.* or trajectory_key=.*\('x',\)",
        lambda: frb.BufferSpec(LEAF, 8, frb.Slices(2)),
    ),
    (
        "end key 'x': expected one bool an item, got .*float32.*; name another leaf",
        lambda: spec_with(frb.Slices(2, end_keys="x")),
    ),
    (r"has no leaf 'no'; name one of \('done', 'id', ", lambda: spec_with(frb.Slices(2, end_keys=("no",)))),
    ("trajectory key 'x': expected one integer an item", lambda: spec_with(frb.Slices(2, trajectory_key="x"))),
    ("has no leaf 'no/id'; name one of", lambda: spec_with(frb.Slices(2, trajectory_key=("no", "id")))),
    (
        "Slices: a slice of 9 steps never fits into the 8 of a lane; give a larger BufferSpec.capacity",
        lambda: spec_with(frb.Slices(9)),
    ),
    ("a slice of 5 steps never fits into the 4 of a lane", lambda: spec_with(frb.Slices(5), lanes=2)),
    (
        r"Queue: RoundRobin\(\) would overwrite .*; leave the writer out, or use writer=frb.StopWhenFull\(\)",
        lambda: spec_with(frb.Queue(), frb.RoundRobin()),
    ),
    (
        r"Queue: items of several lanes have no single order, got lanes=2; give Queue\(length=",
        lambda: spec_with(frb.Queue(), lanes=2),
    ),
    ("Queue: expected length as a positive int or None, got 0", lambda: frb.Queue(0)),
    ("Queue: expected length as a positive int or None, got True", lambda: frb.Queue(True)),
    ("Queue: a window of 9 steps never fits into the 8 of a lane", lambda: spec_with(frb.Queue(9))),
    (r"InOrder: .*got lanes=2; leave .* or take .*frb.Queue\(length=", lambda: spec_with(frb.InOrder(), lanes=2)),
    (
        "InOrder: with max_times_sampled the capacity may be",
        lambda: spec_with(frb.InOrder(2, newest_first=True), capacity=2**24 + 1),
    ),
    (
        r"InOrder: expected max_times_sampled as a positive int below 2\^30, or None for no limit, got 0",
        lambda: frb.InOrder(0),
    ),
    (
        r"Uniform: expected max_times_sampled as a positive int below 2\^30, or None for no limit, got True",
        lambda: frb.Uniform(True),
    ),
    (
        r"Uniform: expected max_times_sampled as a positive int below 2\^30, or None for no limit, got 1073741824",
        lambda: frb.Uniform(2**30),
    ),
    ("Prioritized: expected max_times_sampled as a positive", lambda: frb.Prioritized(max_times_sampled=-1)),
    ("Prioritized: expected replacement as a bool, got 'no'", lambda: frb.Prioritized(replacement="no")),
    ("Recency: expected strength as an int from 1 to 64, got 0", lambda: frb.Recency(0)),
    ("Recency: expected strength as an int from 1 to 64, got 65", lambda: frb.Recency(65)),
    ("Recency: expected strength as an int from 1 to 64, got 2.0", lambda: frb.Recency(2.0)),
    ("Staleness: expected max_staleness as an int from 0 to .*, or None, got -1", lambda: frb.Staleness("x", -1)),
    ("Staleness: expected max_staleness as an int from 0 to .*, got 2.0", lambda: frb.Staleness("x", 2.0)),
    ("Staleness: expected power as an int from 0 to 5, got 0.5", lambda: frb.Staleness("x", None, 0.5)),
    ("Staleness: expected power as an int from 0 to 5, got 6", lambda: frb.Staleness("x", 1, 6)),
    ("Staleness: the item has no leaf 'policy_version'; name one of", lambda: spec_with(frb.Staleness())),
    ("Staleness: version key 'x': expected one integer an item, got float32", lambda: spec_with(frb.Staleness("x"))),
    ("WithoutReplacement: expected drop_last as a bool, got 32", lambda: frb.WithoutReplacement(32)),
    ("WithoutReplacement: expected shuffle as a bool, got 1", lambda: frb.WithoutReplacement(shuffle=1)),
    *(
        (
            f"{name}: needs items in the order .*, and Reservoir.. chooses slots; leave",
            partial(spec_with, one, RESERVOIR),
        )
        for name, one in (
            ("Slices", frb.Slices(2)),
            ("Queue", frb.Queue()),
            ("InOrder", frb.InOrder()),
            ("Recency", frb.Recency()),
            ("WithoutReplacement", frb.WithoutReplacement(shuffle=False)),
        )
    ),
    ("MaxValue: the item has no leaf 'no'; name one of", lambda: spec_with(writer=frb.MaxValue("no"))),
    ("TypeError: expected the key of a leaf as a name, .*, got 3", lambda: spec_with(writer=frb.MaxValue(3))),
    (r"expected reduction as one of \('sum', .*got 'mode'", lambda: frb.MaxValue("x", "mode")),
    (
        "MaxValue: leaf 'done': expected real numbers of at most 32 bits .*bool.*; name another leaf",
        lambda: spec_with(writer=frb.MaxValue("done")),
    ),
    (
        "MaxValue: leaf 'n': expected real numbers of at most 32 bits .*int64",
        lambda: frb.BufferSpec({"n": frb.Unbounded((), "int64")}, 4, writer=frb.MaxValue("n")),
    ),
]


def steps(*lead: int) -> dict[str, np.ndarray]:
    number = np.arange(np.prod(lead, dtype=int), dtype=np.int32).reshape(lead)
    v = np.zeros((*lead, 2), np.float16)
    return {"x": number.astype(np.float32), "done": np.zeros(lead, bool), "id": number, "v": v}


def filled_with(rb: Any, spec: frb.BufferSpec, *lead: int) -> Any:
    if isinstance(spec.writer, frb.Immutable):
        return rb.init(spec, items=steps(*lead))
    return rb.add(rb.init(spec), steps(*lead), key=rb.key(0) if isinstance(spec.writer, frb.Reservoir) else None)


ONE = np.zeros(1, np.int32)


LANED = spec_with(capacity=12, lanes=3)


# (the buffer, how it is filled, the function, its arguments, the error, its message)
# What follows from shapes and settings, so that the buffer need not be filled.
CALLS: Cases = [
    (r"leaf 'done': expected shape \(3,\) for a step of all lanes or .*\(4,\)", LANED, (3,), "add", steps(4)),
    (r"or \('T', 3\) for several, got \(\); reshape it, or change BufferSpec.l", LANED, (3,), "add", steps()),
    (r"leaf 'done': .* got \(3, 2\)", LANED, (3,), "add", steps(3, 2)),
    (r"leaf 'done': .* got \(1, 1, 3\)", LANED, (3,), "add", steps(1, 1, 3)),
    (
        r"leaf 'id': expected 3 rows as leaf 'done' has, got leading axes \(2, 3\)",
        LANED,
        (3,),
        "add",
        {**steps(2, 3), "done": np.zeros(3, bool)},
    ),
    (
        r"mask: expected leading axes \(2, 3\) as the items have, got 6 rows; give one for each item",
        LANED,
        (3,),
        "add",
        steps(2, 3),
        np.ones(6, bool),
    ),
    ("mask: expected 3 rows as the items have, got lea", LANED, (3,), "add", steps(3), np.ones((1, 3), bool)),
    (
        r"TypeError: ^key: expected .* made by rb.key\(seed\) or rb.split, got int",
        LANED,
        (3,),
        "add",
        steps(3),
        None,
        None,
        3,
    ),
    (
        r"priorities: expected leading axes \(2, 3\) as the items have, got 6 rows",
        spec_with(frb.Prioritized(), capacity=12, lanes=3),
        (3,),
        "add",
        steps(2, 3),
        None,
        floats(6),
    ),
    (r"this buffer is Immutable: .*; use writer=", spec_with(writer=frb.Immutable()), (3,), "add", steps(1)),
    (
        r"this buffer is Immutable: .*never change; use writer=frb.RoundRobin\(\)",
        spec_with(writer=frb.Immutable()),
        (3,),
        "update",
        ONE,
        None,
        {"x": floats(1)},
    ),
    (
        r"add: Reservoir\(\) draws which items to keep; give add\(..., key=key\), a new key at every call",
        spec_with(writer=frb.Reservoir()),
        (3,),
        "add",
        steps(1),
    ),
    ("TypeError: ^key: expected .* got int", spec_with(writer=frb.Reservoir()), (3,), "add", steps(1), None, None, 3),
    (
        "sample: expected batch_size as a multiple of lanes=3, .* got 2",
        spec_with(frb.Queue(2), capacity=12, lanes=3),
        (2, 3),
        "sample",
        2,
    ),
    (
        "sample: expected batch_size as a multiple of the slices' length 2, .* got 3",
        spec_with(frb.Slices(2, batch="steps")),
        (4,),
        "sample",
        3,
    ),
    (
        r"update: priorities were given, but the sampler is Slices\(length=2.*use .*frb.PrioritizedSlices",
        spec_with(frb.Slices(2)),
        (4,),
        "update",
        ONE,
        floats(1),
    ),
    (r"of slices .reshape\(-1\)", spec_with(frb.Slices(2)), (4,), "update", np.zeros((2, 2), np.int32)),
    ("add: priorities were given, but .*InOrder", spec_with(frb.InOrder()), (4,), "add", steps(1), None, floats(1)),
    ("sample: beta was given, but the sampler is Slices", spec_with(frb.Slices(2)), (4,), "sample", 2, 0.5),
    (r"iterate: the sampler Uniform.* has no epochs; use .*WithoutReplacem", spec_with(), (), "epochs", 2),
    ("iterate: expected epochs >= 0, got -1", spec_with(frb.WithoutReplacement()), (3,), "epochs", 2, -1),
    ("iterate: expected batch_size >= 1 with epochs, got 0", spec_with(frb.WithoutReplacement()), (3,), "epochs", 0),
    (
        "TypeError: iterate: expected epochs as a Python int",
        spec_with(frb.WithoutReplacement()),
        (3,),
        "epochs",
        2,
        1.5,
    ),
    ("sample: batch_size is missing", spec_with(frb.WithoutReplacement()), (3,), "epochs"),
]


# What only values can tell.
VALUES: Cases = [
    (
        "add: the buffer is full: 2 items do not fit into the room for 1; sample .* first, or add fewer",
        spec_with(frb.Queue(), capacity=4),
        (3,),
        "add",
        steps(2),
    ),
    (
        "2 items do not fit into the room for 1 in lane 1; .*nothing was written",
        spec_with(frb.Queue(2), capacity=12, lanes=3),
        (3, 3),
        "add",
        steps(2, 3),
        np.array([[True, True, False], [False, True, True]]),
    ),
    ("1 items do not fit into the room for 0", spec_with(writer=frb.StopWhenFull()), (8,), "add", steps(1)),
    ("sample: the buffer is empty; add items first", spec_with(frb.Queue()), (), "sample", 2),
    (
        "none of the 3 stored items completes a window of 2 steps; add more",
        spec_with(frb.Queue(2), capacity=12, lanes=3),
        (3,),
        "sample",
        3,
    ),
    (
        "none of the 3 stored items make a full batch, and drop_last drops smaller ones; add more, or draw fewer",
        spec_with(frb.WithoutReplacement(drop_last=True)),
        (3,),
        "sample",
        4,
    ),
    (
        "none of the 3 stored items make a full batch",
        spec_with(frb.WithoutReplacement(drop_last=True, shuffle=False)),
        (3,),
        "sample",
        4,
    ),
    (
        "none of the 3 stored items begins a slice of 2 steps; .*drop_last drops batches that are not full",
        spec_with(frb.SlicesWithoutReplacement(2, drop_last=True)),
        (3,),
        "sample",
        4,
    ),
    ("begins a slice of 4 steps; .* give strict_length=False", spec_with(frb.Slices(4)), (3,), "sample", 1),
    ("a slice of 4 steps with a positive priority", spec_with(frb.PrioritizedSlices(4)), (3,), "sample", 1),
    ("sample: the buffer is empty", spec_with(frb.WithoutReplacement()), (), "epochs", 2),
]


def arrays_of(backend: Backend, state: Any) -> list[bytes]:
    tree = [] if state.tree is None else [state.tree]
    return [
        backend.numpy(x).tobytes() for x in (state.rows, *state.wide, *tree, *state.auxiliary.values(), state.counters)
    ]


def epochs(rb: Any, state: Any, key: Any, batch_size: Any = None, n: Any = 1) -> Any:
    return frb.iterate(rb, state, key, batch_size, epochs=n)


@pytest.mark.parametrize("backend", ["jax", "torch", "torch-core", "torch-inplace"], indirect=True)
def test_calls_that_samplers_and_writers_refuse(backend: Backend) -> None:
    """Each by its words, twice: the first must have changed nothing, nor consumed the state."""
    rb = backend.rb
    slow = backend.library == "jax"  # which compiles for every buffer, so some will do
    values = VALUES[:: 4 if slow else 1] if gpu.sees_values(backend.library) else ()
    cases = [(not slow, *case) for case in CALLS] + [(True, *case) for case in values]
    for fill, words, spec, lead, name, *given in cases:
        fill = fill or isinstance(spec.writer, frb.Immutable)
        state = filled_with(rb, spec, *lead) if fill and lead else rb.init(spec)
        before = arrays_of(backend, state)
        function = partial(epochs, rb) if name == "epochs" else getattr(rb, name + "_" if backend.consumes else name)
        key = [rb.key(0)] if name in ("sample", "epochs") else []
        for _ in range(2):
            with refused(words):
                list(function(state, *key, *given))
        assert arrays_of(backend, state) == before


def test_items_that_have_all_been_drawn(backend: Backend) -> None:
    for sampler in (frb.Uniform(1), frb.Prioritized(max_times_sampled=1), frb.InOrder(1)):
        if backend.name == "jax-jit":
            return
        state = filled_with(backend.rb, spec_with(sampler), 2)
        while bool(backend.rb.can_sample(state)):
            state, _ = backend.sample(state, backend.rb.key(0), 2)
        before = arrays_of(backend, state)
        with gpu.refused(backend.library, r"none of the 2 stored items (may be drawn again|has a positive)"):
            backend.sample(copy.copy(state), backend.rb.key(0), 2)
        assert arrays_of(backend, state) == before


def test_a_key_that_is_not_needed_does_no_harm(library: Backend) -> None:
    rb = library.rb
    for spec in (UNIFORM, PRIORITIZED, frb.BufferSpec(ITEM, 6, lanes=2)):
        items = batch(2)
        states = [rb.add(rb.init(spec), items, key=key) for key in (None, rb.key(3))]
        assert arrays_of(library, states[0]) == arrays_of(library, states[1])


def test_init_refuses_items_that_do_not_fit(library: Backend) -> None:
    rb = library.rb
    with pytest.raises(
        ValueError, match=r"init: an Immutable buffer is filled as it is made; give rb.init\(spec, items="
    ):
        rb.init(spec_with(writer=frb.Immutable()))
    for writer in (frb.Immutable(), frb.StopWhenFull()):
        with pytest.raises(ValueError, match=r"init: 9 items do not fit into a capacity of 8; give .*capacity=9"):
            rb.init(spec_with(writer=writer), items=steps(9))
    with pytest.raises(ValueError, match=r"init: Reservoir\(\) draws .*; give them to rb.add\(state, items, key=key\)"):
        rb.init(spec_with(writer=frb.Reservoir()), items=steps(3))
    with pytest.raises(TypeError, match="leaf 'id': expected dtype int32, got int64"):
        rb.init(spec_with(), items={**steps(3), "id": np.arange(3)})


# --- specs ----------------------------------------------------------------------------------------------------------


WRONG_SPECS: Cases = [
    ("BufferSpec.capacity: expected 1 to 2147483647, got 0", lambda: frb.BufferSpec(LEAF, 0)),
    ("BufferSpec.capacity: expected 1 to 2147483647, got -1", lambda: frb.BufferSpec(LEAF, -1)),
    ("BufferSpec.capacity: expected 1 to 2147483647, got 2147483648", lambda: frb.BufferSpec(LEAF, 2**31)),
    ("TypeError: BufferSpec.capacity: expected an int, got True", lambda: frb.BufferSpec(LEAF, True)),
    ("TypeError: BufferSpec.capacity: expected an int, got 2.5", lambda: frb.BufferSpec(LEAF, 2.5)),
    ("TypeError: BufferSpec.capacity: expected an int, got '9'", lambda: frb.BufferSpec(LEAF, "9")),
    ("TypeError: BufferSpec.capacity: expected an int", lambda: frb.BufferSpec(LEAF, np.float32(4))),
    (
        r"sum tree of 2147483647 items .*use frb\.Uniform\(\) or several",
        lambda: frb.BufferSpec(LEAF, 2**31 - 1, frb.Prioritized()),
    ),
    ("BufferSpec.batch_size: expected 1 to", lambda: frb.BufferSpec(LEAF, 4, batch_size=0)),
    ("TypeError: BufferSpec.batch_size: expected an int, got True", lambda: frb.BufferSpec(LEAF, 4, batch_size=True)),
    (
        r"TypeError: BufferSpec.sampler: expected an instance.*; write Prioritized\(\)",
        lambda: frb.BufferSpec(LEAF, 4, frb.Prioritized),
    ),
    ("TypeError: BufferSpec.sampler: expected an instance .*got 'uniform'", lambda: frb.BufferSpec(LEAF, 4, "uniform")),
    (r"TypeError: BufferSpec.writer: .*; write RoundRobin\(\)", lambda: frb.BufferSpec(LEAF, 4, writer=frb.RoundRobin)),
    ("TypeError: BufferSpec.writer: expected an instance .*got 'ring'", lambda: frb.BufferSpec(LEAF, 4, writer="ring")),
    (
        r"TypeError: leaf 'a/b': expected a spec such as frb\.Unbounded\(shape\), got ndarray; frb\.specs\.spec_of",
        lambda: frb.BufferSpec({"a": {"b": np.zeros(3)}}, 4),
    ),
    ("TypeError: leaf 'a/1': expected a spec .* got int", lambda: frb.BufferSpec({"a": (frb.Unbounded(()), 3)}, 4)),
    ("TypeError: leaf 'a': expected a spec .* got the class", lambda: frb.BufferSpec({"a": frb.Unbounded}, 4)),
    ("TypeError: expected a spec .* got NoneType", lambda: frb.BufferSpec(None, 4)),
    ("TypeError: names that are strings, got 0", lambda: frb.BufferSpec({"a": {0: frb.Unbounded(())}}, 4)),
    (r"TypeError: expected a shape as a tuple, got 3; write \(3,\)", lambda: frb.Unbounded(3)),
    (r"TypeError: write \(3,\)", lambda: frb.Unbounded(np.int64(3))),
    (r"sizes >= 0, got \(-1,\)", lambda: frb.Unbounded((-1,))),
    (r"TypeError: tuple of ints, got \(2\.5,\)", lambda: frb.Unbounded((2.5,))),
    ("TypeError: tuple of ints, got '12'", lambda: frb.Unbounded("12")),
    ("TypeError: tuple of ints, got None", lambda: frb.Unbounded(None)),
    ("TypeError: dtype 'float8' cannot be stored; expected one of bool, int8", lambda: frb.Unbounded((), "float8")),
    ("TypeError: complex128.* cannot be stored", lambda: frb.Unbounded((), np.complex128)),
    ("TypeError: object.* cannot be stored", lambda: frb.Unbounded((), object)),
    ("TypeError: dtype None cannot be stored", lambda: frb.Unbounded((), None)),
    ("TypeError: cannot be stored", lambda: frb.Unbounded((), ["float32"])),
    ("TypeError: expected low as a number or an array of them, got 'a'", lambda: frb.Bounded("a", "b")),
    ("TypeError: expected high as a number or an array of them, got None", lambda: frb.Bounded(0, None)),
    (r"expected alpha as a number in \[0, 100\], got -0.1", lambda: frb.Prioritized(alpha=-0.1)),
    (r"expected beta as a number in \[0, 100\], got -1", lambda: frb.Prioritized(beta=-1)),
    ("expected alpha as a number", lambda: frb.Prioritized(alpha=float("inf"))),
    ("expected beta as a number", lambda: frb.Prioritized(beta=float("nan"))),
    ("expected alpha as a number", lambda: frb.Prioritized(alpha="0.6")),
    ("expected alpha as a number", lambda: frb.Prioritized(alpha=True)),
    ("expected new_priority 'live' or 'ever', got 'max'", lambda: frb.Prioritized(new_priority="max")),
    (
        r"Memmap: leaf 'a' holds Python objects.*frb\.Host\(\)",
        lambda: frb.BufferSpec({"a": frb.specs.NonTensor()}, 4, storage=frb.Memmap()),
    ),
    ("auto_cleanup=False needs a path", lambda: frb.Memmap(auto_cleanup=False)),
    *WRONG_MEMBERS,
]


@pytest.mark.parametrize(("words", "make"), WRONG_SPECS, ids=[words[:50] for words, _ in WRONG_SPECS])
def test_wrong_specs(words: str, make: Callable[[], Any]) -> None:
    with refused(words):
        make()
