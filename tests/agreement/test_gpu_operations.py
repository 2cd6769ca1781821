"""Launches as operations of torch: what torch.compile records for a GPU, carried out by emulated kernels."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb
import torch_backend.arrays.ops as torch_ops
from functional_rb.buffer import functions
from functional_rb.native import launches as native_launches
from functional_rb.ops.part_kernels import using
from tests.support import chain_programs as programs
from tests.support import emulated_gpu
from tests.support.backends import needs_native
from tests.support.effort import effort
from torch_backend.compat import IS_TRACED
from torch_backend.kernels import custom_ops, launches
from torch_backend.memory.library import TORCH

needs_tracing = pytest.mark.skipif(not IS_TRACED, reason="this torch calls the functions rather than trace them")
# Torch says so of operations of which a test gives the CPU another kernel.
replacing = pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
pytestmark = [needs_native, needs_tracing, replacing]

LANES = 2
ITEM = {"x": frb.Unbounded((3,)), "obs": frb.Unbounded((3, 2), "uint8"), "done": frb.Binary(())}
ENDS: Any = {"end_keys": ("done",), "strict_length": False}
KEYS: Any = {"reward_key": "x", "terminated_key": "done"}
STACKS = frb.Compact(next={}, stack={"obs": 3})
SPECS: Final[dict[str, tuple[dict[str, Any], list[str]]]] = {
    "lanes": ({"sampler": frb.Prioritized()}, ["add_to_rings", "sample", "update"]),
    "stops": ({"writer": frb.StopWhenFull()}, ["add_to_rings", "sample"]),
    "slices": ({"sampler": frb.Slices(2, **ENDS)}, ["add_to_rings", "draw_slices"]),
    "epochs": ({"sampler": frb.WithoutReplacement()}, ["add_to_rings", "draw_epoch", "read_epoch", "read_drawn"]),
    "epochs of slices": (
        {"sampler": frb.SlicesWithoutReplacement(2, **ENDS)},
        ["add_to_rings", "draw_epoch", "read_epoch", "read_drawn"],
    ),
    "newer items": ({"sampler": frb.Recency()}, ["add_to_rings", "sample"]),
    "queue": ({"sampler": frb.Queue(2)}, ["add_to_rings", "draw_in_turn"]),
    "epochs in order": ({"sampler": frb.WithoutReplacement(shuffle=False)}, ["add_to_rings", "draw_in_order"]),
    "limits": ({"sampler": frb.Uniform(max_times_sampled=2)}, ["add_to_rings", "sample", "spend", "read_drawn"]),
    "limited priorities": (
        {"sampler": frb.Prioritized(max_times_sampled=2)},
        ["add_to_rings", "sample", "spend", "read_drawn", "update"],
    ),
    "each once": (
        {"sampler": frb.Prioritized(replacement=False)},
        ["add_to_rings", "arrive", "read_drawn", "update"],
    ),
    "waiting": (
        {"sampler": frb.Prioritized(), "transforms": frb.n_step(3, 0.9, at="add", **KEYS)},
        ["line_up", "add_waiting", "keep_waiting", "sample", "read_drawn", "update"],
    ),
    "looking ahead": (
        {"sampler": frb.Prioritized(), "transforms": frb.n_step(3, 0.9, **KEYS)},
        ["add_to_rings", "sample", "read_drawn", "update"],
    ),
    "frames": (
        {"sampler": frb.Prioritized(), "compact": STACKS},
        ["compare_frames", "add_with_frames", "store_frames", "sample_frames", "update"],
    ),
    "frames of slices": (
        {"sampler": frb.PrioritizedSlices(2, **ENDS), "compact": STACKS, "transforms": frb.n_step(2, 0.9, **KEYS)},
        ["compare_frames", "add_with_frames", "store_frames", "draw_slices", "read_drawn", "update"],
    ),
}


class Traced(emulated_gpu.OnTheCpu):
    """One on which torch.compile records launches."""

    def traces(self, arrays: Any) -> bool:
        return True


def launched(name: str, *given: Any) -> Any:
    return custom_ops.launched(name, *given)


@pytest.fixture
def emulated() -> Iterator[emulated_gpu.Emulated]:
    """Launches where torch's operations are on the CPU, also of what has a kernel of the CPU's own."""
    library = torch.library.Library("functional_rb", "IMPL")
    for name in custom_ops.LAUNCHED:
        library.impl(name, functools.partial(launched, name), "CPU", allow_override=True)
    try:
        with emulated_gpu.using("scattered", 4, 500) as found:
            TORCH.gpus = Traced()
            yield found
    finally:
        library._destroy()
        torch._dynamo.reset()


def step(state: Any, items: Any, mask: Any, key: torch.Tensor, priorities: torch.Tensor) -> tuple[Any, Any]:
    state, sample = rb.sample_(rb.add_(state, items, mask), key, 4)
    if state.spec.sampler.has_priorities:
        handles = sample.indices.reshape(-1)
        state = rb.update_(state, handles, priorities[: handles.shape[0]])
    return state, sample


def given(spec: frb.BufferSpec, seed: int) -> Any:
    make = torch.Generator().manual_seed(seed)
    lead = (4, LANES)
    items = {
        "x": torch.randn(*lead, 3, generator=make),
        "obs": torch.randint(0, 2, (*lead, 3, 2), generator=make, dtype=torch.uint8),
        "done": torch.rand(lead, generator=make) < 0.2,
    }
    mask = torch.rand(lead, generator=make) < 0.8 if seed else torch.ones(lead, dtype=torch.bool)
    return items, mask, rb.key(seed), torch.rand(8, generator=make)


def bits(nest: Any) -> list[bytes]:
    return [programs.bits(x) for x in pytree.tree_leaves(nest) if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("name", effort(["epochs", "frames of slices", "queue"], [*SPECS]))
def test_a_compiled_step_is_launches_alone(name: str, emulated: emulated_gpu.Emulated) -> None:
    """Without a break in the graph; the state and samples are those of the CPU's eager functions."""
    more, kernels = SPECS[name]
    spec = frb.BufferSpec(ITEM, 64 * LANES, lanes=LANES, **more)
    compiled = torch.compile(lambda *args: step(*args), fullgraph=True, backend="aot_eager")
    state, told = rb.own_(rb.init(spec)), []
    for seed in range(3):
        emulated.note()
        emulated.launched.clear()
        state, sample = compiled(state, *given(spec, seed))
        told.append(bits(sample))
        emulated.note()
        names = [name for name, _ in emulated.launched if name != "rank_in_rings"]
    assert names == kernels
    TORCH.gpus = None
    eager = rb.init(spec)
    for seed in range(3):
        eager, sample = step(eager, *given(spec, seed))
        assert told[seed] == bits(sample)
    assert programs.peek(state) == programs.peek(eager)


def test_operations_are_as_torch_asks(emulated: emulated_gpu.Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once: the same shapes while tracing, and what is said to change is all that does."""
    found: dict[str, Any] = {}
    carry_out = custom_ops.launched

    def noted(name: str, *args: Any) -> Any:
        found.setdefault(name, pytree.tree_map_only(torch.Tensor, torch.clone, args))
        return carry_out(name, *args)

    monkeypatch.setattr(custom_ops, "launched", noted)
    alone = "epochs of slices", "epochs", "epochs in order", "queue", "limits", "each once"
    for name in ("waiting", "frames of slices", *alone):
        spec = frb.BufferSpec(ITEM, 64 * LANES, lanes=LANES, **SPECS[name][0])
        items, mask, *_ = given(spec, 1)
        leaves = [items[leaf].flatten(0, 1) for leaf in spec.plan.names]
        arrays = functions.init(torch_ops, spec)
        arrays = custom_ops.ON_GPU[functions.add](arrays, spec, leaves, len(leaves[0]), mask.flatten(), None)
        words = torch.full(spec.draw_shape(4), 2**30, dtype=torch.int32)
        with using(custom_ops.ON_GPU):
            functions.draw(torch_ops, arrays, spec, words, torch.tensor(0.4), 4)
    assert found.keys() == {"add_to_rings", "draw", "read_drawn", *custom_ops.KEEPING}
    for name, args in found.items():
        operation = getattr(torch.ops.functional_rb, name).default
        assert set(torch.library.opcheck(operation, args).values()) == {"SUCCESS"}, name


def test_what_programs_read_later_a_draw_does_not_read() -> None:
    """The slots alone are told, of which a launch of its own reads the leaves."""
    spec = frb.BufferSpec(ITEM, 8, frb.Prioritized(replacement=False))
    words = torch.full(spec.draw_shape(2), 2**30, dtype=torch.int32)
    with emulated_gpu.using("forward") as emulated:
        kernel = native_launches.choose(functions.init(torch_ops, spec), spec, words, None, torch.tensor(0.4), 2)
        assert kernel is not None
        launches.launched(kernel)
    assert [name for name, _ in emulated.launched] == ["arrive"]
