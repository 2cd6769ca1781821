"""Whole functions of a buffer by their kernels, and kernels as operations of torch: the same bits."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb
import torch_backend.arrays.ops as torch_ops
from functional_rb import _native
from functional_rb.buffer import functions
from functional_rb.items import crops
from functional_rb.native.kernels import WHOLE, Kernel, rebuilt
from functional_rb.ops import numpy_ops, random_bits
from functional_rb.ops.part_kernels import using
from functional_rb.samplers import staleness
from functional_rb.samplers.importance import Priorities
from functional_rb.storage import host_kernels
from functional_rb.structures import episode_windows, hash_map, sparse_set, sum_tree
from functional_rb.structures.episode_windows import Lanes
from functional_rb.structures.ring import Ring, RingState
from functional_rb.structures.sparse_set import SparseSet
from functional_rb.transforms import returns
from tests.support.backends import needs_native
from tests.support.effort import effort
from tests.support.spec_pool import random_leaf
from torch_backend.compat import IS_TRACED
from torch_backend.kernels import cpu_kernels, custom_ops

ITEM = {
    "obs": frb.Unbounded((3,)),
    "image": frb.Unbounded((40, 40, 1), "uint8"),
    "reward": frb.Unbounded(()),
    "done": frb.Binary(()),
}
ENDS = {"end_keys": ("done",)}
SPECS = {
    "uniform": frb.BufferSpec(ITEM, 16),
    "prioritized": frb.BufferSpec(ITEM, 16, sampler=frb.Prioritized()),
    "prioritized, as ever": frb.BufferSpec(ITEM, 16, sampler=frb.Prioritized(alpha=1.0, new_priority="ever")),
}
TRAINED = SPECS | {
    "slices": frb.BufferSpec(ITEM, 16, sampler=frb.Slices(2, strict_length=False, **ENDS)),
    "prioritized slices": frb.BufferSpec(ITEM, 16, sampler=frb.PrioritizedSlices(2, strict_length=False, **ENDS)),
    "n-step": frb.BufferSpec(ITEM, 16, sampler=frb.Prioritized(), transforms=(frb.n_step(3, 0.9),)),
    "n-step of frames": frb.BufferSpec(
        ITEM | {"next_obs": ITEM["obs"]}, 16, transforms=(frb.n_step(3, 0.9),), compact=frb.Compact()
    ),
    "lanes": frb.BufferSpec(ITEM, 16, sampler=frb.Prioritized(), lanes=2),
}
BATCH = 6


def leaves_of(spec: frb.BufferSpec, rng: np.random.Generator, batch: int = BATCH) -> list[np.ndarray[Any, Any]]:
    return [random_leaf(leaf, batch, rng) for leaf in spec.plan.leaves]


def bits(nest: Any) -> list[Any]:
    return [(x.shape, np.asarray(x).tobytes()) for x in pytree.tree_leaves(nest) if hasattr(x, "shape")]


# --- whole functions --------------------------------------------------------------------------------------------------


class Carrier:
    """A way to call kernels, and the core on the same arrays."""

    def __init__(self, ops: Any, array: Callable[[Any], Any], call: Callable[[Kernel], Any]) -> None:
        self.ops, self.array, self.call = ops, array, call


def by_operation(kernel: Kernel) -> Any:
    """The results of a kernel's operation."""
    made = iter(custom_ops.by_operation(kernel))
    found = {id(x): next(made) if hasattr(x, "over") else None if isinstance(x, str) else x for x in kernel.in_order}
    return rebuilt(kernel.results, lambda x: found.get(id(x), x))


CARRIERS = {
    "numpy": Carrier(numpy_ops, np.array, host_kernels.call),
    "torch": Carrier(torch_ops, torch.tensor, cpu_kernels.call),
    "operations": Carrier(torch_ops, torch.tensor, by_operation),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("on", CARRIERS.values(), ids=CARRIERS)
def test_whole_functions_by_their_kernels(on: Carrier, spec: frb.BufferSpec) -> None:
    rng = np.random.default_rng(0)
    beta = on.array(np.float32(0.4))
    ours, theirs = (functions.init(on.ops, spec) for _ in range(2))

    def compare(function: Any, *given: Any) -> tuple[Any, Any]:
        kernel = WHOLE[function](ours, spec, *given)
        assert kernel is not None
        made, expected = on.call(kernel), function(on.ops, theirs, spec, *given)
        assert bits(made) == bits(expected)
        return made, expected

    for turn in range(6):
        leaves = [on.array(leaf) for leaf in leaves_of(spec, rng)]
        mask = on.array(rng.random(BATCH) < 0.6) if turn % 2 else None
        priorities = on.array(rng.random(BATCH).astype(np.float32)) if turn % 3 else None
        given = priorities if spec.sampler.tree_rows(16) else None
        ours, theirs = compare(functions.add, leaves, BATCH, mask, given)
        draws = on.array(rng.integers(0, 2**31, spec.draw_shape(5)).astype(np.int32))
        (ours, *_), (theirs, _, selection) = compare(functions.draw, draws, beta, 5)
        handles = on.array(np.asarray(selection.handles))
        replaced = {0: on.array(leaves_of(spec, rng, 5)[0])} if turn % 2 else {}
        if given is not None or replaced:
            wanted = None if given is None else on.array(rng.random(5).astype(np.float32))
            ours, theirs = compare(functions.update, handles, wanted, replaced)


# --- operations -------------------------------------------------------------------------------------------------------


# Operations by name, each with its first arguments.
Recorded = dict[str, tuple[Any, tuple[Any, ...]]]


@contextlib.contextmanager
def recorded() -> Iterator[Recorded]:
    """The operations that are called meanwhile."""
    found: Recorded = {}
    operations = torch.ops.functional_rb

    class Noting:
        def __getattr__(self, name: str) -> Any:
            operation = getattr(operations, name).default

            def noting(*args: Any) -> Any:
                found.setdefault(name, (operation, pytree.tree_map_only(torch.Tensor, torch.clone, args)))
                return operation(*args)

            return types.SimpleNamespace(default=noting)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.ops, "functional_rb", Noting())
        yield found


ONLY_JAX = {"threefry", "barrier", "add_to_rings", "sample_mixture"}
# Kernels whose results are as long as they find: those the core computes while torch.compile traces.
CUT = {"exchanges", "appended"}
STEP = {name: ITEM[name] for name in ("obs", "reward", "done")} | {"next_obs": frb.Unbounded((3,))}
# Buffers that need the kernels of parts of them.
PARTS = TRAINED | {
    "n-step, added": frb.BufferSpec(STEP, 16, transforms=(frb.n_step(3, 0.9, at="add"),)),
    "frames": frb.BufferSpec(STEP, 16, sampler=frb.Prioritized(), compact=frb.Compact()),
    "frames of slices": frb.BufferSpec(STEP, 16, sampler=frb.PrioritizedSlices(2, **ENDS), compact=frb.Compact()),
    "without replacement": frb.BufferSpec(STEP, 16, sampler=frb.WithoutReplacement()),
}


def use_parts(spec: frb.BufferSpec) -> None:
    """Functions of the core with operations in force."""
    rng = np.random.default_rng(1)
    arrays = functions.init(torch_ops, spec)
    with using(custom_ops.TABLE):
        for _ in range(3):
            leaves = [torch.tensor(leaf) for leaf in leaves_of(spec, rng)]
            mask = torch.tensor(rng.random(BATCH) < 0.8)
            priorities = torch.rand(BATCH) if spec.lanes else None
            arrays = functions.add(torch_ops, arrays, spec, leaves, BATCH, mask, priorities)
        draws = torch.tensor(rng.integers(0, 2**31, spec.draw_shape(4)).astype(np.int32))
        arrays, _, selection = functions.draw(torch_ops, arrays, spec, draws, torch.tensor(0.4), 4)
        handles = selection.handles.reshape(-1)
        if isinstance(spec.sampler, Priorities):
            functions.update(torch_ops, arrays, spec, handles, torch.rand(len(handles)), {})


def use_other_parts() -> None:
    """What these buffers do not need, or not with all dtypes."""
    plan, at = hash_map.MapPlan(8, 2), torch.tensor([0, 1], dtype=torch.int32)
    marked, draws = torch.ones(2, dtype=torch.bool), torch.full((2, 2), 2**30, dtype=torch.int32)
    lanes = Lanes(Ring(4, 1), RingState(at[1:], at[1:] + 3))
    with using(custom_ops.TABLE):
        map = hash_map.insert(torch_ops, plan, hash_map.init(torch_ops, plan), draws, None)[0]
        hash_map.lookup(torch_ops, plan, map, draws)
        crops.windows(torch_ops, torch.zeros((2, 5, 5, 3), dtype=torch.uint8), at, at, (3, 3))
        returns.fold_floats(torch_ops, torch.ones((2, 2), dtype=torch.float64), torch.ones((2, 2)) > 0, 0.9)
        sparse_set.members(torch_ops, SparseSet(at, at), at[1], at, marked)
        sparse_set.distinct(torch_ops, draws, at[1])
        random_bits.below(torch_ops, draws, at[1])
        sum_tree.draw_in_span(torch_ops, torch.ones((2, 16)), 8, at, at + 1, at[:1], draws)
        episode_windows.extent(torch_ops, lanes, torch.arange(4, dtype=torch.int32), at)
        staleness.freshness(torch_ops, at[1:], at, 3, 1)
    custom_ops.draws(rb.key(0), 3, 2)


def test_operations_are_as_torch_asks() -> None:
    """Each kernel once: the same shapes while tracing, and what is said to change is all that does."""
    with recorded() as found:
        test_whole_functions_by_their_kernels(CARRIERS["operations"], SPECS["prioritized"])
        for spec in PARTS.values():
            use_parts(spec)
        use_other_parts()
    assert found.keys() == _native.HANDLERS.keys() - ONLY_JAX - CUT
    for name, (operation, args) in found.items():
        assert set(torch.library.opcheck(operation, args).values()) == {"SUCCESS"}, name


# --- compiled ---------------------------------------------------------------------------------------------------------


def batches(spec: frb.BufferSpec, steps: int, count: int = BATCH) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
    """What a step takes: items, a key and priorities."""
    rng = np.random.default_rng(2)
    for k in range(steps):
        items = dict(zip(sorted(spec.item), map(torch.tensor, leaves_of(spec, rng, count)), strict=True))
        if spec.lanes:
            items = {name: x.unflatten(0, (-1, spec.lanes)) for name, x in items.items()}
        yield items, rb.key(k), torch.rand(64)


def step(state: Any, items: Any, key: torch.Tensor, priorities: torch.Tensor) -> tuple[Any, Any]:
    """One step of training."""
    state, sample = rb.sample_(rb.add_(state, items), key, 4)
    if isinstance(state.spec.sampler, Priorities):
        indices = sample.indices.reshape(-1)
        state = rb.update_(state, indices, priorities[: indices.shape[0]])
    return state, sample


class Recording:
    """A backend of torch.compile that keeps the names of our operations, as they are recorded for inductor."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.programs = 0

    def __call__(self, module: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd

        self.programs += 1

        def compiler(graph: Any, inputs: Any) -> Any:
            for node in graph.graph.nodes:
                target = node.args[0] if "auto_functionalized" in str(node.target) else node.target
                if "functional_rb" in str(target):
                    self.names.append(str(target).split(".")[1])
            return graph

        return aot_autograd(fw_compiler=compiler)(module, inputs)


CALLED = {
    "uniform": ["add", "fill_draws", "draw"],
    "prioritized": ["add", "fill_draws", "draw", "update_priorities"],
    "slices": {"choose_slots", "steps_in_episodes", "changed", "store", "set_leaves", "draw"},
    "prioritized slices": {
        *("choose_slots", "steps_in_episodes", "changed", "store", "set_leaves", "draw", "update_priorities"),
    },
    "n-step": {"steps_in_episodes", "store", "draw", "update_priorities"},
    "n-step of frames": {"steps_in_episodes", "store", "plan_frames", "draw"},
    "lanes": {"choose_slots", "store", "draw", "update_priorities"},
}

needs_tracing = pytest.mark.skipif(not IS_TRACED, reason="this torch calls the functions rather than trace them")


@needs_native
@needs_tracing
# The first two are traced, and by their kernels, in the tests below; slices and lanes call what prioritized slices do.
@pytest.mark.parametrize("name", effort(["prioritized slices", "n-step", "n-step of frames"], [*CALLED]))
def test_compiled_steps_call_kernels(name: str) -> None:
    spec, recording = TRAINED[name], Recording()
    compiled = torch.compile(lambda *args: step(*args), fullgraph=True, backend=recording)
    eager, traced = rb.init(spec), rb.own_(rb.init(spec))
    for given in batches(spec, 3):
        eager, wanted = step(eager, *given)
        traced, seen = compiled(traced, *given)
        assert bits(seen) == bits(wanted)
    assert bits(traced) == bits(eager)
    expected = CALLED[name]
    names = recording.names if isinstance(expected, list) else expected & {*recording.names}
    assert names == expected, recording.names
    torch._dynamo.reset()


def programs_for_sizes(spec: frb.BufferSpec) -> int:
    """How many programs batches of several sizes take, which may be symbols; they give what eager functions give."""
    recording = Recording()
    compiled = torch.compile(lambda *args: step(*args), fullgraph=True, backend=recording, dynamic=True)
    eager, traced = rb.init(spec), rb.own_(rb.init(spec))
    for count in (5, 7, 6):
        (given,) = batches(spec, 1, count)
        eager, wanted = step(eager, *given)
        traced, seen = compiled(traced, *given)
        assert bits(seen) == bits(wanted)
    assert bits(traced) == bits(eager)
    torch._dynamo.reset()
    return recording.programs


@needs_tracing
@needs_native
def test_sizes_may_be_symbols() -> None:
    assert programs_for_sizes(frb.BufferSpec(STEP, 16, sampler=frb.Prioritized())) == 2


@needs_tracing
@needs_native
def test_equal_specs_share_a_program_and_others_have_their_own() -> None:
    recording = Recording()
    compiled = torch.compile(lambda *args: step(*args), fullgraph=True, backend=recording)

    def use(sampler: Any) -> int:
        spec = frb.BufferSpec(STEP, 16, sampler=sampler)
        eager, traced = rb.init(spec), rb.own_(rb.init(spec))
        for given in batches(spec, 2):
            (eager, wanted), (traced, seen) = step(eager, *given), compiled(traced, *given)
            assert bits(seen) == bits(wanted)
        assert bits(traced) == bits(eager)
        return recording.names.count("add")

    assert [use(frb.Prioritized(alpha=alpha)) for alpha in (0.5, 0.5, 0.7, 0.5)] == [1, 1, 2, 2]
    torch._dynamo.reset()


@needs_tracing
@needs_native
def test_without_kernels_and_under_vmap_the_core_is_traced() -> None:
    spec, recording = TRAINED["uniform"], Recording()
    compiled = torch.compile(lambda state, key: rb.sample(state, key, 4)[1], fullgraph=True, backend=recording)
    (items, key, _), *_ = batches(spec, 1)
    state, keys = rb.add(rb.init(spec), items), rb.split(key, 3)
    wanted = [rb.sample(state, one, 4)[1] for one in keys]
    with frb.kernels(False):
        assert bits(compiled(state, keys[0])) == bits(wanted[0])
    assert not recording.names
    assert bits(compiled(state, keys[0])) == bits(wanted[0])
    assert recording.names == ["fill_draws", "draw"]
    recording.names.clear()
    mapped = torch.compile(
        torch.vmap(lambda key: rb.sample(state, key, 4)[1].indices), fullgraph=True, backend=recording
    )
    assert bits(mapped(keys)) == bits(torch.stack([sample.indices for sample in wanted]))
    assert not recording.names
    torch._dynamo.reset()
