"""Containers that a library has registered, where that library is not in use."""

from __future__ import annotations

import collections
import dataclasses

import jax
import pytest

import functional_rb as frb
import torch_backend as rb
from functional_rb.base import containers


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Step:
    obs: object


def test_dicts_stand_for_what_a_library_that_is_not_in_use_has_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    scalar = frb.Unbounded(())
    item = {"step": Step({"x": scalar}), "ordered": collections.OrderedDict(b=scalar, a=scalar)}
    state = rb.init(frb.BufferSpec(item, 4))
    assert type(rb.items(state)["step"]) is Step
    for library in ("jax", "torch"):
        monkeypatch.delitem(containers.LIBRARIES, library)
    found = rb.items(state)
    assert type(found["step"]) is type(found["step"]["obs"]) is dict
    assert found["step"]["obs"]["x"].shape == (4,)
    assert type(found["ordered"]) is collections.OrderedDict
