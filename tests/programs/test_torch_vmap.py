"""`torch.func.vmap` over stacks of states, and over keys: what each row gives alone, or an error of ours."""

from __future__ import annotations

import functools
import importlib
import itertools
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import functional_rb as frb
from tests.support import lives
from tests.support.backends import Backend
from tests.support.members import BATCH, MEMBERS, Member

rb: Any = importlib.import_module("torch_backend")
BACKEND = Backend("torch", rb, torch.from_numpy, lambda x: x.numpy())


def filled(spec: frb.BufferSpec) -> list[Any]:
    """States with something to draw."""
    state, states = lives.begin(BACKEND, spec), []
    for k, given in enumerate(itertools.islice(lives.inputs(spec), 2)):  # as many as fit into a queue
        if not isinstance(spec.writer, frb.Immutable):
            state = BACKEND.add(state, given.items, given.mask, key=lives.keys(BACKEND, k)[0])
        states.append(state)
    return states


def drawn(times: int, state: Any, key: Any) -> list[torch.Tensor]:
    """What draws give, of which later ones show what the sampler remembers."""
    handles = []
    for _ in range(times):
        state, sample = rb.sample(state, key, BATCH)
        handles.append(sample.indices)
    return handles


def mapped(function: Any, keys: Any) -> list[torch.Tensor] | str:
    """What a function gives for each key, or the error."""
    try:
        rows: list[torch.Tensor] = torch.func.vmap(function)(keys)
    except TypeError as error:
        return str(error)
    return rows


@pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
def test_draws_from_stacks_and_by_several_keys(member: Member) -> None:
    states = filled(member.spec)
    keys = rb.split(rb.key(0), len(states))
    left = [rb.can_sample(rb.sample(state, key, BATCH)[0], BATCH) for state, key in zip(states, keys, strict=True)]
    draw = functools.partial(drawn, 2 if all(left) else 1)
    each = list(map(draw, states, keys))
    stack = pytree.tree_map(lambda *leaves: torch.stack(leaves), *states)
    for found, *wanted in zip(torch.func.vmap(draw)(stack, keys), *each, strict=True):
        assert found.tolist() == [handles.tolist() for handles in wanted]
    by_key = functools.partial(draw, states[0])
    found = mapped(by_key, keys)
    if isinstance(found, str):
        assert member.spec.sampler.remembers, found
        assert "torch.vmap cannot write to one buffer" in found
    else:  # a sampler whose draws no key changes, or that remembers a few numbers, of which each row has its own
        for rows, *wanted in zip(found, *map(by_key, keys), strict=True):
            assert rows.tolist() == [handles.tolist() for handles in wanted]
    assert torch.equal(by_key(keys[0])[0], each[0][0])  # an error has changed nothing
