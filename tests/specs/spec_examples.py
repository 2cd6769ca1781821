"""Specs, and what is done with them, that several tests of the static side of specs have."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import settings

import functional_rb as frb
from functional_rb.base import nest
from tests.support.effort import effort
from tests.support.grammar import Box, Data, Pair

# All public names that a spec may show.
NAMES = {name: getattr(module, name) for module in (frb, frb.specs) for name in module.__all__}
NAMESPACE = NAMES | {"inf": math.inf, "Pair": Pair, "Data": Data, "Box": Box}
U = frb.Unbounded
many = settings(max_examples=effort(50, 200))


def leaves_of(spec: Any) -> list[Any]:
    return nest.flatten(spec, lambda x: isinstance(x, frb.specs.ArraySpec | frb.specs.NonTensor))[0]


AGENTS = frb.specs.Stacked(
    [
        frb.Composite(obs=frb.Unbounded((3,)), id=frb.Categorical(2)),
        frb.Composite(obs=frb.Unbounded((5,)), id=frb.Categorical(2), gps=frb.Unbounded((2,))),
    ]
)


# --- what constructors refuse ---------------------------------------------------------------------------------------


def bfloat16(values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.bfloat16)
