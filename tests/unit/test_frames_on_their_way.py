"""Of stacks of frames in the host's memory JAX sends each frame once to a GPU, which makes the stacks."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import functional_rb as frb
import jax_backend as rb
from jax_backend.engines import shipping
from tests.support.backends import needs_native
from tests.support.frame_stacks import STACKS, steps_of_stacks

pytestmark = needs_native  # the core reads stacks with the rest of the items


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

    monkeypatch.setattr(shipping.jax, "device_put", noted)
    expected = sampled(64)
    assert not frames
    monkeypatch.setattr(shipping, "GPUS", {jax.devices()[0].platform})
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
        count <= 44 + -(-most // shipping.PARTS) < most for count, most in zip(sorted(frames), named, strict=True)
    )


def test_jax_mixtures_of_frames_are_joined_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    item, compact = STACKS["of numbers"]
    spec = frb.BufferSpec({**item, "reward": frb.Unbounded(())}, 60, storage=frb.Host(), compact=compact)
    states = [rb.add(rb.init(spec), steps_of_stacks(item, compact.axis, 40)) for _ in range(2)]
    expected = rb.sample(frb.Mixture(states, [0.5, 0.5]), rb.key(1), 16)[1]
    monkeypatch.setattr(shipping, "GPUS", {jax.devices()[0].platform})
    monkeypatch.setattr(shipping, "stacked_there", None)
    found = rb.sample(frb.Mixture(states, [0.5, 0.5]), rb.key(1), 16)[1]
    assert np.array_equal(found.items["obs"], expected.items["obs"])
    assert np.array_equal(found.indices, expected.indices)
