"""What goes to a GPU in one copy: tensors of torch side by side, and of JAX each frame of a stack once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend as rb
from jax_backend.engines import shipping as jax_shipping
from tests.support.backends import needs_native
from tests.support.frame_stacks import STACKS, steps_of_stacks
from torch_backend.memory import shipping

TENSORS = [
    torch.arange(7, dtype=torch.int32),
    torch.rand(3, 5),
    torch.zeros(0, 4),
    torch.tensor(2.5),
    torch.rand(4, 6)[:, ::2],
    torch.arange(5) % 2 == 0,
    torch.rand(3).to(torch.bfloat16),
    torch.ones(300, 2, dtype=torch.uint8),
]


def test_what_lies_side_by_side_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its dtype and strides; and no tensor overlaps another."""
    empty, made = torch.empty, list[torch.Tensor]()

    def unpinned(*sizes: Any, pin_memory: bool, device: str, **given: Any) -> torch.Tensor:
        assert pin_memory
        assert device == "cpu"  # whatever torch's default is
        made.append(empty(*sizes, **given))
        return made[-1]

    monkeypatch.setattr(torch, "empty", unpinned)
    found = shipping._copied(TENSORS, torch.device("cpu"))
    assert len(made) == 1
    for before, after in zip(TENSORS, found, strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)
        assert after.is_contiguous()


def test_what_is_no_tensor_stays_and_tensors_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the CPU are packed, together; on the way to the CPU none is."""
    packed: list[list[torch.Tensor]] = []

    def copied(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        packed.append(tensors)
        return [torch.empty_like(x, device="meta") for x in tensors]

    monkeypatch.setattr(shipping, "_copied", copied)
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *_, **__: x)
    twice, there = torch.rand(3), torch.empty(2, device="meta")
    given = [twice, "text", there, twice, torch.ones(2)]
    found = shipping.shipped(given, torch.device("cuda"))
    assert [[id(x) for x in each] for each in packed] == [[id(given[k]) for k in (0, 3, 4)]]
    assert [x if isinstance(x, str) else tuple(x.shape) for x in found] == [(3,), "text", (2,), (3,), (2,)]
    assert all(x.is_meta for x in found if isinstance(x, torch.Tensor))
    assert found[2] is there
    assert all(x is y for x, y in zip(shipping.shipped(given, torch.device("cpu")), given, strict=True))
    assert len(packed) == 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_one_copy_takes_all_of_them_to_a_gpu() -> None:
    given = [*TENSORS, "text", torch.ones(2, device="cuda")]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        found = shipping.shipped(given, torch.device("cuda"))
        torch.cuda.synchronize()
    copies = [event for event in profiler.events() if "HtoD" in event.name]
    assert len(copies) == 1
    assert found[-2:] == given[-2:]
    for before, after in zip(TENSORS, found[:-2], strict=True):
        assert after.is_cuda
        assert torch.equal(before, after.cpu())


@needs_native  # the core reads stacks with the rest of the items
@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("target", ["cpu", None])
@pytest.mark.parametrize("in_place", [False, True])
def test_jax_frames_are_sent_once_each(
    name: str, target: str | None, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, compact = STACKS[name]
    spec = frb.BufferSpec({**item, "reward": frb.Unbounded(())}, 60, storage=frb.Host(), compact=compact)
    put, frames = jax.device_put, list[int]()

    def noted(given: Any, device: Any) -> Any:
        if isinstance(given, tuple):
            frames.extend({len(x) for x in given[0]})
        return put(given, device)

    def sampled(batch: int) -> Any:
        state = rb.add(rb.init(spec, target), steps_of_stacks(item, compact.axis, 40))
        return (rb.sample_ if in_place else rb.sample)(state, rb.key(0), batch)[1]

    monkeypatch.setattr(jax_shipping.jax, "device_put", noted)
    expected = sampled(64)
    assert not frames
    monkeypatch.setattr(jax_shipping, "GPUS", {jax.devices()[0].platform})
    found = sampled(64)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(one, jax.Array)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    # Of the 44 frames that there are at most, not of those that 64 items or more name; up to a sixteenth more.
    depths = sorted({leaf.shape[compact.axis] for leaf in item.values()})
    named = [64 * depth * (2 if "next_obs" in item else 1) for depth in depths]
    assert len(frames) == len(depths)
    assert all(
        count <= 44 + -(-most // jax_shipping.PARTS) < most for count, most in zip(sorted(frames), named, strict=True)
    )


@needs_native
def test_jax_mixtures_of_frames_are_joined_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    item, compact = STACKS["of numbers"]
    spec = frb.BufferSpec({**item, "reward": frb.Unbounded(())}, 60, storage=frb.Host(), compact=compact)
    states = [rb.add(rb.init(spec), steps_of_stacks(item, compact.axis, 40)) for _ in range(2)]
    expected = rb.sample(frb.Mixture(states, [0.5, 0.5]), rb.key(1), 16)[1]
    monkeypatch.setattr(jax_shipping, "GPUS", {jax.devices()[0].platform})
    monkeypatch.setattr(jax_shipping, "stacked_there", None)
    found = rb.sample(frb.Mixture(states, [0.5, 0.5]), rb.key(1), 16)[1]
    assert np.array_equal(found.items["obs"], expected.items["obs"])
    assert np.array_equal(found.indices, expected.indices)
