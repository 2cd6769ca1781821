"""Which memory of torch's compiled kernels work on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb
from torch_backend.memory.library import TORCH

SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement(), frb.Slices(2)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_no_kernel_works_on_a_state_of_which_an_array_lies_elsewhere(sampler: Any) -> None:
    item = {"x": frb.Unbounded((3,)), "done": frb.Binary()}
    state = rb.init(frb.BufferSpec(item, 16, sampler))
    state = rb.add(state, {"x": np.zeros((5, 3), np.float32), "done": np.zeros(5, bool)})
    leaves, outline = pytree.tree_flatten(state)
    for k in range(len(leaves)):
        moved = [leaf.to("meta") if place == k else leaf for place, leaf in enumerate(leaves)]
        assert not TORCH.standing_in(pytree.tree_unflatten(moved, outline)._version.own())
