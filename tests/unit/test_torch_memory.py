"""Which memory of torch's compiled kernels work on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
import torch_backend as rb

SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement(), frb.Slices(2)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_no_kernel_works_on_a_state_of_which_an_array_lies_elsewhere(sampler: Any) -> None:
    """It is torch that refuses it, if it needs the array."""
    item = {"x": frb.Unbounded((3,)), "done": frb.Binary()}
    batch, handles = {"x": torch.zeros(5, 3), "done": torch.zeros(5, dtype=torch.bool)}, torch.arange(3).int()
    state = rb.add(rb.init(frb.BufferSpec(item, 16, sampler)), batch)
    leaves, outline = pytree.tree_flatten(state)
    refused = 0
    for k in range(len(leaves)):
        moved = [leaf.to("meta") if place == k else leaf for place, leaf in enumerate(leaves)]
        for function, *given in ((rb.add, batch), (rb.sample, rb.key(0), 4), (rb.get, handles)):
            try:
                function(pytree.tree_unflatten(moved, outline), *given)
            except RuntimeError as error:
                assert "is not on the expected device" in str(error)
                refused += 1
    assert refused > len(leaves)
