"""Which memory of torch's compiled kernels work on."""

from __future__ import annotations

from collections.abc import Callable
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
    told = []
    for k in range(len(leaves)):
        moved = [leaf.to("meta") if place == k else leaf for place, leaf in enumerate(leaves)]
        for function, *given in ((rb.add, batch), (rb.sample, rb.key(0), 4), (rb.get, handles)):
            told.append(refusal(function, pytree.tree_unflatten(moved, outline), *given))
    refused = [message for message in told if message]
    assert all("is not on the expected device" in message for message in refused)
    assert len(refused) > len(leaves)


def refusal(function: Callable[..., Any], *given: Any) -> str:
    try:
        function(*given)
    except RuntimeError as error:
        return str(error)
    return ""
