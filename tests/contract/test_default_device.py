"""Where torch's tensors go that no device was named for: the state's device, or torch's default one.

The device "meta" stands in for an accelerator: it computes shapes and devices alone, on any machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb

ITEM = {"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32"), "done": frb.Binary(())}
SAMPLERS = [frb.Uniform(), frb.Prioritized(alpha=0.7), frb.WithoutReplacement(), frb.Slices(4, end_keys=("done",))]


def items(n: int) -> dict[str, np.ndarray]:
    number = np.arange(n, dtype=np.int32)
    return {"x": np.repeat(number[:, None], 3, 1).astype(np.float32), "n": number, "done": number % 5 == 4}


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_arrays_of_numpy_and_of_the_cpu_go_where_the_state_is(sampler: frb.Sampler) -> None:
    state = rb.init(frb.BufferSpec(ITEM, 16, sampler), device="meta")
    of_cpu = {name: torch.from_numpy(leaf) for name, leaf in items(5).items()}
    prioritized = isinstance(sampler, frb.Prioritized)
    given = np.ones(5, np.float32) if prioritized else None
    state = rb.add(state, items(5), np.arange(5) > 2, given)
    state = rb.add(rb.add(state, of_cpu), {"x": np.zeros(3, np.float32), "n": 3, "done": False})
    state, drawn = rb.sample(state, rb.key(0), 8)
    state = rb.update(state, np.arange(5), given, {"n": np.zeros(5, np.int32)})
    state = rb.update_(rb.add_(state, items(5)), torch.arange(5), items={"x": np.zeros((5, 3), np.float32)})
    found = (rb.get(state, np.arange(3)), rb.is_live(state, np.arange(3)), rb.can_sample(state, 3), drawn, state.rows)
    assert {leaf.device.type for leaf in torch.utils._pytree.tree_leaves(found) if leaf is not None} == {"meta"}


def test_states_and_samples_are_on_the_default_device(tmp_path: Path) -> None:
    spec = frb.BufferSpec(ITEM, 16)
    state = rb.add(rb.init(spec), items(5))
    saved = rb.state_dict(state)
    frb.save(state, tmp_path / "saved")
    with torch.device("meta"):
        for storage in (frb.Host(), frb.Memmap(tmp_path / "mapped")):
            assert str(rb.init(frb.BufferSpec(ITEM, 16, storage=storage))._target) == "meta"
        shared = rb.init(frb.BufferSpec(ITEM, 16, storage=frb.Memmap(shared=True)))
        assert str(rb.size(rb.add(shared, items(2))).device) == "meta"
        for made in (rb.init(spec), rb.load_state_dict(spec, saved), frb.load(tmp_path / "saved", rb)):
            assert str(made.rows.device) == "meta"
        assert str(frb.load(tmp_path / "saved", rb, device="cpu").rows.device) == "cpu"
    assert rb.init(frb.BufferSpec(ITEM, 16, storage=frb.Host()))._target is None
